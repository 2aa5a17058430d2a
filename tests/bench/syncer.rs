//! How much memory a syncer takes: `cargo bench --bench syncer [-- MILLIONS ISLANDS]`, by default 10 and 200 million parameters, 4 and 16 islands.
//!
//! A toy model of eight tensors in four fragments, a bucket in a temporary folder, and made-up offers in bf16: all islands offer fragment 0 twice,
//! so that the second merge has a state to go on from, and one island the others in between. The syncer is a process of its own, which
//! recomputes all merges (`verify`) once they are done; its peak of resident memory (VmHWM) is counted from when the policies are loaded. On
//! disk it takes about ISLANDS · MILLIONS · 3 MB.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use tombolo::bucket::payload::{Chunk, Data, content_hash};
use tombolo::bucket::record::{FORMAT, PolicyUse, RunRecord};
use tombolo::bucket::{Bucket, Ledger, Location, OfferHeader, OfferId, Shelf, Tail};
use tombolo::clock::{self, Duration};
use tombolo::event::Sink;
use tombolo::outer::Fragments;
use tombolo::policy::{At, CHUNK_ELEMENTS, Codec, Limits, Policy, Runtime, chunks};
use tombolo::spec::Spec;
use tombolo::syncer::{self, Desk};
use tombolo_engine::{Layout, Tensor, TensorKind};

const TENSORS: usize = 8;
const FRAGMENTS: u64 = 4;
/// The second round of fragment 0.
const LAST_ROUND: u64 = 2 * FRAGMENTS;

fn main() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let words: Vec<String> = std::env::args().collect();
    if let [_, child, folder, millions] = &words[..]
        && child == "syncer"
    {
        return runtime.block_on(work(Path::new(folder), millions.parse().expect("a number")));
    }
    // Cargo passes flags of its own; numbers are ours.
    let numbers: Vec<usize> = words.iter().filter_map(|word| word.parse().ok()).collect();
    let cases = match numbers[..] {
        [millions, islands] => vec![(millions, islands)],
        _ => vec![(10, 4), (10, 16), (200, 4), (200, 16)],
    };
    println!("{:>12} {:>8} {:>14} {:>14} {:>14}", "parameters", "islands", "fragment, MB", "offers, MB", "peak, MB");
    for (millions, islands) in cases {
        let folder = tempfile::tempdir().expect("a folder");
        let toy = Toy::new(millions);
        runtime.block_on(prepare(&toy, folder.path(), islands));
        let exe = std::env::current_exe().expect("this program");
        let begun = Instant::now();
        let ended = Command::new(exe).arg("syncer").arg(folder.path()).arg(millions.to_string()).output();
        let ended = ended.expect("it starts");
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        let peak_kb: f64 = String::from_utf8_lossy(&ended.stdout).trim().parse().expect("a number");
        let fragment = toy.fragments.elements(0) as f64 * 4.0 / 1e6;
        println!(
            "{:>12} {islands:>8} {fragment:>14.0} {:>14.0} {:>14.0}   ({:.0} s)",
            toy.layout.elements(),
            fragment / 2.0 * islands as f64,
            peak_kb * 1.024 / 1000.0,
            begun.elapsed().as_secs_f64()
        );
    }
}

/// The run that both processes know.
struct Toy {
    record: RunRecord,
    layout: Layout,
    fragments: Arc<Fragments>,
    codec: Policy,
    merge: Policy,
    pace: Policy,
}

impl Toy {
    fn new(millions: usize) -> Toy {
        // Whole chunks, so that one encoded chunk serves for all.
        let elements = (millions * 1_000_000 / TENSORS).div_ceil(CHUNK_ELEMENTS) * CHUNK_ELEMENTS;
        let tensor = |i: usize| Tensor {
            name: format!("t{i}"),
            shape: vec![elements / CHUNK_ELEMENTS, CHUNK_ELEMENTS],
            kind: TensorKind::Matrix,
            offset: i * elements,
        };
        let layout = Layout { tensors: (0..TENSORS).map(tensor).collect() };
        let fragments = Arc::new(Fragments::partition(&layout, FRAGMENTS as usize).expect("a partition"));
        let runtime = Runtime::new(Limits::default(), None).expect("an engine");
        let [codec, merge, pace] =
            ["bf16", "mean", "adaptive-grace"].map(|name| runtime.bundled(name).expect("bundled"));
        let used = |policy: &Policy| PolicyUse {
            name: "bundled".into(),
            hash: policy.hash().to_string(),
            config: String::new(),
        };
        let mut spec = Spec { tokens: 1 << 40, islands: 1, ..Spec::default() };
        spec.outer.fragments = FRAGMENTS as usize;
        let record = RunRecord {
            format: FORMAT,
            down: None,
            chaos: false,
            nonce: "n".into(),
            layout: fragments.fingerprint().into(),
            corpus: String::new(),
            fragments: fragments.count(),
            codec: used(&codec),
            merge: used(&merge),
            pace: used(&pace),
            spec,
        };
        Toy { record, layout, fragments, codec, merge, pace }
    }

