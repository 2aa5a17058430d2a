//! The binary as a user runs it, on a small model and text of its own: whole runs on a local directory, in memory and on S3 servers, drained
//! and continued, started by hand, looked at, exported.

mod support;

use std::fs;
use std::path::Path;

use serde_json::Value;
use support::program::{Ended, Running, SMALL, Workshop, signal};
use support::say;
use support::server::{Server, servers};

fn number(report: &Value, field: &str) -> f64 {
    report[field].as_f64().unwrap_or_else(|| panic!("{field} is a number in {report}"))
}

/// What `--report` promises, checked for what must be true of any run that ended.
fn assert_reports_a_good_run(report: &Value, tokens: u64, islands: u64) {
    let fields: Vec<&str> = report.as_object().expect("an object").keys().map(String::as_str).collect();
    let mut expected = [
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
    expected.sort_unstable();
    assert_eq!(fields, expected);
    assert!(number(report, "rounds_committed") >= 1.0, "{report}");
    assert!(number(report, "tokens_merged") >= tokens as f64, "{report}");
    assert!(number(report, "offers_merged") >= number(report, "rounds_committed"), "a round merges an offer: {report}");
    assert_eq!(number(report, "offers_refused"), 0.0, "{report}");
    assert_eq!(number(report, "islands"), islands as f64);
    assert!(number(report, "seconds") > 0.0, "{report}");
    assert!((0.0..1.0).contains(&number(report, "wait_ratio")), "{report}");
    // ln 256 = 5.55 is what an untrained model over bytes has; one nat below is learnt within a second of training.
    let (first, last) = (number(report, "held_out_loss_first"), number(report, "held_out_loss_last"));
    assert!(last < first - 1.0 && last > 0.0, "the held-out loss falls: {report}");
}

/// Offers by fate in the log of a run: merged, late, superseded, refused; and for each commit the islands merged.
fn fates(log: &Path) -> ([f64; 4], Vec<usize>) {
    let mut names: Vec<_> = fs::read_dir(log).expect("a log").map(|entry| entry.expect("an entry").path()).collect();
    names.sort();
    let (mut sums, mut breadths) = ([0.0; 4], Vec::new());
    for path in names {
        let entry: Value = serde_json::from_slice(&fs::read(path).expect("an entry")).expect("JSON");
        if entry["kind"] != "commit" {
            continue;
        }
        let mut merged = 0;
        for offer in entry["offers"].as_array().expect("offers") {
            let fate = match offer["fate"].as_str() {
                Some("merged") => 0,
                Some("late") => 1,
                Some("superseded") => 2,
                _ => 3,
            };
            sums[fate] += 1.0;
            merged += usize::from(fate == 0);
        }
        breadths.push(merged);
    }
    (sums, breadths)
}

fn assert_fates_add_up(report: &Value, fates: [f64; 4]) {
    let fields = ["offers_merged", "offers_late", "offers_superseded", "offers_refused"];
    assert_eq!(fields.map(|field| number(report, field)), fates);
}

/// The exported model continues a text, the same way every time.
fn assert_generates(workshop: &Workshop, model: &str) {
    let generate = || workshop.run_well(&format!("generate {model} --prompt Ba --tokens 40 --temperature 0")).stdout;
    let text = generate();
    // As many bytes as were asked for; what is no text is shown as one replacement character for one byte or more.
    assert!(text.starts_with("Ba") && text.chars().count() > 10, "{text}");
    assert_eq!(generate(), text);
}

const MODEL_FILES: [&str; 5] =
    ["config.json", "model.safetensors", "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json"];

fn assert_same_model(workshop: &Workshop, one: &str, other: &str) {
    for file in MODEL_FILES {
        let read = |folder: &str| {
            fs::read(workshop.path(folder).join(file)).unwrap_or_else(|e| panic!("{folder}/{file}: {e}"))
        };
        assert_eq!(read(one), read(other), "{file}");
    }
}

#[test]
fn a_run_on_a_local_directory_trains_reports_exports_and_stays_as_it_ended() {
    let workshop = Workshop::new("run = \"small\"\ntokens = 300_000", SMALL);
    let command = "run spec.toml --bucket file:bucket --out out --report report.json";
    let ended = workshop.run_well(command);
    let report = workshop.json("report.json");
    assert_reports_a_good_run(&report, 300_000, 3);
    assert_eq!(report, workshop.json("out/summary.json"));
    let (fates, breadths) = fates(&workshop.path("bucket/small/log"));
    assert_fates_add_up(&report, fates);
    assert_eq!(breadths.len() as f64, number(&report, "rounds_committed"));
    assert!(ended.stdout.contains("held-out text, continued by the model"), "{}", ended.stdout);
    assert!(ended.stdout.contains("rounds committed"), "{}", ended.stdout);
    let picture = fs::read_to_string(workshop.path("out/loss.svg")).expect("a picture");
    assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"));

    assert_eq!(report["exported"], "out/model");
    assert_generates(&workshop, "out/model");
    let status = workshop.run_well("status bucket").stdout;
    assert!(status.contains("run small  (ended: the token budget is merged)"), "{status}");
    let rounds = number(&report, "rounds_committed");
    let tokens = number(&report, "tokens_merged");
    assert!(status.contains(&format!("rounds committed {rounds}, tokens merged {tokens} of 300000")), "{status}");
    workshop.run_well("export file:bucket exported --run small");
    assert_same_model(&workshop, "out/model", "exported");

    let entries = workshop.log_entries("bucket", "small");
    workshop.run_well(command);
    assert_eq!(workshop.log_entries("bucket", "small"), entries, "an ended run is not trained on");
    assert_eq!(number(&workshop.json("report.json"), "tokens_merged"), tokens);
}

#[test]
fn a_run_in_memory_leaves_its_model_and_nothing_else() {
    let workshop = Workshop::new("run = \"small\"\ntokens = 150_000\nislands = 2", SMALL);
    workshop.run_well("run spec.toml --bucket memory: --out out --report report.json");
    assert_reports_a_good_run(&workshop.json("report.json"), 150_000, 2);
    assert_generates(&workshop, "out/model");
    assert_eq!(workshop.names(), ["out", "report.json", "spec.toml", "text"]);
}

#[test]
fn arguments_go_before_the_spec_and_a_second_run_without_a_name_is_another_run() {
    let workshop = Workshop::new("run = \"small\"\ntokens = 9_000_000", SMALL);
    for _ in 0..2 {
        workshop.run_well(
            "run spec.toml --tokens 100_000 --islands 1 --seed 5 --report report.json".replace('_', "").as_str(),
        );
        let report = workshop.json("report.json");
        assert_reports_a_good_run(&report, 100_000, 1);
        assert!(number(&report, "tokens_merged") < 1_000_000.0, "{report}");
    }
    let status = workshop.run_well("status file:tombolo-runs/bucket").stdout;
    assert!(status.contains("run small  (ended") && status.contains("run small-2  (ended"), "{status}");
    let record = workshop.json("tombolo-runs/bucket/small-2/run.json");
    assert_eq!((&record["spec"]["seed"], &record["spec"]["tokens"]), (&5.into(), &100_000.into()));
}

/// Waits until `rounds` more rounds are in the log of a run than there are now.
fn until_rounds(running: &mut Running, workshop: &Workshop, rounds: usize) {
    let goal = workshop.log_entries("bucket", "small") + rounds;
    running.until("more rounds", |_| (workshop.log_entries("bucket", "small") >= goal).then_some(()));
}

#[test]
fn a_run_that_was_interrupted_drains_and_the_same_command_ends_it() {
    let workshop = Workshop::new("run = \"small\"\ntokens = 2_500_000", SMALL);
    let command = "run spec.toml --bucket file:bucket --out out --report report.json";
    let mut first = workshop.start(command);
    until_rounds(&mut first, &workshop, 25);
    let roles = first.roles();
    assert_eq!(roles.keys().collect::<Vec<_>>(), ["island-0", "island-1", "island-2", "syncer"]);
    signal(first.pid(), "INT");
    let drained = first.end().well();
    assert!(drained.stdout.contains("drained; the same command goes on from here"), "{}", drained.stdout);
    let report = workshop.json("report.json");
    let (rounds, tokens) = (number(&report, "rounds_committed"), number(&report, "tokens_merged"));
    assert!(tokens < 2_500_000.0, "it was interrupted before its end: {report}");
    for island in 0..3 {
        let card = workshop.json(&format!("bucket/small/island/island-{island}/card.json"));
        assert_eq!(card["state"], "done");
        let step = card["step"].as_u64().expect("a step");
        let checkpoint = format!("bucket/small/island/island-{island}/checkpoint/{step:020}.arrow");
        assert!(workshop.path(&checkpoint).exists(), "{checkpoint}: a drained island leaves a checkpoint");
    }
    let status = workshop.run_well("status bucket").stdout;
    assert!(status.contains("run small  (open)"), "{status}");

    let other = workshop.run(&format!("{command} --seed 2"));
    let error = other.error(2);
    assert!(error.contains("a different run called `small`"), "{error}");
    assert!(error.contains("spec.seed: here 2, in the bucket 0"), "{error}");

    workshop.run_well(command);
    let report = workshop.json("report.json");
    assert_reports_a_good_run(&report, 2_500_000, 3);
    assert!(number(&report, "rounds_committed") > rounds && number(&report, "tokens_merged") > tokens);
    let (fates, _) = fates(&workshop.path("bucket/small/log"));
    assert_fates_add_up(&report, fates);
    for island in 0..3 {
        let card = workshop.json(&format!("bucket/small/island/island-{island}/card.json"));
        assert_eq!(card["incarnation"], 2, "it went on as its second life: {card}");
    }
}

#[test]
fn roles_started_by_hand_train_a_submitted_run_and_leave_when_it_ends() {
    let workshop = Workshop::new("run = \"small\"\ntokens = 1_500_000", SMALL);
    let submitted = workshop.run_well("submit spec.toml --bucket file:bucket").stdout;
    assert!(submitted.contains("tombolo syncer file:bucket --run small"), "{submitted}");
    let again = workshop.run_well("submit spec.toml --bucket file:bucket").stdout;
    assert!(again.contains("run small is in file:bucket"), "{again}");
    // A second syncer stands by and leaves with the first.
    let syncers = [(); 2].map(|()| workshop.start("syncer file:bucket --threads 1"));
    let mut islands = ["anna", "bob"]
        .map(|name| workshop.start(&format!("island file:bucket --run small --name {name} --threads 1")));
    until_rounds(&mut islands[0], &workshop, 25);
    let status = workshop.run_well("status bucket").stdout;
    assert!(status.contains("anna") && status.contains("bob"), "{status}");
    let said: Vec<Ended> = islands.into_iter().chain(syncers).map(|role| role.end().well()).collect();
    for role in &said {
        assert!(role.stderr.contains("the token budget is merged"), "{}", role.stderr);
    }
    let terms = said.iter().filter(|role| role.stderr.contains("acts as the syncer of term 1")).count();
    assert_eq!(terms, 1, "one of the two acted");
    let (fates, breadths) = fates(&workshop.path("bucket/small/log"));
    assert!(fates[0] > breadths.len() as f64, "both islands were merged: {fates:?} in {} rounds", breadths.len());
    workshop.run_well("export bucket exported");
    assert_generates(&workshop, "exported");
}

/// The islands merged in each round, from what `status` says: `islands merged per round: 2 in 5, 3 in 61`.
fn breadth(status: &str) -> Vec<(u64, u64)> {
    let line = status.lines().find_map(|line| line.trim().strip_prefix("islands merged per round: "));
    let pairs = line.expect("status says how many islands were merged").split(", ");
    pairs
        .map(|pair| {
            let (islands, rounds) = pair.split_once(" in ").expect("a pair");
            (islands.parse().expect("a number"), rounds.parse().expect("a number"))
        })
        .collect()
}

fn whole_run_on(server: &Server) {
    let mut workshop = Workshop::new("run = \"small\"\ntokens = 400_000", SMALL);
    workshop.set(server.environment().into_iter().filter(|(name, _)| *name != "AWS_ENDPOINT_URL"));
    // The bucket is not there yet: on servers other than AWS the first command makes it.
    let bucket = format!("s3://fresh-{}/some/where", server.bucket());
    let place = format!("--endpoint {}", server.endpoint);
    workshop.run_well(&format!("run spec.toml --bucket {bucket} {place} --out out --report report.json"));
    let report = workshop.json("report.json");
    assert_reports_a_good_run(&report, 400_000, 3);
    assert_generates(&workshop, "out/model");
    let status = workshop.run_well(&format!("status {bucket} {place}")).stdout;
    assert!(status.contains("run small  (ended: the token budget is merged)"), "{status}");
    let breadth = breadth(&status);
    let rounds: u64 = breadth.iter().map(|(_, rounds)| rounds).sum();
    assert_eq!(rounds as f64, number(&report, "rounds_committed"));
    say(&format!("{}: islands merged per round {breadth:?}, {} s", server.name, report["seconds"]));
    // The endpoint may also stand in the environment, as for other S3 clients.
    workshop.set(server.environment());
    workshop.run_well(&format!("export {bucket} exported --run small"));
    assert_same_model(&workshop, "out/model", "exported");
}

#[test]
fn a_whole_run_on_every_s3_server_trains_as_on_a_local_directory() {
    for server in servers() {
        whole_run_on(server);
    }
}
