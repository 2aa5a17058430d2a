//! Which policies are active, round by round. Pure: a part of the [`Ledger`](super::Ledger).
//!
//! A run begins with the policies of its record. An `activate` entry of the log says from which round on another fills a role, so everybody who has read as
//! far switches at the same round. Codecs switch at a round that is not open yet: an island offers for a round only after it has read the entry that opens it, and so after
//! it has read which codec that round has.
//!
//! A policy that fails is given up: the entry that puts another in its place says why, and [`Active::candidates`] never comes back to it by itself.

use super::record::{Activate, Failed, PolicyUse};
use crate::policy::Role;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Switches of one role that are remembered behind those that recent rounds need.
const HISTORY_MAX: usize = 16;
/// Switches of one role that may lie ahead.
pub(super) const AHEAD_MAX: usize = 16;

/// A policy that fills a role from some round on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chosen {
    /// The policy and its configuration.
    pub policy: PolicyUse,
    /// The policy that it took the place of, if that failed.
    pub failed: Option<Failed>,
}

/// The policies of a run by role, and by the first round that they fill it in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Active {
    codec: BTreeMap<u64, Chosen>,
    merge: BTreeMap<u64, Chosen>,
    pace: BTreeMap<u64, Chosen>,
}

impl Active {
    /// What a run begins with.
    pub fn new(codec: &PolicyUse, merge: &PolicyUse, pace: &PolicyUse) -> Active {
        let first = |policy: &PolicyUse| [(0, Chosen { policy: policy.clone(), failed: None })].into();
        Active { codec: first(codec), merge: first(merge), pace: first(pace) }
    }

    /// Whether this can be what a log comes to: every role is filled at round `next`.
    pub(super) fn is_whole(&self, next: u64) -> bool {
        Role::ALL.iter().all(|role| self.filled(*role).keys().next().is_some_and(|&first| first <= next))
    }

    fn filled(&self, role: Role) -> &BTreeMap<u64, Chosen> {
        match role {
            Role::Codec => &self.codec,
            Role::Merge => &self.merge,
            Role::Pace => &self.pace,
        }
    }

    fn filled_mut(&mut self, role: Role) -> &mut BTreeMap<u64, Chosen> {
        match role {
            Role::Codec => &mut self.codec,
            Role::Merge => &mut self.merge,
            Role::Pace => &mut self.pace,
        }
    }

    /// Who fills `role` in `round`, and since which round.
    pub fn since(&self, role: Role, round: u64) -> (u64, &Chosen) {
        let filled = self.filled(role);
        // Of rounds before all that is remembered, the first that is.
        let (since, chosen) = filled.range(..=round).next_back().or(filled.iter().next()).expect("a role is filled");
        (*since, chosen)
    }

    /// The policy that fills `role` in `round`.
    pub fn at(&self, role: Role, round: u64) -> &PolicyUse {
        &self.since(role, round).1.policy
    }

    /// Switches that come after `round`, in order.
    pub fn ahead(&self, role: Role, round: u64) -> impl Iterator<Item = (u64, &Chosen)> {
        self.filled(role).range(round + 1..).map(|(since, chosen)| (*since, chosen))
    }

    /// The policies that may be tried for `round`: the active one, then those that were active before it and have not been given up, the latest first.
    pub fn candidates(&self, role: Role, round: u64) -> Vec<&PolicyUse> {
        let active = self.at(role, round);
        let mut before: Vec<&PolicyUse> = Vec::new();
        let mut given_up: Vec<&PolicyUse> = Vec::new();
        for (_, chosen) in self.filled(role).range(..=round) {
            given_up.extend(chosen.failed.as_ref().map(|failed| &failed.policy));
            before.push(&chosen.policy);
        }
        let mut candidates = vec![active];
        for policy in before.into_iter().rev() {
            let known = |list: &[&PolicyUse]| list.iter().any(|other| other.is_same(policy));
            if !known(&candidates) && !known(&given_up) {
                candidates.push(policy);
            }
        }
        candidates
    }

    /// The policy of this hash and configuration, if it fills `role` in `round` or did before.
    pub fn find(&self, role: Role, round: u64, hash: &str, config: &str) -> Option<&PolicyUse> {
        let mut known = self.filled(role).range(..=round).rev().map(|(_, chosen)| &chosen.policy);
        known.find(|policy| policy.hash == hash && policy.config == config)
    }

