//! Is the committed model as good as data-parallel training? Islands on virtual time against one trainer that sees the same windows in the same
//! order, all islands' batches of a step in one (method.md section 14).

use super::{World, on_virtual_time, slow_store};
use crate::bucket::Bucket;
use crate::bucket::record::{FORMAT, PolicyUse, RunRecord};
use crate::clock::Duration;
use crate::data::{Blocks, Corpus, Cursor};
use crate::error::{Error, Result};
use crate::island::{Inner, TextInner};
use crate::nonce::nonce;
use crate::outer::Fragments;
use crate::policy::Runtime;
use crate::score::Evaluator;
use crate::spec::Spec;
use crate::syncer::Rules;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tombolo_engine::{Batch, Layout, Model, Trainer};

/// Virtual time of an inner step; a call of the store takes a tenth of it, so that a round trip takes about two steps (τ).
const STEP: Duration = Duration::from_millis(100);
const LATENCY: Duration = Duration::from_millis(10);

/// One comparison.
#[derive(Debug, Clone)]
pub struct Quality {
    /// The run; `islands`, `seed` and the policies count, `tokens` is derived.
    pub spec: Spec,
    /// Inner steps of each island.
    pub steps: u64,
    /// Threads of every trainer.
    pub threads: usize,
    /// Whether to train data-parallel too; without it there is no gap to tell.
    pub baseline: bool,
}

/// What came out.
#[derive(Debug, Clone)]
pub struct Comparison {
    /// Held-out loss of the committed model, nats per token.
    pub islands: f32,
    /// Held-out loss of data-parallel training on the same windows; none if it was not asked for.
    pub data_parallel: Option<f32>,
    /// Inner steps that an island took on average, and that data-parallel training took.
    pub steps: u64,
    /// Rounds committed.
    pub rounds: u64,
    /// Share of the rounds that merged every island.
    pub full_rounds: f64,
}

impl Comparison {
    /// How far the islands are behind, as a share of the data-parallel loss.
    pub fn gap(&self) -> Option<f64> {
        self.data_parallel.map(|baseline| f64::from(self.islands) / f64::from(baseline) - 1.0)
    }
}

