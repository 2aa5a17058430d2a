//! The outer loop, small enough to check by hand: real islands, a real syncer, the bundled policies, a store in memory, virtual time.

#[path = "outer/down.rs"]
mod down;
#[path = "outer/firewall.rs"]
mod firewall;
#[path = "policy/guest.rs"]
mod guest;
#[path = "outer/liar.rs"]
mod liar;
#[path = "outer/life.rs"]
mod life;
#[path = "outer/role.rs"]
mod role;
mod support;
#[path = "outer/switch.rs"]
mod switch;

use std::collections::VecDeque;
use std::sync::Arc;
use tokio::task::JoinSet;
use tombolo::bucket::payload::{Chunk, Data, content_hash};
use tombolo::bucket::record::{Body, Card, Entry, FORMAT, Fate, IslandState, PolicyUse, RunRecord};
use tombolo::bucket::{Bucket, Ledger, OfferHeader, OfferId, OuterState, Vector};
use tombolo::clock::{self, Duration};
use tombolo::data::Cursor;
use tombolo::error::{Error, Kind, Result};
use tombolo::event::{Event, Sink};
use tombolo::island::{self, Drive, Inner, Site, Stepped};
use tombolo::outer::Fragments;
use tombolo::policy::{At, Codec, Contribution, Limits, Round, Runtime};
use tombolo::sim::{World, on_virtual_time, slow_store};
use tombolo::spec::Spec;
use tombolo::syncer::{self, RoundInput, merge_round};
use tombolo_engine::{Layout, Tensor, TensorKind};

const STEP: Duration = Duration::from_millis(100);

/// A model whose every tensor is one number.
fn layout(tensors: usize) -> Layout {
    let tensor = |i: usize| Tensor { name: format!("t{i}"), shape: vec![1], kind: TensorKind::Vector, offset: i };
    Layout { tensors: (0..tensors).map(tensor).collect() }
}

/// A run over `tensors` numbers that start at zero, its record and start entry in a bucket in memory.
async fn world(spec: Spec, tensors: usize, islands: usize) -> Result<World> {
    world_of(spec, layout(tensors), islands).await
}

/// As [`world`], over a model of this layout.
async fn world_of(mut spec: Spec, layout: Layout, islands: usize) -> Result<World> {
    spec.islands = islands.max(1);
    let runtime = Runtime::new(Limits::default(), None).expect("the policy runtime starts");
    let [codec, merge, pace] =
        ["bf16", &spec.merge.policy, &spec.pace.policy].map(|name| runtime.bundled(name).unwrap());
    let fragments = Arc::new(Fragments::partition(&layout, spec.outer.fragments)?);
    let used = |policy: &tombolo::policy::Policy, config: Vec<u8>| PolicyUse {
        name: "bundled".into(),
        hash: policy.hash().to_string(),
        config: String::from_utf8(config).unwrap(),
    };
    let record = RunRecord {
        format: FORMAT,
        nonce: "n".into(),
        layout: fragments.fingerprint().into(),
        corpus: String::new(),
        fragments: fragments.count(),
        codec: used(&codec, Vec::new()),
        merge: used(&merge, spec.merge.config_json()),
        pace: used(&pace, spec.pace.config_json()),
        spec,
        down: None,
        chaos: false,
    };
    let bucket = Bucket::new(slow_store(Duration::from_millis(1)), &record.spec.run);
    bucket.start(&fragments, &vec![0.0; layout.elements()], 1, "test").await?;
    let (others, steps) = (Vec::new(), vec![STEP; islands]);
    Ok(World { bucket, record, layout, fragments, codec, merge, pace, others, steps })
}

/// Waits until all roles have ended, each as it should, for `limit` at most.
async fn ended(mut roles: JoinSet<Result<()>>, limit: Duration) -> Result<()> {
    let all = clock::timeout(limit, async {
        while let Some(role) = roles.join_next().await {
            role.expect("no role panics")?;
        }
        Ok(())
    });
    all.await.map_err(|_| Error::unavailable("the run did not end"))?
}

