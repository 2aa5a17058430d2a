//! Downloads that go on where they broke off, so that a large object comes through a link on which no transfer lasts for all of it.
//!
//! The HTTP client asks for the rest of a body by itself, but at most four times and only within 30 s of the request: enough for a connection
//! that was closed, nothing for an hour of a bad link. What it gives up is gone on with here, by a range from the first byte that is missing, at
//! most [`RESUMPTIONS_MAX`] times and as long as each time brings at least a byte.
//!
//! The rest is of the same object or it is not taken: the request has the ETag as its condition, and what the answer says of ETag, size and range
//! is compared, since not every server keeps conditions. Of a store that gives no ETag nothing is gone on with. A body that ends early without
//! an error is broken off, too. Whoever reads still checks the content hash.

use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use object_store::{Error, GetOptions, GetRange, GetResult, ObjectMeta, Result};
use std::ops::Range;

/// How often one download is gone on with, beyond what the client does.
const RESUMPTIONS_MAX: usize = 64;

/// What is there of a download.
struct Download<G> {
    /// Asks for the object again.
    get: G,
    /// What was asked for.
    options: GetOptions,
    meta: ObjectMeta,
    /// What has not come yet; places in the object.
    missing: Range<u64>,
    body: BoxStream<'static, Result<bytes::Bytes>>,
    /// Whether anything has come since it was asked for last.
    moved: bool,
    resumptions: usize,
}

/// The body of `found`, the answer to `options`, gone on with by `get` where it breaks off.
pub(super) fn resumed<G, F>(found: GetResult, options: GetOptions, get: G) -> BoxStream<'static, Result<bytes::Bytes>>
where
    G: Fn(GetOptions) -> F + Send + 'static,
    F: Future<Output = Result<GetResult>> + Send + 'static,
{
    let (meta, missing) = (found.meta.clone(), found.range.clone());
    let body = found.into_stream();
    let download = Download { get, options, meta, missing, body, moved: false, resumptions: 0 };
    pieces(download).boxed()
}

fn pieces<G, F>(download: Download<G>) -> impl Stream<Item = Result<bytes::Bytes>>
where
    G: Fn(GetOptions) -> F,
    F: Future<Output = Result<GetResult>>,
{
    futures::stream::unfold(Some(download), |download| async move {
        let mut download = download?;
        match download.piece().await {
            Ok(Some(piece)) => Some((Ok(piece), Some(download))),
            Ok(None) => None,
            Err(error) => Some((Err(error), None)),
        }
    })
}

impl<G, F> Download<G>
where
    G: Fn(GetOptions) -> F,
    F: Future<Output = Result<GetResult>>,
{
    /// The next piece; none once all has come.
    async fn piece(&mut self) -> Result<Option<bytes::Bytes>> {
        loop {
            let broken = match self.body.next().await {
                Some(Ok(piece)) => {
                    let bytes = piece.len() as u64;
                    if bytes > self.missing.end - self.missing.start {
                        return Err(generic(format!("{}: found more than was announced", self.meta.location)));
                    }
                    self.missing.start += bytes;
                    self.moved |= bytes > 0;
                    return Ok(Some(piece));
                }
                _ if self.missing.is_empty() => return Ok(None),
                Some(Err(error)) => error,
                None => generic(format!(
                    "{}: the body ended before byte {} of {}",
                    self.meta.location, self.missing.start, self.missing.end
                )),
            };
            let Some(e_tag) = self.meta.e_tag.clone() else { return Err(broken) };
            if !self.moved || self.resumptions >= RESUMPTIONS_MAX {
                return Err(broken);
            }
            self.resumptions += 1;
            self.moved = false;
            let options = GetOptions {
                range: Some(GetRange::Bounded(self.missing.clone())),
                if_match: Some(e_tag),
                ..self.options.clone()
            };
            let rest = (self.get)(options).await?;
            let (same, size) = (rest.meta.e_tag == self.meta.e_tag, rest.meta.size);
            if !same || size != self.meta.size || rest.range != self.missing {
                return Err(generic(format!(
                    "{}: expected bytes {:?} of the same object, {} bytes with ETag {:?}; found {:?} of {size} with {:?}",
                    self.meta.location, self.missing, self.meta.size, self.meta.e_tag, rest.range, rest.meta.e_tag
                )));
            }
            self.body = rest.into_stream();
        }
    }
}

