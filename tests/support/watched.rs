//! A store that counts its calls, refuses those that it is told to, and is late with others.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// A call of the store: `get`, `put`, `list` or `delete`, and the key or folder.
pub type Call<'a> = (&'static str, &'a str);

/// Passes everything on to another store.
pub struct Watched {
    inner: Arc<dyn ObjectStore>,
    calls: Mutex<BTreeMap<(&'static str, String), u64>>,
    refuses: fn(Call<'_>) -> bool,
    /// Gets that are late, by how much, and how many are left that are.
    late: (fn(&str) -> bool, Duration, AtomicU32),
}

impl Watched {
    /// Counts the calls of `inner`.
    pub fn new(inner: Arc<dyn ObjectStore>) -> Self {
        Self::refusing(inner, |_| false)
    }

    /// Counts, and fails the calls that `refuses` names.
    pub fn refusing(inner: Arc<dyn ObjectStore>, refuses: fn(Call<'_>) -> bool) -> Self {
        Self { inner, calls: Mutex::default(), refuses, late: (|_| false, Duration::ZERO, AtomicU32::new(0)) }
    }

    /// Counts, and lets `delay` pass before each of the first `times` gets whose keys `lates` names.
    pub fn late(inner: Arc<dyn ObjectStore>, lates: fn(&str) -> bool, delay: Duration, times: u32) -> Self {
        Self { late: (lates, delay, AtomicU32::new(times)), ..Self::new(inner) }
    }

    /// Calls so far that `counts` says yes to.
    pub fn calls(&self, counts: impl Fn(Call<'_>) -> bool) -> u64 {
        let calls = self.calls.lock().expect("nobody panics with it");
        calls.iter().filter(|((what, key), _)| counts((what, key))).map(|(_, count)| count).sum()
    }

    fn note(&self, what: &'static str, key: &str) -> Result<()> {
        *self.calls.lock().expect("nobody panics with it").entry((what, key.to_string())).or_default() += 1;
        if (self.refuses)((what, key)) {
            return Err(Error::Generic { store: "watched", source: "503 SlowDown".into() });
        }
        Ok(())
    }
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watched({:?})", self.inner)
    }
}

impl fmt::Display for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "watched {}", self.inner)
    }
}

#[async_trait]
impl ObjectStore for Watched {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.note("put", location.as_ref())?;
        self.inner.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(&self, location: &Path, opts: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.note("put", location.as_ref())?;
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.note("get", location.as_ref())?;
        let (lates, delay, left) = &self.late;
        let is_left = |left: u32| left.checked_sub(1);
        if lates(location.as_ref()) && left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, is_left).is_ok() {
            tokio::time::sleep(*delay).await;
        }
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        // One call for all, as S3 has it.
        match self.note("delete", "") {
            Ok(()) => self.inner.delete_stream(locations),
            Err(error) => futures::stream::once(async { Err(error) }).boxed(),
        }
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        match self.note("list", prefix.map_or("", |p| p.as_ref())) {
            Ok(()) => self.inner.list(prefix),
            Err(error) => futures::stream::once(async { Err(error) }).boxed(),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.note("list", prefix.map_or("", |p| p.as_ref()))?;
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
