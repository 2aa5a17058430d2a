//! A merge rule at work: one round of one fragment, chunk by chunk, on several threads.
//!
//! The data stays with the caller, behind [`MergeSource`]; what is held here is one chunk of everything per thread. One instance a thread goes through
//! `open`, `plan`, the observing passes, `step` and `close`; threads take the next chunk when they are done with one. No bit of the result depends on who took which:
//! a chunk's answer depends on the chunk alone, blobs of a pass are handed on in chunk order, and what must be equal in all instances (plan and memo) is compared.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use serde::{Deserialize, Serialize};
use tombolo_engine::first_not_finite;
use wasmtime::component::{Func, ResourceAny};

use super::bindings::merge::{MergePolicy, exports::tombolo::policy::merge as wit};
use super::bindings::types;
use super::instance::{Instance, nonsense};
use super::{At, Error, Policy, Result, Role, Tensor, chunks};

/// Observing passes of a plan.
const PASSES_MAX: u32 = 4;
/// Vectors of state of a plan.
const STATE_SLOTS_MAX: usize = 8;
/// Bytes that `close` may ask to remember.
const MEMO_BYTES_MAX: usize = 64 << 10;
/// Bytes that a pass may remember of one chunk, and of all.
const BLOB_BYTES_MAX: usize = 64 << 10;
const PASS_BYTES_MAX: usize = 16 << 20;

/// Which round is merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Round {
    /// Rounds of the run before this one.
    pub index: u64,
    /// Fragment that is merged.
    pub fragment: u32,
    /// Merges of this fragment before this round.
    pub version: u64,
    /// Tokens merged into the model before this round.
    pub tokens_merged: u64,
    /// Tokens after which the run ends; 0: no such budget.
    pub token_budget: u64,
}

/// What is known of one island's offer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Contribution {
    /// Name of the island.
    pub island: String,
    /// Tokens trained on since the island last adopted the fragment.
    pub tokens: u64,
    /// Inner steps over the same span.
    pub steps: u32,
    /// Versions of the fragment committed since the one that the offer starts from.
    pub staleness: u32,
    /// L2 norm of the pseudo-gradient over the whole fragment.
    pub norm: f32,
}

/// A chunk of values, lent where it lies: a slice, or a guard that gives one.
pub type Lent<'a> = Box<dyn Deref<Target = [f32]> + 'a>;

/// The fragment's data, where the caller keeps it. Called from several threads at once, for different chunks; a chunk is stored once, after it was lent for
/// the last time and given back.
///
/// What is not in memory is read into `room`, which has the chunk's length, and lent there.
pub trait MergeSource: Sync {
    /// Vectors of optimiser state that this fragment has; what the policy plans beyond them reads as zero.
    fn state_slots(&self) -> usize;

    /// The chunk at `at` of a contribution's pseudo-gradient (base − trained).
    fn values<'a>(&'a self, contribution: usize, at: At, room: &'a mut [f32]) -> std::result::Result<Lent<'a>, String>;

    /// The chunk at `at` of a vector of state, one of [`state_slots`](MergeSource::state_slots).
    fn state<'a>(&'a self, slot: usize, at: At, room: &'a mut [f32]) -> std::result::Result<Lent<'a>, String>;

    /// The chunk at `at` of the fragment's parameters before the round.
    fn parameters<'a>(&'a self, at: At, room: &'a mut [f32]) -> std::result::Result<Lent<'a>, String>;

    /// Takes the chunk at `at` after the round: parameters and one list per planned slot of state, to keep or to copy.
    fn store(&self, at: At, parameters: Vec<f32>, state: Vec<Vec<f32>>) -> std::result::Result<(), String>;
}

/// What a merge leaves beside the stored chunks.
#[derive(Debug, Clone, PartialEq)]
pub struct Merged {
    /// Weight of each contribution, in the order given; 0 is left out.
    pub weights: Vec<f32>,
    /// Vectors of state that the fragment has now.
    pub state_slots: usize,
    /// To be handed in at this fragment's next round.
    pub memo: Vec<u8>,
}