fn spec(fragments: usize, merge: &str, config: &str) -> Spec {
    let mut spec = Spec { tokens: 1 << 40, ..Spec::default() };
    spec.outer.fragments = fragments;
    spec.outer.sync_steps = 2;
    spec.outer.overlap_steps = 1;
    spec.merge.policy = merge.into();
    spec.merge.config = config.parse().unwrap();
    spec
}

/// An inner loop with a constant gradient: each step θ ← θ − g, eight tokens.
struct Constant {
    parameters: Vec<f32>,
    gradient: Vec<f32>,
}

impl Inner for Constant {
    fn parameters(&self) -> &[f32] {
        &self.parameters
    }
    fn parameters_mut(&mut self) -> &mut [f32] {
        &mut self.parameters
    }
    fn step(&mut self, _learning_rate: f32) -> Result<Stepped> {
        self.parameters.iter_mut().zip(&self.gradient).for_each(|(p, g)| *p -= g);
        Ok(Stepped { loss: 1.0, tokens: 8, repeated: 0 })
    }
    fn moments(&self) -> (&[f32], &[f32], u64) {
        (&self.parameters, &self.parameters, 0)
    }
    fn set_moments(&mut self, _: &[f32], _: &[f32], _: u64) -> Result<()> {
        Ok(())
    }
    fn held(&self) -> Vec<Cursor> {
        Vec::new()
    }
    fn wants_block(&self) -> bool {
        false
    }
    fn give_block(&mut self, _: Cursor) {}
}

/// Two islands, two fragments of one number each, gradients (1, 2) and (3, 4), outer Nesterov with η 0.5 and μ 0.5. One round per step, one
/// step under way while it is merged:
///
/// | round | fragment | steps | mean Δ | buf | step η(Δ + μ·buf) | Θ |
/// |---|---|---|---|---|---|---|
/// | 2 | 0 | 1 | 2 | 2 | 1.5 | −1.5 |
/// | 3 | 1 | 2 | 6 | 6 | 4.5 | −4.5 |
/// | 4 | 0 | 1 | 2 | 0.5·2 + 2 = 3 | 1.75 | −3.25 |
/// | 5 | 1 | 1 | 3 | 0.5·6 + 3 = 6 | 3 | −7.5 |
///
/// Tokens merged: 16, 32, 16 and 16; their mean over the two fragments is 40. All numbers are exact in bf16.
#[test]
fn two_islands_and_two_fragments_come_to_what_the_hand_computes() {
    let (ledger, theta) = on_virtual_time(1, async {
        let mut spec = spec(2, "mean", "eta = 0.5\nmomentum = 0.5\nwarmup = 0\ncooldown = 0\n");
        spec.tokens = 40;
        let world = world(spec, 2, 2).await?;
        let gradients = [[1.0, 2.0], [3.0, 4.0]];
        let inner = |i: usize| -> Result<Box<dyn Inner>> {
            Ok(Box::new(Constant { parameters: vec![9.0; 2], gradient: gradients[i].to_vec() }))
        };
        let ledger = world.run(inner, Duration::from_secs(60)).await?;
        let theta = world.bucket.committed(&world.fragments, &ledger.versions).await?;
        Ok((ledger, theta))
    })
    .unwrap();
    assert_eq!(ledger.rounds_committed(), 4);
    assert_eq!(ledger.fragment_tokens, [32, 48]);
    assert_eq!(ledger.fates.merged, 8, "both islands in every round: {ledger:?}");
    assert_eq!(theta, [-3.25, -7.5]);
}

