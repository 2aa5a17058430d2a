//! How fast policies are, beside native code doing the same work in the same run: `cargo bench --bench policy [-- MEBI_VALUES]`.
//!
//! Merge: mean and Nesterov of 4 contributions of 16 Mi values, with all limits on, from and to memory. Its twin works on the same slices
//! in place. Codecs: encode and decode of 16 Mi values on one thread, all of them, three beside a twin; rates are bytes of f32 per second. Figures are medians of five, interleaved.

use std::hint::black_box;
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use tombolo::policy::{
    At, CHUNK_ELEMENTS, Codec, Contribution, Limits, MergeSource, Policy, Round, Runtime, Tensor, TensorKind,
    bundled_names, bundled_wasm, chunks, merge,
};

/// The twin of the codec `topk` is its own source, compiled natively.
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

/// Runs all of `jobs` in turn, several times; the median of each.
fn medians(jobs: &mut [Job<'_>]) -> Vec<f64> {
    let mut seconds = vec![Vec::new(); jobs.len()];
    for _ in 0..REPEATS {
        for ((_, job), seconds) in jobs.iter_mut().zip(&mut seconds) {
            let begun = Instant::now();
            job();
            seconds.push(begun.elapsed().as_secs_f64());
        }
    }
    seconds.into_iter().map(median).collect()
}

/// A fragment of one tensor, cut into chunks that threads can write at once.
struct Memory {
    values: Vec<Vec<f32>>,
    chunks: Vec<Mutex<(Vec<f32>, Vec<f32>)>>,
}

impl Memory {
    fn new(count: usize) -> Memory {
        let values = (0..CONTRIBUTIONS as u32).map(|seed| noise(seed, count)).collect();
        let parameters = noise(9, count);
        let chunks =
            parameters.chunks(CHUNK_ELEMENTS).map(|chunk| Mutex::new((chunk.to_vec(), vec![0.0; chunk.len()])));
        Memory { values, chunks: chunks.collect() }
    }

    fn chunk(&self, at: At) -> &Mutex<(Vec<f32>, Vec<f32>)> {
        &self.chunks[at.offset as usize / CHUNK_ELEMENTS]
    }
}

impl MergeSource for Memory {
    fn state_slots(&self) -> usize {
        1
    }
    fn values(&self, contribution: usize, at: At, out: &mut [f32]) -> Result<(), String> {
        out.copy_from_slice(&self.values[contribution][at.offset as usize..][..out.len()]);
        Ok(())
    }
    fn state(&self, _: usize, at: At, out: &mut [f32]) -> Result<(), String> {
        out.copy_from_slice(&self.chunk(at).lock().expect("sound").1);
        Ok(())
    }
    fn parameters(&self, at: At, out: &mut [f32]) -> Result<(), String> {
        out.copy_from_slice(&self.chunk(at).lock().expect("sound").0);
        Ok(())
    }
    fn values_in_place(&self, contribution: usize, at: At, elements: usize) -> Option<&[f32]> {
        Some(&self.values[contribution][at.offset as usize..][..elements])
    }
    fn store(&self, at: At, parameters: &[f32], state: &[Vec<f32>]) -> Result<(), String> {
        let mut chunk = self.chunk(at).lock().expect("sound");
        chunk.0.copy_from_slice(parameters);
        chunk.1.copy_from_slice(&state[0]);
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
                    let mut chunk = chunk.lock().expect("sound");
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
    let (mean, rda) = (runtime.bundled("mean").expect("bundled"), runtime.bundled("rda").expect("bundled"));
    let mut jobs: Vec<Job<'_>> = Vec::new();
    for threads in [1, 2] {
        let (memory, tensors) = (&memory, &tensors);
        jobs.push((format!("native mean, {threads} threads"), Box::new(move || native(memory, threads))));
        for (name, policy) in [("mean", mean.clone()), ("rda", rda.clone())] {
            jobs.push((
                format!("{name}, {threads} threads"),
                Box::new(move || guest(&policy, memory, tensors, threads)),
            ));
        }
    }
    let seconds = medians(&mut jobs);
    println!("merge and Nesterov of {CONTRIBUTIONS} x {} Mi values", count >> 20);
    for (index, ((name, _), time)) in jobs.iter().zip(&seconds).enumerate() {
        let native = seconds[index / 3 * 3];
        println!("{name:>24}: {:>7.1} ms, {:.2} of native", time * 1e3, native / time);
    }
}

fn codecs(runtime: &Runtime, count: usize) {
    let values = noise(5, count);
    let tensors = tensors(count);
    let list: Vec<(At, usize)> = chunks(&tensors).collect();
    println!("codecs on {} Mi values, one thread", count >> 20);
    for name in ["bf16", "int8", "topk", "f32", "fp4", "int4", "sign"] {
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
        if TWINS.contains(&name) {
            jobs.extend(twins);
        }
        let seconds = medians(&mut jobs);
        for (index, ((what, _), time)) in jobs.iter().zip(&seconds).enumerate() {
            let rate = count as f64 * 4.0 / time / 1e9;
            let ratio = seconds.get(index % 2 + 2).map(|native| format!(", {:.2} of native", native / time));
            println!("{:>24}: {rate:>7.2} GB/s{}", format!("{name} {what}"), ratio.unwrap_or_default());
        }
    }
}

/// Codecs that have a twin here.
const TWINS: [&str; 3] = ["bf16", "int8", "topk"];

/// Values that `topk` keeps of `elements` by default.
fn kept(elements: usize) -> usize {
    elements.div_ceil(100)
}

fn native_encode(name: &str, values: &[f32]) -> Vec<u8> {
    if name == "topk" {
        return sparse::sparse_encode(values, kept(values.len()));
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
    if name == "topk" {
        return sparse::sparse_decode(bytes, elements, kept(elements)).expect("own bytes");
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
