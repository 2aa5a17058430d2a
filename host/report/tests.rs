//! Pictures and summaries of made-up runs.

use std::fs;

use super::curves::{bounds, round_step, smoothed};
use super::number::{duration, grouped, short};
use super::*;

/// Curves that look like those of a run: a steep fall, then a slow one, with noise on the islands'
/// part.
fn example(islands: usize, steps: usize) -> Curves {
    let loss = |tokens: f64| 1.4 + 4.1 / (1.0 + tokens / 60_000.0).powf(0.8);
    let series = |island: usize| Series {
        name: format!("island {island}, training"),
        points: (0..steps)
            .map(|step| {
                let tokens = step as f64 * 3072.0;
                let noise = ((step * 7919 + island * 104_729) % 1000) as f64 / 1000.0 - 0.5;
                (tokens, loss(tokens) * (1.0 - 0.01 * island as f64) + noise * 0.3)
            })
            .collect(),
    };
    let scores = (0..=20).map(|score| score as f64 * steps as f64 * 3072.0 / 20.0);
    Curves {
        title: "quickstart: 0.9 M parameters on three islands".to_owned(),
        held_out: Series {
            name: "committed model, held out".to_owned(),
            points: scores.map(|tokens| (tokens, loss(tokens) + 0.05)).collect(),
        },
        islands: (0..islands).map(series).collect(),
    }
}

#[test]
fn the_picture_names_every_line_and_both_axes() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("loss.svg");
    loss_curves_svg(&path, &example(3, 2000)).expect("drawn");
    let picture = fs::read_to_string(&path).expect("there");
    for text in
        ["island 0, training", "island 2, training", "committed model, held out", "tokens merged (M)", "nats per byte"]
    {
        assert!(picture.contains(text), "{text} is not in the picture");
    }
    assert!(picture.contains("font-family=\"sans-serif\""));
    assert!(picture.len() < 200_000, "{} bytes for a picture", picture.len());
    assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 1, "no half-written file is left");
}

#[test]
fn a_picture_of_nothing_or_of_numbers_that_are_none_is_still_a_picture() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("loss.svg");
    let broken =
        Series { name: "x".to_owned(), points: vec![(0.0, f64::NAN), (f64::INFINITY, 1.0), (5.0, f64::NEG_INFINITY)] };
    let one = Series { name: "x".to_owned(), points: vec![(10.0, 2.0)] };
    for curves in [
        Curves::default(),
        Curves { held_out: broken.clone(), islands: vec![broken], ..Curves::default() },
        Curves { held_out: one.clone(), islands: vec![one; 20], ..Curves::default() },
    ] {
        loss_curves_svg(&path, &curves).expect("drawn");
        assert!(fs::read_to_string(&path).expect("there").trim_end().ends_with("</svg>"));
        assert!(loss_curves_text(0, 0, &curves).lines().count() >= 8);
    }
}

#[test]
fn a_picture_that_cannot_be_written_says_where() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("missing").join("loss.svg");
    let error = loss_curves_svg(&path, &Curves::default()).expect_err("no such folder").to_string();
    assert!(error.contains(&path.display().to_string()), "{error}");
}

#[test]
fn the_chart_fits_its_size_and_falls_from_left_to_right() {
    let curves = example(3, 2000);
    let chart = loss_curves_text(80, 20, &curves);
    let lines: Vec<Vec<char>> = chart.lines().map(|line| line.chars().collect()).collect();
    assert_eq!(lines.len(), 20);
    assert!(lines.iter().all(|line| line.len() <= 80), "{chart}");
    let braille = |c: &char| ('\u{2801}'..='\u{28ff}').contains(c);
    let (top, bottom) = (&lines[1..4], &lines[13..17]);
    assert!(top.iter().any(|line| line.iter().take(12).any(braille)), "{chart}");
    assert!(bottom.iter().any(|line| line.iter().skip(70).any(braille)), "{chart}");
    assert!(chart.contains("committed model, held out") && chart.contains("6.14 M tokens merged"), "{chart}");
}