#[test]
fn the_same_seed_gives_the_same_log() {
    let run = || {
        on_virtual_time(7, async {
            let mut spec = spec(2, "rda", "");
            spec.tokens = 2000;
            let mut world = world(spec, 2, 3).await?;
            world.steps = [90, 100, 130].map(Duration::from_millis).to_vec();
            let inner = |i: usize| -> Result<Box<dyn Inner>> {
                Ok(Box::new(Constant { parameters: vec![0.0; 2], gradient: vec![i as f32 * 0.25, 0.5] }))
            };
            let ledger = world.run(inner, Duration::from_secs(600)).await?;
            let mut log = Vec::new();
            for seq in 0..ledger.next {
                log.push(world.bucket.log_bytes(seq).await?.expect("the log has no gap"));
            }
            Ok(log)
        })
        .unwrap()
    };
    let first = run();
    assert!(first.len() > 20);
    assert_eq!(first, run());
}

/// A syncer over a one-number model with η 1 and no momentum, and offers written by hand.
struct Bench {
    world: World,
    /// What the next offers claim.
    tokens: u64,
    steps: u32,
}

impl Bench {
    async fn start() -> Result<Bench> {
        Bench::with("eta = 1\nmomentum = 0\n").await
    }

    async fn with(config: &str) -> Result<Bench> {
        Bench::of(spec(1, "mean", config)).await
    }

    async fn of(spec: Spec) -> Result<Bench> {
        let world = world(spec, 1, 0).await?;
        let desk = world.desk(STEP);
        tokio::spawn(async move { syncer::run(desk, std::future::pending()).await.expect("the syncer works") });
        Ok(Bench { world, tokens: 8, steps: 1 })
    }

    /// Offers Δ = base − θ for `round`.
    async fn offer(&self, island: &str, round: u64, base: u64, delta: f32) -> Result<()> {
        let world = &self.world;
        if world.bucket.newest_incarnation(island).await? == 0 {
            world.bucket.claim_incarnation(island).await?;
        }
        let mut codec = Codec::open(&world.codec, b"", &world.fragments.policy_tensors(0)).unwrap();
        let bytes = codec.encode(At { tensor: 0, offset: 0 }, &[delta]).unwrap();
        let chunk = Chunk { section: "offer".into(), tensor: 0, offset: 0, elements: 1, data: Data::Encoded(bytes) };
        let header = OfferHeader {
            format: FORMAT,
            run: world.record.spec.run.clone(),
            layout: world.fragments.fingerprint().into(),
            id: OfferId { round, island: island.into(), incarnation: 1 },
            fragment: 0,
            base,
            tokens: self.tokens,
            steps: self.steps,
            codec: world.codec.hash().to_string(),
            codec_config: String::new(),
            hash: content_hash(std::slice::from_ref(&chunk)),
        };
        world.bucket.put_offer(&header, vec![chunk]).await.map(|_| ())
    }

    /// Waits until `round` is committed; Θ then.
    async fn committed(&self, round: u64) -> Result<(Ledger, f32)> {
        loop {
            let ledger = self.world.ledger().await?;
            if ledger.next_round > round {
                let theta = self.world.bucket.committed(&self.world.fragments, &ledger.versions).await?;
                return Ok((ledger, theta[0]));
            }
            clock::sleep(STEP).await;
        }
    }
}

/// Θ₀ = 0; A's offers add 10 each; B's offer from Θ₀ says θ = 1. Anchored at its own base it adds 1 to whatever is current.
fn a_stale_offer(versions_behind: u64) -> (Ledger, f32) {
    on_virtual_time(3, async {
        let bench = Bench::start().await?;
        for round in 1..=versions_behind {
            bench.offer("a", round, round - 1, -10.0).await?;
            bench.committed(round).await?;
        }
        let round = versions_behind + 1;
        bench.offer("b", round, 0, -1.0).await?;
        if versions_behind > 4 {
            // Late for sure: the round is closed by the next fresh offer alone.
            clock::sleep(STEP * 20).await;
            bench.offer("a", round, round - 1, -10.0).await?;
        }
        bench.committed(round).await
    })
    .unwrap()
}

#[test]
fn an_offer_one_version_old_takes_nothing_back() {
    assert_eq!(a_stale_offer(1).1, 11.0);
}

#[test]
fn an_offer_two_versions_old_takes_nothing_back() {
    assert_eq!(a_stale_offer(2).1, 21.0);
}