/// Trains both ways and scores both on the same held-out windows.
///
/// # Errors
/// The spec, the text or a policy does not fit; the run does not end.
pub fn compare(quality: &Quality, corpus: &Corpus, runtime: &Runtime) -> Result<Comparison> {
    let mut spec = quality.spec.clone();
    let batch_tokens = (spec.train.batch * spec.model.context) as u64;
    // Two of H steps are taken while a merge is under way and overwritten by it: they are trained, but not merged.
    let h = spec.outer.sync_steps as u64;
    let overlap = (spec.outer.overlap_steps as u64).min(h / 2);
    spec.tokens = quality.steps * spec.islands as u64 * batch_tokens * (h - overlap) / h;
    let blocks =
        Blocks::new(corpus, spec.seed, spec.model.context, spec.islands).map_err(|e| Error::invalid(e.to_string()))?;
    let config = spec.model_config();
    let layout = Layout::of(&config);
    let fragments = Arc::new(Fragments::partition(&layout, spec.outer.fragments)?);
    let initial = Model::init(&config, spec.seed)?;
    let policy = |name: &str| runtime.bundled(name).map_err(|e| Error::invalid(format!("policy {name}")).because(e));
    let (codec, merge, pace) = (policy(&spec.codec.policy)?, policy(&spec.merge.policy)?, policy(&spec.pace.policy)?);
    let down = match spec.down.policy.as_str() {
        "" => None,
        name => Some(policy(name)?),
    };
    let used = |p: &crate::policy::Policy, s: &crate::spec::PolicySpec| PolicyUse {
        name: s.policy.clone(),
        hash: p.hash().to_string(),
        config: String::from_utf8(s.config_json()).expect("JSON is UTF-8"),
    };
    let record = RunRecord {
        format: FORMAT,
        nonce: nonce(),
        spec: spec.clone(),
        layout: fragments.fingerprint().to_string(),
        corpus: corpus.fingerprint(),
        fragments: fragments.count(),
        codec: used(&codec, &spec.codec),
        merge: used(&merge, &spec.merge),
        down: down.as_ref().map(|down| used(down, &spec.down)),
        pace: used(&pace, &spec.pace),
        chaos: false,
    };
    let world = World {
        bucket: Bucket::new(slow_store(LATENCY), &spec.run),
        record,
        layout: layout.clone(),
        fragments: fragments.clone(),
        codec,
        merge,
        pace,
        others: down.into_iter().collect(),
        steps: vec![STEP; spec.islands],
    };
    let trainer = || Trainer::new(initial.clone(), spec.adamw(), quality.threads);
    let (ledger, committed, steps, taken) = on_virtual_time(spec.seed, async {
        let window = Rules::of(&spec, fragments.count()).window();
        world.bucket.start(&fragments, &initial.parameters, window, "sim").await?;
        let make = |_: usize| -> Result<Box<dyn Inner>> {
            Ok(Box::new(TextInner::new(trainer()?, blocks.clone(), spec.train.batch)))
        };
        let ledger = world.run(make, STEP * (quality.steps as u32 * 3 + 1000)).await?;
        let committed = world.bucket.committed(&fragments, &ledger.versions).await?;
        let mut steps = 0;
        for island in world.bucket.islands().await? {
            steps += world.bucket.card(&island).await?.map_or(0, |card| card.step);
        }
        let taken = world.bucket.claimed_blocks().await?;
        Ok((ledger, committed, steps / spec.islands as u64, taken))
    })?;
    let mut evaluator = Evaluator::new(&spec, corpus, quality.threads)?;
    let islands = evaluator.score(&committed)?;
    let mut baseline = None;
    if quality.baseline {
        let parallel = data_parallel(&spec, &blocks, &taken, steps, trainer()?)?;
        baseline = Some(evaluator.score(parallel.parameters())?);
    }
    let full = ledger.breadth.get(&(spec.islands as u64)).copied().unwrap_or(0);
    Ok(Comparison {
        islands,
        data_parallel: baseline,
        steps,
        rounds: ledger.rounds_committed(),
        full_rounds: full as f64 / ledger.rounds_committed().max(1) as f64,
    })
}

/// One trainer on the batches of all islands: at step s the windows that each island had at its step s.
fn data_parallel(
    spec: &Spec,
    blocks: &Blocks,
    taken: &BTreeMap<String, Vec<u64>>,
    steps: u64,
    mut trainer: Trainer,
) -> Result<Trainer> {
    let (rows, context) = (spec.train.batch, spec.model.context);
    let mut lanes: Vec<(Cursor, VecDeque<u64>)> =
        taken.values().map(|blocks| (Cursor::at(blocks[0]), blocks[1..].iter().copied().collect())).collect();
    let row_tokens = rows * (context + 1);
    let mut tokens = vec![0u32; lanes.len() * row_tokens];
    let batch_tokens = (lanes.len() * rows * context) as u64;
    let mut schedule = spec.schedule();
    schedule.total_tokens = steps * batch_tokens;
    schedule.warmup_tokens = (schedule.total_tokens as f64 * f64::from(spec.train.warmup_ratio)) as u64;
    for step in 0..steps {
        for ((cursor, next), out) in lanes.iter_mut().zip(tokens.chunks_exact_mut(row_tokens)) {
            blocks.batch(cursor, rows, out, |used| Cursor::at(next.pop_front().unwrap_or(used.block)));
        }
        let batch = Batch { tokens: &tokens, batch: rows * taken.len(), context };
        trainer.step(batch, schedule.at(step * batch_tokens))?;
    }
    Ok(trainer)
}
