//! How fast policies are, beside native code doing the same work in the same run: `cargo bench --bench policy [-- MEBI_VALUES]`.
//!
//! Merges: every bundled rule on 4 contributions of 16 Mi values, with all limits on, from and to memory, on one thread and on two. They stand beside the native twin of
//! `mean` with Nesterov, which works on the same slices in place on as many threads. Codecs: encode and decode of 16 Mi values on one thread, beside
//! their twins. Fuel: the calls of `mean` and of the codecs on an engine that counts it, and on one that does not. Rates are bytes of f32 per second
//! (in merges, of contributions). Times are medians of five, interleaved, of processor time, shared among the threads: on an idle machine that is the time on the
//! clock, and on a busy one the work of others counts for less.

use std::hint::black_box;
use std::ops::Deref;
use std::sync::{RwLock, RwLockReadGuard};
use std::thread;
use std::time::Instant;

use tombolo::policy::{
    At, CHUNK_ELEMENTS, Codec, Contribution, Lent, Limits, MergeSource, Policy, Round, Runtime, Tensor, TensorKind,
    bundled_names, bundled_wasm, chunks, merge,
};

mod fuel;

/// The twins of some codecs are their own sources, compiled natively.
#[path = "../../plugins/sdk/src/nibble.rs"]
#[allow(
    unused_imports,
    dead_code,
    clippy::manual_clamp,
    clippy::needless_range_loop,
    reason = "its tests do not run here, and its workspace has its own lints"
)]
mod nibble;
#[path = "../../plugins/sdk/src/quantise.rs"]
#[allow(unused_imports, dead_code, reason = "its tests do not run here, and two of its codecs have twins of their own")]
mod quantise;
#[path = "../../plugins/sdk/src/sparse.rs"]
#[allow(
    unused_imports,
    clippy::manual_is_multiple_of,
    reason = "its tests do not run here, and its workspace has its own lints"
)]
mod sparse;

/// As in the SDK.
const LANES: usize = 32;

const CONTRIBUTIONS: usize = 4;
const REPEATS: usize = 5;

/// Bundled merge rules.
const RULES: [&str; 7] = ["mean", "norm-clip", "sparseloco", "rda", "krum", "trimmed-mean", "median"];
/// Bundled codecs.
const CODECS: [&str; 7] = ["f32", "bf16", "int8", "topk", "fp4", "int4", "sign"];

fn main() {
    // Cargo passes flags of its own; a number is ours.
    let mebi = std::env::args().find_map(|argument| argument.parse().ok()).unwrap_or(16_usize);
    let count = mebi << 20;
    let runtime = Runtime::new(Limits::default(), None).expect("an engine");
    for name in bundled_names() {
        let begun = Instant::now();
        runtime.bundled(name).expect("bundled");
        let bytes = bundled_wasm(name).expect("bundled").len();
        println!("{name:>16}: {bytes:>6} bytes, loaded in {:>4} ms", begun.elapsed().as_millis());
    }
    merges(&runtime, count);
    codecs(&runtime, count);
    fuel::compare(count.min(4 << 20));
}

fn noise(seed: u32, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((state >> 8) as f32 / (1 << 23) as f32 - 1.0) * 0.01
    };
    (0..count).map(|_| next()).collect()
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

/// Something to measure, with its name.
type Job<'a> = (String, Box<dyn FnMut() + 'a>);

/// Seconds of processor time that this process has taken.
fn processor_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Runs all of `jobs`, which work on `threads` threads, in turn, several times; the median of each.
fn medians(jobs: &mut [Job<'_>], threads: usize) -> Vec<f64> {
    let mut seconds = vec![Vec::new(); jobs.len()];
    for _ in 0..REPEATS {
        for ((_, job), seconds) in jobs.iter_mut().zip(&mut seconds) {
            let begun = processor_seconds();
            job();
            seconds.push((processor_seconds() - begun) / threads as f64);
        }
    }
    seconds.into_iter().map(median).collect()
}

/// Parameters and state of a chunk.
type Held = (Vec<f32>, Vec<f32>);

/// A fragment of one tensor, cut into chunks that threads can write at once.
struct Memory {
    values: Vec<Vec<f32>>,
    chunks: Vec<RwLock<Held>>,
}

impl Memory {
    fn new(count: usize) -> Memory {
        let values = (0..CONTRIBUTIONS as u32).map(|seed| noise(seed, count)).collect();
        let parameters = noise(9, count);
        let chunks =
            parameters.chunks(CHUNK_ELEMENTS).map(|chunk| RwLock::new((chunk.to_vec(), vec![0.0; chunk.len()])));
        Memory { values, chunks: chunks.collect() }
    }

    fn chunk(&self, at: At) -> &RwLock<Held> {
        &self.chunks[at.offset as usize / CHUNK_ELEMENTS]
    }
}

/// One of the two vectors of a chunk, as long as nobody writes them.
struct Part<'a>(RwLockReadGuard<'a, Held>, fn(&Held) -> &Vec<f32>);