#[test]
fn an_offer_five_versions_old_is_late_and_changes_nothing() {
    let (ledger, theta) = a_stale_offer(5);
    assert_eq!(theta, 60.0);
    assert_eq!((ledger.fates.merged, ledger.fates.late), (6, 1));
}

#[test]
fn tokens_that_were_merged_are_not_merged_again() {
    let ledger = on_virtual_time(3, async {
        let bench = Bench::start().await?;
        bench.offer("a", 1, 0, -10.0).await?;
        bench.committed(1).await?;
        // From the same base once more, as an island would that does not know that it was merged.
        bench.offer("a", 2, 0, -10.0).await?;
        bench.offer("b", 2, 1, -2.0).await?;
        let (ledger, theta) = bench.committed(2).await?;
        assert_eq!(theta, 12.0);
        Ok(ledger)
    })
    .unwrap();
    assert_eq!(ledger.fates.reasons.get("its tokens were merged before"), Some(&1));
    assert_eq!(ledger.fates.merged, 2);
}

#[test]
fn an_offer_that_comes_after_its_round_is_recorded_as_late_once() {
    let ledger = on_virtual_time(4, async {
        let bench = Bench::start().await?;
        bench.offer("a", 1, 0, -1.0).await?;
        bench.committed(1).await?;
        bench.offer("b", 1, 0, -1.0).await?;
        clock::sleep(STEP * 20).await;
        for round in 2..6 {
            bench.offer("a", round, round - 1, -1.0).await?;
            bench.committed(round).await?;
        }
        Ok(bench.committed(5).await?.0)
    })
    .unwrap();
    assert_eq!((ledger.fates.merged, ledger.fates.late), (5, 1));
    assert_eq!(ledger.fragment_tokens, [40]);
}

#[test]
fn a_commit_names_why_an_offer_was_refused() {
    let (ledger, entries) = on_virtual_time(5, async {
        let bench = Bench::start().await?;
        bench.offer("future", 1, 7, -1.0).await?;
        bench.offer("good", 1, 0, -1.0).await?;
        let (ledger, theta) = bench.committed(1).await?;
        assert_eq!(theta, 1.0);
        let mut entries = Vec::new();
        for seq in 0..ledger.next {
            entries.push(serde_json::from_slice::<Entry>(&bench.world.bucket.log_bytes(seq).await?.unwrap()).unwrap());
        }
        Ok((ledger, entries))
    })
    .unwrap();
    assert_eq!(ledger.fates.refused, 1);
    let commit = entries.iter().find_map(|e| if let Body::Commit(c) = &e.body { Some(c) } else { None }).unwrap();
    let fate = |island: &str| commit.offers.iter().find(|o| o.id.island == island).map(|o| o.fate.clone());
    assert_eq!(fate("future"), Some(Fate::Refused("its base is in the future".into())));
    assert_eq!(fate("good"), Some(Fate::Merged));
}

#[test]
fn an_offer_that_overflows_when_it_is_applied_is_refused_and_the_round_goes_on_without_it() {
    let ledger = on_virtual_time(6, async {
        let bench = Bench::with("eta = 4\nmomentum = 0\n").await?;
        bench.offer("huge", 1, 0, -3.0e38).await?;
        bench.offer("good", 1, 0, -1.0).await?;
        let (ledger, theta) = bench.committed(1).await?;
        assert_eq!(theta, 4.0);
        Ok(ledger)
    })
    .unwrap();
    assert_eq!(ledger.fates.reasons.get("it cannot be merged"), Some(&1));
    assert_eq!(ledger.fates.merged, 1);
}

