//! What an island decides, without doing it: which rounds it offers for, which versions it wants, how it takes one in. Pure: no clock, no
//! store, no randomness.
//!
//! Per fragment the island knows its base (the version adopted last) and counts steps and tokens since then. It offers for an open round at a
//! step boundary, once per round and not more often than every H/P steps, so that a fast island does not run ahead and one that lags joins
//! the open round. After one of its offers was merged it must take in that version (or a newer one) before it offers the fragment again:
//! otherwise the same tokens would be merged twice. A round that is skipped makes no version; an offer for it is settled as not merged, and
//! its progress goes out with the fragment's next round.
//!
//! Taking in a version is an overwrite (α = 0) where the island's progress was merged on the way to it. Where it was not (its offer came
//! late, or it never got to offer), the island keeps its progress on top of the new version: θ ← Θ − Δ, with Δ = base − θ and the counters
//! kept, so that nothing is lost and everything goes out with the next offer. Progress from too old a base is dropped.

use crate::bucket::record::{Commit, Fate, Progress, Version};
use crate::bucket::{FragmentFacts, Ledger, Lineage};
use crate::outer::Period;
use std::collections::BTreeSet;

/// The outer loop's numbers that an island needs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rules {
    /// P.
    pub fragments: usize,
    /// H.
    pub period: Period,
    /// Most versions that an offer's base may be behind.
    pub staleness_max: u64,
}

/// An offer that is to be made now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    /// For which round.
    pub round: u64,
    /// Its fragment.
    pub fragment: usize,
    /// Base, steps and tokens.
    pub facts: FragmentFacts,
}

/// How a version is taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Adoption {
    /// θ ← Θ, counters to zero.
    Overwrite,
    /// θ ← Θ − Δ with Δ = base − θ, counters kept.
    Rebase,
    /// It is not newer than what the island holds.
    Ignore,
}

/// What the end of a round means for this island.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settled {
    /// Fragment of the offer that has its fate.
    pub fragment: usize,
    /// Its round.
    pub round: u64,
    /// Whether it was merged.
    pub merged: bool,
}

#[derive(Debug, Clone)]
struct Place {
    facts: FragmentFacts,
    current: Version,
    lineage: Lineage,
    outstanding: Option<u64>,
    merged: Option<u64>,
    /// Of the tokens since the base, those in an offer of this life that was merged.
    settled: u64,
}

/// The island's decisions.
#[derive(Debug, Clone)]
pub struct Machine {
    island: String,
    incarnation: u64,
    rules: Rules,
    places: Vec<Place>,
    open: std::ops::Range<u64>,
    offered: BTreeSet<u64>,
    /// What the steps so far have earned: P each, and an offer costs H.
    credit: usize,
    tokens_merged: u64,
    /// Tokens of this island over all lives, and what became of them; what is in flight is counted anew each time.
    trained: u64,
    progress: Progress,
    breadth: u64,
    adopted: Option<u64>,
    stopped: Option<String>,
}

impl Machine {
    /// An island that holds nothing yet; [`Machine::restore`] or [`Machine::adopt`] says what it holds.
    ///
    /// # Panics
    /// The log has not started.
    pub fn new(island: &str, incarnation: u64, rules: Rules, ledger: &Ledger) -> Machine {
        assert_eq!(ledger.versions.len(), rules.fragments, "the log has started with one version per fragment");
        let merged = ledger.merged_rounds.get(island);
        let places = ledger.versions.iter().enumerate().map(|(p, version)| Place {
            facts: FragmentFacts { base: p as u64, steps: 0, tokens: 0 },
            current: version.clone(),
            lineage: ledger.lineages[p].clone(),
            outstanding: None,
            merged: merged.and_then(|m| m.get(&(p as u64))).copied(),
            settled: 0,
        });
        Machine {
            island: island.to_string(),
            incarnation,
            rules,
            places: places.collect(),
            open: ledger.open_rounds(),
            offered: BTreeSet::new(),
            credit: 0,
            tokens_merged: ledger.tokens(),
            trained: 0,
            progress: Progress {
                merged: ledger.accounts.get(island).map_or(0, |account| account.fragment_tokens),
                ..Progress::default()
            },
            breadth: 1,
            adopted: None,
            stopped: ledger.stopped.clone(),
        }
    }

