//! The policies that come with the program: ordinary components, built from plugins/ by `cargo xtask plugins`.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use super::Hash;

macro_rules! bundle {
    ($($name:literal),* $(,)?) => {
        /// Their names, sorted.
        const NAMES: &[&str] = &[$($name),*];

        /// The component of the bundled policy `name`.
        pub fn bundled_wasm(name: &str) -> Option<&'static [u8]> {
            match name {
                $($name => Some(include_bytes!(concat!("../../plugins/bundled/", $name, ".wasm"))),)*
                _ => None,
            }
        }
    };
}

bundle!(
    "adaptive-grace",
    "bf16",
    "f32",
    "fixed",
    "fp4",
    "int4",
    "int8",
    "krum",
    "mean",
    "median",
    "norm-clip",
    "rda",
    "sign",
    "sparseloco",
    "topk",
    "trimmed-mean",
    "wait-all",
);

/// The names of the bundled policies, sorted.
pub fn bundled_names() -> &'static [&'static str] {
    NAMES
}

/// The name of the bundled policy with this hash.
pub fn bundled_name(hash: Hash) -> Option<&'static str> {
    static HASHES: OnceLock<BTreeMap<Hash, &'static str>> = OnceLock::new();
    let hashed = |name: &&'static str| Some((Hash::of(bundled_wasm(name)?), *name));
    HASHES.get_or_init(|| NAMES.iter().filter_map(hashed).collect()).get(&hash).copied()
}
