//! What can go wrong with a policy, by what to do about it.

use super::{Hash, Role};

/// Why a policy could not be loaded or used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The bytes are no component that this host runs. Load other bytes.
    #[error("not a policy: {what}; found {found}; {hint}")]
    NotAPolicy {
        /// What was looked at.
        what: String,
        /// What it is instead.
        found: String,
        /// What would help.
        hint: String,
    },

    /// The component would cost more to compile than the limits allow. Simplify it, or raise the limit.
    #[error("policy {policy} costs too much to compile: {what}: at most {limit}, found {found}")]
    TooCostly {
        /// Hash of the component.
        policy: Hash,
        /// Which bound.
        what: String,
        /// The bound.
        limit: String,
        /// What the component has.
        found: String,
    },

    /// The policy has another role than the one it is asked to fill.
    #[error("policy {} has no role {role}; it has {}", policy.short(), Role::list(has))]
    WrongRole {
        /// Hash of the component.
        policy: Hash,
        /// The role that is missing.
        role: Role,
        /// The roles that it has.
        has: Vec<Role>,
    },

    /// No bundled policy has this name.
    #[error("no bundled policy is named {name:?}; there are {}", super::bundled_names().join(", "))]
    Unknown {
        /// The name asked for.
        name: String,
    },

    /// The policy answered with an error of its own: usually a configuration it does not take.
    #[error("policy {} refused {call}: {reason}", policy.short())]
    Refused {
        /// Hash of the component.
        policy: Hash,
        /// The function called.
        call: &'static str,
        /// What it said.
        reason: String,
    },

    /// The policy trapped.
    #[error("policy {} trapped in {call}: {what}", policy.short())]
    Trapped {
        /// Hash of the component.
        policy: Hash,
        /// The function called.
        call: &'static str,
        /// The trap.
        what: String,
    },

    /// The policy used up its fuel.
    #[error("policy {} used up its {fuel} units of fuel in {call}", policy.short())]
    OutOfFuel {
        /// Hash of the component.
        policy: Hash,
        /// The function called.
        call: &'static str,
        /// What it was given.
        fuel: u64,
    },

    /// The policy did not answer in time.
    #[error("policy {} did not finish {call} within {seconds} s", policy.short())]
    TimedOut {
        /// Hash of the component.
        policy: Hash,
        /// The function called.
        call: &'static str,
        /// The limit.
        seconds: u64,
    },

    /// The policy asked for more memory than an instance may have.
    #[error("policy {} asked for {wanted} bytes of memory in {call}: at most {limit}", policy.short())]
    OutOfMemory {
        /// Hash of the component.
        policy: Hash,
        /// The function called.
        call: &'static str,
        /// What it asked for, in all.
        wanted: usize,
        /// The limit.
        limit: usize,
    },

    /// The policy answered, but not with anything that can be used.
    #[error("policy {} answered {call} with nonsense: {what}: expected {expected}, found {found}", policy.short())]
    Nonsense {
        /// Hash of the component.
        policy: Hash,
        /// The function called.
        call: &'static str,
        /// Which part of the answer.
        what: String,
        /// What it must be.
        expected: String,
        /// What it is.
        found: String,
    },

    /// The caller's data cannot be given to a policy.
    #[error("{what} for a policy: expected {expected}, found {found}")]
    Input {
        /// Which data.
        what: &'static str,
        /// What it must be.
        expected: String,
        /// What it is.
        found: String,
    },

    /// The caller's [`MergeSource`](super::MergeSource) failed.
    #[error("merging: {what}: {reason}")]
    Source {
        /// What was asked of it.
        what: String,
        /// What it said.
        reason: String,
    },

    /// The host could not do its part: no memory for the engine, no child process, no cache folder.
    #[error("policies: {what}: {reason}")]
    Host {
        /// What was tried.
        what: String,
        /// What came of it.
        reason: String,
    },
}

impl Error {
    /// Whether the policy is to blame at run time, so that another one could do the same work.
    pub fn is_policy_failure(&self) -> bool {
        matches!(
            self,
            Error::Refused { .. }
                | Error::Trapped { .. }
                | Error::OutOfFuel { .. }
                | Error::TimedOut { .. }
                | Error::OutOfMemory { .. }
                | Error::Nonsense { .. }
        )
    }

    /// Whether this machine failed, so that the same may go well later or elsewhere.
    pub fn is_of_host(&self) -> bool {
        matches!(self, Error::Host { .. })
    }

    pub(super) fn host(what: impl Into<String>, reason: impl ToString) -> Error {
        Error::Host { what: what.into(), reason: reason.to_string() }
    }
}
