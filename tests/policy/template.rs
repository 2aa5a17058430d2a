//! `tombolo policy new`: what it writes passes its own tests, builds, and is admitted.
//!
//! Where there is no compiler for WebAssembly (see `golden`), the crates are tested natively only.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tombolo::policy::{Role, admit};

use crate::memory::runtime;

const CRATES: [(&str, Role); 3] = [("my-mean", Role::Merge), ("my-codec", Role::Codec), ("my-pace", Role::Pace)];

fn new(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tombolo"));
    command.current_dir(folder).args(["policy", "new"]).args(arguments).output().expect("starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Where all the crates are built, so that what they share is built once.
fn target() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("template")
}

/// A cargo that fetches nothing and knows nothing of the build that this test belongs to.
fn cargo(folder: &Path) -> Command {
    let mut command = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()));
    command
        .current_dir(folder)
        .env("CARGO_TARGET_DIR", target())
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_INCREMENTAL");
    command
}

#[test]
fn new_crates_pass_their_tests_and_build_to_components_that_are_admitted() {
    let required = crate::support::required("guests");
    let folder = tempfile::tempdir().expect("a folder");
    for (name, role) in CRATES {
        let made = new(folder.path(), &[name, "--role", &role.to_string()]);
        assert!(made.status.success(), "{}", text(&made.stderr));
        assert!(text(&made.stdout).contains("cargo build --release --target wasm32-unknown-unknown"));
        let tested = cargo(&folder.path().join(name)).args(["test", "--release", "--offline", "--lib"]).output();
        let tested = tested.expect("cargo starts");
        let said = text(&tested.stdout) + &text(&tested.stderr);
        assert!(tested.status.success() && said.contains("1 passed"), "{name}: {said}");
        let code = fs::read_to_string(folder.path().join(name).join("src/lib.rs")).expect("a source");
        assert!(!said.contains("warning:"), "{name}: {said}");
        assert!(code.starts_with("//! "), "{name} says what it does");
    }
    for (name, role) in CRATES {
        let mut command = cargo(Path::new(env!("CARGO_MANIFEST_DIR")));
        command.env_remove("CARGO_TARGET_DIR").args(["run", "--release", "--quiet", "-p", "xtask", "--", "policy"]);
        let built = command.args((!required).then_some("--offline")).arg(folder.path().join(name)).output();
        let built = built.expect("cargo starts");
        match built.status.code() {
            Some(0) => {}
            Some(3) if !required => {
                crate::support::not_tested("guests", text(&built.stderr).trim());
                return;
            }
            code => panic!("cargo xtask policy ended with {code:?}: {}", text(&built.stderr)),
        }
        let component = format!("target/wasm32-unknown-unknown/release/{}.wasm", name.replace('-', "_"));
        let wasm = fs::read(folder.path().join(name).join(component)).expect("built");
        let policy = runtime().load(&wasm).expect("loads");
        assert_eq!(policy.roles(), [role]);
        assert_eq!(admit(&policy, role, b"", None).expect("examined").refused, None, "{name}");
    }
}

#[test]
fn a_name_that_is_taken_or_cannot_be_a_crates_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let refused = |arguments: &[&str], part: &str| {
        let ended = new(folder.path(), arguments);
        let said = text(&ended.stderr);
        assert!(ended.status.code() == Some(2) && said.contains(part), "{arguments:?}: {said}");
    };
    refused(&["My_Rule", "--role", "merge"], "lower-case letters, digits and dashes, a letter first");
    refused(&["1st", "--role", "merge"], "a letter first");
    refused(&["../rule", "--role", "merge"], "a letter first");
    refused(&["rule", "--role", "pacer"], "merge");
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0, "nothing was made");
    fs::create_dir(folder.path().join("rule")).expect("a folder");
    refused(&["rule", "--role", "merge"], "rule: cannot be made here");
}

#[test]
fn new_crates_bring_every_source_of_the_kit_along() {
    let folder = tempfile::tempdir().expect("a folder");
    assert!(new(folder.path(), &["rule", "--role", "pace"]).status.success());
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (ours, theirs) in [("plugins/sdk/src", "vendor/sdk/src"), ("wit", "wit")] {
        let names = |folder: PathBuf| {
            let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("readable").file_name());
            let mut names: Vec<_> = entries.collect();
            names.sort();
            names
        };
        assert_eq!(names(root.join(ours)), names(folder.path().join("rule").join(theirs)), "{ours}");
    }
}
