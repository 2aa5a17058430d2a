//! Input that cannot work: one clear error each, the exit code that says what to do, and nothing left behind.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use aws_sdk_s3::error::DisplayErrorContext;
use support::forgetful::{BUCKET, Forgetful};
use support::program::{SMALL, Workshop};
use support::server::servers;

/// Change the input.
const INVALID: i32 = 2;
/// Try again later.
const UNAVAILABLE: i32 = 3;
/// Stored bytes are damaged.
const CORRUPT: i32 = 5;

const RUN: &str = "run spec.toml --bucket file:bucket --out out --report report.json";
const SUBMIT: &str = "submit spec.toml --bucket file:bucket";

fn workshop(head: &str, sections: &str) -> Workshop {
    Workshop::new(&format!("run = \"small\"\ntokens = 100000\n{head}"), sections)
}

/// Every file below a folder with its bytes, and every empty folder.
fn tree(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            let below = tree(&path);
            if below.is_empty() {
                found.insert(path, Vec::new());
            } else {
                found.extend(below);
            }
        } else {
            let bytes = fs::read(&path).expect("a file");
            found.insert(path, bytes);
        }
    }
    found
}

/// The command ends with this exit code and one error, which says all of `expected`; the folder is as it was.
fn assert_refuses(workshop: &Workshop, command: &str, code: i32, expected: &[&str]) {
    let before = tree(&workshop.path(""));
    let ended = workshop.run(command);
    let error = ended.error(code);
    assert!(ended.stderr.starts_with("error: "), "nothing was begun: {}", ended.stderr);
    assert_eq!(ended.stdout, "", "nothing was begun");
    for part in expected {
        assert!(error.contains(part), "`{command}`: expected `{part}` in: {error}");
    }
    let after = tree(&workshop.path(""));
    let changed: Vec<_> =
        after.iter().filter(|(path, bytes)| before.get(*path) != Some(*bytes)).map(|(p, _)| p).collect();
    assert!(changed.is_empty(), "`{command}` left {changed:?}");
    assert_eq!(before.len(), after.len(), "`{command}` removed something");
}

fn assert_run_and_submit_refuse(workshop: &Workshop, expected: &[&str]) {
    for command in [RUN, SUBMIT] {
        assert_refuses(workshop, command, INVALID, expected);
    }
}

#[test]
fn a_misspelt_field_is_named_with_the_fields_that_there_are() {
    let workshop = workshop("ilands = 2", SMALL);
    let fields = "codec, data, down, islands, keep, merge, model, outer, pace, run, seed, tokens, train";
    assert_run_and_submit_refuse(&workshop, &["spec.toml", "1 problem", "ilands: unknown field", fields]);
}

#[test]
fn all_problems_of_a_spec_are_said_at_once() {
    let sections = "[model]\nhidden_size = 30\nheads = 4\nwidth = 5\n[train]\nbatch = 0\nlearning_rate = \"fast\"\n[outer]\nquorum = 0\n";
    let workshop = workshop("", sections);
    let forms = ["2 problems", "model.width: unknown field", "train.learning_rate: expected a float"];
    assert_run_and_submit_refuse(&workshop, &forms);
    let sections = "[model]\nhidden_size = 30\nheads = 4\n[train]\nbatch = 0\n[outer]\nquorum = 0\n";
    workshop.write_spec("run = \"Small\"\ntokens = 0", sections);
    let values = [
        "model.hidden_size: expected a multiple of heads (4), found 30",
        "run: expected 1 to 64 lower-case letters, digits and dashes",
        "tokens: expected at least 1",
        "train.batch: expected 1 to 65536, found 0",
        "outer.quorum: expected 1 to 256, found 0",
    ];
    assert_run_and_submit_refuse(&workshop, &values);
    workshop.write_spec("tokens = = 5", "");
    assert_run_and_submit_refuse(&workshop, &["spec.toml: not valid TOML"]);
    assert_refuses(&workshop, "run nowhere.toml", INVALID, &["nowhere.toml: the run spec cannot be read"]);
    // Arguments are checked like the spec that they change.
    workshop.write_spec("", SMALL);
    assert_refuses(&workshop, &format!("{RUN} --islands 0 --run ../x"), INVALID, &["2 problems", "islands", "`../x`"]);
}

