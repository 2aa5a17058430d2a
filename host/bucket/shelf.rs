//! The policies of a run as they are used: fetched from its bucket when they are first asked for, loaded, and kept. A policy is looked up by its hash, so what
//! lies here never changes.

use super::record::PolicyUse;
use super::{Active, Bucket};
use crate::error::{Error, Kind, Result};
use crate::policy::{self, Policy, Role, Runtime};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::runtime::{Handle, RuntimeFlavor};

/// Loaded policies. Cheap to clone; all clones share what was loaded.
#[derive(Debug, Clone)]
pub struct Shelf {
    /// Where policies come from that are not here yet.
    source: Option<(Runtime, Bucket)>,
    loaded: Arc<Mutex<BTreeMap<String, Policy>>>,
}

/// What it means that a policy cannot be used: `what` is invalid, or, where this machine failed, unavailable.
pub fn unfit(what: impl Into<String>, error: policy::Error) -> Error {
    let what = what.into();
    if error.is_of_host() { Error::unavailable(what).because(error) } else { Error::invalid(what).because(error) }
}

/// Does work that keeps its thread busy for long; other tasks go on meanwhile where there are threads for it.
pub fn aside<T>(work: impl FnOnce() -> T) -> T {
    let threads = Handle::try_current().is_ok_and(|handle| handle.runtime_flavor() == RuntimeFlavor::MultiThread);
    if threads { tokio::task::block_in_place(work) } else { work() }
}

impl Shelf {
    /// An empty shelf before `bucket`.
    pub fn new(runtime: &Runtime, bucket: &Bucket) -> Shelf {
        Shelf { source: Some((runtime.clone(), bucket.clone())), loaded: Arc::default() }
    }

    /// A shelf with these policies, and no others.
    pub fn holding(policies: impl IntoIterator<Item = Policy>) -> Shelf {
        let loaded = policies.into_iter().map(|policy| (policy.hash().to_string(), policy)).collect();
        Shelf { source: None, loaded: Arc::new(Mutex::new(loaded)) }
    }

    /// Puts a policy there.
    pub fn put(&self, policy: Policy) {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner).insert(policy.hash().to_string(), policy);
    }

    /// The policy, to fill `role`.
    ///
    /// # Errors
    /// Unavailable: the bucket does not answer, or this machine fails; try again. Anything else: it is no policy for this role.
    pub async fn get(&self, role: Role, which: &PolicyUse) -> Result<Policy> {
        let known = self.loaded.lock().unwrap_or_else(PoisonError::into_inner).get(&which.hash).cloned();
        let policy = match known {
            Some(policy) => policy,
            None => {
                let policy = self.fetch(which).await?;
                self.loaded.lock().unwrap_or_else(PoisonError::into_inner).insert(which.hash.clone(), policy.clone());
                policy
            }
        };
        if policy.roles().contains(&role) {
            return Ok(policy);
        }
        let roles: Vec<String> = policy.roles().iter().map(ToString::to_string).collect();
        let found = roles.join(" and ");
        Err(Error::invalid(format!("policy {} ({}): expected a {role} policy, found {found}", which.name, which.hash)))
    }

    /// Holds that at least one policy can be had that may fill `role` in `round`. A bucket that does not answer now may do so later.
    ///
    /// # Errors
    /// What the active one is, if none can: it is damaged, or no policy for this role.
    pub async fn require(&self, role: Role, active: &Active, round: u64) -> Result<()> {
        let mut first = None;
        for which in active.candidates(role, round) {
            match self.get(role, which).await {
                Err(error) if error.kind() != Kind::Unavailable => first = first.or(Some(error)),
                _ => return Ok(()),
            }
        }
        first.map_or(Ok(()), Err)
    }

    /// Loads the policies that fill `role` from `round` on before they are needed. What cannot be loaded shows when it is.
    pub async fn prepare(&self, role: Role, active: &Active, round: u64) {
        let ahead = active.ahead(role, round).map(|(_, chosen)| &chosen.policy);
        for policy in std::iter::once(active.at(role, round)).chain(ahead) {
            let _ = self.get(role, policy).await;
        }
    }

    async fn fetch(&self, which: &PolicyUse) -> Result<Policy> {
        let place = || format!("policy {} ({})", which.name, which.hash);
        let Some((runtime, bucket)) = &self.source else {
            return Err(Error::invalid(format!("{}: is not among those of this run", place())));
        };
        let wasm = bucket.policies().component(&which.hash).await?;
        // Compiling can take a second.
        aside(|| runtime.load(&wasm)).map_err(|error| unfit(place(), error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot::channel;

    #[test]
    fn other_tasks_go_on_while_work_keeps_its_thread_busy() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let done = runtime.spawn(async {
            let (sender, receiver) = channel();
            tokio::spawn(async move { sender.send(()) });
            // The only thread, and work that does not end before the other task has run.
            aside(|| receiver.blocking_recv())
        });
        assert_eq!(runtime.block_on(done).unwrap(), Ok(()));
    }
}
