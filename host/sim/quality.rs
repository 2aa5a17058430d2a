//! Is the committed model as good as data-parallel training? Islands on virtual time against one trainer that sees the same windows in the same
//! order, all islands' batches of a step in one. And where some islands lie: is it as good as that of the honest ones alone?

use super::{Attack, Liar, World, on_virtual_time, slow_store};
use crate::bucket::record::{FORMAT, PolicyUse, RunRecord};
use crate::bucket::{Bucket, Ledger};
use crate::clock::Duration;
use crate::data::{Blocks, Corpus, Cursor};
use crate::error::{Error, Result};
use crate::island::{Inner, TextInner};
use crate::nonce::nonce;
use crate::outer::{Fragments, Period};
use crate::policy::Policy;
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
    /// The run; its `tokens` are derived.
    pub spec: Spec,
    /// The codec that it names.
    pub codec: Policy,
    /// The merge policy that it names.
    pub merge: Policy,
    /// The pace that it names.
    pub pace: Policy,
    /// The codec of the way down, if it names one.
    pub down: Option<Policy>,
    /// Inner steps of each island.
    pub steps: u64,
    /// Threads of every trainer.
    pub threads: usize,
    /// Of the islands, how many lie, and how.
    pub liars: Option<(usize, Attack)>,
    /// Whether to train what the islands are compared with, too: data-parallel on the same windows, or, where some of them lie, the honest ones
    /// alone. Without it there is no gap to tell.
    pub baseline: bool,
}

/// What came out.
#[derive(Debug, Clone)]
pub struct Comparison {
    /// Held-out loss of the committed model, nats per token.
    pub islands: f32,
    /// Held-out loss of what it is compared with; none if it was not asked for.
    pub baseline: Option<f32>,
    /// Inner steps that an island took on average, and that data-parallel training took.
    pub steps: u64,
    /// Rounds committed.
    pub rounds: u64,
    /// Share of the rounds that merged every island.
    pub full_rounds: f64,
    /// Offers refused.
    pub refused: u64,
    /// Mean size of an offer in the bucket, in bytes: of the last ones, that were still there at the end.
    pub offer_bytes: f64,
    /// The same as bits for each value of the fragment offered.
    pub offer_bits_per_value: f64,
}

impl Comparison {
    /// How far the islands are behind, as a share of the baseline's loss.
    pub fn gap(&self) -> Option<f64> {
        self.baseline.map(|baseline| f64::from(self.islands) / f64::from(baseline) - 1.0)
    }
}

/// What a run came to.
struct Trained {
    parameters: Vec<f32>,
    ledger: Ledger,
    /// Inner steps of an island, on average.
    steps: u64,
    /// Blocks of data by island.
    taken: BTreeMap<String, Vec<u64>>,
    /// Of the offers that are still there: their bytes, how many they are, and the values of their fragments.
    offers: (u64, u64, u64),
}

/// Trains both ways and scores both on the same held-out windows.
///
/// # Errors
/// The spec, the text or a policy does not fit; the run does not end.
pub fn compare(quality: &Quality, corpus: &Corpus) -> Result<Comparison> {
    let spec = &quality.spec;
    let (liars, _) = quality.liars.unwrap_or((0, Attack::Flip));
    if liars >= spec.islands {
        return Err(Error::invalid(format!("liars: expected fewer than the {} islands, found {liars}", spec.islands)));
    }
    let trained = train(quality, corpus)?;
    let mut evaluator = Evaluator::new(spec, corpus, quality.threads)?;
    let islands = evaluator.score(&trained.parameters)?;
    let mut baseline = None;
    if quality.baseline {
        let parameters = match quality.liars {
            None => data_parallel(quality, corpus, &trained)?.parameters().to_vec(),
            Some(_) => {
                let spec = Spec { islands: spec.islands - liars, ..spec.clone() };
                train(&Quality { spec, liars: None, ..quality.clone() }, corpus)?.parameters
            }
        };
        baseline = Some(evaluator.score(&parameters)?);
    }
    let rounds = trained.ledger.rounds_committed();
    let full = trained.ledger.breadth.get(&(spec.islands as u64)).copied().unwrap_or(0);
    let (bytes, offers, values) = trained.offers;
    Ok(Comparison {
        islands,
        baseline,
        steps: trained.steps,
        rounds,
        full_rounds: full as f64 / rounds.max(1) as f64,
        refused: trained.ledger.fates.refused,
        offer_bytes: bytes as f64 / offers.max(1) as f64,
        offer_bits_per_value: 8.0 * bytes as f64 / values.max(1) as f64,
    })
}

