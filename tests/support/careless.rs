//! Stores that break one promise each, as some real ones do.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// What a store does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// A create of a key that exists is answered OK and replaces the object (Garage, s3rver).
    CreateReplaces,
    /// A create of a key that exists is answered OK and changes nothing.
    CreateChangesNothing,
    /// A create looks whether the key exists and then writes: two that look at once both win (s3s-fs).
    CreateLooksFirst,
    /// A create is refused as not supported.
    CreateUnsupported,
    /// What is read is the version before the last one.
    ReadsStale,
    /// The object written last is not listed.
    ListsLate,
    /// The second half of a large object is lost.
    CutsLarge,
    /// The beginning of an object is given whatever range is asked for.
    IgnoresRanges,
    /// There are no multipart uploads.
    NoMultipart,
    /// A delete is answered OK and changes nothing.
    KeepsDeleted,
    /// It answers until the first object of some size was written, and then never again.
    Dies,
}

/// Bytes from which an object is large.
const LARGE: u64 = 1 << 20;

/// A store in memory that breaks one promise.
#[derive(Debug)]
pub struct Careless {
    inner: Arc<InMemory>,
    manner: Manner,
    /// Of every key the version before the last one.
    before: Mutex<BTreeMap<Path, Bytes>>,
    last: Mutex<Option<Path>>,
    dead: Mutex<bool>,
}

impl Careless {
    /// An empty store.
    pub fn new(manner: Manner) -> Self {
        Self {
            inner: Arc::new(InMemory::new()),
            manner,
            before: Mutex::default(),
            last: Mutex::default(),
            dead: Mutex::default(),
        }
    }

    /// Whether it holds nothing.
    pub async fn is_empty(&self) -> bool {
        self.inner.list(None).next().await.is_none()
    }

    fn alive(&self) -> Result<()> {
        if *self.dead.lock().expect("nobody panics with it") {
            return Err(Error::Generic { store: "careless", source: "connection refused".into() });
        }
        Ok(())
    }
}

impl fmt::Display for Careless {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.manner)
    }
}

#[async_trait]
impl ObjectStore for Careless {
    async fn put_opts(&self, location: &Path, payload: PutPayload, mut opts: PutOptions) -> Result<PutResult> {
        self.alive()?;
        let stored = match self.inner.get(location).await {
            Ok(found) => Some(found.bytes().await?),
            Err(_) => None,
        };
        if let (PutMode::Create, manner) = (&opts.mode, self.manner) {
            match manner {
                Manner::CreateReplaces => opts.mode = PutMode::Overwrite,
                Manner::CreateChangesNothing if stored.is_some() => {
                    return Ok(PutResult { e_tag: None, version: None, extensions: Default::default() });
                }
                Manner::CreateLooksFirst if stored.is_none() => {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    opts.mode = PutMode::Overwrite;
                }
                Manner::CreateUnsupported => {
                    return Err(Error::NotSupported { source: "no conditional puts".into() });
                }
                _ => {}
            }
        }
        if self.manner == Manner::Dies && payload.content_length() as u64 >= LARGE {
            *self.dead.lock().expect("nobody panics with it") = true;
        }
        self.alive()?;
        let put = self.inner.put_opts(location, payload, opts).await?;
        if let Some(stored) = stored {
            self.before.lock().expect("nobody panics with it").insert(location.clone(), stored);
        }
        *self.last.lock().expect("nobody panics with it") = Some(location.clone());
        Ok(put)
    }

    async fn put_multipart_opts(&self, location: &Path, opts: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        if self.manner == Manner::NoMultipart {
            return Err(Error::Generic { store: "careless", source: "501 NotImplemented".into() });
        }
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, mut options: GetOptions) -> Result<GetResult> {
        self.alive()?;
        if self.manner == Manner::IgnoresRanges
            && let Some(GetRange::Bounded(range)) = &options.range
        {
            options.range = Some(GetRange::Bounded(0..range.end - range.start));
        }
        let (whole, head) = (options.range.is_none(), options.head);
        let found = self.inner.get_opts(location, options).await?;
        if head {
            return Ok(found);
        }
        let before = self.before.lock().expect("nobody panics with it").get(location).cloned();
        let instead = match self.manner {
            Manner::ReadsStale => before,
            Manner::CutsLarge if whole && found.meta.size >= LARGE => {
                Some(self.inner.get_range(location, 0..found.meta.size / 2).await?)
            }
            _ => None,
        };
        let Some(bytes) = instead else { return Ok(found) };
        let (meta, attributes, extensions) = (found.meta, found.attributes, found.extensions);
        let range = 0..bytes.len() as u64;
        let payload = GetResultPayload::Stream(futures::stream::once(async move { Ok(bytes) }).boxed());
        Ok(GetResult { payload, meta, range, attributes, extensions })
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        if self.manner == Manner::KeepsDeleted { locations } else { self.inner.delete_stream(locations) }
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let missing = if self.manner == Manner::ListsLate {
            self.last.lock().expect("nobody panics with it").clone()
        } else {
            None
        };
        let listed = self.inner.list(prefix);
        listed.try_filter(move |meta| std::future::ready(Some(&meta.location) != missing.as_ref())).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
