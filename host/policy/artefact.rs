//! What the operating system and wasmtime are asked for: taking compiled code back, limiting this process, and who we are.

#![expect(unsafe_code, reason = "wasmtime's interface for compiled code is an unsafe function")]

use std::io;

use rustix::process::{Resource, Rlimit, geteuid, setrlimit};
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
    let limits = [(Resource::As, bytes), (Resource::Cpu, seconds), (Resource::Core, 0)];
    for (resource, value) in limits {
        setrlimit(resource, Rlimit { current: Some(value), maximum: Some(value) })?;
    }
    Ok(())
}

/// The user that this process acts as.
pub(super) fn user() -> u32 {
    geteuid().as_raw()
}
