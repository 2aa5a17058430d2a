//! With what the bundled merge rules were tuned: how islands take versions in, and how many inner steps (H) lay between two merges of a fragment. A
//! rule that does well at one period need not do so at another, so whoever pairs it with something else is told. Each entry rests on
//! measurements of held-out loss beside data-parallel training in EXPERIMENTS.md. Nothing is known of a user's own component.

use super::Hash;
use super::bundled::bundled_name;
use serde::{Deserialize, Serialize};

/// How islands took in versions in all measurements: θ ← α·θ + (1 − α)·Θ with α = 0.
const ADOPTION: &str = "overwrite (alpha 0)";

/// Rule, outer optimiser, and the periods H at which it was measured to come close to data-parallel training.
const MEASURED: &[(&str, &str, &[u64])] = &[("mean", "nesterov", &[24]), ("rda", "nesterov", &[24])];

/// What a merge rule was tuned with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tuned {
    /// The outer optimiser.
    pub outer: String,
    /// How islands take in versions.
    pub adoption: String,
    /// Inner steps between two merges of a fragment (H), ascending.
    pub sync_steps: Vec<u64>,
}

impl std::fmt::Display for Tuned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let periods: Vec<String> = self.sync_steps.iter().map(u64::to_string).collect();
        write!(f, "outer {}, H {}, {} on adoption", self.outer, periods.join(" and "), self.adoption)
    }
}

/// What the component with this hash was tuned with; empty where nothing is known.
pub fn tuned(policy: Hash) -> Vec<Tuned> {
    let rule = bundled_name(policy);
    let of = MEASURED.iter().filter(|(name, ..)| Some(*name) == rule);
    let entry = |(_, outer, periods): &(&str, &str, &[u64])| Tuned {
        outer: outer.to_string(),
        adoption: ADOPTION.into(),
        sync_steps: periods.to_vec(),
    };
    of.map(entry).collect()
}

/// What a run should be told that pairs this merge rule and its configuration (JSON; empty for the defaults) with `sync_steps` inner steps between two
/// merges of a fragment; nothing where it was tuned with as many, or with fewer and with more.
pub fn untuned(policy: Hash, name: &str, config: &str, sync_steps: u64) -> Option<String> {
    let hint = "`tombolo bench` compares it with data-parallel training";
    if bundled_name(policy).is_none() {
        return Some(format!(
            "merge rule {name} does not come with tombolo, nor is known at which H it does well; {hint}"
        ));
    }
    let fields: Option<serde_json::Value> = serde_json::from_str(config).ok();
    let outer = fields.as_ref().and_then(|fields| fields["outer"].as_str()).unwrap_or("nesterov");
    let Some(tuned) = tuned(policy).into_iter().find(|tuned| tuned.outer == outer) else {
        return Some(format!("merge rule {name} with outer {outer} has not been tuned at any H; {hint}"));
    };
    let within = tuned.sync_steps.first() <= Some(&sync_steps) && Some(&sync_steps) <= tuned.sync_steps.last();
    (!within).then(|| format!("merge rule {name} was tuned with {tuned}, not with H {sync_steps}; {hint}"))
}

#[cfg(test)]
mod tests {
    use super::super::{bundled_names, bundled_wasm};
    use super::*;

    fn hash(name: &str) -> Hash {
        Hash::of(bundled_wasm(name).expect("bundled"))
    }

    #[test]
    fn what_is_said_to_be_tuned_is_bundled_and_its_periods_ascend() {
        for (name, _, periods) in MEASURED {
            assert!(bundled_names().contains(name), "{name}");
            assert!(!periods.is_empty() && periods.is_sorted(), "{name}: {periods:?}");
        }
    }

    #[test]
    fn a_pair_that_was_not_tuned_is_told_and_one_that_was_is_not() {
        let told = |name: &str, config: &str, h: u64| untuned(hash(name), name, config, h);
        assert_eq!(told("rda", "", 24), None);
        assert_eq!(told("rda", r#"{"outer":"nesterov","eta":0.5}"#, 24), None);
        let long = told("rda", "", 500).expect("too long a period");
        assert!(long.contains("not with H 500") && long.contains("overwrite (alpha 0) on adoption"), "{long}");
        let other = told("rda", r#"{"outer":"delayed-nesterov"}"#, 24).expect("another optimiser");
        assert!(other.contains("outer delayed-nesterov has not been tuned"), "{other}");
        assert!(told("krum", "", 24).is_some_and(|told| told.contains("krum with outer nesterov has not been tuned")));
        let own = untuned(Hash::of(b"another"), "mine.wasm", "", 24).expect("not bundled");
        assert!(own.contains("mine.wasm does not come with tombolo"), "{own}");
    }
}
