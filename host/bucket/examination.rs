//! The checks of an examination: each tries one thing on the store, and says what the store did or what it did wrong. `doctor` says in
//! which order they come and what does not work where one fails.
//!
//! Everything is written below the examination's own folder, and every key is remembered before it is written, so that the last check can
//! remove them all.

use super::doctor::{Measured, Spread};
use super::key::DoctorKeys;
use super::run::remove;
use super::{Created, create};
use crate::clock::{self, Duration, Instant};
use crate::error::{Error, Result};
use crate::nonce::nonce;
use bytes::Bytes;
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{Error as StoreError, ObjectStore, ObjectStoreExt, WriteMultipart};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

/// Processes that race for one key.
const RACERS: usize = 16;
/// Waves of races, one after the other: the second one finds its connections open, and its racers arrive closer together.
const RACE_WAVES: u64 = 2;
/// Keys that are raced for at once in each wave. SeaweedFS makes the losers of one key wait for seconds, so they are few.
const RACE_KEYS: u64 = 4;
/// Small objects that are written and read back, if time allows.
const WRITES_MAX: u64 = 40;
/// And how many of them at least.
const WRITES_MIN: u64 = 8;
/// Time for the small objects of one check, past the least number.
const WRITES_TIME: Duration = Duration::from_secs(3);
/// Bytes of a small object, about as many as a heartbeat has.
const SMALL_BYTES: usize = 512;
/// Objects that are listed right after they were written.
const LISTED: u64 = 8;
/// Bytes of the object that is written in one put.
const LARGE_BYTES: usize = 4 << 20;
/// Bytes of a part: the smallest that S3 allows for any but the last.
const PART_BYTES: usize = 5 << 20;
/// Bytes of the object that is written in parts: one whole part and a shorter one.
const PARTED_BYTES: usize = PART_BYTES + (256 << 10);
/// Versions of one object that are each read back, and beats of the check on liveness.
const OVERWRITES: u64 = 6;
/// Time between two looks of its reader.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Beats after which one that has not moved is taken for a dead syncer's.
const STILL_BEATS_MAX: u32 = 5;

/// Why a check did not end well.
pub(super) enum Trouble {
    /// The store answered, and not as it must.
    Wrong(String),
    /// A request failed.
    Failed(Error),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Trouble {
        Trouble::Failed(error)
    }
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Trouble {
        Trouble::Failed(Error::unavailable("a request failed").because(error))
    }
}

pub(super) fn wrong<T>(what: impl Into<String>) -> std::result::Result<T, Trouble> {
    Err(Trouble::Wrong(what.into()))
}

/// What a check came to: what was found, or why it failed.
pub(super) type Found = std::result::Result<String, Trouble>;

/// Creates `key` twice with different bytes: the second time must be refused, and the first bytes must still be there.
pub(super) async fn second_create(store: &dyn ObjectStore, key: &Path) -> Found {
    let (first, second) = (small(key, 1), small(key, 2));
    if create(store, key, first.clone()).await? != Created::Mine {
        return wrong("a create of a key that nobody else knows found another's object there");
    }
    match create(store, key, second.clone()).await? {
        Created::Other(stored) if stored == first => Ok("a second create is refused and leaves the bytes".into()),
        Created::Other(stored) => wrong(format!(
            "a second create was refused, and {} other bytes than the first ones are there now",
            stored.len()
        )),
        Created::Mine => {
            let did = match store.get(key).await {
                Err(StoreError::NotFound { .. }) => "nothing is there now",
                found => match found?.bytes().await? == first {
                    true => "changed nothing",
                    false => "replaced the bytes",
                },
            };
            wrong(format!("a second create was answered as if it had been the first, and {did}"))
        }
    }
}

/// A small JSON object that differs for every key and `n`, with a nonce as [`create`] wants it.
fn small(key: &Path, n: u64) -> Bytes {
    let head = format!("{{\"key\":\"{key}\",\"counter\":{n},\"nonce\":\"{}\",\"fill\":\"", nonce());
    let fill = "x".repeat(SMALL_BYTES.saturating_sub(head.len() + 2));
    Bytes::from(format!("{head}{fill}\"}}"))
}

/// Bytes of which no two stretches are the same for megabytes.
fn large(bytes: usize) -> Bytes {
    (0..bytes as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 17) as u8).collect()
}

