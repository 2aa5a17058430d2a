//! The bundled paces.

use std::time::Duration;

use tombolo::policy::{Decision, Error, Island, Lag, Pace, View};

use crate::memory::{contribution, runtime};

fn island(index: usize, answered: bool) -> Island {
    let lag = Lag { mean_ms: 20.0, deviation_ms: 5.0 };
    Island { name: format!("island-{index}"), keeps_up: true, answered, lag: Some(lag) }
}

/// `offers` offers of 4 live islands, `since_quorum` milliseconds after quorum: steps of 100 ms, 2 of them of overlap, 50 ms for quorum and 30 ms for merging.
fn view(offers: usize, since_quorum: u64) -> View {
    View {
        round: 7,
        since_quorum: Duration::from_millis(since_quorum),
        quorum: 1,
        offers: (0..offers).map(|index| contribution(&format!("island-{index}"), 10, 1)).collect(),
        islands: (0..4).map(|index| island(index, index < offers)).collect(),
        step_ms: 100.0,
        quorum_ms: 50.0,
        sync_ms: 30.0,
        overlap_steps: 2,
    }
}

/// The same, but the last island's lag is this.
fn late(mean_ms: f32, deviation_ms: f32, since_quorum: u64) -> View {
    let mut view = view(3, since_quorum);
    view.islands[3].lag = Some(Lag { mean_ms, deviation_ms });
    view
}

fn wait(milliseconds: u64) -> Decision {
    Decision::Wait(Duration::from_millis(milliseconds))
}

fn open(name: &str, config: &str) -> Pace {
    Pace::open(&runtime().bundled(name).expect("bundled"), config.as_bytes()).expect("opens")
}

fn refuses(name: &str, config: &str) {
    let opened = Pace::open(&runtime().bundled(name).expect("bundled"), config.as_bytes());
    assert!(matches!(opened, Err(Error::Refused { .. })), "{name} {config}: {opened:?}");
}

#[test]
fn adaptive_grace_waits_for_the_slack_or_for_what_islands_have_needed_and_never_where_all_that_keep_up_have_answered() {
    let pace = open("adaptive-grace", "");
    let decide = |view: &View| pace.decide(view).expect("decides");
    assert_eq!(decide(&view(4, 0)), Decision::Close);
    // Slack 2·100 − (50 + 30) = 120, times 0.9 is 108, at most one step: 100. Needed is 20 + 6·5 + 100/2 = 100 as well.
    assert_eq!(decide(&view(2, 0)), wait(100));
    assert_eq!(decide(&view(2, 60)), wait(40));
    assert_eq!(decide(&view(2, 100)), Decision::Close);
    // A slow store eats the slack; what was needed lately remains: breadth before freshness.
    assert_eq!(decide(&View { sync_ms: 1_500.0, ..view(2, 0) }), wait(100));
    assert_eq!(decide(&late(130.0, 20.0, 0)), wait(130 + 6 * 20 + 50));
    assert_eq!(decide(&late(5_000.0, 20.0, 0)), wait(800), "at most 8 steps");
    // One that was not merged yet has 8 steps; one that does not keep up has none.
    let mut view = view(2, 0);
    view.islands[3].lag = None;
    assert_eq!(decide(&view), wait(800));
    view.islands[3].keeps_up = false;
    assert_eq!(decide(&view), wait(100));
    view.islands[2].keeps_up = false;
    assert_eq!(decide(&view), Decision::Close);
    // Nobody has said yet how long a step takes.
    assert_eq!(decide(&View { step_ms: 0.0, ..late(0.0, 0.0, 200) }), wait(2_800));
}

#[test]
fn adaptive_grace_takes_its_two_settings() {
    let store = |view: View| View { sync_ms: 60.0, ..view };
    let none = |view: View| View { islands: view.islands.into_iter().map(quick).collect(), ..view };
    fn quick(island: Island) -> Island {
        Island { lag: Some(Lag { mean_ms: 0.0, deviation_ms: 0.0 }), ..island }
    }
    // Slack 200 − 110 = 90.
    let decide = |config: &str| open("adaptive-grace", config).decide(&none(store(view(1, 0)))).expect("decides");
    assert_eq!(decide(r#"{"gamma": 1}"#), wait(90));
    assert_eq!(decide(r#"{"gamma": 0.6}"#), wait(54));
    assert_eq!(decide(r#"{"gamma": 0}"#), wait(50), "half a step for those who have come at once so far");
    assert_eq!(decide(r#"{"grace_ms_max": 20}"#), wait(20));
    refuses("adaptive-grace", r#"{"gama": 1}"#);
    refuses("adaptive-grace", r#"{"gamma": 1.5}"#);
    refuses("adaptive-grace", r#"{"grace_ms_max": 600001}"#);
}

#[test]
fn fixed_closes_its_time_after_quorum_whatever_was_measured() {
    let pace = open("fixed", r#"{"grace_ms": 250}"#);
    let decide = |view: &View| pace.decide(view).expect("decides");
    for (step_ms, sync_ms) in [(100.0, 30.0), (1e6, 0.0), (0.0, 1e6)] {
        let seen = |since_quorum| View { step_ms, sync_ms, ..view(2, since_quorum) };
        assert_eq!(decide(&seen(0)), wait(250));
        assert_eq!(decide(&seen(249)), wait(1));
        assert_eq!(decide(&seen(250)), Decision::Close);
    }
    assert_eq!(decide(&view(4, 0)), Decision::Close, "there is nobody to wait for");
    refuses("fixed", r#"{"grace_ms": 600001}"#);
}

#[test]
fn wait_all_closes_when_all_have_answered_or_the_bound_has_passed() {
    let decide = |pace: &Pace, view: &View| pace.decide(view).expect("decides");
    let live = open("wait-all", "");
    assert_eq!(decide(&live, &view(3, 59_000)), wait(1_000));
    assert_eq!(decide(&live, &view(3, 60_000)), Decision::Close);
    assert_eq!(decide(&live, &view(4, 0)), Decision::Close);
    let mut slow = view(3, 0);
    slow.islands[3].keeps_up = false;
    assert_eq!(decide(&live, &slow), wait(60_000), "however slow");
    let mut refused = view(3, 0);
    refused.islands[3].answered = true;
    assert_eq!(decide(&live, &refused), Decision::Close, "nothing more is to come");
    let mut dead = view(3, 0);
    dead.offers.push(contribution("dead", 10, 1));
    assert_eq!(decide(&live, &dead), wait(60_000), "a dead island's offer stands for no live one's");
    // Six are expected, although four live: the bound decides.
    let six = open("wait-all", r#"{"islands": 6, "wait_ms_max": 5000}"#);
    assert_eq!(decide(&six, &view(4, 4_000)), wait(1_000));
    assert_eq!(decide(&six, &view(4, 5_000)), Decision::Close);
    assert_eq!(decide(&six, &view(6, 0)), Decision::Close);
    refuses("wait-all", r#"{"islands": -1}"#);
}
