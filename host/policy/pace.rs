//! A pace at work: should the round be closed now?

use std::time::Duration;

use super::bindings::pace::exports::tombolo::policy::pace as wit;
use super::bindings::types;
use super::instance::Instance;
use super::{Contribution, Policy, Result};

/// Longest that a pace may ask to wait before it is asked again.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// What the syncer knows of a round at this moment.
#[derive(Debug, Clone, PartialEq)]
pub struct View {
    /// Index of the round.
    pub round: u64,
    /// Time since the round's first offer was seen.
    pub waited: Duration,
    /// Islands whose heartbeat moves.
    pub islands_live: u32,
    /// Offers that a round needs.
    pub quorum: u32,
    /// Offers seen so far.
    pub offers: Vec<Contribution>,
    /// Moving average of an inner step, in milliseconds; 0 while unknown.
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
    /// Ask again after at most this long, or when an offer comes.
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
    /// Sets a pace up with its configuration (JSON; empty for the defaults).
    ///
    /// Errors: the policy is no pace, or does not take the configuration.
    pub fn open(policy: &Policy, config: &[u8]) -> Result<Pace> {
        let pace = Pace { policy: policy.clone(), config: config.to_vec() };
        let empty = View {
            round: 0,
            waited: Duration::ZERO,
            islands_live: 0,
            quorum: 1,
            offers: Vec::new(),
            step_ms: 0.0,
            quorum_ms: 0.0,
            sync_ms: 0.0,
            overlap_steps: 0,
        };
        pace.decide(&empty)?;
        Ok(pace)
    }

    /// Decides on `view`. A wait is cut to a minute.
    ///
    /// Errors: a failure of the policy.
    pub fn decide(&self, view: &View) -> Result<Decision> {
        let pre = self.policy.pace()?;
        let mut instance = Instance::new(&self.policy, |store| pre.instantiate(store))?;
        let listed = wit::View {
            round: view.round,
            waited_ms: u64::try_from(view.waited.as_millis()).unwrap_or(u64::MAX),
            islands_live: view.islands_live,
            quorum: view.quorum,
            offers: view.offers.iter().map(types::Contribution::from).collect(),
            step_ms: view.step_ms,
            quorum_ms: view.quorum_ms,
            sync_ms: view.sync_ms,
            overlap_steps: view.overlap_steps,
        };
        let values = self.config.len() + view.offers.len();
        let decision = instance.call("decide", values as u64, 0, |store, pace| {
            pace.tombolo_policy_pace().call_decide(store, &self.config, &listed)
        })?;
        Ok(match decision {
            wit::Decision::Wait(milliseconds) => Decision::Wait(Duration::from_millis(milliseconds).min(WAIT_MAX)),
            wit::Decision::Close => Decision::Close,
        })
    }
}
