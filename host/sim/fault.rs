//! A link between one process and the store: latency, lost requests, lost answers, truncated bodies, cuts, freezes, large objects that do not come
//! through, and a trap that stops the process just before or just after one of its calls. Everything comes from a seed.

use crate::clock::{self, Duration};
use async_trait::async_trait;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// How often what goes wrong, as shares of the calls.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Faults {
    /// The request is lost.
    pub before: f64,
    /// The request is applied and its answer is lost.
    pub after: f64,
    /// The body of an answer is cut off.
    pub truncated: f64,
    /// Least and most time of a call, in virtual milliseconds.
    pub latency_ms: (u64, u64),
}

/// Counts calls over all links of a world, and springs once.
#[derive(Debug, Default)]
pub struct Trap {
    calls: AtomicU64,
    /// The call at which it springs, from 1; 0 for never.
    at: AtomicU64,
    after: AtomicBool,
    /// Told when it has sprung; whoever waits ends the process.
    sprung: tokio::sync::Notify,
}

impl Trap {
    /// Springs just before (or just after) call number `at`.
    pub fn set(&self, at: u64, after: bool) {
        self.after.store(after, Ordering::Relaxed);
        self.at.store(at, Ordering::Relaxed);
    }

    /// Calls so far.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Completes when it springs.
    pub async fn sprung(&self) {
        self.sprung.notified().await;
    }

    async fn spring(&self) {
        self.sprung.notify_one();
        // The process that made this call never gets further.
        std::future::pending::<()>().await;
    }
}

/// One process's link to the store. Clones share it, so that a stream can wait for it without borrowing it.
#[derive(Clone)]
pub struct Link(Arc<Line>);

struct Line {
    store: Arc<dyn ObjectStore>,
    random: Mutex<StdRng>,
    faults: Mutex<Faults>,
    cut: AtomicBool,
    frozen: AtomicBool,
    deaf: AtomicBool,
    /// Wakes in the order of waiting; a watch channel would wake in an order of chance.
    thaw: tokio::sync::Notify,
    trap: Arc<Trap>,
}

impl Link {
    /// A link to `store` whose faults come from `seed`.
    pub fn new(store: Arc<dyn ObjectStore>, seed: u64, faults: Faults, trap: Arc<Trap>) -> Link {
        Link(Arc::new(Line {
            store,
            random: Mutex::new(StdRng::seed_from_u64(seed)),
            faults: Mutex::new(faults),
            cut: AtomicBool::new(false),
            frozen: AtomicBool::new(false),
            deaf: AtomicBool::new(false),
            thaw: tokio::sync::Notify::new(),
            trap,
        }))
    }

    /// Other faults from now on.
    pub fn set_faults(&self, faults: Faults) {
        *self.0.faults.lock().unwrap_or_else(PoisonError::into_inner) = faults;
    }

    /// Cuts the link, or mends it: every call fails after a while.
    pub fn cut(&self, cut: bool) {
        self.0.cut.store(cut, Ordering::Relaxed);
    }

    /// Lets the bodies of large objects (fragments, states, offers, checkpoints) break off at their first byte, or come through again; everything
    /// else goes on.
    pub fn deafen(&self, deaf: bool) {
        self.0.deaf.store(deaf, Ordering::Relaxed);
    }

    /// Whether large objects do not come through.
    pub fn is_deaf(&self) -> bool {
        self.0.deaf.load(Ordering::Relaxed)
    }

    /// Stops the process at its next call, or lets it go on, as SIGSTOP and SIGCONT do.
    pub fn freeze(&self, frozen: bool) {
        self.0.frozen.store(frozen, Ordering::Relaxed);
        self.0.thaw.notify_waiters();
    }
}

impl Line {
    fn draw(&self, share: impl Fn(&Faults) -> f64) -> bool {
        let share = share(&self.faults.lock().unwrap_or_else(PoisonError::into_inner));
        self.random.lock().unwrap_or_else(PoisonError::into_inner).random_bool(share)
    }

