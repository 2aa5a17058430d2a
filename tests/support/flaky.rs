//! A store whose puts fail now and then, before or after they were applied, as those of S3 do.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// How a put fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// It never reached the store.
    Before,
    /// It was applied, and the answer was lost.
    After,
    /// It was applied, the answer was lost, and the client's own retry found the object there.
    AfterAndRetried,
}

/// Passes everything on to another store; a share of the puts fails.
pub struct Flaky {
    inner: Arc<dyn ObjectStore>,
    rate: f64,
    faults_possible: &'static [Fault],
    random: Mutex<StdRng>,
    faults: AtomicU64,
}

impl Flaky {
    /// Lets a share `rate` of the puts fail, each of the three ways equally often, chosen by `seed`.
    pub fn new(inner: Arc<dyn ObjectStore>, rate: f64, seed: u64) -> Self {
        Self::of(inner, rate, &[Fault::Before, Fault::After, Fault::AfterAndRetried], seed)
    }

    /// Lets no put reach the store.
    pub fn down(inner: Arc<dyn ObjectStore>) -> Self {
        Self::of(inner, 1.0, &[Fault::Before], 0)
    }

    fn of(inner: Arc<dyn ObjectStore>, rate: f64, faults_possible: &'static [Fault], seed: u64) -> Self {
        let random = Mutex::new(StdRng::seed_from_u64(seed));
        Self { inner, rate, faults_possible, random, faults: AtomicU64::new(0) }
    }

    /// Puts that failed so far.
    pub fn faults(&self) -> u64 {
        self.faults.load(Ordering::Relaxed)
    }

    fn fault(&self) -> Option<Fault> {
        let mut random = self.random.lock().expect("nobody panics with it");
        let which = random.random_range(0..self.faults_possible.len());
        let fault = random.random_bool(self.rate).then(|| self.faults_possible[which]);
        self.faults.fetch_add(u64::from(fault.is_some()), Ordering::Relaxed);
        fault
    }
}

fn lost(what: &str) -> Error {
    Error::Generic { store: "flaky", source: format!("503 SlowDown: {what}").into() }
}

impl fmt::Debug for Flaky {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Flaky({:?})", self.inner)
    }
}

impl fmt::Display for Flaky {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "flaky {}", self.inner)
    }
}

#[async_trait]
impl ObjectStore for Flaky {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        match self.fault() {
            None => self.inner.put_opts(location, payload, opts).await,
            Some(Fault::Before) => Err(lost("not applied")),
            Some(Fault::After) => {
                self.inner.put_opts(location, payload, opts).await?;
                Err(lost("applied"))
            }
            Some(Fault::AfterAndRetried) => {
                self.inner.put_opts(location, payload.clone(), opts.clone()).await?;
                self.inner.put_opts(location, payload, opts).await
            }
        }
    }

    async fn put_multipart_opts(&self, location: &Path, opts: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