/// Merges one round of one fragment: every chunk goes to `source.store`.
///
/// `memo` is what the fragment's last round left, empty at first. Works on `threads` threads (at least one, at most one a chunk).
///
/// Errors: [`Error::Input`] where there is no contribution, or a contribution's values are not finite; [`Error::Source`]; a failure of the policy. After an
/// error some chunks may have been stored already: throw them away.
#[expect(clippy::too_many_arguments, reason = "these are the things that a merge is a function of")]
pub fn merge(
    policy: &Policy,
    config: &[u8],
    round: &Round,
    tensors: &[Tensor],
    contributions: &[Contribution],
    memo: &[u8],
    source: &dyn MergeSource,
    threads: usize,
) -> Result<Merged> {
    metered(policy, config, round, tensors, contributions, memo, source, threads).map(|(merged, _)| merged)
}

/// As [`merge`], with the fuel that it took in all instances.
#[expect(clippy::too_many_arguments, reason = "as merge")]
pub(super) fn metered(
    policy: &Policy,
    config: &[u8],
    round: &Round,
    tensors: &[Tensor],
    contributions: &[Contribution],
    memo: &[u8],
    source: &dyn MergeSource,
    threads: usize,
) -> Result<(Merged, u64)> {
    if contributions.is_empty() {
        return Err(Error::Input { what: "contributions", expected: "at least one".into(), found: "none".into() });
    }
    let chunks: Vec<(At, usize)> = chunks(tensors).collect();
    let job = Job { policy, contributions, tensors, chunks: &chunks, source };
    let opening = Opening {
        config,
        round: types::Round {
            index: round.index,
            fragment: round.fragment,
            version: round.version,
            tokens_merged: round.tokens_merged,
            token_budget: round.token_budget,
        },
        tensors: tensors.iter().map(types::Tensor::from).collect(),
        contributions: contributions.iter().map(types::Contribution::from).collect(),
        memo,
    };
    let mut seats = vec![(); threads.clamp(1, chunks.len().max(1))];
    let (mut workers, plans): (Vec<_>, Vec<_>) =
        at_once(&mut seats, |()| Worker::open(policy, &opening))?.into_iter().unzip();
    let plans = plans.into_iter().map(|plan| job.checked(plan)).collect::<Result<Vec<_>>>()?;
    let plan = the_same(policy, "plan", plans)?;
    for pass in 0..plan.passes {
        let blobs = job.observe(&mut workers, pass)?;
        at_once(&mut workers, |worker| worker.observed(pass, &blobs))?;
    }
    job.step(&mut workers, &plan)?;
    let memo = the_same(policy, "close", at_once(&mut workers, Worker::close)?)?;
    if memo.len() > MEMO_BYTES_MAX {
        return Err(nonsense(policy, "close", "bytes of the memo", format!("at most {MEMO_BYTES_MAX}"), memo.len()));
    }
    let fuel = workers.iter().map(|worker| worker.instance.fuel()).sum();
    Ok((Merged { weights: plan.weights, state_slots: plan.state_slots as usize, memo }, fuel))
}

/// What `open` is called with.
struct Opening<'a> {
    config: &'a [u8],
    round: types::Round,
    tensors: Vec<types::Tensor>,
    contributions: Vec<types::Contribution>,
    memo: &'a [u8],
}

/// One instance.
struct Worker {
    instance: Instance<MergePolicy>,
    session: ResourceAny,
    observe: Func,
    step: Func,
}

/// Room for one chunk of everything, for what is not in memory elsewhere.
#[derive(Default)]
struct Room {
    values: Vec<Vec<f32>>,
    state: Vec<Vec<f32>>,
    parameters: Vec<f32>,
}

