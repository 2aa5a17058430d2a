//! The role of the syncer: who acts, who stands by, and the beats by which they know each other. Safety rests on none of this: two that act at
//! once waste work, and the log decides.

use super::duty::{Duty, next_look};
use super::run::{Cards, Desk, Next, Syncer, lock};
use crate::bucket::record::{Beat, Body, FORMAT, IslandState};
use crate::clock::{self, Duration, Instant};
use crate::error::Result;
use futures::future::join_all;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Cards that are read at once.
const READS_MAX: usize = 16;
/// Beats that an acting syncer may miss before another takes the role.
const MISSED_BEATS: u32 = 5;

/// What the beat says of this syncer, and what it is judged by.
#[derive(Debug, Default)]
pub(super) struct Office {
    acting: Mutex<Option<u64>>,
    owes: AtomicBool,
    moved: AtomicU64,
}

impl Office {
    /// The term in which this syncer acts; none while it stands by.
    pub fn hold(&self, acting: Option<u64>) {
        *lock(&self.acting) = acting;
        if acting.is_none() {
            self.owes(false);
        }
    }

    /// Whether a round could be closed if it were not for work of this syncer's own.
    pub fn owes(&self, owes: bool) {
        self.owes.store(owes, Ordering::Relaxed);
    }

    /// A piece of work got done: something was fetched, merged, published or appended.
    pub fn moved(&self) {
        self.moved.fetch_add(1, Ordering::Relaxed);
    }
}

/// Beats until it is aborted. An acting syncer that neglects its duty misses its beats, so that one that stands by takes the role.
pub(super) async fn beat(desk: Arc<Desk>, office: Arc<Office>) {
    let mut duty = Duty::default();
    let mut neglects = false;
    for counter in 1u64.. {
        let done =
            duty.is_done(office.owes.load(Ordering::Relaxed), office.moved.load(Ordering::Relaxed), clock::now());
        if !done && !neglects {
            desk.sink.note(&desk.id, "gets nothing done, and leaves its role to another");
        }
        neglects = !done;
        if done {
            let acting = *lock(&office.acting);
            let beat = Beat { format: FORMAT, syncer: desk.id.clone(), counter, acting };
            // A beat that does not get through is missed, not repeated.
            let _ = clock::timeout(desk.beat_every * MISSED_BEATS, desk.bucket.put_beat(&beat)).await;
        }
        clock::sleep(desk.beat_every).await;
    }
}

/// An island's card as it was read last: life and counter, when they moved, when it was read.
struct Look {
    beat: (u64, u64),
    moved_at: Instant,
    at: Instant,
}

/// Reads all islands' heartbeats, again and again, those that are silent ever more rarely, and the newest life of each whose life has changed.
pub(super) async fn watch_islands(desk: Arc<Desk>, cards: Cards, incarnations: Arc<Mutex<BTreeMap<String, u64>>>) {
    let mut looks: BTreeMap<String, Look> = BTreeMap::new();
    loop {
        let now = clock::now();
        let mut names = desk.bucket.islands().await.unwrap_or_default();
        names.retain(|name| looks.get(name).is_none_or(|look| now - look.at >= next_look(now - look.moved_at)));
        for batch in names.chunks(READS_MAX) {
            let read = join_all(batch.iter().map(|name| desk.bucket.card(name))).await;
            for (name, card) in batch.iter().zip(read) {
                let look = looks.entry(name.clone()).or_insert(Look { beat: (0, 0), moved_at: now, at: now });
                look.at = now;
                let Ok(Some(card)) = card else { continue };
                if look.beat != (card.incarnation, card.counter) {
                    (look.beat, look.moved_at) = ((card.incarnation, card.counter), now);
                }
                let training = card.state == IslandState::Training;
                let seen = (card.incarnation, card.counter, training, f64::from(card.step_ms));
                let before = lock(&cards).insert(name.clone(), seen);
                if before.is_none_or(|b| b.0 != card.incarnation)
                    && let Ok(newest) = desk.bucket.newest_incarnation(name).await
                {
                    lock(&incarnations).insert(name.clone(), newest);
                }
            }
        }
        clock::sleep(desk.beat_every).await;
    }
}

impl Syncer {
    /// Watches the acting syncer; takes the role when there is none or its beat has stopped.
    pub(super) async fn stand_by(&mut self) -> Result<Next> {
        let desk = self.desk.clone();
        let now = clock::now();
        // Nobody has the role yet: a syncer takes it at once, one beside an island leaves it to a syncer first.
        let (acting, counter) = match self.ledger().acting.clone() {
            Some(acting) => {
                let counter = desk.bucket.beat(&acting).await?.map_or(0, |b| b.counter);
                (acting, counter)
            }
            None => (String::new(), 0),
        };
        if self.watched.as_ref().is_none_or(|(id, c, _)| (id, *c) != (&acting, counter)) {
            self.watched = Some((acting.clone(), counter, now));
        }
        let quiet = self.watched.as_ref().map_or(Duration::ZERO, |(_, _, at)| now - *at);
        let silent = quiet > desk.beat_every * MISSED_BEATS || (acting.is_empty() && desk.eager);
        if silent {
            let term = self.ledger().term + 1;
            if self.append(Body::Term { number: term }, term).await? {
                desk.sink.note(&desk.id, format!("acts as the syncer of term {term}"));
                self.watched = None;
                return Ok(Next::Again(Duration::ZERO));
            }
        }
        Ok(Next::Again(desk.beat_every / 2))
    }
}