    fn latency(&self) -> Duration {
        let (low, high) = self.faults.lock().unwrap_or_else(PoisonError::into_inner).latency_ms;
        let ms = self.random.lock().unwrap_or_else(PoisonError::into_inner).random_range(low..=high.max(low));
        Duration::from_millis(ms)
    }

    /// What happens on the way there; the number of the call.
    async fn there(&self) -> Result<u64> {
        let call = self.trap.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let springs = self.trap.at.load(Ordering::Relaxed) == call;
        if springs && !self.trap.after.load(Ordering::Relaxed) {
            self.trap.spring().await;
        }
        self.thawed().await;
        clock::sleep(self.latency()).await;
        self.thawed().await;
        if self.cut.load(Ordering::Relaxed) {
            clock::sleep(Duration::from_millis(300)).await;
            return Err(lost("the link is cut"));
        }
        if self.draw(|f| f.before) { Err(lost("503 SlowDown")) } else { Ok(call) }
    }

    /// What happens on the way back; `call` is the number that the call had.
    async fn back<T>(&self, call: u64, answer: Result<T>) -> Result<T> {
        if self.trap.at.load(Ordering::Relaxed) == call && self.trap.after.load(Ordering::Relaxed) {
            self.trap.spring().await;
        }
        self.thawed().await;
        if self.draw(|f| f.after) {
            Err(lost("the connection was closed after the request was applied"))
        } else {
            answer
        }
    }

    async fn thawed(&self) {
        while self.frozen.load(Ordering::Relaxed) {
            self.thaw.notified().await;
        }
    }

    async fn delete(&self, location: Path) -> Result<Path> {
        let call = self.there().await?;
        let answer = self.store.delete(&location).await.map(|()| location);
        self.back(call, answer).await
    }

    async fn list(&self, prefix: Option<Path>) -> Result<Vec<ObjectMeta>> {
        let call = self.there().await?;
        let answer = self.store.list(prefix.as_ref()).try_collect().await;
        self.back(call, answer).await
    }
}

fn lost(what: &'static str) -> Error {
    Error::Generic { store: "sim", source: what.into() }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Link")
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("simulated link")
    }
}

#[async_trait]
impl ObjectStore for Link {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        let call = self.0.there().await?;
        let answer = self.0.store.put_opts(location, payload, opts).await;
        self.0.back(call, answer).await
    }

    async fn put_multipart_opts(&self, location: &Path, opts: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        let call = self.0.there().await?;
        let answer = self.0.store.put_multipart_opts(location, opts).await;
        self.0.back(call, answer).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let call = self.0.there().await?;
        let answer = self.0.store.get_opts(location, options).await;
        let found = self.0.back(call, answer).await?;
        if self.is_deaf() && location.extension() == Some("arrow") {
            let (meta, range, attributes, extensions) = (found.meta, found.range, found.attributes, found.extensions);
            let broken = futures::stream::once(async { Err(lost("the body broke off")) });
            return Ok(GetResult {
                payload: GetResultPayload::Stream(broken.boxed()),
                meta,
                range,
                attributes,
                extensions,
            });
        }
        if !self.0.draw(|f| f.truncated) {
            return Ok(found);
        }
        let (meta, range, attributes, extensions) =
            (found.meta.clone(), found.range.clone(), found.attributes.clone(), found.extensions.clone());
        let bytes = found.bytes().await?;
        let half = bytes.slice(..bytes.len() / 2);
        let payload = GetResultPayload::Stream(futures::stream::once(async move { Ok(half) }).boxed());
        Ok(GetResult { payload, meta, range, attributes, extensions })
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let line = self.0.clone();
        let deleted = move |location: Result<Path>| {
            let line = line.clone();
            async move { line.delete(location?).await }
        };
        locations.then(deleted).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (line, prefix) = (self.0.clone(), prefix.cloned());
        let listed = async move { line.list(prefix).await };
        futures::stream::once(listed).map_ok(|metas| futures::stream::iter(metas).map(Ok)).try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let call = self.0.there().await?;
        let answer = self.0.store.list_with_delimiter(prefix).await;
        self.0.back(call, answer).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let call = self.0.there().await?;
        let answer = self.0.store.copy_opts(from, to, options).await;
        self.0.back(call, answer).await
    }
}
