//! The only source of randomness of the protocol: nonces that tell one writer's object from another's.
//!
//! A nonce is 128 random bits as 32 lower-case hexadecimal digits. A simulation seeds the source per thread, so that one seed gives one
//! log; real processes draw from the operating system.

use rand::rngs::{OsRng, StdRng};
use rand::{RngCore, SeedableRng, TryRngCore};
use std::cell::RefCell;

thread_local! {
    static SEEDED: RefCell<Option<StdRng>> = const { RefCell::new(None) };
}

/// Makes every later nonce of this thread a function of `seed`; for simulations only.
pub fn seed_thread(seed: u64) {
    SEEDED.with(|rng| *rng.borrow_mut() = Some(StdRng::seed_from_u64(seed)));
}

/// A new nonce: 32 lower-case hexadecimal digits.
pub fn nonce() -> String {
    let mut bytes = [0u8; 16];
    SEEDED.with(|rng| match rng.borrow_mut().as_mut() {
        Some(rng) => rng.fill_bytes(&mut bytes),
        None => OsRng.try_fill_bytes(&mut bytes).expect("the operating system gives random bytes"),
    });
    hex(&bytes)
}

/// Bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The SHA-256 of `bytes` as 64 lower-case hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest;
    hex(&sha2::Sha256::digest(bytes))
}
