//! The bundled paces.

use std::time::Duration;

use tombolo::policy::{Decision, Error, Pace, View};

use crate::memory::{contribution, runtime};

/// `offers` offers of 4 live islands after `waited` milliseconds: steps of 100 ms, 2 of them of overlap, 50 ms for quorum and 30 ms for merging.
fn view(offers: usize, waited: u64) -> View {
    View {
        round: 7,
        waited: Duration::from_millis(waited),
        islands_live: 4,
        quorum: 1,
        offers: (0..offers).map(|index| contribution(&format!("island-{index}"), 10, 1)).collect(),
        step_ms: 100.0,
        quorum_ms: 50.0,
        sync_ms: 30.0,
        overlap_steps: 2,
    }
}

#[test]
fn adaptive_grace_waits_for_quorum_then_for_the_slack_and_never_for_those_who_are_all_there() {
    let pace = Pace::open(&runtime().bundled("adaptive-grace").expect("bundled"), b"").expect("opens");
    let decide = |view: &View| pace.decide(view).expect("decides");
    let wait = |milliseconds| Decision::Wait(Duration::from_millis(milliseconds));
    assert_eq!(decide(&view(0, 0)), wait(1_000));
    assert_eq!(decide(&View { quorum: 3, ..view(2, 500) }), wait(1_000));
    assert_eq!(decide(&view(4, 0)), Decision::Close);
    // Slack 2·100 − (50 + 30) = 120, times 0.9 is 108, at most one step: 100.
    assert_eq!(decide(&view(2, 0)), wait(100));
    assert_eq!(decide(&view(2, 60)), wait(40));
    assert_eq!(decide(&view(2, 100)), Decision::Close);
    // A slow store eats the slack.
    assert_eq!(decide(&View { sync_ms: 150.0, ..view(2, 0) }), Decision::Close);
}

#[test]
fn adaptive_grace_takes_its_two_settings() {
    let policy = runtime().bundled("adaptive-grace").expect("bundled");
    let pace = Pace::open(&policy, br#"{"gamma": 0.5, "grace_ms_max": 20}"#).expect("opens");
    assert_eq!(pace.decide(&view(1, 0)).expect("decides"), Decision::Wait(Duration::from_millis(20)));
    assert!(matches!(Pace::open(&policy, br#"{"gama": 1}"#), Err(Error::Refused { .. })));
}

#[test]
fn fixed_closes_after_its_time_whatever_was_measured() {
    let pace = Pace::open(&runtime().bundled("fixed").expect("bundled"), br#"{"grace_ms": 250}"#).expect("opens");
    let decide = |view: &View| pace.decide(view).expect("decides");
    let wait = |milliseconds| Decision::Wait(Duration::from_millis(milliseconds));
    assert_eq!(decide(&view(0, 9_000)), wait(1_000));
    assert_eq!(decide(&View { quorum: 3, ..view(2, 9_000) }), wait(1_000));
    for (step_ms, sync_ms) in [(100.0, 30.0), (1e6, 0.0), (0.0, 1e6)] {
        let seen = |waited| View { step_ms, sync_ms, ..view(2, waited) };
        assert_eq!(decide(&seen(0)), wait(250));
        assert_eq!(decide(&seen(249)), wait(1));
        assert_eq!(decide(&seen(250)), Decision::Close);
    }
    assert_eq!(decide(&view(4, 0)), Decision::Close, "there is nobody to wait for");
    assert_eq!(decide(&View { quorum: 3, ..view(3, 250) }), Decision::Close);
}

#[test]
fn wait_all_closes_when_all_are_there_or_the_bound_has_passed() {
    let policy = runtime().bundled("wait-all").expect("bundled");
    let wait = |milliseconds| Decision::Wait(Duration::from_millis(milliseconds));
    let open = |config: &str| Pace::open(&policy, config.as_bytes()).expect("opens");
    let decide = |pace: &Pace, view: &View| pace.decide(view).expect("decides");
    let live = open("");
    assert_eq!(decide(&live, &view(0, 90_000)), wait(1_000));
    assert_eq!(decide(&live, &View { quorum: 4, ..view(3, 90_000) }), wait(1_000), "below quorum no bound closes");
    assert_eq!(decide(&live, &view(3, 59_000)), wait(1_000));
    assert_eq!(decide(&live, &view(3, 60_000)), Decision::Close);
    assert_eq!(decide(&live, &view(4, 0)), Decision::Close);
    // Six are expected, although four live: the bound decides.
    let six = open(r#"{"islands": 6, "wait_ms_max": 5000}"#);
    assert_eq!(decide(&six, &view(4, 4_000)), wait(1_000));
    assert_eq!(decide(&six, &view(4, 5_000)), Decision::Close);
    assert_eq!(decide(&six, &view(6, 0)), Decision::Close);
    assert!(matches!(Pace::open(&policy, br#"{"islands": -1}"#), Err(Error::Refused { .. })));
}
