//! What a pace must hold: the same view, the same decision; it lets its host sleep; and a round in which everybody has answered is closed at last.

use std::time::Duration;

use super::{End, Examination, answered, refused};
use crate::policy::{Contribution, Decision, Island, Lag, Pace, View};

const SETTINGS: &str = "takes its configuration";
const SAME: &str = "same decision from two instances";
const BOUNDED: &str = "waits at least a millisecond";
const CLOSES: &str = "closes a round in which every live island has answered within ten minutes";

/// Islands of the largest view.
const ISLANDS_MAX: u32 = 64;

pub(super) fn examine(exam: &mut Examination<'_>) -> Result<(), End> {
    let pace = answered(SETTINGS, || "a round of one offer".into(), Pace::open(exam.policy, exam.config))?;
    let config = exam.config;
    exam.pass(SETTINGS, if config.is_empty() { "the defaults".into() } else { String::from_utf8_lossy(config) });
    let views = views();
    for view in &views {
        exam.in_time()?;
        let missing = view.islands.iter().filter(|island| !island.answered).count();
        let place = || {
            format!(
                "{} offers, {missing} of {} live islands missing, quorum {}, {} ms after it, steps of {} ms",
                view.offers.len(),
                view.islands.len(),
                view.quorum,
                view.since_quorum.as_millis(),
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
        if missing == 0 && view.since_quorum >= Duration::from_secs(600) && first != Decision::Close {
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
    for live in [0, 1, 4, ISLANDS_MAX] {
        // Offers of islands that live no more count as well.
        for offers in [1, live / 2, live, live + 1].into_iter().filter(|&offers| offers > 0) {
            for quorum in [1, offers] {
                for since_quorum in [0, 1, 100, 10_000, 600_000].map(Duration::from_millis) {
                    for (step_ms, quorum_ms, sync_ms) in [(0.0, 0.0, 0.0), (100.0, 50.0, 30.0), (10.0, 5.0, 400.0)] {
                        views.push(View {
                            round: 7,
                            since_quorum,
                            quorum,
                            offers: (0..offers).map(offer).collect(),
                            islands: (0..live).map(|index| island(index, index < offers)).collect(),
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

fn name(index: u32) -> String {
    format!("island-{index:02}")
}

fn offer(index: u32) -> Contribution {
    Contribution { island: name(index), tokens: 1_000, steps: 10, staleness: index % 2, norm: 0.01 }
}

/// Every third is not known yet, every fifth does not keep up.
fn island(index: u32, answered: bool) -> Island {
    let lag = Lag { mean_ms: 20.0 * index as f32, deviation_ms: index as f32 };
    Island { name: name(index), keeps_up: index % 5 != 4, answered, lag: (index % 3 != 2).then_some(lag) }
}