    /// The island holds parameters with these facts per fragment (from a checkpoint).
    pub fn restore(&mut self, facts: &[FragmentFacts]) {
        for (place, facts) in self.places.iter_mut().zip(facts) {
            place.facts = *facts;
        }
    }

    /// What earlier lives trained on, as far as it is known, and what of it came too late; the rest that was neither merged nor is in flight is lost.
    /// Called once everything is restored.
    pub fn account(&mut self, trained: u64, late: u64) {
        let fragments = self.places.len() as u64;
        self.progress.late = late;
        let known = self.progress.merged + late + self.in_flight();
        // The last that is known of a dead life may be older than its last offer.
        self.trained = trained.max(known.div_ceil(fragments));
        self.progress.lost = (self.trained * fragments - known) as i64;
    }

    fn in_flight(&self) -> u64 {
        self.places.iter().map(|place| place.facts.tokens - place.settled).sum()
    }

    /// Tokens trained on over all lives.
    pub fn trained(&self) -> u64 {
        self.trained
    }

    /// What became of them.
    pub fn progress(&self) -> Progress {
        Progress { in_flight: self.in_flight(), ..self.progress }
    }

    /// Takes in a valid commit. Returns the fate of this island's offer for that round, if it made one.
    pub fn commit(&mut self, commit: &Commit, window: u64) -> Option<Settled> {
        let p = self.close(commit.round, window);
        self.tokens_merged = commit.tokens;
        self.breadth = commit.offers.iter().filter(|o| o.fate == Fate::Merged).count().max(1) as u64;
        let place = &mut self.places[p];
        place.current = commit.made.clone();
        place.lineage.push(commit.round, self.rules.staleness_max as usize + 2);
        let merged = commit.offers.iter().find(|o| o.id.island == self.island && o.fate == Fate::Merged);
        let mine = merged.is_some_and(|o| o.id.incarnation == self.incarnation);
        // Any life's merge counts: a new life must not offer what its last one already brought in.
        if let Some(offer) = merged {
            place.merged = Some(commit.round);
            self.progress.merged += offer.tokens;
            if mine {
                place.settled = offer.tokens.min(place.facts.tokens);
            } else {
                self.progress.lost -= offer.tokens as i64;
            }
        }
        self.settled(p, commit.round, mine)
    }

    /// Takes in a valid skip of `round`. Returns the fate of this island's offer for that round, if it made one: not merged.
    pub fn skip(&mut self, round: u64, window: u64) -> Option<Settled> {
        let p = self.close(round, window);
        self.settled(p, round, false)
    }

    /// Round `round` is closed; returns its fragment.
    fn close(&mut self, round: u64, window: u64) -> usize {
        self.open = round + 1..round + 1 + window.clamp(1, self.rules.fragments as u64);
        self.offered = self.offered.split_off(&self.open.start);
        (round % self.rules.fragments as u64) as usize
    }

    /// Rounds are closed in order, and an offer is merged in its own round or never.
    fn settled(&mut self, p: usize, closed: u64, merged: bool) -> Option<Settled> {
        let round = self.places[p].outstanding.take_if(|round| *round <= closed)?;
        Some(Settled { fragment: p, round, merged: merged && round == closed })
    }

    /// The run has ended.
    pub fn stop(&mut self, reason: &str) {
        self.stopped = Some(reason.to_string());
    }

    /// Why the run has ended, if it has.
    pub fn stopped(&self) -> Option<&str> {
        self.stopped.as_deref()
    }

    /// One inner step was taken with this many tokens.
    pub fn stepped(&mut self, tokens: u64) {
        self.trained += tokens;
        for place in &mut self.places {
            place.facts.steps += 1;
            place.facts.tokens += tokens;
        }
        // The rest of an offer is kept from step to step, or the distance would be more than H/P steps; of whole ones that could not be made, those of one step.
        let fragments = self.rules.fragments;
        self.credit = (self.credit + fragments).min(fragments + self.cost(self.open.start) - 1);
    }