/// One examination under way.
pub(super) struct Examination {
    store: Arc<dyn ObjectStore>,
    /// Time between two overwrites of one object.
    beat_every: Duration,
    keys: DoctorKeys,
    /// Every key that was written to, or tried to be.
    written: Mutex<BTreeSet<Path>>,
    pub(super) puts: Vec<Duration>,
    pub(super) gets: Vec<Duration>,
    pub(super) lost: Vec<Duration>,
    pub(super) measured: Measured,
}

impl Examination {
    /// An examination with a nonce of its own, which has not begun.
    pub(super) fn new(store: Arc<dyn ObjectStore>, beat_every: Duration) -> Examination {
        Examination {
            store,
            beat_every,
            keys: DoctorKeys::new(&nonce()),
            written: Mutex::new(BTreeSet::new()),
            puts: Vec::new(),
            gets: Vec::new(),
            lost: Vec::new(),
            measured: Measured::default(),
        }
    }

    /// Remembers a key that is about to be written.
    fn mark(&self, key: Path) -> Path {
        self.written.lock().expect("nobody panics with it").insert(key.clone());
        key
    }

    async fn get(&self, key: &Path) -> std::result::Result<Bytes, StoreError> {
        self.store.get(key).await?.bytes().await
    }

    /// A put and a get, timed.
    async fn put_and_get(&mut self, key: &Path, body: &Bytes) -> std::result::Result<Bytes, Trouble> {
        let began = clock::now();
        self.store.put(key, body.clone().into()).await?;
        let written = clock::now();
        let stored = self.get(key).await?;
        self.puts.push(written - began);
        self.gets.push(clock::now() - written);
        Ok(stored)
    }

    /// One object, written and read.
    pub(super) async fn answers(&self) -> Result<Found> {
        let key = self.mark(self.keys.single("answers"));
        let body = small(&key, 0);
        let began = clock::now();
        if let Err(error) = self.store.put(&key, body.clone().into()).await {
            return Err(match &error {
                StoreError::NotFound { .. } => {
                    Error::invalid("there is no such bucket; `tombolo bucket init` makes one").because(error)
                }
                StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => {
                    Error::invalid("the store refuses the credentials, or does not let them write").because(error)
                }
                _ => {
                    Error::unavailable("nothing can be written there; check the name, the endpoint and the credentials")
                        .because(error)
                }
            });
        }
        let stored = self.get(&key).await.map_err(|e| {
            Error::unavailable("the store took an object and does not give it back; check the credentials").because(e)
        })?;
        if stored != body {
            return Ok(wrong(format!("{} bytes were written, and {} others came back", body.len(), stored.len())));
        }
        Ok(Ok(format!("an object was written and read back in {:.0} ms", clock::ms(clock::now() - began))))
    }

    pub(super) async fn create_if_absent(&self) -> Found {
        second_create(&*self.store, &self.mark(self.keys.single("create"))).await
    }

    /// Sixteen create one key at once; of several keys.
    pub(super) async fn racing_creates(&mut self) -> Found {
        for wave in 0..RACE_WAVES {
            let numbers = wave * RACE_KEYS..(wave + 1) * RACE_KEYS;
            let keys: Vec<Path> = numbers.map(|n| self.mark(self.keys.numbered("race", n))).collect();
            for raced in futures::future::join_all(keys.into_iter().map(|key| race(self.store.clone(), key))).await {
                self.lost.extend(raced?);
            }
        }
        let lost = Spread::of(&mut self.lost);
        Ok(format!(
            "{} keys, {RACERS} racers each: one winner each, and everybody read its bytes; losers knew after {:.0} ms (99 of 100: {:.0} ms)",
            RACE_WAVES * RACE_KEYS,
            lost.median_ms,
            lost.p99_ms
        ))
    }

    pub(super) async fn read_after_write(&mut self) -> Found {
        let (began, mut written) = (clock::now(), 0);
        while more_writes(written, began) {
            let key = self.mark(self.keys.numbered("write", written));
            let body = small(&key, written);
            let stored = self.put_and_get(&key, &body).await?;
            let size = self.store.head(&key).await?.size;
            if stored != body || size != body.len() as u64 {
                return wrong(format!(
                    "object {written}: {} bytes were written, {} came back, and the head says {size}; or they differ",
                    body.len(),
                    stored.len()
                ));
            }
            written += 1;
        }
        Ok(format!("{written} objects, each read right after it was written"))
    }