    async fn bucket(&self, folder: &Path) -> Bucket {
        let location = Location { url: format!("file:{}", folder.display()), endpoint: None };
        Bucket::new(location.open(true).await.expect("a folder"), &self.record.spec.run)
    }
}

/// Puts the run and all its offers into the bucket.
async fn prepare(toy: &Toy, folder: &Path, islands: usize) {
    let bucket = toy.bucket(folder).await;
    bucket.start(&toy.fragments, &vec![0.5; toy.layout.elements()], FRAGMENTS, "bench").await.expect("written");
    let noise: Vec<f32> = (0..CHUNK_ELEMENTS).map(|i| ((i * 7919) % 1000) as f32 * 1e-5 - 5e-3).collect();
    for round in FRAGMENTS..=LAST_ROUND {
        let p = (round % FRAGMENTS) as usize;
        let tensors = toy.fragments.policy_tensors(p);
        let mut codec = Codec::open(&toy.codec, b"", &tensors).expect("it opens");
        let bytes = codec.encode(At { tensor: 0, offset: 0 }, &noise).expect("encoded");
        let encoded: Vec<Chunk> = chunks(&tensors)
            .map(|(at, elements)| Chunk {
                section: "offer".into(),
                tensor: at.tensor,
                offset: at.offset,
                elements: elements as u32,
                data: Data::Encoded(bytes.clone()),
            })
            .collect();
        let hash = content_hash(&encoded);
        for island in 0..if p == 0 { islands } else { 1 } {
            let header = OfferHeader {
                format: FORMAT,
                run: toy.record.spec.run.clone(),
                layout: toy.fragments.fingerprint().into(),
                id: OfferId { round, island: format!("island-{island:02}"), incarnation: 1 },
                fragment: p,
                base: round - FRAGMENTS,
                tokens: 8,
                steps: 1,
                codec: toy.codec.hash().to_string(),
                codec_config: String::new(),
                hash: hash.clone(),
            };
            bucket.put_offer(&header, encoded.clone()).await.expect("written");
        }
    }
}

/// The syncer: merges all rounds, and prints its peak of resident memory in KiB.
async fn work(folder: &Path, millions: usize) {
    let toy = Toy::new(millions);
    let bucket = toy.bucket(folder).await;
    let desk = || Desk {
        bucket: bucket.clone(),
        record: toy.record.clone(),
        id: "syncer".into(),
        fragments: toy.fragments.clone(),
        tensors: (0..toy.fragments.count()).map(|p| toy.fragments.policy_tensors(p)).collect(),
        shelf: Shelf::holding([toy.codec.clone(), toy.merge.clone(), toy.pace.clone()]),
        threads: 2,
        eager: true,
        sink: Sink::Null,
        beat_every: Duration::from_millis(500),
    };
    // Resets VmHWM (proc(5)).
    std::fs::write("/proc/self/clear_refs", "5").expect("this process's own");
    let empty = Ledger::of(&toy.record);
    let mut tail = Tail::new(empty);
    let merged = async {
        while tail.ledger.next_round <= LAST_ROUND {
            clock::sleep(Duration::from_millis(100)).await;
            tail.advance(&bucket, usize::MAX).await.expect("readable");
        }
    };
    syncer::run(desk(), merged).await.expect("it works");
    assert_eq!(tail.ledger.fates.refused + tail.ledger.fates.late, 0);
    assert_eq!(tail.ledger.rounds_committed(), LAST_ROUND - FRAGMENTS + 1);
    let verified = syncer::verify(&desk(), 1, |_| ()).await.expect("it is readable");
    assert!(verified.is_clean() && verified.same == tail.ledger.rounds_committed(), "{verified:?}");
    let status = std::fs::read_to_string("/proc/self/status").expect("this process's own");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a Linux");
    println!("{}", peak.trim().trim_end_matches("kB").trim());
}