    /// What an offer for `round` costs of the credit: H.
    fn cost(&self, round: u64) -> usize {
        self.rules.period.before(round, self.rules.fragments as u64) as usize
    }

    /// The next offer that is due at this step boundary, which is thereby taken as made. With `draining`, the distance to the last offer is
    /// not kept: whatever is open goes out.
    pub fn offer_due(&mut self, draining: bool) -> Option<Due> {
        if self.stopped.is_some() {
            return None;
        }
        for round in self.open.clone() {
            let cost = self.cost(round);
            if self.credit < cost && !draining {
                return None;
            }
            let p = (round % self.rules.fragments as u64) as usize;
            let place = &mut self.places[p];
            let facts = place.facts;
            let fit = !self.offered.contains(&round)
                && place.outstanding.is_none()
                && facts.steps > 0
                && facts.tokens > 0
                && place.merged.is_none_or(|merged| merged <= facts.base)
                && place.lineage.since(facts.base).is_some_and(|behind| behind <= self.rules.staleness_max);
            if fit {
                place.outstanding = Some(round);
                self.offered.insert(round);
                self.credit = self.credit.saturating_sub(cost);
                return Some(Due { round, fragment: p, facts });
            }
        }
        None
    }

    /// The offer for `round` could not be published; its progress goes out with the next one.
    pub fn offer_dropped(&mut self, round: u64) {
        for place in &mut self.places {
            place.outstanding.take_if(|r| *r == round);
        }
    }

    /// Whether round `round` can still be offered for.
    pub fn is_open(&self, round: u64) -> bool {
        self.open.contains(&round) && self.stopped.is_none()
    }

    /// Versions newer than what the island holds, oldest round first.
    pub fn wanted(&self) -> Vec<(usize, Version)> {
        let mut wanted: Vec<_> = self
            .places
            .iter()
            .enumerate()
            .filter(|(_, place)| place.current.round > place.facts.base)
            .map(|(p, place)| (p, place.current.clone()))
            .collect();
        wanted.sort_by_key(|(_, version)| version.round);
        wanted
    }

    /// Whether version `round` of fragment `p` is still the one wanted.
    pub fn is_current(&self, p: usize, round: u64) -> bool {
        self.places[p].current.round == round
    }

    /// The version of fragment `p` from round `round` has been taken in now; says how the values must be combined.
    pub fn adopt(&mut self, p: usize, round: u64) -> Adoption {
        let place = &mut self.places[p];
        let base = place.facts.base;
        if round <= base {
            return Adoption::Ignore;
        }
        let newer = |than| place.lineage.since(than).unwrap_or(0);
        let too_old = newer(base).saturating_sub(newer(round)) > self.rules.staleness_max + 1;
        let merged = place.merged.is_some_and(|merged| merged > base);
        self.adopted = self.adopted.max(Some(round));
        place.facts.base = round;
        if merged || too_old || place.facts.steps == 0 {
            let dropped = place.facts.tokens - std::mem::take(&mut place.settled);
            if merged {
                self.progress.lost += dropped as i64;
            } else {
                self.progress.late += dropped;
            }
            place.facts = FragmentFacts { base: round, steps: 0, tokens: 0 };
            Adoption::Overwrite
        } else {
            Adoption::Rebase
        }
    }

    /// Where the run stands on its learning-rate schedule, in tokens: those merged, as far as this island has read, and those under way, taken
    /// as this island's own since its adoptions for each of the islands that the last commit merged. Without the second part every island would
    /// train a whole sync period behind its schedule, and at rate zero until the first commit.
    pub fn schedule_tokens(&self) -> u64 {
        let own: u64 = self.places.iter().map(|p| p.facts.tokens).sum::<u64>() / self.places.len() as u64;
        self.tokens_merged + own * self.breadth
    }

    /// Newest round taken in.
    pub fn adopted(&self) -> Option<u64> {
        self.adopted
    }

    /// Base, steps and tokens per fragment.
    pub fn facts(&self) -> Vec<FragmentFacts> {
        self.places.iter().map(|p| p.facts).collect()
    }
}

#[cfg(test)]
mod tests;
