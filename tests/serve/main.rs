//! `tombolo serve` as a process, asked over real connections: who may, what is stored, what is refused and how, what strangers cannot do to it; and the
//! description of the interface held against the interface by a fuzzer, schemathesis.

#[path = "../support/mod.rs"]
mod support;

mod client;
#[path = "../policy/guest.rs"]
#[allow(dead_code, reason = "the tests of policies use all of it")]
mod guest;

use std::fs;
use std::io::{Read, Write};
use std::process::Command;
use std::thread;

use client::{Answer, OPERATE, READ, Server, answer, close, request};
use guest::CodecText;
use support::not_tested;
use support::program::{SMALL, Workshop, signal};
use support::server::find;
use tombolo::bucket::{Policies, Tail};
use tombolo::nonce::sha256;
use tombolo::policy::{Role, bundled_wasm};

fn workshop() -> Workshop {
    Workshop::new("run = \"small\"\ntokens = 60000\nislands = 2", SMALL)
}

fn mean() -> &'static [u8] {
    bundled_wasm("mean").expect("bundled")
}

/// What lies in the bucket of the folder.
fn stored(workshop: &Workshop) -> Vec<String> {
    let Ok(entries) = fs::read_dir(workshop.path("bucket/policy")) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn it_starts_only_with_tokens_that_are_closed_to_others() {
    let mut workshop = workshop();
    fs::create_dir(workshop.path("bucket")).expect("a bucket");
    let refuses = |workshop: &Workshop, arguments: &str, expected: &str| {
        let ended = workshop.run(&format!("serve file:bucket --listen 127.0.0.1:0 {arguments}"));
        let error = ended.error(2);
        assert!(error.contains(expected) && !ended.stderr.contains(OPERATE), "{error}");
    };
    refuses(&workshop, "", "TOMBOLO_TOKENS");
    fs::write(workshop.path("tokens"), format!("operate ci {OPERATE}")).expect("tokens");
    close(&workshop.path("tokens"), 0o644);
    refuses(&workshop, "--tokens tokens", "chmod 600");
    fs::write(workshop.path("tokens"), format!("operate {OPERATE}")).expect("tokens");
    close(&workshop.path("tokens"), 0o600);
    refuses(&workshop, "--tokens tokens", "line 1: expected `read NAME TOKEN`");
    workshop.set([("TOMBOLO_TOKENS", format!("operate ci {OPERATE}, operate ci {READ}"))]);
    refuses(&workshop, "", "TOMBOLO_TOKENS, line 1: ci");
}

#[test]
fn who_has_no_token_learns_nothing_and_who_may_only_look_changes_nothing() {
    let workshop = workshop();
    let server = Server::start(&workshop);
    let wasm = "Content-Type: application/wasm\r\n";
    let wrong = format!("{}x", &OPERATE[..OPERATE.len() - 1]);
    for (method, target) in [
        ("GET", "/v1/policies"),
        ("PUT", "/v1/policies"),
        ("GET", "/v1/runs/small"),
        ("GET", "/v1/nothing"),
        ("POST", "/v1/runs"),
    ] {
        for token in [None, Some(""), Some(wrong.as_str()), Some(&OPERATE[1..])] {
            let answer = server.request(method, target, token, wasm, b"");
            answer.problem(401, "header.authorization");
            assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
            assert!(!String::from_utf8_lossy(&answer.body).contains("0123456789abcdef"), "{answer:?}");
        }
    }
    for other in
        [format!("Basic {OPERATE}"), OPERATE.to_owned(), format!("Bearer {READ}\r\nAuthorization: Bearer {OPERATE}")]
    {
        let answer = server.request("GET", "/v1/runs", None, &format!("Authorization: {other}\r\n"), b"");
        answer.problem(401, "header.authorization");
    }
    server.request("PUT", "/v1/policies", Some(READ), wasm, mean()).problem(403, "header.authorization");
    assert_eq!(stored(&workshop), Vec::<String>::new());
    for target in ["/healthz", "/v1/openapi.json"] {
        assert_eq!(server.request("GET", target, None, "", b"").status, 200);
    }
    assert_eq!(server.get("/v1/runs").status, 200);
    assert_eq!(server.request("GET", "/v1/runs", None, &format!("authorization: bearer  {READ}\r\n"), b"").status, 200);
    assert!(!server.process.stderr().contains("0123456789abcdef"), "{}", server.process.stderr());
}

#[test]
fn an_upload_is_admitted_stored_by_its_hash_and_known_the_second_time() {
    let workshop = workshop();
    let server = Server::start(&workshop);
    let hash = sha256(mean());
    let answer = server.upload("", mean());
    let (status, card) = (answer.status, answer.json());
    assert_eq!(
        (status, card["policy"].as_str(), card["roles"][0]["role"].as_str()),
        (201, Some(&*hash), Some("merge"))
    );
    assert_eq!(answer.header("location"), Some(&*format!("/v1/policies/{hash}")));
    let again = server.upload("", mean());
    assert_eq!((again.status, again.json()), (200, card), "the card of the first time");

    let configured = server.upload("?config=%7B%22momentum%22%3A%200.5%7D", mean());
    assert_eq!(configured.status, 200, "{configured:?}");
    let (expected, found) = server.upload("?config=%7B%22speed%22%3A1%7D", mean()).problem(422, "body");
    assert!(
        expected.contains("takes its configuration") && found.contains("unknown field \"speed\""),
        "{expected}: {found}"
    );
    server.upload("?config=[1]", mean()).problem(400, "query.config");
    let long = format!("?config=%7B%22a%22:%22{}%22%7D", "x".repeat(8 << 10));
    server.upload(&long, mean()).problem(400, "query.config");
    server.upload("?cnofig=%7B%7D", mean()).problem(400, "query");

    let listed = server.get("/v1/policies").json();
    let admitted =
        serde_json::json!([{ "role": "merge", "config": "" }, { "role": "merge", "config": "{\"momentum\":0.5}" }]);
    let entry =
        serde_json::json!({ "policy": hash, "component_bytes": mean().len(), "bundled": "mean", "admitted": admitted });
    assert_eq!(listed, serde_json::json!({ "policies": [entry], "next": null }));
    assert_eq!(server.get(&format!("/v1/policies/{hash}")).json(), configured.json());
    let component = server.get(&format!("/v1/policies/{hash}/component"));
    assert_eq!((component.header("content-type"), &*component.body), (Some("application/wasm"), mean()));
    let page = server.get("/v1/policies?limit=1").json();
    assert_eq!(page["next"].as_str(), Some(&*hash));
    assert_eq!(server.get(&format!("/v1/policies?after={hash}")).json()["policies"].as_array().map(Vec::len), Some(0));

    // The command line sees the same, and adds to it.
    let list = workshop.run_well("policy list file:bucket").stdout;
    assert!(list.contains(&hash) && list.contains(r#"admitted as merge, merge with {"momentum":0.5}"#), "{list}");
    let pushed = workshop.run_well("policy push bf16 --bucket file:bucket").stdout;
    assert!(pushed.contains("is stored, as codec"), "{pushed}");
    let bf16 = sha256(bundled_wasm("bf16").expect("bundled"));
    assert_eq!(server.get(&format!("/v1/policies/{bf16}")).status, 200);
    let shown = workshop.run_well(&format!("policy show file:bucket {}", &bf16[..12])).stdout;
    assert!(shown.contains(&bf16) && shown.ends_with("\nadmitted"), "{shown}");
    workshop.run("policy show file:bucket ffffffffffff").error(2);
    assert_eq!(stored(&workshop).len(), 4, "two components and their cards");
}

#[test]
fn what_breaks_its_contract_is_too_large_or_is_no_component_is_refused_with_the_reason_and_leaves_nothing() {
    let workshop = workshop();
    let server = Server::start(&workshop);
    let refused = |wasm: &[u8], expected: &str, found: &str| {
        let (first, second) = server.upload("", wasm).problem(422, "body");
        assert!(first.contains(expected) && second.contains(found), "{first}: {second}");
    };
    let trap = CodecText { encode: "(unreachable)", ..CodecText::default() };
    refused(&trap.wasm(), "round trip within the stated error", "trapped in encode");
    let endless = CodecText { encode: "(loop $forever (br $forever)) (unreachable)", ..CodecText::default() };
    refused(&endless.wasm(), "round trip", "used up its");
    let hoarding = CodecText { encode: "(drop (memory.grow (i32.const 4000))) (unreachable)", ..CodecText::default() };
    refused(&hoarding.wasm(), "round trip", "of memory in encode");
    refused(&mean()[..mean().len() / 2], "a component that this host runs", "not a policy");
    refused(b"", "a component that this host runs", "no bytes at all");
    refused(b"GIF89a", "a component that this host runs", "not a policy");

    let large = vec![0; (1 << 20) + 1];
    let (expected, found) = server.upload("", &large).problem(413, "body");
    assert_eq!((expected.as_str(), found.as_str()), ("at most 1048576 bytes", "1048577 bytes"));
    // Without saying how large it is, and without an end: the answer comes while the body does.
    let mut endless = server.connect();
    let head = format!(
        "PUT /v1/policies HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {OPERATE}\r\nContent-Type: application/wasm\r\nTransfer-Encoding: chunked\r\n\r\n"
    );
    endless.write_all(head.as_bytes()).expect("sent");
    let chunk = [b"10000\r\n".as_slice(), &[7; 0x10000], b"\r\n"].concat();
    let mut sent = 0;
    while sent < 1 << 30 && endless.write_all(&chunk).is_ok() {
        sent += chunk.len();
    }
    assert!(sent < 64 << 20, "{sent} bytes were taken of a body of at most 1 MiB");
    let announced = format!(
        "PUT /v1/policies HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {OPERATE}\r\nContent-Type: application/wasm\r\nContent-Length: 99999999999\r\n\r\n"
    );
    server.raw(announced.as_bytes()).problem(413, "body");
    server
        .request("PUT", "/v1/policies", Some(OPERATE), "Content-Type: text/plain\r\n", mean())
        .problem(415, "header.content-type");
    server.request("PUT", "/v1/policies", Some(OPERATE), "", mean()).problem(415, "header.content-type");
    assert_eq!(stored(&workshop), Vec::<String>::new());
    assert_eq!(server.upload("", mean()).status, 201, "it goes on");
}

#[test]
fn strange_paths_methods_and_heads_are_errors_in_json_and_never_reach_the_bucket() {
    let workshop = workshop();
    let server = Server::start(&workshop);
    fs::write(workshop.path("bucket/secret.json"), "{}").expect("a file");
    for run in ["..", "%2e%2e", "..%2f..", "policy", "a.json", "A", "-", "%00", "secret.json"] {
        server.get(&format!("/v1/runs/{run}")).problem(400, "path.run");
        server.get(&format!("/v1/policies/{run}")).problem(400, "path.hash");
    }
    for path in ["/", "/v1", "/v1/runs/small/log", "/v1/runs/../policies", "//v1/runs", "/v1/runs/", "/secret.json"] {
        let status = server.get(path).status;
        assert!(matches!(status, 400 | 404), "{path}: {status}");
    }
    server.get("/v1/runs/absent").problem(404, "path.run");
    server.get(&format!("/v1/policies/{}", "0".repeat(64))).problem(404, "path.hash");
    server.get("/v1/policies?limit=0").problem(400, "query.limit");
    server.get("/v1/policies?limit=+1").problem(400, "query.limit");
    server.get("/v1/policies?after=..").problem(400, "query.after");
    server.get("/v1/runs?x=1").problem(400, "query");
    let (allowed, _) = server.request("DELETE", "/v1/policies", Some(OPERATE), "", b"").problem(405, "method");
    assert_eq!(allowed, "GET, PUT");
    let long = format!("GET /v1/runs HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
    assert!(matches!(server.raw(long.as_bytes()).status, 400 | 431));
    assert_eq!(server.raw(b"\0\0\0\0 HTTP\r\n\r\n").status, 400);
    assert_eq!(server.get("/v1/runs").json(), serde_json::json!({ "runs": [] }));
}

#[test]
fn who_asks_too_often_is_told_when_to_come_again_and_nobody_else_is() {
    let server = Server::start(&workshop());
    let mut stream = server.connect();
    let one = format!("GET /v1/policies/ff HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {READ}\r\n\r\n");
    let last = one.replace("Host: a", "Host: a\r\nConnection: close");
    stream.write_all([one.repeat(299), last].concat().as_bytes()).expect("sent");
    let answers = String::from_utf8(answer(&mut stream).body).expect("JSON and heads");
    let counted = |status: &str| answers.matches(&format!("HTTP/1.1 {status}")).count();
    assert!(counted("429") > 100 && counted("400") >= 39, "{} and {}", counted("429"), counted("400"));
    assert_eq!(answers.matches("retry-after: 1\r\n").count(), counted("429"));
    assert_eq!(server.request("GET", "/v1/runs", Some(OPERATE), "", b"").status, 200, "another token");
}

#[test]
fn one_policy_is_examined_at_a_time_and_who_comes_meanwhile_is_told_to_come_again() {
    let workshop = workshop();
    let server = Server::start(&workshop);
    let names = ["mean", "bf16", "int8", "median", "f32", "sign"];
    let answers: Vec<Answer> = thread::scope(|scope| {
        let upload = |name: &'static str| scope.spawn(|| server.upload("", bundled_wasm(name).expect("bundled")));
        let uploads = names.map(upload);
        uploads.into_iter().map(|upload| upload.join().expect("an answer")).collect()
    });
    let busy: Vec<&Answer> = answers.iter().filter(|answer| answer.status == 503).collect();
    let taken = answers.iter().filter(|answer| answer.status == 201).count();
    assert!(!busy.is_empty() && taken >= 1 && taken + busy.len() == names.len(), "{answers:?}");
    assert!(
        busy.iter()
            .all(|answer| answer.header("retry-after") == Some("5") && answer.json()["error"]["field"].is_null())
    );
    assert_eq!(stored(&workshop).len(), 2 * taken);
}

#[test]
fn who_stalls_in_the_middle_of_a_head_or_a_body_is_cut_off_and_others_are_served_meanwhile() {
    let server = Server::start(&workshop());
    let whole = request("PUT", "/v1/policies", Some(OPERATE), "Content-Type: application/wasm\r\n", mean());
    let mut body = server.connect();
    body.write_all(&whole[..whole.len() / 2]).expect("sent");
    let mut head = server.connect();
    head.write_all(&whole[..20]).expect("sent");
    assert_eq!(server.get("/v1/runs").status, 200);
    let stalled = answer(&mut body);
    stalled.problem(408, "body");
    let mut nothing = Vec::new();
    let _ = head.read_to_end(&mut nothing);
    assert!(nothing.is_empty() || nothing.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&nothing));
}

#[test]
fn what_was_begun_when_it_is_told_to_end_is_answered_first() {
    let workshop = workshop();
    let server = Server::start(&workshop);
    let mut begun = server.connect();
    let headers = "Content-Type: application/wasm\r\nExpect: 100-continue\r\n";
    let whole = request("PUT", "/v1/policies", Some(OPERATE), headers, mean());
    let (head, body) = whole.split_at(whole.len() - mean().len());
    begun.write_all(head).expect("sent");
    let mut asked = [0; 25];
    begun.read_exact(&mut asked).expect("it asks for the body");
    assert_eq!(&asked, b"HTTP/1.1 100 Continue\r\n\r\n");
    signal(server.process.pid(), "TERM");
    begun.write_all(body).expect("sent");
    assert_eq!(answer(&mut begun).status, 201);
    let ended = server.process.end().well();
    assert!(ended.stderr.contains("ends: it was told to"), "{}", ended.stderr);
    assert_eq!(stored(&workshop).len(), 2);
}

#[test]
fn a_run_stands_as_its_log_says() {
    let workshop = workshop();
    workshop.run_well("run spec.toml --bucket file:bucket --out out");
    let server = Server::start(&workshop);
    assert_eq!(server.get("/v1/runs").json(), serde_json::json!({ "runs": [{ "run": "small" }] }));
    let first = server.get("/v1/runs/small").json();
    assert_eq!(server.get("/v1/runs/small").json(), first, "what is kept of the log says the same");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (ledger, policies) = runtime.block_on(async {
        let bucket = workshop.bucket();
        let record = bucket.run_record().await.expect("read").expect("a run");
        let mut tail = Tail::of(&bucket, &record).await.expect("read");
        tail.advance(&bucket, usize::MAX).await.expect("read");
        (tail.ledger, Policies::new(bucket.store().clone()).list(None, 9).await.expect("listed"))
    });
    let merge = ledger.active.at(Role::Merge, ledger.next_round);
    assert_eq!(first["rounds"]["committed"].as_u64(), Some(ledger.rounds_committed()));
    assert_eq!(first["tokens"]["merged"].as_u64(), Some(ledger.tokens()));
    assert_eq!(first["offers"]["merged"].as_u64(), Some(ledger.fates.merged));
    assert_eq!(first["stopped"].as_str(), ledger.stopped.as_deref());
    assert_eq!(first["log_entries"].as_u64(), Some(ledger.next));
    assert_eq!(first["policies"]["merge"]["active"]["policy"].as_str(), Some(&*merge.hash));
    assert_eq!(first["last_rounds"][0]["round"].as_u64(), Some(ledger.next_round - 1));
    assert_eq!(first["islands"][1]["island"].as_str(), Some("island-1"));
    assert_eq!(first["islands"][1]["state"].as_str(), Some("done"));
    // A record that no run can have is an error, and no end of the server.
    let mut record = workshop.json("bucket/small/run.json");
    record["fragments"] = 0.into();
    let mut newer = workshop.json("bucket/small/run.json");
    newer["format"] = 2.into();
    for (run, text) in [("none", record.to_string()), ("torn", "{".to_owned()), ("newer", newer.to_string())] {
        fs::create_dir(workshop.path(&format!("bucket/{run}"))).expect("a folder");
        fs::write(workshop.path(&format!("bucket/{run}/run.json")), text).expect("a file");
        let answer = server.get(&format!("/v1/runs/{run}"));
        assert_eq!((answer.status, answer.json()["error"]["field"].is_null()), (500, true), "{answer:?}");
    }
    assert_eq!(server.get("/v1/runs/small").json(), first);
    let told = server.get("/v1/policies").json();
    assert_eq!(told["policies"].as_array().map(Vec::len), Some(policies.len()));
    assert!(workshop.run_well("policy list file:bucket").stdout.contains("comes with the program"));
}

#[test]
fn a_run_is_switched_to_a_policy_of_the_bucket_that_fits_it_and_to_no_other() {
    let workshop = workshop();
    workshop.run_well("submit spec.toml --bucket file:bucket");
    let server = Server::start(&workshop);
    let post = |token: &str, kind: &str, body: &str| {
        let headers = format!("Content-Type: {kind}\r\n");
        server.request("POST", "/v1/runs/small/activate", Some(token), &headers, body.as_bytes())
    };
    let wanted =
        |role: &str, policy: &str, more: &str| format!("{{\"role\":\"{role}\",\"policy\":\"{policy}\"{more}}}");
    let ask = |role: &str, policy: &str, more: &str| post(OPERATE, "application/json", &wanted(role, policy, more));
    let median = sha256(bundled_wasm("median").expect("bundled"));
    ask("merge", &median, "").problem(422, "body.policy");
    assert_eq!(server.upload("", bundled_wasm("median").expect("bundled")).status, 201);

    let body = wanted("merge", &median, "");
    post(READ, "application/json", &body).problem(403, "header.authorization");
    post(OPERATE, "text/plain", &body).problem(415, "header.content-type");
    ask("judge", &median, "").problem(400, "body.role");
    ask("merge", &median, ",\"form_round\":3").problem(400, "body");
    let (expected, _) = ask("merge", &median, ",\"from_round\":0").problem(409, "body.from_round");
    let next: u64 = expected.strip_suffix(" or later").and_then(|round| round.parse().ok()).expect("a round");
    let (_, found) = ask("codec", &median, "").problem(422, "body.policy");
    assert!(found.contains("has no role codec"), "{found}");
    let (_, found) = ask("pace", &median, "").problem(422, "body.policy");
    assert!(found.contains("has no role pace"), "{found}");
    let (_, found) = ask("merge", &median, ",\"config\":{\"speed\":1}").problem(422, "body.policy");
    assert!(found.contains("speed"), "{found}");
    let head = server.request(
        "POST",
        "/v1/runs/absent/activate",
        Some(OPERATE),
        "Content-Type: application/json\r\n",
        body.as_bytes(),
    );
    head.problem(404, "path.run");
    let before = server.get("/v1/runs/small").json();
    assert_eq!(
        (before["log_entries"].as_u64(), before["policies"]["merge"]["ahead"].as_array().map(Vec::len)),
        (Some(1), Some(0))
    );

    let switched = ask("merge", &median, ",\"config\":{\"eta\":0.5},\"from_round\":\"next\"").json();
    let config = "{\"eta\":0.5}";
    let warning = switched["warning"].as_str().expect("nobody tuned it");
    assert!(warning.starts_with("merge rule median with outer nesterov has not been tuned"), "{warning}");
    let expected = serde_json::json!({ "run": "small", "role": "merge", "policy": median, "config": config, "from_round": next, "log_entry": 1, "warning": warning });
    assert_eq!(switched, expected);
    let after = server.get("/v1/runs/small").json();
    let chosen = serde_json::json!({ "policy": median, "name": "median", "config": config, "from_round": next, "gave_up": null });
    assert_eq!(after["policies"]["merge"]["ahead"], serde_json::json!([chosen]));
    let status = workshop.run_well("status file:bucket").stdout;
    assert!(status.contains(&format!("from round {next} on: median")), "{status}");
    assert!(server.process.stderr().contains(&format!("ci: run small: merge policy {median} from round {next} on")));

    assert_eq!(after["policies"]["pace"]["active"]["name"], "adaptive-grace");
    let fixed = sha256(bundled_wasm("fixed").expect("bundled"));
    assert_eq!(server.upload("", bundled_wasm("fixed").expect("bundled")).status, 201);
    let (_, found) = ask("pace", &fixed, ",\"config\":{\"grace_ms\":-1}").problem(422, "body.policy");
    assert!(found.contains("grace_ms"), "{found}");
    let switched = ask("pace", &fixed, ",\"config\":{\"grace_ms\":50}").json();
    assert_eq!((switched["from_round"].as_u64(), &switched["warning"]), (Some(next), &serde_json::Value::Null));
    let pace = &server.get("/v1/runs/small").json()["policies"]["pace"]["ahead"][0];
    assert_eq!((pace["policy"].as_str(), pace["config"].as_str()), (Some(&*fixed), Some("{\"grace_ms\":50}")));
}

#[test]
fn the_interface_is_what_its_description_says() {
    let Some(schemathesis) = find("schemathesis") else {
        not_tested("schemathesis", "no program `schemathesis` on PATH (pip install schemathesis==4.32.5)");
        return;
    };
    let workshop = workshop();
    workshop.run_well("run spec.toml --bucket file:bucket --out out");
    workshop.run_well("policy push mean --bucket file:bucket");
    let server = Server::start(&workshop);
    let checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,\
                  response_schema_conformance,negative_data_rejection,unsupported_method,ignored_auth";
    let output = Command::new(schemathesis)
        .current_dir(workshop.path(""))
        .env("PYTHONPATH", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/serve"))
        .env("SCHEMATHESIS_HOOKS", "schemathesis_hooks")
        .args(["--config-file", "/dev/null", "run", &format!("http://{}/v1/openapi.json", server.address)])
        .args(["--header", &format!("Authorization: Bearer {OPERATE}"), "--checks", checks])
        // The seed says what is drawn, the time how much; the rate is below the one that a token has.
        .args(["--seed", "1", "--max-time", "30", "--rate-limit", "18/s", "--workers", "1", "--no-color"])
        .args(["--generation-database", "none"])
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    // A request that it shows may be long.
    let shown: Vec<String> = said.lines().map(|line| line.chars().take(300).collect()).collect();
    let shown = shown.join("\n");
    assert!(output.status.success(), "{shown}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("Selected: 8/8") && said.contains("Tested: 8"), "{shown}");
}
