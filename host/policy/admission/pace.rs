//! What a pace must hold: the same view, the same decision; it lets its host sleep; and a round in which everybody has offered is closed at last.

use std::time::Duration;

use super::{End, Examination, answered, probe, refused};
use crate::policy::{Contribution, Decision, Pace, View};

const SETTINGS: &str = "takes its configuration";
const SAME: &str = "same decision from two instances";
const BOUNDED: &str = "waits at least a millisecond";
const CLOSES: &str = "closes a round in which every live island has offered within an hour";

/// Islands of the largest view.
const ISLANDS_MAX: u32 = 64;

pub(super) fn examine(exam: &mut Examination<'_>) -> Result<(), End> {
    let pace = answered(SETTINGS, || "an empty round".into(), Pace::open(exam.policy, exam.config))?;
    let config = exam.config;
    exam.pass(SETTINGS, if config.is_empty() { "the defaults".into() } else { String::from_utf8_lossy(config) });
    let views = views();
    for view in &views {
        let place = || {
            format!(
                "{} of {} live islands, quorum {}, after {} ms, steps of {} ms",
                view.offers.len(),
                view.islands_live,
                view.quorum,
                view.waited.as_millis(),
                view.step_ms
            )
        };
        let first = answered(SAME, place, pace.decide(view))?;
        let second = answered(SAME, place, pace.decide(view))?;
        if first != second {
            return Err(refused(SAME, format!("{}: {first:?}, then {second:?}", place())));
        }
        if first == Decision::Wait(Duration::ZERO) {
            return Err(refused(BOUNDED, format!("{}: asks to be asked again at once, without end", place())));
        }
        let complete = view.offers.len() as u32 >= view.islands_live.max(view.quorum);
        if complete && view.waited >= Duration::from_secs(3_600) && first != Decision::Close {
            return Err(refused(CLOSES, format!("{}: {first:?}", place())));
        }
    }
    for property in [SAME, BOUNDED, CLOSES] {
        exam.pass(property, format!("{} views of a round", views.len()));
    }
    Ok(())
}

fn views() -> Vec<View> {
    let mut views = Vec::new();
    for islands_live in [1, 4, ISLANDS_MAX] {
        for offers in [0, 1, islands_live / 2, islands_live] {
            for quorum in [1, islands_live] {
                for waited in [0, 1, 100, 10_000, 3_600_000].map(Duration::from_millis) {
                    for (step_ms, quorum_ms, sync_ms) in [(0.0, 0.0, 0.0), (100.0, 50.0, 30.0), (10.0, 5.0, 400.0)] {
                        let values = |island| probe::noise(island, 4, 0.01);
                        let contributions: Vec<Contribution> =
                            probe::Offers::of((0..offers).map(values).collect(), false).contributions;
                        views.push(View {
                            round: 7,
                            waited,
                            islands_live,
                            quorum,
                            offers: contributions,
                            step_ms,
                            quorum_ms,
                            sync_ms,
                            overlap_steps: 2,
                        });
                    }
                }
            }
        }
    }
    views
}
