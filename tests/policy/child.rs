//! Compiling in a child process, and the cache of compiled code.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use tombolo::policy::{COMPILE_COMMAND, Error, Limits, Role, Runtime, bundled_wasm};

use crate::guest::CodecText;

fn program() -> PathBuf {
    env!("CARGO_BIN_EXE_tombolo").into()
}

fn mean() -> &'static [u8] {
    bundled_wasm("mean").expect("bundled")
}

fn codes(cache: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(cache).expect("a folder").map(|entry| entry.expect("readable").path());
    files.filter(|path| path.extension().is_some_and(|extension| extension == "code")).collect()
}

#[test]
fn a_child_compiles_once_and_the_cache_remembers() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = folder.path().join("code");
    let runtime = Runtime::compiling_with(Limits::default(), Some(cache.clone()), program()).expect("an engine");
    assert_eq!(runtime.load(mean()).expect("loads").roles(), [Role::Merge]);
    assert_eq!(codes(&cache).len(), 1);
    // A runtime whose compiler does not exist can load nothing but what is in the cache.
    let broken =
        || Runtime::compiling_with(Limits::default(), Some(cache.clone()), "/nonexistent".into()).expect("an engine");
    assert!(broken().load(mean()).is_ok());
    assert!(matches!(broken().load(bundled_wasm("rda").expect("bundled")), Err(Error::Host { .. })));
    // Damage is noticed, and the component compiled anew.
    let code = codes(&cache).remove(0);
    let mut bytes = fs::read(&code).expect("readable");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&code, &bytes).expect("writable");
    assert!(matches!(broken().load(mean()), Err(Error::Host { .. })));
    assert!(runtime.load(mean()).is_ok());
    assert!(broken().load(mean()).is_ok());
}

#[test]
fn a_cache_that_others_can_open_is_not_used() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = folder.path().join("code");
    fs::create_dir(&cache).expect("made");
    fs::set_permissions(&cache, fs::Permissions::from_mode(0o755)).expect("set");
    let error = Runtime::new(Limits::default(), Some(cache)).expect_err("open to others");
    assert!(error.to_string().contains("chmod 700"), "{error}");
}

#[test]
fn compiling_past_the_limits_ends_the_child_and_not_the_host() {
    let starved = Limits { compile_bytes_max: 4 << 20, ..Limits::default() };
    let error =
        Runtime::compiling_with(starved, None, program()).expect("an engine").load(mean()).expect_err("starved");
    assert!(matches!(error, Error::TooCostly { .. } | Error::NotAPolicy { .. }), "{error}");
    let hurried = Limits { compile_seconds_max: 0, ..Limits::default() };
    let error =
        Runtime::compiling_with(hurried, None, program()).expect("an engine").load(mean()).expect_err("hurried");
    assert!(matches!(&error, Error::TooCostly { what, .. } if what == "compiling"), "{error}");
}

#[test]
fn a_compile_bomb_that_the_bounds_let_through_is_stopped_by_the_clock() {
    // Locals alive over many branches, where the operator has raised the bounds on functions: what register allocation is slowest at.
    let locals = 2_000;
    let mut body = String::new();
    for branch in 0..20_000 {
        let (a, b) = (branch * 7 % locals, branch * 13 % locals);
        body += &format!("(if (local.get {a}) (then (local.set {b} (i32.add (local.get {a}) (local.get {b})))))");
    }
    let bomb = format!("(func $bomb (export \"bomb\") (local {}) {body})", "i32 ".repeat(locals));
    let text = CodecText { extra: Box::leak(bomb.into_boxed_str()), ..CodecText::default() };
    let limits = Limits {
        function_bytes_max: u32::MAX,
        function_locals_max: u32::MAX,
        function_work_max: u64::MAX,
        compile_seconds_max: 2,
        compile_bytes_max: 1 << 30,
        ..Limits::default()
    };
    let begun = Instant::now();
    let error =
        Runtime::compiling_with(limits, None, program()).expect("an engine").load(&text.wasm()).expect_err("a bomb");
    assert!(matches!(&error, Error::TooCostly { what, .. } if what == "compiling"), "{error}");
    // Two seconds and what it takes to start and kill a process on a busy machine.
    assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
}

#[test]
fn the_compiling_command_is_hidden_and_takes_nothing_but_what_its_parent_says() {
    let output = std::process::Command::new(program()).args([COMPILE_COMMAND, "much"]).output().expect("starts");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("for this program's own use"));
}