#[test]
fn smoothing_keeps_the_beginning_and_a_straight_line() {
    let line =
        Series { name: String::new(), points: (0..5000).map(|x| (f64::from(x), 3.0 - f64::from(x) * 1e-4)).collect() };
    let smooth = smoothed(&line);
    assert!(smooth.len() <= 402);
    assert_eq!(smooth[0], line.points[0]);
    assert_eq!(smooth[smooth.len() - 1].0, 4999.0);
    let reach = 5000.0 / 80.0;
    for (x, y) in smooth.into_iter().filter(|(x, _)| *x < 4999.0 - reach) {
        // The mean of points around one on a line is that one; what is left is rounding.
        assert!((y - (3.0 - x * 1e-4)).abs() < 1e-12);
    }
}

#[test]
fn bounds_hold_every_point_and_end_on_round_values() {
    let points = [(0.0, 5.55), (4.2e6, 1.43)];
    let found = bounds([points.as_slice()].into_iter());
    assert_eq!((found.tokens, found.low, found.high), (4.2e6, 1.0, 6.0));
    assert_eq!(
        [round_step(0.3), round_step(0.2), round_step(22.0), round_step(0.06)].map(|step| (step * 1000.0).round()),
        [500.0, 200.0, 25_000.0, 100.0]
    );
}

#[test]
fn numbers_are_short_enough_to_read() {
    assert_eq!([grouped(0), grouped(999), grouped(1000), grouped(1_234_567)], ["0", "999", "1,000", "1,234,567"]);
    assert_eq!(
        [0.0, 999.4, 999.6, 12_345.0, 999_499.0, 999_600.0, 2.5e6, 7.0e15].map(short),
        ["0", "999", "1.00 k", "12.3 k", "999 k", "1.00 M", "2.50 M", "7000 T"]
    );
    assert_eq!(
        [0.04, 59.0, 178.2, 3700.0, 90_000.0].map(duration),
        ["0.0 s", "59.0 s", "2 min 58 s", "1 h 1 min", "1 d 1 h"]
    );
}

#[test]
fn the_summary_has_the_promised_fields_and_comes_back() {
    let summary = Summary {
        held_out_loss_first: Some(5.546),
        held_out_loss_last: Some(1.612),
        rounds_committed: 1234,
        tokens_merged: 3_100_000,
        offers_merged: 3700,
        offers_late: 2,
        offers_superseded: 1,
        offers_refused: 0,
        islands: 3,
        seconds: 178.0,
        wait_ratio: 0.0012,
        exported: Some("tombolo-runs/quickstart/model".to_owned()),
    };
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("summary.json");
    fs::write(&path, "an older one").expect("written");
    summary.write_json(&path).expect("written");
    let text = fs::read_to_string(&path).expect("there");
    let value: serde_json::Value = serde_json::from_str(&text).expect("json");
    let promised = [
        "held_out_loss_first",
        "held_out_loss_last",
        "rounds_committed",
        "tokens_merged",
        "offers_merged",
        "offers_late",
        "offers_superseded",
        "offers_refused",
        "islands",
        "seconds",
        "wait_ratio",
        "exported",
    ];
    for field in promised {
        assert!(!value[field].is_null(), "{field}");
    }
    assert_eq!(value.as_object().expect("an object").len(), promised.len());
    assert_eq!(serde_json::from_str::<Summary>(&text).expect("back"), summary);
    assert_eq!(
        summary.to_string(),
        "  held-out loss     5.546 → 1.612 nats per byte\n\
         \u{20} rounds committed  1,234\n\
         \u{20} tokens merged     3.10 M (3 islands, 17.4 k tokens/s together)\n\
         \u{20} offers            3,703: 3,700 merged, 2 late, 1 superseded, 0 refused\n\
         \u{20} wall time         2 min 58 s\n\
         \u{20} islands waited    0.12 % of the time\n\
         \u{20} model             tombolo-runs/quickstart/model\n"
    );
}
