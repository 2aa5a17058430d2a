//! A pace at work: should the round be closed now?

use std::time::Duration;

use super::bindings::pace::exports::tombolo::policy::pace as wit;
use super::bindings::types;
use super::instance::Instance;
use super::{Contribution, Policy, Result};

/// Longest that a pace may ask to wait before it is asked again.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// How long after quorum an island's offers came: moving averages, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lag {
    /// Mean.
    pub mean_ms: f32,
    /// Mean deviation from it.
    pub deviation_ms: f32,
}

/// A live island: its heartbeat moves and says that it trains.
#[derive(Debug, Clone, PartialEq)]
pub struct Island {
    /// Its name.
    pub name: String,
    /// Whether it has not missed three rounds in a row.
    pub keeps_up: bool,
    /// Whether this round has nothing more to expect of it.
    pub answered: bool,
    /// None where it has not been merged in its present life.
    pub lag: Option<Lag>,
}

/// What the syncer knows of a round at this moment. The round has its quorum.
#[derive(Debug, Clone, PartialEq)]
pub struct View {
    /// Index of the round.
    pub round: u64,
    /// Time since the round had its quorum; a policy is told whole milliseconds.
    pub since_quorum: Duration,
    /// Offers that a round needs.
    pub quorum: u32,
    /// Offers that may be merged, in order of island.
    pub offers: Vec<Contribution>,
    /// The live islands, in order of name.
    pub islands: Vec<Island>,
    /// An inner step of the live islands, in milliseconds; 0 while unknown.
    pub step_ms: f32,
    /// Moving average of the time to reach quorum, in milliseconds; 0 while unknown.
    pub quorum_ms: f32,
    /// Moving average of merging and publishing, in milliseconds; 0 while unknown.
    pub sync_ms: f32,
    /// Inner steps that a round may take before an island would notice.
    pub overlap_steps: u32,
}

/// What to do with the round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Ask again after at most this long, or when there is something new to know.
    Wait(Duration),
    /// Merge what there is.
    Close,
}

/// A pace with its configuration. Every decision is made by a fresh instance.
#[derive(Debug, Clone)]
pub struct Pace {
    policy: Policy,
    config: Vec<u8>,
}

impl Pace {
    /// Sets a pace up with its configuration (JSON; empty for the defaults), and tries it.
    ///
    /// Errors: the policy is no pace, or does not take the configuration.
    pub fn open(policy: &Policy, config: &[u8]) -> Result<Pace> {
        let pace = Pace::untried(policy, config);
        let offer = Contribution { island: "island-0".into(), tokens: 1, steps: 1, staleness: 0, norm: 1.0 };
        let view = View {
            round: 0,
            since_quorum: Duration::ZERO,
            quorum: 1,
            offers: vec![offer],
            islands: vec![Island { name: "island-0".into(), keeps_up: true, answered: true, lag: None }],
            step_ms: 0.0,
            quorum_ms: 0.0,
            sync_ms: 0.0,
            overlap_steps: 0,
        };
        pace.decide(&view)?;
        Ok(pace)
    }

    /// A pace with its configuration, of which the first decision will show whether it takes it.
    pub fn untried(policy: &Policy, config: &[u8]) -> Pace {
        Pace { policy: policy.clone(), config: config.to_vec() }
    }

    /// Decides on `view`. A wait is cut to a minute.
    ///
    /// Errors: the policy is no pace, or fails.
    pub fn decide(&self, view: &View) -> Result<Decision> {
        let pre = self.policy.pace()?;
        let mut instance = Instance::new(&self.policy, |store| pre.instantiate(store))?;
        let listed = wit::View {
            round: view.round,
            since_quorum_ms: u64::try_from(view.since_quorum.as_millis()).unwrap_or(u64::MAX),
            quorum: view.quorum,
            offers: view.offers.iter().map(types::Contribution::from).collect(),
            islands: view.islands.iter().map(listed).collect(),
            step_ms: view.step_ms,
            quorum_ms: view.quorum_ms,
            sync_ms: view.sync_ms,
            overlap_steps: view.overlap_steps,
        };
        let values = self.config.len() + view.offers.len() + view.islands.len();
        let decision = instance.call("decide", values as u64, 0, |store, pace| {
            pace.tombolo_policy_pace().call_decide(store, &self.config, &listed)
        })?;
        Ok(match decision {
            wit::Decision::Wait(milliseconds) => Decision::Wait(Duration::from_millis(milliseconds).min(WAIT_MAX)),
            wit::Decision::Close => Decision::Close,
        })
    }
}

fn listed(island: &Island) -> wit::Island {
    wit::Island {
        name: island.name.clone(),
        keeps_up: island.keeps_up,
        answered: island.answered,
        lag: island.lag.map(|lag| wit::Lag { mean_ms: lag.mean_ms, deviation_ms: lag.deviation_ms }),
    }
}