impl Deref for Part<'_> {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        (self.1)(&self.0)
    }
}

impl MergeSource for Memory {
    fn state_slots(&self) -> usize {
        1
    }
    fn values<'a>(&'a self, contribution: usize, at: At, room: &'a mut [f32]) -> Result<Lent<'a>, String> {
        Ok(Box::new(&self.values[contribution][at.offset as usize..][..room.len()]))
    }
    fn state<'a>(&'a self, _: usize, at: At, _: &'a mut [f32]) -> Result<Lent<'a>, String> {
        Ok(Box::new(Part(self.chunk(at).read().expect("sound"), |held| &held.1)))
    }
    fn parameters<'a>(&'a self, at: At, _: &'a mut [f32]) -> Result<Lent<'a>, String> {
        Ok(Box::new(Part(self.chunk(at).read().expect("sound"), |held| &held.0)))
    }
    fn store(&self, at: At, parameters: Vec<f32>, state: Vec<Vec<f32>>) -> Result<(), String> {
        let mut chunk = self.chunk(at).write().expect("sound");
        chunk.0 = parameters;
        if let Some(state) = state.into_iter().next() {
            chunk.1 = state;
        }
        Ok(())
    }
}

/// The twin: mean and Nesterov of one chunk in place, in the order of the guest's arithmetic.
fn native_chunk(
    shares: [f32; CONTRIBUTIONS],
    values: [&[f32]; CONTRIBUTIONS],
    parameters: &mut [f32],
    buffer: &mut [f32],
) {
    let (eta, momentum) = (0.7, 0.5);
    let [a, b, c, d] = values.map(|list| &list[..parameters.len()]);
    let buffer = &mut buffer[..parameters.len()];
    for index in 0..parameters.len() {
        let delta = shares[0] * a[index] + shares[1] * b[index] + shares[2] * c[index] + shares[3] * d[index];
        buffer[index] = momentum * buffer[index] + delta;
        parameters[index] -= eta * (delta + momentum * buffer[index]);
    }
}

fn native(memory: &Memory, threads: usize) {
    thread::scope(|scope| {
        for part in 0..threads {
            scope.spawn(move || {
                for (index, chunk) in memory.chunks.iter().enumerate().skip(part).step_by(threads) {
                    let mut chunk = chunk.write().expect("sound");
                    let (parameters, buffer) = &mut *chunk;
                    let values = [0, 1, 2, 3].map(|list: usize| &memory.values[list][index * CHUNK_ELEMENTS..]);
                    native_chunk([0.25; CONTRIBUTIONS], values, parameters, buffer);
                }
            });
        }
    });
}

fn guest(policy: &Policy, memory: &Memory, tensors: &[Tensor], threads: usize) {
    let round = Round { index: 0, fragment: 0, version: 9, tokens_merged: 0, token_budget: 0 };
    let contribution =
        |index| Contribution { island: format!("island-{index}"), tokens: 10, steps: 1, staleness: 0, norm: 1.0 };
    let contributions: Vec<_> = (0..CONTRIBUTIONS).map(contribution).collect();
    merge(policy, b"", &round, tensors, &contributions, &[], memory, threads).expect("merges");
}

fn tensors(count: usize) -> Vec<Tensor> {
    vec![Tensor { name: "t".into(), shape: vec![count as u32], kind: TensorKind::Matrix }]
}

fn merges(runtime: &Runtime, count: usize) {
    let memory = Memory::new(count);
    let tensors = tensors(count);
    let policies: Vec<(&str, Policy)> =
        RULES.iter().map(|name| (*name, runtime.bundled(name).expect("bundled"))).collect();
    println!("merges of {CONTRIBUTIONS} x {} Mi values", count >> 20);
    for threads in [1, 2] {
        let (memory, tensors) = (&memory, &tensors);
        let mut jobs: Vec<Job<'_>> = vec![("native".into(), Box::new(move || native(memory, threads)))];
        for (name, policy) in &policies {
            jobs.push((name.to_string(), Box::new(move || guest(policy, memory, tensors, threads))));
        }
        let seconds = medians(&mut jobs, threads);
        for ((name, _), time) in jobs.iter().zip(&seconds) {
            let rate = (CONTRIBUTIONS * count) as f64 * 4.0 / time / 1e9;
            let share = seconds[0] / time;
            println!("{name:>16} on {threads}: {:>7.1} ms, {rate:>6.2} GB/s, {share:.2} of native mean", time * 1e3);
        }
    }
}

