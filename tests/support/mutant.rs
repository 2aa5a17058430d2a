//! Damaged bytes from a seed: bits flipped, bytes overwritten, pieces cut out, doubled, swapped with those of another file, ends cut off.
//!
//! The same seed gives the same inputs in every build. `TOMBOLO_FUZZ_SEED=N` sets the seed of the tests that use this, `TOMBOLO_FUZZ_INPUTS=N` how many
//! inputs each of them makes; both are said on standard error.

use std::{env, panic, thread};

use tombolo::clock::{self, Duration};

/// Bytes that lengths, counts and types are made of, and that break them.
const TELLING: [u8; 8] = [0x00, 0x01, 0x7f, 0x80, 0xff, 0xfd, 0x0f, 0x20];

/// Longer than any input can take: 30 s to compile a component, then calls of bounded fuel.
const STUCK: Duration = Duration::from_secs(180);

/// Makes damaged copies of whole files.
pub struct Mutants<'a> {
    whole: &'a [Vec<u8>],
    state: u64,
}

/// What a test has been told: its seed, and its number of inputs, `usually` where nothing is said.
pub fn told(test: &str, usually: usize) -> (u64, usize) {
    let number = |name: &str| {
        let text = env::var(name).ok()?;
        Some(text.parse::<u64>().unwrap_or_else(|_| panic!("{name} must be a number, found {text:?}")))
    };
    let seed = number("TOMBOLO_FUZZ_SEED").unwrap_or(1);
    let inputs = number("TOMBOLO_FUZZ_INPUTS").map_or(usually, |inputs| inputs as usize);
    super::say(&format!("{test}: {inputs} inputs of TOMBOLO_FUZZ_SEED={seed}"));
    (seed, inputs)
}

/// What `look` makes of each input, asked in order on a thread of its own: an input that never comes to an end is named.
///
/// # Panics
/// Where `look` does, or does not come to an end.
pub async fn each<T: Send + 'static>(inputs: usize, look: impl Fn(usize) -> T + Send + 'static) -> Vec<T> {
    let (report, mut reports) = tokio::sync::mpsc::channel(16);
    let worker = thread::spawn(move || (0..inputs).all(|input| report.blocking_send(look(input)).is_ok()));
    let mut made = Vec::new();
    while let Some(one) = match clock::timeout(STUCK, reports.recv()).await {
        Ok(report) => report,
        Err(_) => panic!("input {} does not come to an end", made.len()),
    } {
        made.push(one);
    }
    if let Err(reason) = worker.join() {
        panic::resume_unwind(reason);
    }
    made
}

impl<'a> Mutants<'a> {
    /// Of these files, none of them empty. Input number `input` of a seed depends on no other input.
    pub fn new(whole: &'a [Vec<u8>], seed: u64, input: usize) -> Mutants<'a> {
        let state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(input as u64);
        let mut mutants = Mutants { whole, state };
        mutants.below(2);
        mutants
    }

    /// Steele et al., Fast splittable pseudorandom number generators (SplitMix64).
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 where there is none.
    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    /// A piece of at most 64 bytes of a list of `length`.
    fn piece(&mut self, length: usize) -> (usize, usize) {
        let start = self.below(length);
        let most = 1 + self.below(64);
        (start, (start + most).min(length))
    }

    /// A damaged copy of one of the files.
    pub fn make(&mut self) -> Vec<u8> {
        let mut bytes = self.whole[self.below(self.whole.len())].clone();
        for _ in 0..=self.below(3) {
            self.damage(&mut bytes);
        }
        bytes
    }

    fn damage(&mut self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let at = self.below(bytes.len());
        match self.below(9) {
            0..=2 => bytes[at] ^= 1 << self.below(8),
            3 | 4 => bytes[at] = TELLING[self.below(TELLING.len())],
            5 => bytes.truncate(at),
            6 => {
                let (start, end) = self.piece(bytes.len());
                bytes.drain(start..end);
            }
            7 => {
                let (start, end) = self.piece(bytes.len());
                let doubled = bytes[start..end].to_vec();
                bytes.splice(at..at, doubled);
            }
            _ => {
                // A piece of another file over the piece that lies at about the same place.
                let other = &self.whole[self.below(self.whole.len())];
                let (start, end) = self.piece(other.len().min(bytes.len()));
                bytes[start..end].copy_from_slice(&other[start..end]);
            }
        }
    }
}

/// An error is fit to be shown: it says something, is not endless, and holds nothing that would steer a terminal.
pub fn assert_readable(message: &str, which: &str) {
    assert!(!message.trim().is_empty(), "{which}: an error without words");
    assert!(message.len() < 8 << 10, "{which}: an error of {} bytes", message.len());
    let strange = message.chars().find(|c| c.is_control() && *c != '\n');
    assert_eq!(strange, None, "{which}: a control character in {message:?}");
}

/// The most memory that this process has had so far, in bytes; none where the system does not tell.
pub fn memory_peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kibibytes| kibibytes << 10)
}