    /// Whether the outer optimiser's state that round `made` left is still of use in `round`: it belongs to one merge policy with one configuration, and reads as
    /// zero to any other.
    pub fn keeps_state(&self, made: u64, round: u64) -> bool {
        self.at(Role::Merge, made).is_same(self.at(Role::Merge, round))
    }

    /// Takes in a valid switch.
    pub(super) fn take(&mut self, activate: &Activate) {
        let chosen = Chosen { policy: activate.policy.clone(), failed: activate.failed.clone() };
        self.filled_mut(activate.role).insert(activate.from_round, chosen);
    }

    /// Forgets what no round from `oldest` on needs, but the last [`HISTORY_MAX`].
    pub(super) fn forget(&mut self, oldest: u64) {
        for role in Role::ALL {
            let role = self.filled_mut(role);
            while role.range(..=oldest).count() > HISTORY_MAX {
                role.pop_first();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(name: &str) -> PolicyUse {
        PolicyUse { name: name.into(), hash: name.repeat(64), config: String::new() }
    }

    fn switch(active: &mut Active, name: &str, from_round: u64, failed: bool) {
        let given_up = active.at(Role::Merge, from_round).clone();
        let failed = failed.then(|| Failed { policy: given_up, why: "it trapped".into() });
        active.take(&Activate { role: Role::Merge, policy: policy(name), from_round, failed });
    }

    fn names(active: &Active, round: u64) -> String {
        active.candidates(Role::Merge, round).iter().map(|policy| policy.name.as_str()).collect()
    }

    #[test]
    fn a_switch_counts_from_its_round_on_and_a_later_one_for_the_same_round_replaces_it() {
        let mut active = Active::new(&policy("c"), &policy("a"), &policy("p"));
        switch(&mut active, "x", 10, false);
        switch(&mut active, "b", 10, false);
        assert_eq!(active.at(Role::Merge, 9).name, "a");
        assert_eq!(active.since(Role::Merge, 11), (10, &Chosen { policy: policy("b"), failed: None }));
        assert_eq!(active.ahead(Role::Merge, 9).map(|(round, _)| round).collect::<Vec<_>>(), [10]);
        assert!(active.keeps_state(8, 9) && !active.keeps_state(9, 10));
        assert_eq!(active.at(Role::Codec, 11).name, "c", "one role's switch is no other's");
        assert_eq!(active.at(Role::Pace, 11).name, "p", "one role's switch is no other's");
    }

    #[test]
    fn what_was_given_up_is_never_tried_again_by_itself() {
        let mut active = Active::new(&policy("c"), &policy("a"), &policy("p"));
        switch(&mut active, "b", 10, false);
        switch(&mut active, "d", 20, false);
        assert_eq!(names(&active, 25), "dba");
        switch(&mut active, "b", 26, true);
        assert_eq!(names(&active, 26), "ba", "d failed");
        switch(&mut active, "a", 30, true);
        assert_eq!(names(&active, 30), "a", "both have failed, and nothing is left behind a");
        assert!(active.keeps_state(9, 30), "a's state is a's again, where no other made one since");
        switch(&mut active, "b", 40, false);
        assert_eq!(names(&active, 40), "ba", "an operator may try again");

        // Given up at the very round from which on it was to count, so that nothing of it is left in between.
        let mut active = Active::new(&policy("c"), &policy("a"), &policy("p"));
        switch(&mut active, "b", 10, false);
        switch(&mut active, "a", 10, true);
        assert_eq!(names(&active, 10), "a");
        switch(&mut active, "d", 20, false);
        assert_eq!(names(&active, 20), "da", "a has never failed");
    }

    #[test]
    fn history_is_bounded_and_what_recent_rounds_need_stays() {
        let mut active = Active::new(&policy("c"), &policy("a"), &policy("p"));
        for n in 1..100 {
            switch(&mut active, if n % 2 == 0 { "a" } else { "b" }, n, false);
            active.forget(n.saturating_sub(10));
        }
        assert_eq!(active.merge.len(), HISTORY_MAX + 10);
        assert_eq!(active.at(Role::Merge, 89).name, "b");
    }
}