#[test]
fn a_card_that_claims_an_endless_step_stops_nobody() {
    on_virtual_time(8, async {
        let bench = Bench::start().await?;
        for (name, step_ms) in [("endless", 1e30), ("nan", f32::NAN), ("honest", 100.0)] {
            let card = Card {
                format: FORMAT,
                island: name.into(),
                incarnation: 1,
                counter: 1,
                state: IslandState::Training,
                step: 1,
                tokens: 8,
                tokens_per_s: 1.0,
                step_ms,
                train_seconds: 1.0,
                ..Card::default()
            };
            bench.world.bucket.put_card(&card).await?;
        }
        clock::sleep(STEP * 10).await;
        bench.offer("honest", 1, 0, -1.0).await?;
        let closed = clock::timeout(Duration::from_secs(60), bench.committed(1)).await;
        assert!(closed.is_ok(), "the round is closed");
        Ok(())
    })
    .unwrap();
}

#[test]
fn more_tokens_than_the_steps_have_are_refused() {
    let ledger = on_virtual_time(9, async {
        let mut bench = Bench::start().await?;
        bench.tokens = 1 << 40;
        bench.offer("greedy", 1, 0, -5.0).await?;
        bench.tokens = 8;
        bench.offer("good", 1, 0, -1.0).await?;
        Ok(bench.committed(1).await?.0)
    })
    .unwrap();
    assert_eq!(ledger.fates.reasons.get("it claims more tokens than its steps have"), Some(&1));
    assert_eq!(ledger.fragment_tokens, [8]);
}

#[test]
fn what_one_offer_says_of_its_tokens_does_not_end_the_run() {
    let (ledger, theta) = on_virtual_time(10, async {
        let budget = 1 << 40;
        let mut bench = Bench::of(Spec { tokens: budget, ..spec(1, "mean", "eta = 1\nmomentum = 0\n") }).await?;
        let step_tokens = (bench.world.record.spec.train.batch * bench.world.record.spec.model.context) as u64;
        (bench.steps, bench.tokens) = (u32::MAX, u64::from(u32::MAX) * step_tokens);
        bench.offer("endless", 1, 0, -5.0).await?;
        bench.committed(1).await
    })
    .unwrap();
    // It is merged, as that of an island whose syncer was away for long, and counts for a quarter of the budget.
    assert_eq!((theta, ledger.fates.merged, ledger.fragment_tokens[0]), (5.0, 1, 1 << 38));
    assert_eq!(ledger.stopped, None);
}

/// Data that makes the state astray: a step that begins in one of these windows fails as the engine does when a loss is not finite.
struct Poisoned {
    constant: Constant,
    held: VecDeque<Cursor>,
    windows: std::ops::Range<usize>,
}

impl Inner for Poisoned {
    fn parameters(&self) -> &[f32] {
        self.constant.parameters()
    }
    fn parameters_mut(&mut self) -> &mut [f32] {
        self.constant.parameters_mut()
    }
    fn step(&mut self, learning_rate: f32) -> Result<Stepped> {
        let cursor = self.held.front_mut().expect("an island's first block is claimed before its first step");
        cursor.window += 1;
        if self.windows.contains(&cursor.window) {
            return Err(Error::corrupt("the loss is not finite"));
        }
        self.constant.step(learning_rate)
    }
    fn moments(&self) -> (&[f32], &[f32], u64) {
        self.constant.moments()
    }
    fn set_moments(&mut self, first: &[f32], second: &[f32], steps: u64) -> Result<()> {
        self.constant.set_moments(first, second, steps)
    }
    fn held(&self) -> Vec<Cursor> {
        self.held.iter().copied().collect()
    }
    fn wants_block(&self) -> bool {
        false
    }
    fn give_block(&mut self, block: Cursor) {
        self.held.push_back(block);
    }
}