fn generic(problem: String) -> Error {
    Error::Generic { store: "bucket", source: problem.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::future::BoxFuture;
    use object_store::memory::InMemory;
    use object_store::path::Path;
    use object_store::{GetResultPayload, ObjectStore, ObjectStoreExt};
    use std::collections::VecDeque;
    use std::sync::{Arc, Mutex};

    /// A store in memory, the bytes after which its next bodies break off (whole once there are no more), and the bytes that it has sent.
    #[derive(Clone)]
    struct Breaking {
        store: Arc<InMemory>,
        cuts: Arc<Mutex<VecDeque<usize>>>,
        sent: Arc<Mutex<Vec<usize>>>,
        /// Whether a cut is an error, or just the end.
        silent: bool,
        /// Put after the first answer.
        then: Option<Vec<u8>>,
        e_tags: bool,
        /// Whether it keeps the condition of a request.
        conditions: bool,
    }

    fn key() -> Path {
        Path::from("large")
    }

    fn content(seed: u8) -> Vec<u8> {
        (0..100_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8 ^ seed).collect()
    }

    impl Breaking {
        async fn with(cuts: &[usize]) -> Breaking {
            let store = Arc::new(InMemory::new());
            store.put(&key(), content(0).into()).await.unwrap();
            let cuts = Arc::new(Mutex::new(cuts.iter().copied().collect()));
            let sent = Arc::default();
            Breaking { store, cuts, sent, silent: false, then: None, e_tags: true, conditions: true }
        }

        async fn answer(self, mut options: GetOptions) -> Result<GetResult> {
            if !self.conditions {
                options.if_match = None;
            }
            let mut found = self.store.get_opts(&key(), options).await?;
            if !self.e_tags {
                found.meta.e_tag = None;
            }
            let (meta, range, attributes, extensions) =
                (found.meta.clone(), found.range.clone(), found.attributes.clone(), found.extensions.clone());
            let bytes = found.bytes().await?;
            let cut = self.cuts.lock().unwrap().pop_front();
            let sent = bytes.slice(..cut.unwrap_or(bytes.len()).min(bytes.len()));
            self.sent.lock().unwrap().push(sent.len());
            let mut pieces: Vec<Result<bytes::Bytes>> =
                sent.chunks(1000).map(|piece| Ok(bytes::Bytes::copy_from_slice(piece))).collect();
            if cut.is_some() && !self.silent {
                pieces.push(Err(generic("connection reset".into())));
            }
            if let Some(other) = self.then {
                self.store.put(&key(), other.into()).await?;
            }
            let payload = GetResultPayload::Stream(futures::stream::iter(pieces).boxed());
            Ok(GetResult { payload, meta, range, attributes, extensions })
        }

        async fn download(&self, options: GetOptions) -> Result<Vec<u8>> {
            let again = Breaking { then: None, ..self.clone() };
            let get =
                move |options| -> BoxFuture<'static, Result<GetResult>> { Box::pin(again.clone().answer(options)) };
            let found = self.clone().answer(options.clone()).await?;
            let mut body = resumed(found, options, get);
            let mut got = Vec::new();
            while let Some(piece) = body.next().await {
                got.extend_from_slice(&piece?);
            }
            Ok(got)
        }

        fn sent(&self) -> Vec<usize> {
            self.sent.lock().unwrap().clone()
        }
    }

    fn run(work: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(work);
    }

    #[test]
    fn a_body_that_breaks_off_again_and_again_arrives_whole_and_no_byte_is_fetched_twice() {
        run(async {
            for silent in [false, true] {
                let store = Breaking { silent, ..Breaking::with(&[1, 30_000, 999, 1000, 50_000]).await };
                assert!(store.download(GetOptions::default()).await.unwrap() == content(0));
                assert_eq!(store.sent(), [1, 30_000, 999, 1000, 50_000, 18_000]);
            }
        });
    }

    #[test]
    fn a_part_that_breaks_off_is_gone_on_with_to_its_own_end() {
        run(async {
            let store = Breaking::with(&[500]).await;
            let options = GetOptions { range: Some(GetRange::Bounded(10_000..12_000)), ..GetOptions::default() };
            assert!(store.download(options).await.unwrap() == content(0)[10_000..12_000]);
            assert_eq!(store.sent(), [500, 1500]);
        });
    }

    #[test]
    fn what_broke_off_is_not_gone_on_with_in_another_object() {
        run(async {
            // The same size, a smaller one, a larger one; a server that keeps conditions and one that ignores them.
            for other in [content(1), vec![1; 10], vec![1; 200_000]] {
                for conditions in [true, false] {
                    let store = Breaking { then: Some(other.clone()), conditions, ..Breaking::with(&[40_000]).await };
                    store.download(GetOptions::default()).await.expect_err("it is a mixture");
                    assert!(
                        store.download(GetOptions::default()).await.unwrap() == other,
                        "read again it is the new one"
                    );
                }
            }
        });
    }

    #[test]
    fn a_download_that_brings_nothing_any_more_or_breaks_off_too_often_is_given_up() {
        run(async {
            let store = Breaking::with(&[100, 0]).await;
            let error = store.download(GetOptions::default()).await.expect_err("nothing more came").to_string();
            assert!(error.contains("connection reset"), "{error}");
            assert_eq!(store.sent(), [100, 0]);
            let store = Breaking::with(&[1; 1000]).await;
            store.download(GetOptions::default()).await.expect_err("a byte at a time");
            assert_eq!(store.sent().len(), 1 + RESUMPTIONS_MAX);
        });
    }

    #[test]
    fn without_an_e_tag_nothing_is_gone_on_with() {
        run(async {
            let store = Breaking { e_tags: false, ..Breaking::with(&[100]).await };
            store.download(GetOptions::default()).await.expect_err("it may be another object");
            assert_eq!(store.sent(), [100]);
        });
    }
}