fn codecs(runtime: &Runtime, count: usize) {
    let values = noise(5, count);
    let tensors = tensors(count);
    let list: Vec<(At, usize)> = chunks(&tensors).collect();
    println!("codecs on {} Mi values, one thread", count >> 20);
    for name in CODECS {
        let policy = runtime.bundled(name).expect("bundled");
        let mut encoder = Codec::open(&policy, b"", &tensors).expect("opens");
        let mut decoder = Codec::open(&policy, b"", &tensors).expect("opens");
        let chunk = |at: At, elements: usize| &values[at.offset as usize..][..elements];
        let encoded: Vec<Vec<u8>> =
            list.iter().map(|(at, elements)| encoder.encode(*at, chunk(*at, *elements)).expect("encodes")).collect();
        let mut jobs: Vec<Job<'_>> = vec![
            (
                "encode".into(),
                Box::new(|| {
                    for (at, elements) in &list {
                        black_box(encoder.encode(*at, chunk(*at, *elements)).expect("encodes"));
                    }
                }),
            ),
            (
                "decode".into(),
                Box::new(|| {
                    for ((at, elements), bytes) in list.iter().zip(&encoded) {
                        black_box(decoder.decode(*at, bytes, *elements).expect("decodes"));
                    }
                }),
            ),
        ];
        let twins: [Job<'_>; 2] = [
            (
                "native encode".into(),
                Box::new(|| {
                    for (at, elements) in &list {
                        black_box(native_encode(name, chunk(*at, *elements)));
                    }
                }),
            ),
            (
                "native decode".into(),
                Box::new(|| {
                    for ((_, elements), bytes) in list.iter().zip(&encoded) {
                        black_box(native_decode(name, bytes, *elements));
                    }
                }),
            ),
        ];
        jobs.extend(twins);
        let seconds = medians(&mut jobs, 1);
        for (index, ((what, _), time)) in jobs.iter().zip(&seconds).enumerate() {
            let rate = count as f64 * 4.0 / time / 1e9;
            let share = seconds[index % 2 + 2] / time;
            println!("{:>24}: {rate:>7.2} GB/s, {share:.2} of native", format!("{name} {what}"));
        }
    }
}

/// Values that `topk` keeps of `elements` by default.
fn kept(elements: usize) -> usize {
    elements.div_ceil(100)
}

fn native_encode(name: &str, values: &[f32]) -> Vec<u8> {
    match name {
        "f32" => return values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        "topk" => return sparse::sparse_encode(values, kept(values.len())),
        "fp4" => return nibble::fp4_encode(values),
        "int4" => return nibble::int4_encode(values),
        "sign" => return nibble::sign_encode(values),
        _ => {}
    }
    if name == "bf16" {
        let round = |value: &f32| {
            let bits = value.to_bits();
            let magnitude = bits & 0x7fff_ffff;
            let rounded = (magnitude + 0x7fff + ((magnitude >> 16) & 1)) >> 16;
            (rounded.min(0x7f7f) | ((bits >> 16) & 0x8000)) as u16
        };
        return values.iter().flat_map(|value| round(value).to_le_bytes()).collect();
    }
    let mut bytes = Vec::with_capacity(values.len() + values.len() / 32 + 4);
    for block in values.chunks(128) {
        let absmax = block.iter().fold(0.0, |max: f32, value| max.max(value.abs()));
        let scale = absmax / 127.0;
        bytes.extend(scale.to_le_bytes());
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        bytes.extend(block.iter().map(|value| (value * inverse + 12_582_912.0).to_bits() as u8));
    }
    bytes
}

fn native_decode(name: &str, bytes: &[u8], elements: usize) -> Vec<f32> {
    match name {
        "f32" => return bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect(),
        "topk" => return sparse::sparse_decode(bytes, elements, kept(elements)).expect("own bytes"),
        "fp4" => return nibble::fp4_decode(bytes, elements).expect("own bytes"),
        "int4" => return nibble::int4_decode(bytes, elements).expect("own bytes"),
        "sign" => return nibble::sign_decode(bytes, elements).expect("own bytes"),
        _ => {}
    }
    if name == "bf16" {
        let (words, _) = bytes.as_chunks::<2>();
        return words.iter().map(|word| f32::from_bits(u32::from(u16::from_le_bytes(*word)) << 16)).collect();
    }
    let mut values = Vec::with_capacity(elements);
    for block in bytes.chunks(132) {
        let scale = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
        values.extend(block[4..].iter().map(|byte| f32::from(*byte as i8) * scale));
    }
    values
}