/// One island over data of which `windows` poison it; how it ended, and what it said.
fn astray(windows: std::ops::Range<usize>) -> (Result<island::Outcome>, Vec<String>) {
    let (events, mut incoming) = tokio::sync::mpsc::channel(1000);
    let outcome = on_virtual_time(11, async {
        let mut spec = spec(1, "mean", "");
        spec.tokens = 8 * 40;
        spec.keep.checkpoint_seconds = 1;
        let world = world(spec, 1, 1).await?;
        let desk = world.desk(STEP);
        let syncer = tokio::spawn(async move { syncer::run(desk, std::future::pending()).await });
        let site = || {
            let inner = Poisoned {
                constant: Constant { parameters: vec![0.0], gradient: vec![1.0] },
                held: VecDeque::new(),
                windows: windows.clone(),
            };
            let site = Site { sink: Sink::Channel(events.clone()), ..world.site("a", Box::new(inner), STEP) };
            std::future::ready(Ok(site))
        };
        let outcome =
            clock::timeout(Duration::from_secs(600), island::live(site, Drive::Virtual(STEP), std::future::pending()));
        let outcome = outcome.await.expect("it ends");
        syncer.abort();
        Ok(outcome)
    });
    let mut notes = Vec::new();
    while let Ok(event) = incoming.try_recv() {
        if let Event::Note { text, .. } = event {
            notes.push(text);
        }
    }
    (outcome.unwrap(), notes)
}

#[test]
fn an_island_whose_state_is_no_longer_finite_rolls_itself_back_and_goes_on_behind_the_data_that_did_it() {
    let (outcome, notes) = astray(25..26);
    let outcome = outcome.unwrap();
    assert_eq!(outcome.stopped.as_deref(), Some("the token budget is merged"), "{notes:?}");
    let rolled = notes.iter().filter(|note| note.starts_with("rolls itself back at step 24")).count();
    assert_eq!(rolled, 1, "{notes:?}");
    assert!(notes.iter().any(|note| note.starts_with("life 2 goes on from its checkpoint")), "{notes:?}");
}

#[test]
fn an_island_that_goes_astray_again_and_again_ends_with_one_clear_error() {
    let (outcome, notes) = astray(20..200);
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt);
    assert!(error.to_string().contains("island a: went astray 4 times"), "{error}");
    assert_eq!(notes.iter().filter(|note| note.starts_with("rolls itself back")).count(), 3, "{notes:?}");
}

/// A public trace of the outer loop: y = w·x + b, w = (2, 1), b = 1, mean squared error over two rows, inner SGD 0.1, three steps, outer
/// η 1 and μ 0.9, plain mean. Tolerances are half a unit of the published digits.
#[test]
fn the_public_trace_of_a_linear_model_is_met() {
    let rows = [[([0.0, 1.0], 1.0), ([1.0, 0.0], 2.0)], [([1.0, 0.0], 2.0), ([0.0, 1.0], 3.0)]];
    // Parameters (w0, w1, b) and where they start.
    let start = [2.0f32, 1.0, 1.0];
    let step = |theta: &mut [f32; 3], data: &[([f32; 2], f32); 2]| {
        let mut gradient = [0.0f32; 3];
        let mut loss = 0.0;
        for (x, y) in data {
            let error = theta[0] * x[0] + theta[1] * x[1] + theta[2] - y;
            loss += error * error / 2.0;
            for (g, x) in gradient.iter_mut().zip([x[0], x[1], 1.0]) {
                *g += error * x;
            }
        }
        theta.iter_mut().zip(gradient).for_each(|(t, g)| *t -= 0.1 * g);
        loss
    };
    let mut islands = [start, start];
    let mut losses = [[0.0f32; 4]; 2];
    for island in 0..2 {
        for loss in &mut losses[island][..3] {
            *loss = step(&mut islands[island], &rows[island]);
        }
    }
    let expected = [[1.0, 0.49, 0.2401], [1.0, 0.81, 0.6561]];
    for island in 0..2 {
        for (found, expected) in losses[island].iter().zip(expected[island]) {
            assert!((found - expected).abs() < 5e-5, "island {island}: {losses:?}");
        }
    }
    let runtime = Runtime::new(Limits::default(), None).unwrap();
    let tensors = Fragments::partition(&layout(3), 1).unwrap().policy_tensors(0);
    let contribution = |i: usize| Contribution { island: format!("{i}"), tokens: 6, steps: 3, staleness: 0, norm: 1.0 };
    let delta = |i: usize| start.iter().zip(islands[i]).map(|(s, t)| s - t).collect::<Vec<f32>>();
    let input = RoundInput {
        round: Round { index: 1, fragment: 0, version: 0, tokens_merged: 0, token_budget: 100 },
        tensors: &tensors,
        contributions: (0..2).map(|i| (contribution(i), Arc::new(Vector::from(delta(i))))).collect(),
        parameters: &Vector::from(start.to_vec()),
        state: &OuterState::default(),
    };
    let config = br#"{"eta":1.0,"momentum":0.9,"warmup":0}"#;
    let merged = merge_round(&runtime.bundled("mean").unwrap(), config, &input, 1, &|| ()).unwrap();
    let parameters = merged.parameters.into_vec().unwrap();
    for (found, expected) in parameters.iter().zip([1.5345, 1.0494, 0.5839]) {
        assert!((found - expected).abs() < 5e-5, "{parameters:?}");
    }
    let synced: [f32; 3] = parameters.try_into().unwrap();
    for (island, expected) in [0.207_544, 0.940_944].into_iter().enumerate() {
        let loss = step(&mut synced.clone(), &rows[island]);
        assert!((loss - expected).abs() < 5e-7, "island {island}: {loss}");
    }
}

