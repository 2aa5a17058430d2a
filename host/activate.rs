//! Whether a policy fits a run, and switching to it while the run goes on. No process needs to be told: the switch is an entry of the log, and whoever reads it
//! follows from its round on.
//!
//! A crash at any point leaves the switch written or not; the component lies in the bucket before any entry names it.

use crate::bucket::record::{Activate, Body, Entry, FORMAT, PolicyUse, RunRecord};
use crate::bucket::{Bucket, Created, OuterState, Tail, Vector, unfit};
use crate::error::{Error, Kind, Result};
use crate::nonce::nonce;
use crate::outer::{Fragments, norm};
use crate::policy::{self, Codec, Contribution, Pace, Policy, Role, Round, Runtime, admit};
use crate::spec::Spec;
use crate::syncer::{RoundInput, merge_round};
use std::sync::Arc;
use tombolo_engine::Layout;

/// Entries of others that may come first before a switch is given up.
const TRIES_MAX: usize = 1000;

/// A switch that is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Switch {
    /// Index of its log entry.
    pub seq: u64,
    /// The first round in which the policy fills its role.
    pub from_round: u64,
}

/// The layout and the fragments of the run that has this record.
///
/// # Errors
/// Invalid: this version would not have made it.
pub fn shape(record: &RunRecord) -> Result<(Layout, Fragments)> {
    record.spec.check("run.json")?;
    let layout = Layout::of(&record.spec.model_config());
    let fragments = Fragments::partition(&layout, record.spec.outer.fragments)?;
    if fragments.fingerprint() != record.layout || fragments.count() != record.fragments {
        return Err(Error::invalid(format!(
            "run {}: its model's layout is {}, this version of tombolo makes {} of its spec; use the version that made the run",
            record.spec.run,
            record.layout,
            fragments.fingerprint()
        )));
    }
    Ok((layout, fragments))
}

/// Holds that a component keeps the contract of `role` under `config`; speeds are not measured.
///
/// # Errors
/// Invalid, with the property that does not hold and the first counterexample; unavailable where this machine fails.
pub fn require_admission(name: &str, policy: &Policy, role: Role, config: &str) -> Result<()> {
    let failed = |e: policy::Error| match e.is_of_host() {
        true => Error::unavailable(format!("{name}: cannot be examined here")).because(e),
        false => Error::invalid(format!("{role}.policy: {name}")).because(e),
    };
    match admit(policy, role, config.as_bytes(), None).map_err(failed)?.refusal() {
        None => Ok(()),
        Some(refusal) => Err(Error::invalid(format!(
            "{role}.policy: {name}: {refusal}; `tombolo policy check {name}` shows what it passes"
        ))),
    }
}

/// Tries a policy on the tensors of a run: what it says to its configuration and to this model now, islands and syncers would find out later.
///
/// # Errors
/// Invalid: it does not do its work.
pub fn try_on(role: Role, policy: &Policy, config: &str, spec: &Spec, fragments: &Fragments) -> Result<()> {
    match role {
        Role::Codec => (0..fragments.count()).try_for_each(|p| {
            Codec::open(policy, config.as_bytes(), &fragments.policy_tensors(p))
                .map(|_| ())
                .map_err(|e| unfit(format!("codec: the policy does not accept its configuration or fragment {p}"), e))
        }),
        Role::Merge => try_merge(policy, config, spec, fragments),
        Role::Pace => Pace::open(policy, config.as_bytes())
            .map(|_| ())
            .map_err(|e| unfit("pace: the policy does not accept its configuration", e)),
    }
}

/// What whoever pairs this policy with a run of `spec` should be told of how it was tuned, if anything; a warning, no refusal.
pub fn untuned(role: Role, policy: &PolicyUse, spec: &Spec) -> Option<String> {
    let hash = policy.hash.parse().ok().filter(|_| role == Role::Merge)?;
    policy::untuned(hash, &policy.name, &policy.config, spec.outer.sync_steps as u64)
}