    pub(super) async fn read_after_overwrite(&mut self) -> Found {
        let key = self.mark(self.keys.single("card"));
        for version in 0..OVERWRITES {
            if version > 0 {
                clock::sleep(self.beat_every).await;
            }
            let body = small(&key, version);
            if self.put_and_get(&key, &body).await? != body {
                return wrong(format!("after {version} overwrites an earlier version came back"));
            }
        }
        Ok(format!("{OVERWRITES} versions of one object, each read right after it was written"))
    }

    /// Every object must be in the next listing that starts after the object before it. Whether the store leaves out what lies before is
    /// its own affair: readers pass it over.
    pub(super) async fn listing(&self) -> Found {
        let folder = self.keys.numbers("list");
        let mut before = 0;
        for n in 0..LISTED {
            let key = self.mark(self.keys.numbered("list", n));
            create(&*self.store, &key, small(&key, n)).await?;
            let Some(last) = n.checked_sub(1) else { continue };
            let after = self.keys.numbered("list", last);
            let listed: Vec<Path> =
                self.store.list_with_offset(Some(&folder), &after).map_ok(|meta| meta.location).try_collect().await?;
            if !listed.contains(&key) {
                return wrong(format!("{key} was written, and a listing that starts after {after} does not have it"));
            }
            before += listed.iter().filter(|found| **found <= after).count();
        }
        let all: Vec<Path> = self.store.list(Some(&folder)).map_ok(|meta| meta.location).try_collect().await?;
        if all.len() as u64 != LISTED {
            return wrong(format!("{LISTED} objects were written, and a listing of their folder has {}", all.len()));
        }
        let folders = self.store.list_with_delimiter(Some(&self.keys.folder())).await?.common_prefixes;
        if !folders.contains(&folder) {
            return wrong(format!("a listing of folders does not have {folder}"));
        }
        let passed_over = if before > 0 { "; it does not leave out what lies before the start" } else { "" };
        Ok(format!("{LISTED} objects, each seen at once by a listing that starts after the one before{passed_over}"))
    }

    pub(super) async fn large_put(&mut self) -> Found {
        let key = self.mark(self.keys.single("large"));
        let body = large(LARGE_BYTES);
        let began = clock::now();
        self.store.put(&key, body.clone().into()).await?;
        let written = clock::now();
        let stored = self.get(&key).await?;
        let read = clock::now();
        if stored != body {
            return wrong(format!("{LARGE_BYTES} bytes were written, and {} others came back", stored.len()));
        }
        let megabytes = LARGE_BYTES as f64 / 1e6;
        let rate = |took: Duration| megabytes / took.as_secs_f64().max(1e-6);
        self.measured.up_mb_per_s = rate(written - began);
        self.measured.down_mb_per_s = rate(read - written);
        Ok(format!(
            "{megabytes:.1} MB up at {:.1} MB/s and down at {:.1} MB/s, the same bytes",
            self.measured.up_mb_per_s, self.measured.down_mb_per_s
        ))
    }

    /// Parts of the object that the check before left there.
    pub(super) async fn ranges(&self) -> Found {
        let key = self.keys.single("large");
        let body = large(LARGE_BYTES);
        let end = LARGE_BYTES as u64;
        let ranges = [0..16, end / 2 - 5..end / 2 + 4096, end - 16..end];
        for range in ranges.clone() {
            let part = self.store.get_range(&key, range.clone()).await?;
            if part != body.slice(range.start as usize..range.end as usize) {
                return wrong(format!("bytes {range:?} were asked for, and {} others came back", part.len()));
            }
        }
        Ok(format!("{} ranges of a large object, each the right bytes", ranges.len()))
    }

    pub(super) async fn multipart_upload(&self) -> Found {
        let key = self.mark(self.keys.single("parted"));
        let body = large(PARTED_BYTES);
        let mut upload = WriteMultipart::new_with_chunk_size(self.store.put_multipart(&key).await?, PART_BYTES);
        upload.put(body.clone());
        // Aborts the upload if it fails.
        upload.finish().await?;
        let stored = self.get(&key).await?;
        if stored != body {
            return wrong(format!("{PARTED_BYTES} bytes were written, and {} others came back", stored.len()));
        }
        Ok(format!("{:.1} MB in two parts, the same bytes", PARTED_BYTES as f64 / 1e6))
    }