/// Two tensors of more than one chunk each, too large for a syncer's memory: what lies on disk is merged to the same bits as what lies in memory,
/// on any number of threads. With η 1, no momentum and equal weights Θ moves by the mean, which is exact here.
#[test]
fn a_merge_on_disk_gives_the_bits_of_one_in_memory() {
    let elements = [50_000usize, 40_000];
    let tensors: Vec<tombolo::policy::Tensor> = elements
        .iter()
        .map(|&n| tombolo::policy::Tensor {
            name: format!("t{n}"),
            shape: vec![n as u32],
            kind: tombolo::policy::TensorKind::Matrix,
        })
        .collect();
    let total: usize = elements.iter().sum();
    assert!(4 * total > tombolo::bucket::MEMORY_BYTES);
    let values =
        |seed: usize| (0..total).map(|i| ((i * 31 + seed * 977) % 4096) as f32 / 256.0 - 8.0).collect::<Vec<f32>>();
    let runtime = Runtime::new(Limits::default(), None).unwrap();
    let policy = runtime.bundled("mean").unwrap();
    let merge = |on_disk: bool, threads: usize| {
        let vector = |values: Vec<f32>| {
            if !on_disk {
                return Vector::from(values);
            }
            let vector = Vector::zeros(values.len(), 0).unwrap();
            vector.write(0, &values).unwrap();
            vector
        };
        let contribution = |i: usize| {
            let facts = Contribution { island: format!("{i}"), tokens: 8, steps: 1, staleness: 0, norm: 1.0 };
            (facts, Arc::new(vector(values(i))))
        };
        let input = RoundInput {
            round: Round { index: 1, fragment: 0, version: 0, tokens_merged: 0, token_budget: 100 },
            tensors: &tensors,
            contributions: vec![contribution(1), contribution(2)],
            parameters: &vector(values(0)),
            state: &OuterState::default(),
        };
        let config = br#"{"eta":1.0,"momentum":0.0,"warmup":0}"#;
        let merged = merge_round(&policy, config, &input, threads, &|| ()).unwrap();
        let bits = |vector: Vector| vector.into_vec().unwrap().into_iter().map(f32::to_bits).collect::<Vec<u32>>();
        let state: Vec<Vec<u32>> = merged.state.slots.into_iter().map(bits).collect();
        (bits(merged.parameters), state, merged.outer)
    };
    let in_memory = merge(false, 1);
    for (on_disk, threads) in [(true, 1), (true, 3), (false, 3)] {
        assert!(merge(on_disk, threads) == in_memory, "on disk {on_disk}, {threads} threads");
    }
    let expected: Vec<u32> = values(0)
        .iter()
        .zip(values(1).iter().zip(&values(2)))
        .map(|(theta, (a, b))| (theta - (a + b) / 2.0).to_bits())
        .collect();
    assert!(in_memory.0 == expected, "Θ − (a + b) / 2");
}
