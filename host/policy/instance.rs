//! One running instance of a policy, and what becomes of it when it misbehaves.

use wasmtime::{ResourceLimiter, Store, Trap};

use super::{Error, Limits, Policy, Result};

/// Ticks of the epoch in a second; see `runtime`.
pub(super) const TICKS_PER_SECOND: u64 = 20;

/// Bytes that an answer may take beside the values that were asked for.
const ANSWER_BYTES: usize = 1 << 20;

/// Characters of a policy's own error text that are kept.
const REASON_BYTES_MAX: usize = 1_024;

/// What the host keeps beside an instance's memory.
pub(super) struct Guest {
    limit: usize,
    /// Core instances, tables and memories that it may have, each.
    parts: usize,
    /// Bytes of all its memories.
    held: usize,
    /// What it asked for when it asked for too much.
    refused: Option<usize>,
}

/// Entries of one table: functions that are called indirectly.
const TABLE_MAX: usize = 100_000;

impl ResourceLimiter for Guest {
    fn memory_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        let wanted = self.held.saturating_add(desired.saturating_sub(current));
        if wanted > self.limit {
            self.refused = Some(wanted);
            return Err(wasmtime::Error::msg("memory limit reached"));
        }
        self.held = wanted;
        Ok(true)
    }

    fn table_growing(&mut self, _: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        if desired > TABLE_MAX {
            return Err(wasmtime::Error::msg("a table outgrew its limit"));
        }
        Ok(true)
    }

    fn instances(&self) -> usize {
        self.parts
    }

    fn tables(&self) -> usize {
        self.parts
    }

    fn memories(&self) -> usize {
        self.parts
    }
}

/// A policy, instantiated for one role with the bindings `B`. After a failed call it must be thrown away.
pub(super) struct Instance<B> {
    policy: Policy,
    limits: Limits,
    store: Store<Guest>,
    bindings: B,
    fuel: u64,
}

impl<B> Instance<B> {
    /// Instantiates `policy` by `make`.
    pub(super) fn new(
        policy: &Policy,
        make: impl FnOnce(&mut Store<Guest>) -> wasmtime::Result<B>,
    ) -> Result<Instance<B>> {
        let limits = policy.limits().clone();
        let guest = Guest { limit: limits.instance_bytes_max, parts: limits.parts_max, held: 0, refused: None };
        let mut store = Store::new(policy.engine(), guest);
        store.limiter(|guest| guest);
        store.epoch_deadline_trap();
        let fuel = prepare(&mut store, &limits, "its start", 0, 0)?;
        match make(&mut store) {
            Ok(bindings) => Ok(Instance { policy: policy.clone(), limits, store, bindings, fuel: 0 }),
            Err(error) => Err(failure(policy, &limits, "its start", fuel, store.data(), error)),
        }
    }

    /// Calls a function named `call` by `f`, with fuel for `values` values and room for an answer of `answer` values.
    ///
    /// Errors: what the function answered as an error, and every way in which it can fail to answer.
    pub(super) fn call<T>(
        &mut self,
        call: &'static str,
        values: u64,
        answer: usize,
        f: impl FnOnce(&mut Store<Guest>, &B) -> wasmtime::Result<std::result::Result<T, String>>,
    ) -> Result<T> {
        let fuel = prepare(&mut self.store, &self.limits, call, values, answer)?;
        let answer = f(&mut self.store, &self.bindings);
        self.fuel += fuel - self.store.get_fuel().unwrap_or(0).min(fuel);
        match answer {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(reason)) => Err(Error::Refused { policy: self.policy.hash(), call, reason: shown(&reason) }),
            Err(error) => Err(failure(&self.policy, &self.limits, call, fuel, self.store.data(), error)),
        }
    }

    /// Fuel that all its calls took so far, its start left out.
    pub(super) fn fuel(&self) -> u64 {
        self.fuel
    }

    /// An answer that cannot be used.
    pub(super) fn nonsense(
        &self,
        call: &'static str,
        what: impl Into<String>,
        expected: impl ToString,
        found: impl ToString,
    ) -> Error {
        nonsense(&self.policy, call, what, expected, found)
    }
}

/// An answer that cannot be used.
pub(super) fn nonsense(
    policy: &Policy,
    call: &'static str,
    what: impl Into<String>,
    expected: impl ToString,
    found: impl ToString,
) -> Error {
    Error::Nonsense {
        policy: policy.hash(),
        call,
        what: what.into(),
        expected: expected.to_string(),
        found: found.to_string(),
    }
}

/// Gives the next call its fuel, deadline and room for the answer; answers the fuel.
fn prepare(store: &mut Store<Guest>, limits: &Limits, call: &'static str, values: u64, answer: usize) -> Result<u64> {
    let fuel = limits.call_fuel.saturating_add(limits.value_fuel.saturating_mul(values));
    store.set_fuel(fuel).map_err(|error| Error::host(format!("preparing {call}"), format!("{error:#}")))?;
    store.set_epoch_deadline(limits.call_seconds_max.saturating_mul(TICKS_PER_SECOND).saturating_add(1));
    store.set_hostcall_fuel(ANSWER_BYTES.saturating_add(answer.saturating_mul(8)));
    Ok(fuel)
}

fn failure(
    policy: &Policy,
    limits: &Limits,
    call: &'static str,
    fuel: u64,
    guest: &Guest,
    error: wasmtime::Error,
) -> Error {
    let policy = policy.hash();
    if let Some(wanted) = guest.refused {
        return Error::OutOfMemory { policy, call, wanted, limit: limits.instance_bytes_max };
    }
    if is_of_this_machine(&error) {
        return Error::host(format!("making room for policy {} in {call}", policy.short()), format!("{error:#}"));
    }
    match error.downcast_ref::<Trap>() {
        Some(Trap::OutOfFuel) => Error::OutOfFuel { policy, call, fuel },
        Some(Trap::Interrupt) => Error::TimedOut { policy, call, seconds: limits.call_seconds_max },
        Some(trap) => Error::Trapped { policy, call, what: trap.to_string() },
        None => Error::Trapped { policy, call, what: shown(&error.root_cause().to_string()) },
    }
}

/// Whether a call failed since this machine has no more memory or address space; the policy is not to blame for that.
fn is_of_this_machine(error: &wasmtime::Error) -> bool {
    let ours = |cause: &(dyn std::error::Error + 'static)| {
        cause.is::<rustix::io::Errno>() || cause.is::<std::io::Error>() || cause.is::<wasmtime::error::OutOfMemory>()
    };
    error.chain().any(ours)
}

/// A guest's text, fit for a log: cut to a bounded length, no control characters.
pub(super) fn shown(text: &str) -> String {
    let mut end = text.len().min(REASON_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].chars().map(|char| if char.is_control() { ' ' } else { char }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_address_space_is_told_from_a_policy_that_traps() {
        let full = wasmtime::Error::from(rustix::io::Errno::NOMEM).context("mmap failed to reserve 0x100000000 bytes");
        assert!(is_of_this_machine(&full) && is_of_this_machine(&full.context("instantiating")));
        let trap = wasmtime::Error::from(Trap::UnreachableCodeReached).context("while executing");
        assert!(!is_of_this_machine(&trap) && !is_of_this_machine(&wasmtime::Error::msg("a table outgrew its limit")));
    }
}
