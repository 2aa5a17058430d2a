//! Deadlines of transfers, from their size and from how fast the link has been. The HTTP client has none for a whole request: a fixed one
//! ends a transfer that is slow but moves, on every try, for ever.
//!
//! - A request without a large body has [`STALL`] for its answer, tries of the client included.
//! - A download has that for each piece: as long as bytes come it goes on, and where they stop the rest is asked for (`resume.rs`).
//! - An upload shows no progress before it is over, so it has STALL plus [`SLACK`] times what its size takes at the measured speed. A missed
//!   deadline quarters the measured speed, so a link that has become slow gets its time after a few tries; a finished upload is averaged in.
//!
//! A deadline that is missed says nothing of what the store has done: the object may be there. Whoever creates reads back (`create.rs`).

use super::resume::resumed;
use crate::clock::{self, Duration};
use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// The longest time without an answer, or without another piece of one.
const STALL: Duration = Duration::from_secs(60);
/// How much longer than measured an upload may take: others share the link.
const SLACK: f64 = 4.0;
/// Bytes per second of a link before anything was measured: one megabit per second.
const SPEED_FIRST: f64 = 125_000.0;
/// Bytes per second below which a missed deadline does not bring the measured speed.
const SPEED_MIN: f64 = 32_768.0;
/// The smallest upload that tells how fast the link is.
const TELLING_BYTES: usize = 64 << 10;

/// How fast the link has been, in bytes per second.
#[derive(Debug)]
struct Speed(Mutex<f64>);

impl Speed {
    fn deadline(&self, bytes: usize) -> Duration {
        let speed = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        STALL + Duration::from_secs_f64(SLACK * bytes as f64 / speed)
    }

    /// Waits for an upload until its deadline, and learns from it.
    async fn upload<T>(&self, bytes: usize, work: impl Future<Output = Result<T>>) -> Result<T> {
        let start = clock::now();
        let outcome = within(self.deadline(bytes), work).await;
        let took = (clock::now() - start).as_secs_f64().max(1e-3);
        let mut speed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &outcome {
            Ok(Ok(_)) if bytes >= TELLING_BYTES => *speed = (*speed + bytes as f64 / took) / 2.0,
            Err(_) if bytes >= TELLING_BYTES => *speed = (*speed / 4.0).max(SPEED_MIN.min(*speed)),
            _ => {}
        }
        outcome.and_then(|answer| answer)
    }
}

/// Waits this long at most.
async fn within<T>(deadline: Duration, work: impl Future<Output = T>) -> Result<T> {
    clock::timeout(deadline, work).await.map_err(|_| late(deadline))
}

async fn answered<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    within(STALL, work).await.and_then(|answer| answer)
}

fn late(deadline: Duration) -> Error {
    Error::Generic {
        store: "bucket",
        source: format!("expected an answer within {} s, found none", deadline.as_secs()).into(),
    }
}

/// The same stream; a piece that does not come in time is an error and the end.
fn moving<T: Send + 'static>(stream: BoxStream<'static, Result<T>>) -> BoxStream<'static, Result<T>> {
    futures::stream::unfold(Some(stream), |stream| async move {
        let mut stream = stream?;
        match within(STALL, stream.next()).await {
            Ok(Some(piece)) => Some((piece, Some(stream))),
            Ok(None) => None,
            Err(error) => Some((Err(error), None)),
        }
    })
    .boxed()
}

/// An answer in time, whose body moves.
async fn timed(store: Arc<dyn ObjectStore>, location: Path, options: GetOptions) -> Result<GetResult> {
    let found = answered(store.get_opts(&location, options)).await?;
    let (meta, range, attributes, extensions) =
        (found.meta.clone(), found.range.clone(), found.attributes.clone(), found.extensions.clone());
    let payload = GetResultPayload::Stream(moving(found.into_stream()));
    Ok(GetResult { payload, meta, range, attributes, extensions })
}

/// A store with deadlines on every call, and downloads that go on where they broke off.
pub struct Deadlines {
    store: Arc<dyn ObjectStore>,
    speed: Arc<Speed>,
}

impl Deadlines {
    /// Over a store whose client has no timeout for a whole request.
    pub fn new(store: Arc<dyn ObjectStore>) -> Deadlines {
        Deadlines { store, speed: Arc::new(Speed(Mutex::new(SPEED_FIRST))) }
    }
}

impl fmt::Debug for Deadlines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Deadlines({:?})", self.store)
    }
}

