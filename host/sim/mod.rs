//! Whole runs on virtual time: real islands and a real syncer, with real policies, over a store in memory whose every call takes a set time.
//! Nothing sleeps for real; one seed gives one log. Benches and tests of the outer loop run here.
//!
//! Also what `tombolo chaos` strikes real processes with: the blows of a seed, and a proxy that spoils requests.

mod blow;
mod check;
mod fault;
mod fleet;
mod liar;
mod proxy;
mod quality;
mod rogue;
pub mod toy;

pub use blow::{Blow, Strike, Target, quiet, schedule};
pub use check::{Checked, check_bucket};
pub use fault::{Faults, Link, Trap};
pub use fleet::{Fleet, Process, Report, Role, simulate};
pub use liar::{Attack, Liar};
pub use proxy::{Disturbance, Proxy};
pub use quality::{Comparison, Quality, compare};

use crate::bucket::record::RunRecord;
use crate::bucket::{Bucket, Ledger, Shelf, Tail};
use crate::clock::{self, Duration};
use crate::error::{Error, Result};
use crate::event::Sink;
use crate::island::{self, Drive, Inner, Site};
use crate::outer::Fragments;
use crate::policy::Policy;
use crate::syncer::{self, Desk};
use object_store::memory::InMemory;
use object_store::throttle::{ThrottleConfig, ThrottledStore};
use std::sync::Arc;
use tokio::task::JoinSet;
use tombolo_engine::Layout;

/// A store in memory whose every call takes `latency` of virtual time.
pub fn slow_store(latency: Duration) -> Arc<dyn object_store::ObjectStore> {
    let config = ThrottleConfig {
        wait_delete_per_call: latency,
        wait_get_per_call: latency,
        wait_list_per_call: latency,
        wait_list_with_delimiter_per_call: latency,
        wait_put_per_call: latency,
        ..ThrottleConfig::default()
    };
    Arc::new(ThrottledStore::new(InMemory::new(), config))
}

/// A run to be simulated, in a bucket that holds its record and its start entry.
#[derive(Clone)]
pub struct World {
    /// The run's bucket.
    pub bucket: Bucket,
    /// Its record.
    pub record: RunRecord,
    /// Layout of the model.
    pub layout: Layout,
    /// Fragments of the model.
    pub fragments: Arc<Fragments>,
    /// Codec of offers.
    pub codec: Policy,
    /// Merge policy.
    pub merge: Policy,
    /// Pace.
    pub pace: Policy,
    /// Policies that it may be switched to.
    pub others: Vec<Policy>,
    /// Virtual time of an inner step, per island that [`World::run`] starts.
    pub steps: Vec<Duration>,
}

/// Runs `f` on a runtime whose clock is paused, with all nonces drawn from `seed`.
///
/// # Errors
/// Those of `f`.
pub fn on_virtual_time<T>(seed: u64, f: impl Future<Output = Result<T>>) -> Result<T> {
    crate::nonce::seed_thread(seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .map_err(|e| Error::unavailable("no runtime for the simulation").because(e))?;
    runtime.block_on(async {
        // The first wait puts the clock on the timer's grid; see `clock`.
        clock::sleep(Duration::from_millis(1)).await;
        f.await
    })
}

impl World {
    /// Runs all islands and one syncer until the run ends, and returns the ledger. `inner` makes island i's inner loop.
    ///
    /// # Errors
    /// A role failed, or `limit` of virtual time has passed.
    pub async fn run(&self, inner: impl FnMut(usize) -> Result<Box<dyn Inner>>, limit: Duration) -> Result<Ledger> {
        self.run_with_liars(inner, &[], limit).await
    }

    /// As [`World::run`], where the last islands write to the bucket as these liars do, one each.
    ///
    /// # Errors
    /// As there.
    pub async fn run_with_liars(
        &self,
        mut inner: impl FnMut(usize) -> Result<Box<dyn Inner>>,
        liars: &[Bucket],
        limit: Duration,
    ) -> Result<Ledger> {
        let beat_every = self.steps.iter().min().copied().unwrap_or(Duration::from_millis(100)) * 2;
        let mut roles: JoinSet<Result<()>> = JoinSet::new();
        let honest = self.steps.len().saturating_sub(liars.len());
        for (i, &step) in self.steps.iter().enumerate() {
            let mut site = self.site(&format!("island-{i}"), inner(i)?, beat_every);
            if let Some(bucket) = i.checked_sub(honest).and_then(|liar| liars.get(liar)) {
                site.bucket = bucket.clone();
            }
            let mut site = Some(site);
            let mut once = move || site.take().ok_or_else(|| Error::bug("an island of this world has one life"));
            roles.spawn(async move {
                let site = || std::future::ready(once());
                island::live(site, Drive::Virtual(step), std::future::pending()).await.map(|_| ())
            });
        }
        let desk = self.desk(beat_every);
        roles.spawn(async move { syncer::run(desk, std::future::pending()).await.map(|_| ()) });
        let ended = clock::timeout(limit, async {
            while let Some(role) = roles.join_next().await {
                role.map_err(|e| Error::bug("a role panicked").because(e))??;
            }
            Ok::<(), Error>(())
        });
        ended
            .await
            .map_err(|_| Error::unavailable(format!("the run did not end within {limit:?} of virtual time")))??;
        self.ledger().await
    }

    /// Its policies.
    pub fn shelf(&self) -> Shelf {
        Shelf::holding([&self.codec, &self.merge, &self.pace].into_iter().chain(&self.others).cloned())
    }

    /// A syncer's desk.
    pub fn desk(&self, beat_every: Duration) -> Desk {
        Desk {
            bucket: self.bucket.clone(),
            record: self.record.clone(),
            id: "syncer-0".into(),
            fragments: self.fragments.clone(),
            tensors: (0..self.fragments.count()).map(|p| self.fragments.policy_tensors(p)).collect(),
            shelf: self.shelf(),
            threads: 1,
            eager: true,
            sink: Sink::Null,
            beat_every,
        }
    }

    /// An island's site.
    pub fn site(&self, name: &str, inner: Box<dyn Inner>, beat_every: Duration) -> Site {
        Site {
            bucket: self.bucket.clone(),
            record: self.record.clone(),
            name: name.into(),
            layout: self.layout.clone(),
            fragments: self.fragments.clone(),
            shelf: self.shelf(),
            inner,
            sink: Sink::Null,
            beat_every,
        }
    }

    /// What the log says.
    ///
    /// # Errors
    /// The bucket does not answer.
    pub async fn ledger(&self) -> Result<Ledger> {
        let empty = Ledger::of(&self.record);
        let mut tail = Tail::new(empty);
        tail.advance(&self.bucket, usize::MAX).await?;
        Ok(tail.ledger)
    }
}
