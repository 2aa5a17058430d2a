//! What a role says about itself while it works: the observable output of the system. A role under a supervisor writes events as JSON lines on
//! standard output; a role in the same process sends them through a channel; tests read them. Events never hold secrets.

use crate::bucket::record::IslandState;
use serde::{Deserialize, Serialize};
use std::io::Write;
use tokio::sync::mpsc::Sender;

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// How an island stands; a few times a second.
    Island {
        /// Island.
        island: String,
        /// What it is doing.
        state: IslandState,
        /// Inner steps over all lives.
        step: u64,
        /// Tokens over all lives.
        tokens: u64,
        /// Training loss, smoothed.
        loss: Option<f32>,
        /// Tokens per second, smoothed.
        tokens_per_s: f32,
        /// Newest round taken in.
        adopted: Option<u64>,
        /// Share of its time that it was not stepping.
        wait_ratio: f32,
        /// Seconds of this life in the training loop.
        train_seconds: f32,
    },
    /// Something worth a line: an offer refused, a role taken, a store that does not answer.
    Note {
        /// Who says it.
        who: String,
        /// The line.
        text: String,
    },
}

/// Where events go.
#[derive(Debug, Clone)]
pub enum Sink {
    /// JSON lines on standard output, for a supervisor.
    Lines,
    /// Notes in plain words on standard error, for a person who runs one role by hand.
    Words,
    /// A channel of this process; an event that finds it full is dropped.
    Channel(Sender<Event>),
    /// Nowhere.
    Null,
}

impl Sink {
    /// Sends an event. Never blocks on a slow reader for longer than one line takes.
    pub fn emit(&self, event: Event) {
        match self {
            Sink::Lines => {
                let line = serde_json::to_string(&event).expect("events serialise");
                // A supervisor that is gone shows as a closed pipe; the role notices by itself and events no longer matter.
                let _ = writeln!(std::io::stdout().lock(), "{line}");
            }
            Sink::Words => match event {
                Event::Note { who, text } => eprintln!("{who}: {text}"),
                Event::Island { island, step, loss: Some(loss), tokens_per_s, .. } if step % 50 == 0 => {
                    eprintln!("{island}: step {step}, loss {loss:.3}, {tokens_per_s:.0} tokens/s");
                }
                Event::Island { .. } => {}
            },
            Sink::Channel(sender) => {
                let _ = sender.try_send(event);
            }
            Sink::Null => {}
        }
    }

    /// Sends a note.
    pub fn note(&self, who: &str, text: impl Into<String>) {
        self.emit(Event::Note { who: who.to_string(), text: text.into() });
    }
}