    /// A writer overwrites its beat, and a reader that knows nothing of the writer's clock sees it move.
    pub(super) async fn liveness(&self) -> Found {
        let key = self.mark(self.keys.single("beat"));
        self.store.put(&key, Bytes::from("0").into()).await?;
        let writer = async {
            for counter in 1..=OVERWRITES {
                clock::sleep(self.beat_every).await;
                self.store.put(&key, Bytes::from(counter.to_string()).into()).await?;
            }
            Ok::<_, Trouble>(())
        };
        let reader = async {
            let (mut last, mut moved, mut longest, mut seen) = (0, clock::now(), Duration::ZERO, 0);
            while last < OVERWRITES {
                clock::sleep(LOOK_EVERY).await;
                let text = self.get(&key).await?;
                let counter = std::str::from_utf8(&text).ok().and_then(|text| text.parse::<u64>().ok());
                let Some(counter) = counter else { return wrong("a beat came back as other bytes than were written") };
                if counter < last {
                    return wrong(format!("beat {counter} was read after beat {last}"));
                }
                let now = clock::now();
                longest = longest.max(now - moved);
                if counter > last {
                    (last, moved, seen) = (counter, now, seen + 1);
                }
                if now - moved > self.beat_every * STILL_BEATS_MAX {
                    return wrong(format!(
                        "its writer overwrote it every {} ms, and for {:.0} ms a reader saw it stand still",
                        self.beat_every.as_millis(),
                        clock::ms(now - moved)
                    ));
                }
            }
            Ok((seen, longest))
        };
        let (written, read) = futures::future::join(writer, reader).await;
        let (seen, longest) = read?;
        written?;
        Ok(format!("{seen} of {OVERWRITES} beats seen, and never still for more than {:.0} ms", clock::ms(longest)))
    }

    /// Deletes everything that was written, and looks whether it is gone.
    pub(super) async fn removal(&self) -> Found {
        let keys = self.written.lock().expect("nobody panics with it").clone();
        let mut failed = None;
        for some in keys.iter().collect::<Vec<_>>().chunks(RACERS) {
            let removals: Vec<_> = some.iter().map(|key| remove(&*self.store, key)).collect();
            failed = futures::future::join_all(removals).await.into_iter().find_map(Result::err).or(failed);
        }
        if let Some(error) = failed {
            return Err(error.into());
        }
        for key in keys.iter().take(RACERS) {
            match self.store.get(key).await {
                Err(StoreError::NotFound { .. }) => {}
                Ok(_) => return wrong(format!("{key} was deleted, and can still be read")),
                Err(error) => return Err(error.into()),
            }
        }
        let folder = self.keys.folder();
        let left: Vec<Path> = match self.store.list(Some(&folder)).map_ok(|meta| meta.location).try_collect().await {
            Err(StoreError::NotFound { .. }) => Vec::new(),
            listed => listed?,
        };
        match left.as_slice() {
            [] => Ok(format!("all {} objects that were written here are gone", keys.len())),
            [first, ..] => wrong(format!("{} deleted objects are still listed, such as {first}", left.len())),
        }
    }
}

fn more_writes(written: u64, began: Instant) -> bool {
    written < WRITES_MIN || (written < WRITES_MAX && clock::now() - began < WRITES_TIME)
}

/// Lets sixteen tasks create `key` at once, and returns how long each loser took to know.
async fn race(store: Arc<dyn ObjectStore>, key: Path) -> std::result::Result<Vec<Duration>, Trouble> {
    let start = Arc::new(Barrier::new(RACERS));
    let mut racers = JoinSet::new();
    for racer in 0..RACERS {
        let (store, key, start) = (store.clone(), key.clone(), start.clone());
        racers.spawn(async move {
            let body = small(&key, racer as u64);
            start.wait().await;
            let began = clock::now();
            let created = create(&*store, &key, body.clone()).await;
            created.map(|created| (created, body, clock::now() - began))
        });
    }
    let (mut winners, mut read, mut lost) = (0, Vec::new(), Vec::new());
    while let Some(racer) = racers.join_next().await {
        let (created, body, took) = racer.map_err(|e| Error::bug("a racer panicked").because(e))??;
        match created {
            Created::Mine => {
                winners += 1;
                read.push(body);
            }
            Created::Other(stored) => {
                lost.push(took);
                read.push(stored);
            }
        }
    }
    let stored = store.get(&key).await?.bytes().await?;
    let others = read.iter().filter(|bytes| **bytes != stored).count();
    if winners != 1 {
        return wrong(format!("of {RACERS} who created one key at once, {winners} were told that it is theirs"));
    }
    if others > 0 {
        return wrong(format!(
            "{others} of {RACERS} who created one key at once were given other bytes than are there now"
        ));
    }
    Ok(lost)
}