fn blocks(spec: &Spec, corpus: &Corpus) -> Result<Blocks> {
    Blocks::new(corpus, spec.seed, spec.model.context, spec.islands).map_err(|e| Error::invalid(e.to_string()))
}

fn trainer(quality: &Quality) -> Result<Trainer> {
    let spec = &quality.spec;
    Ok(Trainer::new(Model::init(&spec.model_config(), spec.seed)?, spec.adamw(), quality.threads)?)
}

/// Islands, and a syncer, in a bucket in memory.
fn train(quality: &Quality, corpus: &Corpus) -> Result<Trained> {
    let mut spec = quality.spec.clone();
    let batch_tokens = (spec.train.batch * spec.model.context) as u64;
    // Nothing of what is always refused is ever merged.
    let merged = match quality.liars {
        Some((liars, Attack::Nan)) => spec.islands - liars,
        _ => spec.islands,
    };
    spec.tokens = merged_steps(&spec, quality.steps) * merged as u64 * batch_tokens;
    let blocks = blocks(&spec, corpus)?;
    let config = spec.model_config();
    let layout = Layout::of(&config);
    let fragments = Arc::new(Fragments::partition(&layout, spec.outer.fragments)?);
    let initial = Model::init(&config, spec.seed)?;
    let record = RunRecord {
        format: FORMAT,
        nonce: nonce(),
        spec: spec.clone(),
        layout: fragments.fingerprint().to_string(),
        corpus: corpus.fingerprint(),
        fragments: fragments.count(),
        codec: PolicyUse::of(&spec.codec, &quality.codec),
        merge: PolicyUse::of(&spec.merge, &quality.merge),
        down: quality.down.as_ref().map(|down| PolicyUse::of(&spec.down, down)),
        pace: PolicyUse::of(&spec.pace, &quality.pace),
        chaos: false,
    };
    let world = World {
        bucket: Bucket::new(slow_store(LATENCY), &spec.run),
        record,
        layout,
        fragments: fragments.clone(),
        codec: quality.codec.clone(),
        merge: quality.merge.clone(),
        pace: quality.pace.clone(),
        others: quality.down.iter().cloned().collect(),
        steps: vec![STEP; spec.islands],
    };
    let liars: Vec<Bucket> = match quality.liars {
        Some((liars, attack)) => (0..liars as u64).map(|i| Liar::bucket(&world, attack, spec.seed + i)).collect(),
        None => Vec::new(),
    };
    on_virtual_time(spec.seed, async {
        let window = Rules::of(&spec, fragments.count()).first_window();
        world.bucket.start(&fragments, &initial.parameters, window, "sim").await?;
        let make = |_: usize| -> Result<Box<dyn Inner>> {
            Ok(Box::new(TextInner::new(trainer(quality)?, blocks.clone(), spec.train.batch)))
        };
        let ledger = world.run_with_liars(make, &liars, STEP * (quality.steps as u32 * 3 + 1000)).await?;
        let parameters = world.bucket.committed(&fragments, &ledger.versions).await?;
        let mut steps = 0;
        for island in world.bucket.islands().await? {
            steps += world.bucket.card(&island).await?.map_or(0, |card| card.step);
        }
        let taken = world.bucket.claimed_blocks().await?;
        let mut offers = (0, 0, 0);
        for (id, bytes) in world.bucket.all_offers().await? {
            let values = fragments.elements(ledger.fragment_of(id.round)) as u64;
            offers = (offers.0 + bytes, offers.1 + 1, offers.2 + values);
        }
        Ok(Trained { parameters, steps: steps / spec.islands as u64, ledger, taken, offers })
    })
}

/// Of an island's `steps`, those that are merged: τ of every H are taken while a merge is under way and overwritten by it.
fn merged_steps(spec: &Spec, steps: u64) -> u64 {
    let (period, overlap) = (Period::of(&spec.outer), spec.outer.overlap_steps as u64);
    let (mut merged, mut left, mut version) = (0, steps, 0);
    while left > 0 {
        let h = period.at(version).min(left);
        merged += h - overlap.min(h / 2);
        left -= h;
        version += 1;
    }
    merged
}

/// One trainer on the batches of all islands: at step s the windows that each island had at its step s.
fn data_parallel(quality: &Quality, corpus: &Corpus, islands: &Trained) -> Result<Trainer> {
    let (spec, taken, steps) = (&quality.spec, &islands.taken, islands.steps);
    let (blocks, mut trainer) = (blocks(spec, corpus)?, trainer(quality)?);
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