impl fmt::Display for Deadlines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for Deadlines {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        let bytes = payload.content_length();
        self.speed.upload(bytes, self.store.put_opts(location, payload, opts)).await
    }

    async fn put_multipart_opts(&self, location: &Path, opts: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        let upload = answered(self.store.put_multipart_opts(location, opts)).await?;
        Ok(Box::new(TimedUpload { upload, speed: self.speed.clone(), bytes: 0 }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let found = timed(self.store.clone(), location.clone(), options.clone()).await?;
        let (meta, range, attributes, extensions) =
            (found.meta.clone(), found.range.clone(), found.attributes.clone(), found.extensions.clone());
        let (store, location) = (self.store.clone(), location.clone());
        let again = move |options| timed(store.clone(), location.clone(), options);
        let payload = GetResultPayload::Stream(resumed(found, options, again));
        Ok(GetResult { payload, meta, range, attributes, extensions })
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        moving(self.store.delete_stream(locations))
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        moving(self.store.list(prefix))
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        moving(self.store.list_with_offset(prefix, offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        answered(self.store.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        answered(self.store.copy_opts(from, to, options)).await
    }
}

#[derive(Debug)]
struct TimedUpload {
    upload: Box<dyn MultipartUpload>,
    speed: Arc<Speed>,
    bytes: usize,
}

#[async_trait]
impl MultipartUpload for TimedUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (speed, bytes) = (self.speed.clone(), data.content_length());
        self.bytes += bytes;
        let part = self.upload.put_part(data);
        Box::pin(async move { speed.upload(bytes, part).await })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        // A server may copy the parts together only now.
        within(self.speed.deadline(self.bytes), self.upload.complete()).await.and_then(|answer| answer)
    }

    async fn abort(&mut self) -> Result<()> {
        answered(self.upload.abort()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_paused_time(work: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.expect("a runtime").block_on(work);
    }

    const PART: usize = 8 << 20;

    fn unmeasured() -> Speed {
        Speed(Mutex::new(SPEED_FIRST))
    }

    /// An upload over a link of `bytes_per_s`.
    async fn upload(speed: &Speed, bytes: usize, bytes_per_s: f64) -> Result<()> {
        let over_the_link = async {
            clock::sleep(Duration::from_secs_f64(bytes as f64 / bytes_per_s)).await;
            Ok(())
        };
        speed.upload(bytes, over_the_link).await
    }

    #[test]
    fn a_link_that_is_slow_but_moves_is_given_the_time_that_it_needs() {
        on_paused_time(async {
            // Half a megabit per second: more than two minutes for a part.
            upload(&unmeasured(), PART, 62_500.0).await.expect("it is slow and moves");
        });
    }

    #[test]
    fn after_a_link_has_become_slow_a_few_tries_find_the_time_that_it_needs() {
        on_paused_time(async {
            let speed = unmeasured();
            for _ in 0..8 {
                upload(&speed, PART, 1e7).await.expect("10 MB/s");
            }
            let mut tries = 1;
            while upload(&speed, PART, 5e4).await.is_err() {
                tries += 1;
                assert!(tries < 6, "50 kB/s get through in the end");
            }
            assert!(tries > 1, "the first try has the time that a fast link takes");
            upload(&speed, PART, 5e4).await.expect("and what is known by then is enough for the next");
        });
    }

    #[test]
    fn a_link_that_does_not_move_is_given_up() {
        on_paused_time(async {
            let speed = unmeasured();
            let mut waited = Vec::new();
            for bytes in [100, PART, PART, PART, PART] {
                let start = clock::now();
                let error = upload(&speed, bytes, 1e-3).await.expect_err("it hangs").to_string();
                assert!(error.contains("expected an answer within"), "{error}");
                waited.push((clock::now() - start).as_secs());
            }
            assert_eq!(waited, [60, 328, 1084, 1084, 1084], "seconds; the floor of the measured speed bounds them");
        });
    }

    #[test]
    fn a_download_goes_on_as_long_as_pieces_come_and_no_longer() {
        on_paused_time(async {
            let piece = |seconds| async move {
                clock::sleep(Duration::from_secs(seconds)).await;
                Ok::<u64, Error>(seconds)
            };
            let pauses = |pauses: Vec<u64>| futures::stream::iter(pauses).then(piece).boxed();
            let got: Vec<_> = moving(pauses(vec![50, 50, 50, 50])).collect().await;
            assert_eq!(got.len(), 4, "200 s in all, and never 60 without a piece");
            assert!(got.iter().all(Result::is_ok));
            let got: Vec<_> = moving(pauses(vec![1, 70, 1])).collect().await;
            assert!(matches!(got.as_slice(), [Ok(1), Err(_)]), "{got:?}");
        });
    }
}