/// What `step` and `observe` take. The generated bindings would have lists of `Vec`s, which slices would have to be copied into.
type StepArguments<'a> = (ResourceAny, types::At, &'a [&'a [f32]], &'a [&'a [f32]], &'a [f32]);
type StepAnswer = (std::result::Result<wit::Stepped, String>,);
type ObserveArguments<'a> = (ResourceAny, u32, types::At, &'a [&'a [f32]]);
type ObserveAnswer = (std::result::Result<Vec<u8>, String>,);

impl Worker {
    fn open(policy: &Policy, opening: &Opening<'_>) -> Result<(Worker, wit::Plan)> {
        let pre = policy.merge()?;
        let mut functions = None;
        let mut instance = Instance::new(policy, |store| {
            let instance = pre.instance_pre().instantiate(&mut *store)?;
            let interface = instance.get_export_index(&mut *store, None, Role::Merge.interface());
            let mut function = |name: &str| {
                let index = instance.get_export_index(&mut *store, interface.as_ref(), name);
                index.and_then(|index| instance.get_func(&mut *store, index))
            };
            functions = function("[method]session.observe").zip(function("[method]session.step"));
            MergePolicy::new(store, &instance)
        })?;
        // The bindings have found them too, or there would be an error by now.
        let Some((observe, step)) = functions else {
            return Err(nonsense(policy, "its start", "exports", "observe and step", "neither"));
        };
        let Opening { config, round, tensors, contributions, memo } = opening;
        let values = config.len() + memo.len() + tensors.len() + contributions.len();
        let session = instance.call("merge open", values as u64, 0, |store, rule| {
            rule.tombolo_policy_merge().session().call_open(store, config, *round, tensors, contributions, memo)
        })?;
        let plan = instance.call("plan", contributions.len() as u64, contributions.len(), |store, rule| {
            rule.tombolo_policy_merge().session().call_plan(store, session)
        })?;
        Ok((Worker { instance, session, observe, step }, plan))
    }

    fn observe(&mut self, pass: u32, at: At, values: &[&[f32]]) -> Result<Vec<u8>> {
        let Worker { instance, session, observe, .. } = self;
        let amount = values.iter().map(|list| list.len()).sum::<usize>();
        let blob = instance.call("observe", amount as u64, BLOB_BYTES_MAX, |store, _| {
            let observe = observe.typed::<ObserveArguments<'_>, ObserveAnswer>(&*store)?;
            Ok(observe.call(store, (*session, pass, at.into(), values))?.0)
        })?;
        if blob.len() > BLOB_BYTES_MAX {
            let expected = format!("at most {BLOB_BYTES_MAX}");
            return Err(instance.nonsense("observe", "bytes to remember of a chunk", expected, blob.len()));
        }
        Ok(blob)
    }

    fn observed(&mut self, pass: u32, blobs: &[Vec<u8>]) -> Result<()> {
        let Worker { instance, session, .. } = self;
        let amount = blobs.iter().map(|blob| blob.len() + 1).sum::<usize>();
        instance.call("observed", amount as u64, 0, |store, rule| {
            rule.tombolo_policy_merge().session().call_observed(store, *session, pass, blobs)
        })
    }

    fn step(&mut self, at: At, values: &[&[f32]], state: &[&[f32]], parameters: &[f32]) -> Result<wit::Stepped> {
        let Worker { instance, session, step, .. } = self;
        let elements = parameters.len();
        let amount = elements * (values.len() + state.len() + 1);
        let stepped = instance.call("step", amount as u64, elements * (state.len() + 1), |store, _| {
            let step = step.typed::<StepArguments<'_>, StepAnswer>(&*store)?;
            Ok(step.call(store, (*session, at.into(), values, state, parameters))?.0)
        })?;
        if stepped.state.len() != state.len() {
            return Err(instance.nonsense("step", "vectors of state", state.len(), stepped.state.len()));
        }
        let lists = [("parameters", &stepped.parameters)].into_iter();
        for (what, list) in lists.chain(stepped.state.iter().map(|list| ("state", list))) {
            if list.len() != elements {
                return Err(instance.nonsense("step", format!("number of {what}"), elements, list.len()));
            }
            if let Some(index) = first_not_finite(list) {
                let what = format!("{what} {index} of the chunk at {at:?}");
                return Err(instance.nonsense("step", what, "a finite number", list[index]));
            }
        }
        Ok(stepped)
    }

    fn close(&mut self) -> Result<Vec<u8>> {
        let Worker { instance, session, .. } = self;
        instance.call("close", 0, MEMO_BYTES_MAX, |store, rule| {
            rule.tombolo_policy_merge().session().call_close(store, *session)
        })
    }
}

/// What all the workers work on.
struct Job<'a> {
    policy: &'a Policy,
    contributions: &'a [Contribution],
    tensors: &'a [Tensor],
    chunks: &'a [(At, usize)],
    source: &'a dyn MergeSource,
}

impl Job<'_> {
    fn checked(&self, plan: wit::Plan) -> Result<wit::Plan> {
        let wrong =
            |what: &str, expected: String, found: String| Err(nonsense(self.policy, "plan", what, expected, found));
        let (weights, count) = (&plan.weights, self.contributions.len());
        if weights.len() != count {
            return wrong("number of weights", count.to_string(), weights.len().to_string());
        }
        if weights.iter().any(|weight| !(weight.is_finite() && *weight >= 0.0))
            || weights.iter().all(|weight| *weight == 0.0)
        {
            return wrong("weights", "finite, not negative, not all zero".into(), format!("{weights:?}"));
        }
        if plan.passes > PASSES_MAX {
            return wrong("passes", format!("at most {PASSES_MAX}"), plan.passes.to_string());
        }
        if plan.state_slots as usize > STATE_SLOTS_MAX {
            return wrong("vectors of state", format!("at most {STATE_SLOTS_MAX}"), plan.state_slots.to_string());
        }
        Ok(plan)
    }

    /// One observing pass: what was remembered, in chunk order.
    fn observe(&self, workers: &mut [Worker], pass: u32) -> Result<Vec<Vec<u8>>> {
        let queue = Queue::new(self.chunks.len());
        let held = AtomicUsize::new(0);
        let parts = at_once(workers, |worker| {
            let mut room = Room::default();
            queue.work(|index| {
                let (at, elements) = self.chunks[index];
                let values = self.values(&mut room.values, at, elements)?;
                let blob = worker.observe(pass, at, &slices(&values))?;
                let held = held.fetch_add(blob.len(), Ordering::Relaxed) + blob.len();
                if held > PASS_BYTES_MAX {
                    let expected = format!("at most {PASS_BYTES_MAX} over all chunks");
                    return Err(worker.instance.nonsense("observe", "bytes to remember of a pass", expected, held));
                }
                Ok(blob)
            })
        })?;
        let mut blobs = vec![Vec::new(); self.chunks.len()];
        for (index, blob) in parts.into_iter().flatten() {
            blobs[index] = blob;
        }
        Ok(blobs)
    }

    fn step(&self, workers: &mut [Worker], plan: &wit::Plan) -> Result<()> {
        let queue = Queue::new(self.chunks.len());
        at_once(workers, |worker| {
            let mut room = Room::default();
            queue.work(|index| {
                let (at, elements) = self.chunks[index];
                let stepped = {
                    let values = self.values(&mut room.values, at, elements)?;
                    let state = self.state(&mut room.state, plan.state_slots as usize, at, elements)?;
                    room.parameters.resize(elements, 0.0);
                    let parameters = self.source.parameters(at, &mut room.parameters);
                    let parameters = self.lent("reading the parameters", at, elements, parameters)?;
                    worker.step(at, &slices(&values), &slices(&state), &parameters)?
                };
                let stored = self.source.store(at, stepped.parameters, stepped.state);
                stored.map_err(|reason| self.unread("storing the merged chunk", at, reason))
            })
        })?;
        Ok(())
    }

    /// A chunk of every contribution, checked to be finite.
    fn values<'a>(&'a self, room: &'a mut Vec<Vec<f32>>, at: At, elements: usize) -> Result<Vec<Lent<'a>>> {
        room.resize(self.contributions.len(), Vec::new());
        let mut values = Vec::with_capacity(room.len());
        for (index, (room, contribution)) in room.iter_mut().zip(self.contributions).enumerate() {
            room.resize(elements, 0.0);
            let what = format!("reading the contribution of {}", contribution.island);
            let list = self.lent(&what, at, elements, self.source.values(index, at, room))?;
            if let Some(index) = first_not_finite(&list) {
                return Err(Error::Input {
                    what: "values of a contribution",
                    expected: "finite values".into(),
                    found: format!("{} at {index} of the chunk at {at:?} of {}", list[index], contribution.island),
                });
            }
            values.push(list);
        }
        Ok(values)
    }

    /// A chunk of each of `slots` vectors of state; zero where the fragment has fewer.
    fn state<'a>(
        &'a self,
        room: &'a mut Vec<Vec<f32>>,
        slots: usize,
        at: At,
        elements: usize,
    ) -> Result<Vec<Lent<'a>>> {
        room.resize(slots, Vec::new());
        let mut state: Vec<Lent<'a>> = Vec::with_capacity(slots);
        for (slot, room) in room.iter_mut().enumerate() {
            room.resize(elements, 0.0);
            if slot < self.source.state_slots() {
                state.push(self.lent("reading optimiser state", at, elements, self.source.state(slot, at, room))?);
            } else {
                // Nothing else is ever read into this room.
                state.push(Box::new(&room[..]));
            }
        }
        Ok(state)
    }

    /// What the source has lent, if it is as long as its chunk.
    fn lent<'a>(
        &self,
        what: &str,
        at: At,
        elements: usize,
        lent: std::result::Result<Lent<'a>, String>,
    ) -> Result<Lent<'a>> {
        let lent = lent.map_err(|reason| self.unread(what, at, reason))?;
        if lent.len() == elements {
            return Ok(lent);
        }
        Err(self.unread(what, at, format!("{} values instead of {elements}", lent.len())))
    }

    fn unread(&self, what: &str, at: At, reason: String) -> Error {
        let tensor = self.tensors.get(at.tensor as usize).map_or("?", |tensor| tensor.name.as_str());
        Error::Source { what: format!("{what} at {} of {tensor}", at.offset), reason }
    }
}

