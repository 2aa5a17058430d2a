//! The three steps that Rust cannot check: taking compiled code back, limiting this process, and asking who we are.

#![expect(unsafe_code, reason = "wasmtime's and libc's interfaces for these are unsafe functions")]

use std::io;

use wasmtime::Engine;
use wasmtime::component::Component;

/// Takes compiled code back.
///
/// The caller vouches that `bytes` came from [`Engine::precompile_component`]: from the child process that this host has just started, or from
/// this host's own cache folder, which nobody else can write and where a checksum guards against damage. Bytes from a bucket never come here.
/// Code of another engine version or configuration is recognised and refused by wasmtime.
pub(super) fn deserialize(engine: &Engine, bytes: &[u8]) -> wasmtime::Result<Component> {
    // SAFETY: the caller vouches for where the bytes come from (see above).
    unsafe { Component::deserialize(engine, bytes) }
}

/// Limits this process: address space in bytes, processor time in seconds, no core files.
pub(super) fn limit_process(bytes: u64, seconds: u64) -> io::Result<()> {
    let limits = [(libc::RLIMIT_AS, bytes), (libc::RLIMIT_CPU, seconds), (libc::RLIMIT_CORE, 0)];
    for (resource, value) in limits {
        let limit = libc::rlimit { rlim_cur: value as libc::rlim_t, rlim_max: value as libc::rlim_t };
        // SAFETY: setrlimit reads the struct that it is given a valid pointer to, and nothing else.
        if unsafe { libc::setrlimit(resource, &limit) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// The user that this process acts as.
pub(super) fn user() -> u32 {
    // SAFETY: geteuid has no arguments, no state and cannot fail.
    unsafe { libc::geteuid() }
}
