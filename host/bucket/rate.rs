//! A cap on what one process sends to and fetches from the bucket, both directions together: `--link 50mbit`.
//!
//! Two lanes share the link. *Bulk* is every body of more than [`SMALL_BYTES`] (fragments, offers, checkpoints). It moves in slices of that
//! size, each of which waits for its turn, so that transfers under way at once share the link evenly. *Small* is everything else: cards, beats,
//! log entries, claims. A small request never waits, so a heartbeat is as prompt during an upload of an hour as without one; what it weighs is
//! charged to the link, and bulk waits that much longer. So the rate holds over any time that is long beside [`AHEAD`], unless small requests
//! alone exceed it. Listings and deletions are requests without a body, and are not charged.
//!
//! A store takes an object as a whole, so an upload waits for its share of the link first and is sent then; a download is handed on piece by
//! piece as the link would bring it. Time is `clock`'s, so a simulation may run over such a link.

use crate::clock::{self, Duration, Instant};
use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

/// The largest body that does not wait, and the slice in which larger ones move.
pub const SMALL_BYTES: usize = 64 << 10;
/// How far bulk may run ahead of the link: above the grain of the timer, so that fast links are not held to one slice a millisecond.
const AHEAD: Duration = Duration::from_millis(10);

/// The speed of a link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    kbit_per_s: f64,
}

impl Rate {
    /// A rate in bytes per second.
    ///
    /// # Panics
    /// It is not positive and finite.
    pub fn bytes_per_s(bytes: f64) -> Rate {
        assert!(bytes.is_finite() && bytes > 0.0, "a link moves something: {bytes} bytes/s");
        Rate { kbit_per_s: bytes * 8.0 / 1000.0 }
    }

    /// How long `bytes` take.
    pub fn time(self, bytes: usize) -> Duration {
        Duration::from_secs_f64(bytes as f64 * 8.0 / 1000.0 / self.kbit_per_s)
    }
}

impl FromStr for Rate {
    type Err = String;

    /// Reads `800kbit`, `50mbit` or `2.5gbit`: thousands, millions or billions of bits per second.
    fn from_str(text: &str) -> std::result::Result<Rate, String> {
        let units = [("kbit", 1.0), ("mbit", 1e3), ("gbit", 1e6)];
        units
            .iter()
            .find_map(|(unit, factor)| Some(text.strip_suffix(unit)?.parse::<f64>().ok()? * factor))
            .filter(|kbit| (1.0..=1e9).contains(kbit))
            .map(|kbit_per_s| Rate { kbit_per_s })
            .ok_or_else(|| {
                format!("expected a rate from 1kbit to 1000gbit such as 800kbit, 50mbit or 2gbit, found `{text}`")
            })
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}kbit", self.kbit_per_s)
    }
}

/// The queue before a link.
#[derive(Debug)]
pub struct Queue {
    rate: Rate,
    /// When all that was let through would have left; none before the first.
    free_at: Mutex<Option<Instant>>,
}

impl Queue {
    /// The queue before a link of this speed.
    pub fn new(rate: Rate) -> Queue {
        Queue { rate, free_at: Mutex::new(None) }
    }

    /// Charges `bytes`, and says when they would have left.
    fn charge(&self, bytes: usize) -> Instant {
        let now = clock::now();
        let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
        let left = free_at.map_or(now, |at| at.max(now)) + self.rate.time(bytes);
        *free_at = Some(left);
        left
    }

    /// Completes when `bytes` may be let through: at once where they are few, which are charged all the same.
    pub async fn pass(&self, bytes: usize, whole: usize) {
        let mut left = bytes;
        while left > 0 {
            let slice = left.min(SMALL_BYTES);
            left -= slice;
            let wait = self.charge(slice).saturating_duration_since(clock::now());
            if whole > SMALL_BYTES && wait > AHEAD {
                clock::sleep(wait - AHEAD).await;
            }
        }
    }
}

/// A store behind a link of a set speed.
pub struct Rated {
    store: Arc<dyn ObjectStore>,
    queue: Arc<Queue>,
}

/// The store as it is, or behind a link of this speed.
pub fn rated(store: Arc<dyn ObjectStore>, rate: Option<Rate>) -> Arc<dyn ObjectStore> {
    match rate {
        Some(rate) => Arc::new(Rated { store, queue: Arc::new(Queue::new(rate)) }),
        None => store,
    }
}

impl fmt::Debug for Rated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rated({}, {:?})", self.queue.rate, self.store)
    }
}

impl fmt::Display for Rated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} behind {}", self.store, self.queue.rate)
    }
}

