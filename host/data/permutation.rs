//! A shuffle that needs no memory: a seeded bijection of `0..n`.
//!
//! A Feistel network (Luby and Rackoff 1988) permutes the smallest power of two that holds `n`;
//! values that land at or above `n` are sent round again until they fall below it (cycle walking,
//! Black and Rogaway 2002), less than twice on average. So the window at any place of any epoch is
//! known without shuffling the others, on every machine alike. The mixing function is arithmetic on
//! 64-bit integers, written out here, because a library's hash may change between versions and a
//! resumed run must not.

/// Rounds of the network. Four already give a pseudo-random permutation if the round function is
/// random; ours is only well mixed. Even, so that halves of unequal width end where they began.
const ROUNDS: usize = 6;

/// A permutation of `0..len`, chosen by a key.
#[derive(Debug, Clone, Copy)]
pub struct Permutation {
    len: u64,
    low_bits: u32,
    high_bits: u32,
    keys: [u64; ROUNDS],
}

impl Permutation {
    /// The permutation of `0..len` that `key` and `epoch` choose.
    ///
    /// # Panics
    /// If `len` is 0: there is nothing to permute.
    pub fn new(len: u64, key: u64, epoch: u64) -> Self {
        assert!(len > 0, "a permutation of nothing");
        let bits = (u64::BITS - (len - 1).leading_zeros()).max(2);
        let mut state = mix(key ^ mix(epoch.wrapping_add(0x6a09_e667_f3bc_c909)));
        let keys = std::array::from_fn(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(state)
        });
        Self { len, low_bits: bits - bits / 2, high_bits: bits / 2, keys }
    }

    /// Where `index` goes.
    ///
    /// # Panics
    /// If `index` is not below the length.
    pub fn apply(&self, index: u64) -> u64 {
        assert!(index < self.len, "index {index} is outside a permutation of {}", self.len);
        let mut at = index;
        loop {
            // Ends: the network is a bijection, so walking its cycle comes back to `index` itself
            // at the latest.
            at = self.network(at);
            if at < self.len {
                return at;
            }
        }
    }

    /// One pass through the network, over the whole power of two.
    fn network(&self, value: u64) -> u64 {
        let (mut a, mut b) = (value >> self.low_bits, value & mask(self.low_bits));
        let (mut a_bits, mut b_bits) = (self.high_bits, self.low_bits);
        for key in self.keys {
            (a, b) = (b, a ^ (mix(b ^ key) & mask(a_bits)));
            (a_bits, b_bits) = (b_bits, a_bits);
        }
        debug_assert_eq!((a_bits, b_bits), (self.high_bits, self.low_bits));
        (a << self.low_bits) | b
    }
}

fn mask(bits: u32) -> u64 {
    // `bits` is at most 32: half of 64.
    (1_u64 << bits) - 1
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood 2014): every input bit reaches every output
/// bit.
fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