/// Merges made-up offers of the smallest fragment: one, and as many as the run has islands.
fn try_merge(policy: &Policy, config: &str, spec: &Spec, fragments: &Fragments) -> Result<()> {
    let p = (0..fragments.count()).min_by_key(|&p| fragments.elements(p)).expect("there is a fragment");
    let (tensors, state) = (fragments.policy_tensors(p), OuterState::default());
    let values = vec![1e-3; fragments.elements(p)];
    let (length, values) = (norm(&values), Arc::new(Vector::from(values)));
    let contribution = |island: usize| {
        let island = format!("island-{island:03}");
        (Contribution { island, tokens: 1, steps: 1, staleness: 0, norm: length }, values.clone())
    };
    let input = |islands: usize| RoundInput {
        round: Round {
            index: (fragments.count() + p) as u64,
            fragment: p as u32,
            version: 0,
            tokens_merged: 0,
            token_budget: spec.tokens,
        },
        tensors: &tensors,
        contributions: (0..islands).map(contribution).collect(),
        parameters: &values,
        state: &state,
    };
    for islands in [1, spec.islands] {
        merge_round(policy, config.as_bytes(), &input(islands), 1, &|| ()).map_err(|e| {
            let offers = if islands == 1 { "one offer".into() } else { format!("{islands} offers") };
            let what = format!("merge: the policy does not merge {offers} with its configuration");
            let of_host = e.kind() == Kind::Unavailable;
            if of_host { Error::unavailable(what).because(e) } else { Error::invalid(what).because(e) }
        })?;
    }
    Ok(())
}

/// Holds that the component `policy.hash`, which lies in the bucket, fits the run: its role, the contract under its
/// configuration (as [`canonical`](crate::bucket::policy::canonical) makes it), the run's tensors.
///
/// # Errors
/// Invalid: what does not fit. Corrupt: it is not in the bucket, or not itself. Unavailable.
pub async fn require_fit(
    bucket: &Bucket,
    record: &RunRecord,
    fragments: &Fragments,
    runtime: &Runtime,
    role: Role,
    policy: &PolicyUse,
) -> Result<()> {
    let PolicyUse { name, hash, config } = policy;
    let wasm = bucket.policies().component(hash).await?;
    let loaded = runtime.load(&wasm).map_err(|e| unfit(format!("policy {name} ({hash})"), e))?;
    require_admission(name, &loaded, role, config)?;
    try_on(role, &loaded, config, &record.spec, fragments)
}

/// Appends the switch to the log: from round `from_round` on, or as soon as nobody is under way with another policy any more. Fitness is for the caller
/// to see to ([`require_fit`]).
///
/// # Errors
/// Invalid: the run has ended or not begun, the round has passed, or too many switches lie ahead. Unavailable; whether the switch was written then shows
/// `tombolo status`.
pub async fn activate(
    bucket: &Bucket,
    record: &RunRecord,
    role: Role,
    policy: &PolicyUse,
    from_round: Option<u64>,
) -> Result<Switch> {
    let run = &record.spec.run;
    let mut tail = Tail::of(bucket, record).await?;
    let writer = format!("operator-{}", &nonce()[..8]);
    let nonce = nonce();
    for _ in 0..TRIES_MAX {
        tail.advance(bucket, usize::MAX).await?;
        let ledger = &tail.ledger;
        // The first round that nobody can be under way with yet, whatever the role: all see one switch.
        let next = ledger.open_rounds().end;
        let from_round = from_round.unwrap_or(next);
        if from_round < next && ledger.stopped.is_none() {
            return Err(Error::invalid(format!(
                "from-round: expected {next} or later, since earlier rounds of run {run} are closed or open; found {from_round}"
            )));
        }
        let activate = Activate { role, policy: policy.clone(), from_round, failed: None };
        let seq = ledger.next;
        let entry = Entry {
            format: FORMAT,
            seq,
            nonce: nonce.clone(),
            writer: writer.clone(),
            term: ledger.term,
            body: Body::Activate(Box::new(activate)),
        };
        ledger.check(seq, &entry).map_err(|violation| {
            Error::invalid(format!("run {run}: the switch does not fit into its log")).because(violation)
        })?;
        if bucket.append(&entry).await? == Created::Mine {
            return Ok(Switch { seq, from_round });
        }
    }
    Err(Error::unavailable(format!("run {run}: others wrote {TRIES_MAX} log entries first; try again")))
}