fn slices<'a>(lists: &'a [Lent<'_>]) -> Vec<&'a [f32]> {
    lists.iter().map(|list| &list[..]).collect()
}

/// The chunks still to be done, shared by the workers.
struct Queue {
    count: usize,
    next: AtomicUsize,
    failed: AtomicBool,
}

impl Queue {
    fn new(count: usize) -> Queue {
        Queue { count, next: AtomicUsize::new(0), failed: AtomicBool::new(false) }
    }

    /// Does chunks until none is left or a worker has failed; answers what `f` made of each.
    fn work<T>(&self, mut f: impl FnMut(usize) -> Result<T>) -> Result<Vec<(usize, T)>> {
        let mut done = Vec::new();
        while !self.failed.load(Ordering::Relaxed) {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            if index >= self.count {
                break;
            }
            match f(index) {
                Ok(answer) => done.push((index, answer)),
                Err(error) => {
                    self.failed.store(true, Ordering::Relaxed);
                    return Err(error);
                }
            }
        }
        Ok(done)
    }
}

/// Runs `f` on every item, each on a thread of its own (one item: on this one). Answers in the order of the items; the first error in that order.
fn at_once<I: Send, T: Send>(items: &mut [I], f: impl Fn(&mut I) -> Result<T> + Sync) -> Result<Vec<T>> {
    if let [item] = items {
        return Ok(vec![f(item)?]);
    }
    thread::scope(|scope| {
        let f = &f;
        let threads: Vec<_> = items.iter_mut().map(|item| scope.spawn(move || f(item))).collect();
        let joined = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(Error::host("merging", "a thread panicked"))));
        joined.collect::<Vec<_>>().into_iter().collect()
    })
}

/// The one answer that all instances gave.
fn the_same<T: PartialEq>(policy: &Policy, call: &'static str, answers: Vec<T>) -> Result<T> {
    let mut answers = answers.into_iter();
    match answers.next() {
        Some(first) if answers.all(|other| other == first) => Ok(first),
        _ => Err(nonsense(policy, call, "answers of several instances", "all the same", "different ones")),
    }
}