#[async_trait]
impl ObjectStore for Rated {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.queue.pass(payload.content_length(), payload.content_length()).await;
        self.store.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(&self, location: &Path, opts: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        let upload = self.store.put_multipart_opts(location, opts).await?;
        Ok(Box::new(RatedUpload { upload, queue: self.queue.clone() }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let found = self.store.get_opts(location, options).await?;
        let (meta, range, attributes, extensions) =
            (found.meta.clone(), found.range.clone(), found.attributes.clone(), found.extensions.clone());
        let whole = range.end.saturating_sub(range.start) as usize;
        let queue = self.queue.clone();
        let body = found.into_stream().then(move |piece| {
            let queue = queue.clone();
            async move {
                if let Ok(bytes) = &piece {
                    queue.pass(bytes.len(), whole).await;
                }
                piece
            }
        });
        Ok(GetResult { payload: GetResultPayload::Stream(body.boxed()), meta, range, attributes, extensions })
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.store.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.store.list(prefix)
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        self.store.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.store.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.store.copy_opts(from, to, options).await
    }
}

#[derive(Debug)]
struct RatedUpload {
    upload: Box<dyn MultipartUpload>,
    queue: Arc<Queue>,
}

#[async_trait]
impl MultipartUpload for RatedUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (queue, bytes) = (self.queue.clone(), data.content_length());
        let part = self.upload.put_part(data);
        Box::pin(async move {
            // A part is bulk whatever its size: the last one of a large object is.
            queue.pass(bytes, usize::MAX).await;
            part.await
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.upload.complete().await
    }

    async fn abort(&mut self) -> Result<()> {
        self.upload.abort().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::ObjectStoreExt;
    use object_store::memory::InMemory;

    fn on_paused_time(work: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.expect("a runtime").block_on(work);
    }

    /// A store behind 8 Mbit/s: a megabyte a second.
    fn megabyte_per_second() -> Arc<dyn ObjectStore> {
        rated(Arc::new(InMemory::new()), Some("8mbit".parse().expect("a rate")))
    }

    async fn seconds<T>(work: impl Future<Output = T>) -> f64 {
        let start = clock::now();
        work.await;
        (clock::now() - start).as_secs_f64()
    }

    /// The queue may run ahead by 10 ms, and the timer counts whole milliseconds.
    fn assert_takes(found: f64, expected: f64) {
        assert!((found - expected).abs() <= 0.02, "expected {expected} s, found {found}");
    }

    #[test]
    fn uploads_and_downloads_share_the_rate() {
        on_paused_time(async {
            let store = megabyte_per_second();
            let (a, b) = (Path::from("a"), Path::from("b"));
            let body = || PutPayload::from(vec![7u8; 1_000_000]);
            assert_takes(seconds(async { store.put(&a, body()).await.unwrap() }).await, 1.0);
            let both = async {
                let (put, got) = tokio::join!(store.put(&b, body()), async { store.get(&a).await?.bytes().await });
                put.unwrap();
                assert_eq!(got.unwrap().len(), 1_000_000);
            };
            assert_takes(seconds(both).await, 2.0);
        });
    }

    #[test]
    fn a_small_request_waits_for_no_bulk_and_is_charged_to_it() {
        on_paused_time(async {
            let store = megabyte_per_second();
            let (bulk, small) = (Path::from("bulk"), Path::from("small"));
            let beats = async {
                for _ in 0..10 {
                    clock::sleep(Duration::from_millis(100)).await;
                    let beat = async {
                        store.put(&small, vec![0u8; 50_000].into()).await.unwrap();
                        store.get(&small).await.unwrap().bytes().await.unwrap();
                    };
                    assert_eq!(seconds(beat).await, 0.0, "a heartbeat is not delayed");
                }
            };
            let upload = async { store.put(&bulk, vec![0u8; 5_000_000].into()).await.unwrap() };
            let all = seconds(async { tokio::join!(upload, beats) }).await;
            assert_takes(all, 5.0 + 10.0 * 2.0 * 0.05);
        });
    }

    #[test]
    fn the_parts_of_a_large_object_keep_the_rate() {
        on_paused_time(async {
            let store = megabyte_per_second();
            let key = Path::from("large");
            let upload = async {
                let mut upload = store.put_multipart(&key).await.unwrap();
                let parts: Vec<UploadPart> =
                    [400_000, 400_000, 1_000].map(|bytes| upload.put_part(vec![1u8; bytes].into())).into();
                for part in futures::future::join_all(parts).await {
                    part.unwrap();
                }
                upload.complete().await.unwrap();
            };
            assert_takes(seconds(upload).await, 0.8);
            assert_eq!(store.head(&key).await.unwrap().size, 801_000);
        });
    }

    #[test]
    fn a_fast_link_is_not_held_to_the_grain_of_the_timer() {
        on_paused_time(async {
            let store = rated(Arc::new(InMemory::new()), Some("8gbit".parse().expect("a rate")));
            let put = async { store.put(&Path::from("a"), vec![0u8; 100_000_000].into()).await.unwrap() };
            assert_takes(seconds(put).await, 0.1);
        });
    }

    #[test]
    fn rates_are_read_as_they_are_written_and_nonsense_is_refused() {
        for (text, bytes_per_s) in [("800kbit", 1e5), ("50mbit", 6.25e6), ("2gbit", 2.5e8), ("2.5mbit", 312_500.0)] {
            let rate: Rate = text.parse().expect(text);
            assert_eq!(rate, Rate::bytes_per_s(bytes_per_s));
            assert_eq!(rate.to_string().parse(), Ok(rate));
        }
        for text in ["", "50", "mbit", "-1mbit", "0kbit", "NaNmbit", "infgbit", "50 mb", "5MBit"] {
            let refused = text.parse::<Rate>().expect_err(text);
            assert!(refused.contains("such as 800kbit"), "{refused}");
        }
    }
}