#[test]
fn a_model_of_an_impossible_shape_is_refused_with_what_is_impossible() {
    let shape = |shape: &str, expected: &[&str]| {
        let workshop = workshop("", &format!("[model]\n{shape}\n"));
        assert_run_and_submit_refuse(&workshop, expected);
    };
    shape("heads = 4\nkv_heads = 3", &["model.kv_heads: expected a divisor of heads (4), found 3"]);
    shape(
        "hidden_size = 0\nlayers = 0",
        &["model.hidden_size: expected at least 1", "model.layers: expected at least 1"],
    );
    shape("hidden_size = 12\nheads = 4", &["head_dim: expected an even number"]);
    shape("norm_eps = 0.0", &["model.norm_eps: expected a finite number above 0"]);
    shape("hidden_size = 100000\nheads = 1000\nlayers = 900", &["number of parameters: expected at most 2^40"]);
}

#[test]
fn a_place_without_enough_text_is_refused_with_what_was_found_there() {
    let workshop = workshop("", SMALL);
    fs::create_dir(workshop.path("empty")).expect("a folder");
    fs::create_dir(workshop.path("binary")).expect("a folder");
    let noise: Vec<u8> = (0..50_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    fs::write(workshop.path("binary/noise"), noise).expect("a file");
    fs::create_dir(workshop.path("tiny")).expect("a folder");
    fs::write(workshop.path("tiny/a.txt"), "hello").expect("a file");
    fs::create_dir(workshop.path("little")).expect("a folder");
    fs::write(workshop.path("little/a.txt"), support::program::text(30_000, 1)).expect("a file");
    let refuses = |data: &str, expected: &[&str]| {
        for command in [RUN, SUBMIT] {
            assert_refuses(&workshop, &format!("{command} --data {data}"), INVALID, expected);
        }
    };
    refuses("empty", &["--data empty: no file in that folder"]);
    refuses("binary", &["--data binary: no text in it", "1 binary"]);
    refuses("nowhere", &["--data nowhere: no such file or folder"]);
    refuses("text/*.md", &["--data text/*.md: no file matches the pattern"]);
    refuses("tiny", &["tiny: 6 bytes of text", "at least 16384"]);
    // Three islands with a block of 256 windows of 64 tokens each.
    refuses("little", &["bytes in the training part, expected at least 49153 for 3 island(s)"]);
}

#[test]
fn a_component_that_is_not_the_policy_asked_for_is_refused_with_what_it_is() {
    let workshop = workshop("", SMALL);
    fs::write(workshop.path("noise.wasm"), [7u8; 4000]).expect("a file");
    fs::write(workshop.path("core.wasm"), wat::parse_str("(module (func (export \"f\")))").expect("text"))
        .expect("a file");
    let component = wat::parse_str("(component (core module))").expect("text");
    fs::write(workshop.path("component.wasm"), component).expect("a file");
    let bundled = Path::new(env!("CARGO_MANIFEST_DIR")).join("plugins/bundled/int8.wasm");
    fs::copy(bundled, workshop.path("codec.wasm")).expect("a file");
    let refuses = |role: &str, policy: &str, expected: &[&str]| {
        workshop.write_spec("run = \"small\"", &format!("{SMALL}[{role}]\n{policy}\n"));
        assert_run_and_submit_refuse(&workshop, expected);
    };
    refuses("merge", "policy = \"noise.wasm\"", &["merge.policy: noise.wasm: not a policy"]);
    refuses("merge", "policy = \"core.wasm\"", &["merge.policy: core.wasm", "a core WebAssembly module"]);
    refuses("merge", "policy = \"component.wasm\"", &["merge.policy: component.wasm: not a policy"]);
    refuses("merge", "policy = \"codec.wasm\"", &["merge.policy: codec.wasm: expected a merge policy, found codec"]);
    refuses("codec", "policy = \"rda\"", &["codec.policy: rda: expected a codec policy, found merge"]);
    refuses("merge", "policy = \"nowhere.wasm\"", &["merge.policy: nowhere.wasm: cannot be read"]);
    let names = "expected a bundled policy (adaptive-grace, bf16, f32, fixed, fp4, int4, int8, krum, mean, median, norm-clip, rda";
    refuses("merge", "policy = \"average\"", &[names, "`average`"]);
    // What a policy says to its configuration is known before the run is.
    let known = "unknown field \"momentun\"; known are outer, eta, momentum, warmup, cooldown";
    refuses("merge", "config = { momentun = 0.5 }", &["merge: ", known]);
    refuses("codec", "config = { bits = 3 }", &["codec: ", "unknown field \"bits\""]);
}

#[test]
fn a_bucket_that_cannot_be_is_refused_and_not_made() {
    let workshop = workshop("", SMALL);
    fs::write(workshop.path("file"), "a file").expect("a file");
    let on = |bucket: &str, expected: &[&str]| {
        assert_refuses(&workshop, &format!("run spec.toml --out out --bucket {bucket}"), INVALID, expected);
        assert_refuses(&workshop, &format!("submit spec.toml --bucket {bucket}"), INVALID, expected);
    };
    on(
        "http://host/bucket",
        &[
            "`http://host/bucket`: expected file:DIR, memory:, s3://BUCKET/PREFIX, az://CONTAINER/PREFIX or gs://BUCKET/PREFIX",
        ],
    );
    on("s3://", &["found no bucket"]);
    on("file:file/bucket", &["file/bucket: the bucket's directory cannot be made"]);
    on("s3://bucket/x --endpoint http://127.0.0.1:1", &["environment variable AWS_ACCESS_KEY_ID is not set"]);
    on("az://box/x --endpoint http://127.0.0.1:1/account", &["found no credentials", "AZURE_STORAGE_ACCOUNT_KEY"]);
    on("az://box/x", &["az://box/x: cannot be opened", "AZURE_STORAGE_ACCOUNT_NAME"]);
    on("gs://", &["expected gs://NAME or gs://NAME/PREFIX, found no bucket"]);
    on("s3://bucket/x --endpoint nonsense", &["--endpoint: expected a URL", "found `nonsense`"]);
    assert_refuses(&workshop, "submit spec.toml --bucket memory:", INVALID, &["memory: ends with this process"]);
    for command in
        ["status nowhere", "island nowhere --name a", "syncer nowhere", "export nowhere out", "doctor nowhere"]
    {
        assert_refuses(&workshop, command, INVALID, &["nowhere: expected a directory that is a bucket"]);
    }
    fs::create_dir(workshop.path("hollow")).expect("a folder");
    for command in ["island hollow --name a", "syncer hollow", "export hollow out"] {
        assert_refuses(&workshop, command, INVALID, &["hollow: expected a run, found none"]);
    }
    let command = "run spec.toml --bucket file:b --report text";
    assert_refuses(&workshop, command, INVALID, &["--report text: expected a file"]);
    assert_refuses(&workshop, "run spec.toml --bucket file:b --out file", INVALID, &["--out file: expected a folder"]);
}

#[test]
fn a_server_that_refuses_is_unavailable_within_seconds() {
    let mut workshop = workshop("", SMALL);
    // A port that nobody listens on: it was free a moment ago.
    let port = TcpListener::bind(("127.0.0.1", 0)).expect("a port").local_addr().expect("an address").port();
    let keys = [("AWS_ACCESS_KEY_ID", "key".to_owned()), ("AWS_SECRET_ACCESS_KEY", "secret".to_owned())];
    workshop.set(keys);
    let place = format!("s3://bucket/x --endpoint http://127.0.0.1:{port}");
    let commands = [
        format!("run spec.toml --out out --bucket {place}"),
        format!("submit spec.toml --bucket {place}"),
        format!("status {place}"),
        format!("island {place} --name a"),
        format!("syncer {place}"),
        format!("export {place} out"),
        format!("doctor {place}"),
    ];
    for command in commands {
        assert_refuses(&workshop, &command, UNAVAILABLE, &["check", "endpoint", "refused"]);
    }
}

#[test]
fn a_store_that_ignores_conditions_is_refused_by_every_role_and_doctor_says_what_would_not_work() {
    let mut workshop = workshop("", SMALL);
    workshop.run_well(SUBMIT);
    let server = Forgetful::serving(&workshop.path("bucket"));
    let before = server.objects();
    assert!(before.contains_key("small/run.json"), "a run is there for roles to be taken in");
    workshop.set([("AWS_ACCESS_KEY_ID", "key".to_owned()), ("AWS_SECRET_ACCESS_KEY", "secret".to_owned())]);
    let place = format!("s3://{BUCKET} --endpoint {}", server.endpoint);
    let said =
        ["expected a store that creates an object only if it is absent", "replaced the bytes", "`tombolo doctor`"];
    for command in [
        format!("run spec.toml --out out --bucket {place}"),
        format!("submit spec.toml --bucket {place}"),
        format!("island {place} --name anna"),
        format!("syncer {place}"),
    ] {
        let expected = [&said[..], &[&server.endpoint, BUCKET]].concat();
        assert_refuses(&workshop, &command, INVALID, &expected);
        assert_eq!(server.objects(), before, "`{command}` changed something");
    }
    // Who only reads is let in.
    workshop.run_well(&format!("ledger {place}"));

    let ended = workshop.run(&format!("doctor {place}"));
    let error = ended.error(INVALID);
    assert!(error.contains("create if absent, racing creates"), "{error}");
    for line in
        ["ok     answers", "FAILS  create if absent", "without it: every commit can be overwritten", "ok     liveness"]
    {
        assert!(ended.stdout.contains(line), "expected `{line}` in: {}", ended.stdout);
    }
    assert_eq!(server.objects(), before, "doctor removes what it wrote");
}

#[test]
fn a_server_that_does_not_know_the_credentials_holds_nothing_new() {
    for server in servers() {
        let mut workshop = workshop("", SMALL);
        let wrong = |(name, value)| (name, if name == "AWS_SECRET_ACCESS_KEY" { "wrong".to_owned() } else { value });
        workshop.set(server.environment().into_iter().map(wrong));
        let bucket = server.bucket();
        for place in [format!("s3://{bucket}/x"), "s3://never-made/x".to_owned()] {
            let run = format!("run spec.toml --out out --bucket {place} --endpoint {}", server.endpoint);
            let expected = [server.endpoint.as_str(), "refuses the credentials; check AWS_ACCESS_KEY_ID"];
            assert_refuses(&workshop, &run, INVALID, &expected);
            let status = format!("status {place} --endpoint {}", server.endpoint);
            assert_refuses(&workshop, &status, UNAVAILABLE, &["check", "credentials"]);
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let client = server.client();
        let (buckets, objects) = runtime.block_on(async {
            let buckets = client.list_buckets().send().await;
            let objects = client.list_objects_v2().bucket(&bucket).send().await;
            (
                buckets.unwrap_or_else(|error| panic!("{}: {}", server.name, DisplayErrorContext(error))),
                objects.unwrap_or_else(|error| panic!("{}: {}", server.name, DisplayErrorContext(error))),
            )
        });
        assert!(!buckets.buckets().iter().any(|b| b.name() == Some("never-made")), "{}: {buckets:?}", server.name);
        assert!(objects.contents().is_empty(), "{}: {objects:?}", server.name);
    }
}

#[test]
fn a_run_of_the_same_name_that_differs_is_left_alone_with_every_difference_said() {
    let workshop = workshop("seed = 1", SMALL);
    workshop.run_well(SUBMIT);
    workshop.write_spec("run = \"small\"\ntokens = 100000\nseed = 2", &SMALL.replace("batch = 4", "batch = 8"));
    let differences = [
        "the bucket already holds a different run called `small`; give this one another name with --run",
        "spec.seed: here 2, in the bucket 1",
        "spec.train.batch: here 8, in the bucket 4",
    ];
    assert_run_and_submit_refuse(&workshop, &differences);
    // Another text is another run, too.
    workshop.write_spec("run = \"small\"\ntokens = 100000\nseed = 1", SMALL);
    fs::create_dir(workshop.path("other")).expect("a folder");
    fs::write(workshop.path("other/a.txt"), support::program::text(200_000, 77)).expect("a file");
    assert_refuses(&workshop, &format!("{SUBMIT} --data other"), INVALID, &["corpus: here", "in the bucket"]);
    // The same run is no difference, whatever this machine calls its text and however many islands it starts.
    workshop.run_well(&format!("{SUBMIT} --islands 2"));
}

#[test]
fn an_island_of_an_impossible_name_or_with_another_text_claims_nothing() {
    let workshop = workshop("", SMALL);
    workshop.run_well(SUBMIT);
    for name in ["Anna", "a/b", "../../x", "-a", "a.b", &"a".repeat(65)] {
        let command = format!("island bucket --name={name}");
        assert_refuses(&workshop, &command, INVALID, &["--name: expected 1 to 64 lower-case letters", name]);
    }
    fs::create_dir(workshop.path("other")).expect("a folder");
    fs::write(workshop.path("other/a.txt"), support::program::text(200_000, 77)).expect("a file");
    let command = "island bucket --name anna --data other";
    assert_refuses(&workshop, command, INVALID, &["island anna: the text here", "fingerprint", "--data"]);
    let command = "island bucket --name anna --run nowhere";
    assert_refuses(&workshop, command, INVALID, &["expected a run called `nowhere`, found small"]);
}

/// The object of the newest version of fragment 0 in the bucket of a run that was submitted.
fn fragment(workshop: &Workshop) -> PathBuf {
    let folder = fs::read_dir(workshop.path("bucket/small/fragment/0000")).expect("a folder");
    folder.map(|entry| entry.expect("an entry").path()).max().expect("a version")
}

#[test]
fn a_damaged_object_in_the_bucket_is_named_and_nothing_is_exported() {
    let workshop = workshop("", SMALL);
    workshop.run_well(SUBMIT);
    let path = fragment(&workshop);
    let whole = fs::read(&path).expect("a version");
    let export = "export bucket exported";
    let key = "small/fragment/0000/00000000000000000000-";

    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    fs::write(&path, flipped).expect("written");
    assert_refuses(&workshop, export, CORRUPT, &[key, "content hash"]);
    fs::write(&path, &whole[..whole.len() / 2]).expect("written");
    assert_refuses(&workshop, export, CORRUPT, &[key, "truncated"]);
    fs::write(&path, vec![0; 10 << 20]).expect("written");
    assert_refuses(&workshop, export, CORRUPT, &[key, "expected at most"]);
    fs::remove_file(&path).expect("removed");
    assert_refuses(&workshop, export, UNAVAILABLE, &[key, "cannot be read"]);
    fs::write(&path, &whole).expect("written");

    let record = workshop.path("bucket/small/run.json");
    let good = fs::read(&record).expect("a record");
    fs::write(&record, &good[..good.len() / 2]).expect("written");
    assert_refuses(&workshop, export, CORRUPT, &["small/run.json"]);
    let newer = String::from_utf8(good.clone()).expect("JSON").replacen("\"format\":1", "\"format\":99", 1);
    fs::write(&record, newer).expect("written");
    assert_refuses(&workshop, export, INVALID, &["small/run.json: expected format 1, found 99"]);
    fs::write(&record, &good).expect("written");

    let record: serde_json::Value = serde_json::from_slice(&good).expect("JSON");
    for (role, command) in [("codec", "island bucket --name anna"), ("merge", "syncer bucket")] {
        let name = format!("policy/{}.wasm", record[role]["hash"].as_str().expect("a hash"));
        let component = workshop.path("bucket").join(&name);
        let good = fs::read(&component).expect("a component");
        fs::write(&component, "not what the name says").expect("written");
        assert_refuses(&workshop, command, CORRUPT, &[&name, "expected these bytes to have the hash in their name"]);
        fs::write(&component, good).expect("written");
    }
    workshop.run_well(export);
}

#[test]
fn a_folder_without_a_model_generates_nothing() {
    let workshop = workshop("", SMALL);
    assert_refuses(&workshop, "generate nowhere", INVALID, &["nowhere/config.json"]);
    workshop.run_well(SUBMIT);
    workshop.run_well("export bucket model");
    assert_refuses(&workshop, "generate model --prompt=", INVALID, &["--prompt: expected at least one character"]);
    let weights = workshop.path("model/model.safetensors");
    let whole = fs::read(&weights).expect("weights");
    fs::write(&weights, &whole[..whole.len() / 2]).expect("written");
    assert_refuses(&workshop, "generate model", CORRUPT, &["model/model.safetensors"]);
    fs::write(workshop.path("model/config.json"), "{\"model_type\": \"gpt2\"}").expect("written");
    assert_refuses(&workshop, "generate model", INVALID, &["model/config.json", "gpt2"]);
}
