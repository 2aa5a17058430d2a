//! One run in one bucket: a method for every read and write of the protocol. Every durable effect is one call of the store, so a wrapper of
//! the store can break any of them.

use super::key::{self, Keys, OfferId};
use super::record::{Beat, Card, Claim, Entry, FORMAT, RunRecord};
use super::{Created, Ledger, Policies, create};
use crate::clock::{self, Duration};
use crate::error::{Error, Kind, Result};
use crate::nonce::nonce;
use bytes::Bytes;
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{Error as StoreError, ObjectStore, ObjectStoreExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// The largest small record that is read.
const RECORD_BYTES_MAX: u64 = 64 << 20;
/// Deletes of one object that are tried.
const DELETE_TRIES_MAX: u32 = 3;
/// The last attempt that a block's key has room for.
const ATTEMPTS_MAX: u32 = 999;
/// Claims that are read to find out what else a dead island holds.
const BLOCK_CLAIMS_MAX: usize = 64;

/// One run in one bucket.
#[derive(Debug, Clone)]
pub struct Bucket {
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) keys: Keys,
}

fn json<T: Serialize>(record: &T) -> Bytes {
    serde_json::to_vec(record).expect("records serialise").into()
}

/// The bytes of a small object, whole; none if it is absent.
pub(super) async fn read(store: &dyn ObjectStore, key: &Path, bytes_max: u64) -> Result<Option<Bytes>> {
    let unavailable = |e| Error::unavailable(format!("{key}: cannot be read")).because(e);
    match store.get(key).await {
        Ok(found) if found.meta.size > bytes_max => {
            Err(Error::corrupt(format!("{key}: expected at most {bytes_max} bytes, found {}", found.meta.size)))
        }
        Ok(found) => {
            let announced = found.meta.size;
            let bytes = found.bytes().await.map_err(unavailable)?;
            // A body that was cut off on its way must not be taken for what the bucket holds.
            if bytes.len() as u64 != announced {
                return Err(Error::unavailable(format!("{key}: expected {announced} bytes, found {}", bytes.len())));
            }
            Ok(Some(bytes))
        }
        Err(StoreError::NotFound { .. }) => Ok(None),
        Err(error) => Err(unavailable(error)),
    }
}

/// Keys (and sizes) below a folder, sorted by key.
pub(super) async fn list(store: &dyn ObjectStore, folder: &Path) -> Result<Vec<(Path, u64)>> {
    let listed: std::result::Result<Vec<_>, StoreError> =
        store.list(Some(folder)).map_ok(|meta| (meta.location, meta.size)).try_collect().await;
    match listed {
        Ok(mut keys) => {
            keys.sort();
            Ok(keys)
        }
        Err(StoreError::NotFound { .. }) => Ok(Vec::new()),
        Err(error) => Err(Error::unavailable(format!("{folder}: cannot be listed")).because(error)),
    }
}

/// Names of the runs in a store, sorted.
///
/// # Errors
/// Unavailable.
pub async fn run_names(store: &dyn ObjectStore) -> Result<Vec<String>> {
    let listed = store.list_with_delimiter(None).await.map_err(|e| {
        Error::unavailable("the bucket cannot be listed; check its name, the endpoint and the credentials").because(e)
    })?;
    let mut names = Vec::new();
    for prefix in listed.common_prefixes {
        let Some(name) = prefix.filename().filter(|n| key::is_run_name(n)) else { continue };
        let key = Keys::new(name).run();
        match store.head(&key).await {
            Ok(_) => names.push(name.to_string()),
            Err(StoreError::NotFound { .. }) => {}
            Err(error) => return Err(Error::unavailable(format!("{key}: cannot be looked at")).because(error)),
        }
    }
    names.sort();
    Ok(names)
}

/// Removes an object; one that is already gone is no error. The client does not repeat a delete on stores where it is a POST (Azure's), though a second one does no harm.
pub(super) async fn remove(store: &dyn ObjectStore, key: &Path) -> Result<()> {
    let mut tries = 1;
    loop {
        match store.delete(key).await {
            Ok(()) | Err(StoreError::NotFound { .. }) => return Ok(()),
            Err(_) if tries < DELETE_TRIES_MAX => clock::sleep(Duration::from_millis(20) * tries).await,
            Err(error) => return Err(Error::unavailable(format!("{key}: cannot be deleted")).because(error)),
        }
        tries += 1;
    }
}

impl Bucket {
    /// The run called `run` in `store`.
    pub fn new(store: Arc<dyn ObjectStore>, run: &str) -> Bucket {
        Bucket { store, keys: Keys::new(run) }
    }

    /// The store below, for tests that break it.
    pub fn store(&self) -> &Arc<dyn ObjectStore> {
        &self.store
    }

    /// The makers of this run's keys.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    async fn get(&self, key: &Path) -> Result<Option<Bytes>> {
        read(&*self.store, key, RECORD_BYTES_MAX).await
    }

    async fn get_json<T: DeserializeOwned>(&self, key: &Path) -> Result<Option<T>> {
        let Some(bytes) = self.get(key).await? else { return Ok(None) };
        serde_json::from_slice(&bytes).map(Some).map_err(|e| {
            Error::corrupt(format!("{key}: expected a record of format {FORMAT}, found something else")).because(e)
        })
    }

    async fn put(&self, key: &Path, body: Bytes) -> Result<()> {
        let written = self.store.put(key, body.into()).await;
        written.map(|_| ()).map_err(|e| Error::unavailable(format!("{key}: cannot be written")).because(e))
    }

    /// Keys (and sizes) below a folder, sorted by key.
    pub(super) async fn list(&self, folder: &Path) -> Result<Vec<(Path, u64)>> {
        list(&*self.store, folder).await
    }

    /// Removes an object; one that is already gone is no error.
    pub(super) async fn delete(&self, key: &Path) -> Result<()> {
        remove(&*self.store, key).await
    }

    /// The run's record, if the run exists.
    ///
    /// # Errors
    /// Unavailable or corrupt.
    pub async fn run_record(&self) -> Result<Option<RunRecord>> {
        let record: Option<RunRecord> = self.get_json(&self.keys.run()).await?;
        match record {
            Some(record) if record.format != FORMAT => Err(Error::invalid(format!(
                "{}: expected format {FORMAT}, found {}; use the version of tombolo that made this run",
                self.keys.run(),
                record.format
            ))),
            record => Ok(record),
        }
    }

    /// Creates the run's record; returns the one that is there now, whoever wrote it.
    ///
    /// # Errors
    /// Unavailable or corrupt.
    pub async fn create_run(&self, record: &RunRecord) -> Result<RunRecord> {
        match create(&*self.store, &self.keys.run(), json(record)).await? {
            Created::Mine => Ok(record.clone()),
            Created::Other(_) => self
                .run_record()
                .await?
                .ok_or_else(|| Error::corrupt(format!("{}: was there and is gone", self.keys.run()))),
        }
    }

    /// The bytes of log entry `seq`, if it exists.
    ///
    /// # Errors
    /// Unavailable.
    pub async fn log_bytes(&self, seq: u64) -> Result<Option<Bytes>> {
        match self.get(&self.keys.log(seq)).await {
            // Far too large to be an entry: it is void like any other bytes that are none.
            Err(error) if error.kind() == Kind::Corrupt => Ok(Some(Bytes::new())),
            found => found,
        }
    }

    /// Appends `entry` at its index; [`Created::Other`] means that somebody else's entry has that index.
    ///
    /// Before: the caller has read all entries before `entry.seq`. After: the index is taken for good. A crash leaves the entry whole or absent.
    ///
    /// # Errors
    /// Unavailable: the entry may or may not be there; read the log on to find out.
    pub async fn append(&self, entry: &Entry) -> Result<Created> {
        create(&*self.store, &self.keys.log(entry.seq), json(entry)).await
    }

    /// Sequence numbers of the states of the log, ascending.
    ///
    /// # Errors
    /// Unavailable.
    pub async fn states(&self) -> Result<Vec<u64>> {
        Ok(self.list(&self.keys.states()).await?.iter().filter_map(|(k, _)| self.keys.parse_state(k)).collect())
    }

    /// The state of the log after the entries before `seq`; none if it cannot be parsed.
    ///
    /// # Errors
    /// Unavailable.
    pub async fn state(&self, seq: u64) -> Result<Option<Ledger>> {
        match self.get(&self.keys.state(seq)).await {
            Ok(found) => Ok(found.and_then(|bytes| serde_json::from_slice(&bytes).ok())),
            Err(error) if error.kind() == Kind::Corrupt => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes the state of the log for joiners. Any writer that has read the same log writes the same bytes.
    ///
    /// # Errors
    /// Unavailable.
    pub async fn put_state(&self, ledger: &Ledger) -> Result<()> {
        self.put(&self.keys.state(ledger.next), json(ledger)).await
    }

    /// The policies of the bucket, which all runs share.
    pub fn policies(&self) -> Policies {
        Policies::new(self.store.clone())
    }

    /// Offers of a round and their sizes in bytes, sorted.
    ///
    /// # Errors
    /// Unavailable.
    pub async fn offers(&self, round: u64) -> Result<Vec<(OfferId, u64)>> {
        let listed = self.list(&self.keys.offers(round)).await?;
        Ok(listed.into_iter().filter_map(|(key, size)| self.keys.parse_offer(&key).map(|id| (id, size))).collect())
    }

    /// All offers that are there and their sizes in bytes, sorted.
    ///
    /// # Errors
    /// Unavailable.
    pub async fn all_offers(&self) -> Result<Vec<(OfferId, u64)>> {
        let listed = self.list(&self.keys.all_offers()).await?;
        Ok(listed.into_iter().filter_map(|(key, size)| self.keys.parse_offer(&key).map(|id| (id, size))).collect())
    }

    /// Names of all islands that ever wrote here, sorted.
    ///
    /// # Errors
    /// Unavailable.
    pub async fn islands(&self) -> Result<Vec<String>> {
        let listed = self
            .store
            .list_with_delimiter(Some(&self.keys.islands()))
            .await
            .map_err(|e| Error::unavailable(format!("{}: cannot be listed", self.keys.islands())).because(e))?;
        let mut names: Vec<String> = listed.common_prefixes.iter().filter_map(|p| self.keys.parse_island(p)).collect();
        names.sort();
        Ok(names)
    }

    /// An island's heartbeat; none if it is absent or cannot be parsed.
    ///
    /// # Errors
    /// Unavailable.
    pub async fn card(&self, island: &str) -> Result<Option<Card>> {
        Ok(self.get(&self.keys.card(island)).await?.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }

    /// Overwrites an island's own heartbeat.
    ///
    /// # Errors
    /// Unavailable.
    pub async fn put_card(&self, card: &Card) -> Result<()> {
        self.put(&self.keys.card(&card.island), json(card)).await
    }

    /// The newest life that was claimed for an island; 0 if there was none.
    ///
    /// # Errors
    /// Unavailable.
    pub async fn newest_incarnation(&self, island: &str) -> Result<u64> {
        let listed = self.list(&self.keys.incarnations(island)).await?;
        Ok(listed.iter().filter_map(|(k, _)| self.keys.parse_incarnation(k)).max().unwrap_or(0))
    }

    /// Claims the next life of an island, which outranks all earlier ones, and returns its number (from 1).
    ///
    /// # Errors
    /// Unavailable.
    pub async fn claim_incarnation(&self, island: &str) -> Result<u64> {
        loop {
            let n = self.newest_incarnation(island).await? + 1;
            if n > 999_999 {
                return Err(Error::invalid(format!(
                    "island {island}: has used up its 999999 lives; give it another name"
                )));
            }
            let claim = Claim { format: FORMAT, nonce: nonce(), island: island.to_string(), incarnation: n };
            if create(&*self.store, &self.keys.incarnation(island, n), json(&claim)).await? == Created::Mine {
                return Ok(n);
            }
        }
    }

    /// The first block number that nobody has claimed, as far as the listing shows.
    ///
    /// # Errors
    /// Unavailable.
    pub async fn next_block(&self) -> Result<u64> {
        let listed = self.list(&self.keys.blocks()).await?;
        Ok(listed.iter().filter_map(|(k, _)| self.keys.parse_block(k)).map(|(b, _)| b + 1).max().unwrap_or(0))
    }

    /// Blocks of training data by the island that claimed them, ascending. Reads every claim: for reports, not for a run.
    ///
    /// # Errors
    /// Unavailable or corrupt.
    pub async fn claimed_blocks(&self) -> Result<BTreeMap<String, Vec<u64>>> {
        let mut claimed: BTreeMap<String, Vec<u64>> = std::collections::BTreeMap::new();
        for (key, _) in self.list(&self.keys.blocks()).await? {
            if let Some((block, _)) = self.keys.parse_block(&key)
                && let Some(claim) = self.get_json::<Claim>(&key).await?
            {
                claimed.entry(claim.island).or_default().push(block);
            }
        }
        Ok(claimed)
    }

    /// Claims a block of training data for the first time; false if somebody else has.
    ///
    /// # Errors
    /// Unavailable.
    pub async fn claim_block(&self, block: u64, island: &str, incarnation: u64) -> Result<bool> {
        self.claim_attempt(block, 0, island, incarnation).await
    }

    /// A claim that this life has made before, without having heard that it had, is its own.
    async fn claim_attempt(&self, block: u64, attempt: u32, island: &str, incarnation: u64) -> Result<bool> {
        let claim = Claim { format: FORMAT, nonce: nonce(), island: island.to_string(), incarnation };
        let created = create(&*self.store, &self.keys.block(block, attempt), json(&claim)).await?;
        Ok(match created {
            Created::Mine => true,
            Created::Other(bytes) => serde_json::from_slice::<Claim>(&bytes)
                .is_ok_and(|there| (there.island.as_str(), there.incarnation) == (island, incarnation)),
        })
    }

    /// Claims a block that is `from`'s once more, for `island`; none if it is not `from`'s, or another was faster. Whoever trains on a block holds its
    /// newest attempt, so of an island that comes back and one that takes its block over, one goes on with it.
    ///
    /// # Errors
    /// Unavailable.
    pub async fn take_over_block(&self, block: u64, from: &str, island: &str, incarnation: u64) -> Result<Option<u32>> {
        let Some((attempt, holder)) = self.block_holder(block).await? else { return Ok(None) };
        if (holder.island.as_str(), holder.incarnation) == (island, incarnation) && attempt > 0 {
            return Ok(Some(attempt));
        }
        if holder.island != from || attempt >= ATTEMPTS_MAX {
            return Ok(None);
        }
        Ok(self.claim_attempt(block, attempt + 1, island, incarnation).await?.then_some(attempt + 1))
    }

    /// The newest attempt of a block and who has made it; none if the block is nobody's, or its claim cannot be parsed.
    async fn block_holder(&self, block: u64) -> Result<Option<(u32, Claim)>> {
        let claims = self.claims_from(block).await?;
        let Some((_, attempt)) = claims.into_iter().take_while(|(b, _)| *b == block).last() else { return Ok(None) };
        let claim = self.get(&self.keys.block(block, attempt)).await?;
        let claim = claim.and_then(|bytes| serde_json::from_slice::<Claim>(&bytes).ok());
        Ok(claim.map(|claim| (attempt, claim)))
    }

    /// Blocks from `block` on that are held by one of these lives of `island`, among the next [`BLOCK_CLAIMS_MAX`] that are claimed.
    ///
    /// # Errors
    /// Unavailable.
    pub async fn blocks_held_from(&self, block: u64, island: &str, lives: RangeInclusive<u64>) -> Result<Vec<u64>> {
        let mut held = Vec::new();
        let claims: BTreeMap<u64, u32> = self.claims_from(block).await?.into_iter().collect();
        for (block, attempt) in claims.into_iter().take(BLOCK_CLAIMS_MAX) {
            let Some(bytes) = self.get(&self.keys.block(block, attempt)).await? else { continue };
            let claim = serde_json::from_slice::<Claim>(&bytes);
            if claim.is_ok_and(|claim| claim.island == island && lives.contains(&claim.incarnation)) {
                held.push(block);
            }
        }
        Ok(held)
    }

    /// Block and attempt of all claims of blocks from `block` on, ascending.
    async fn claims_from(&self, block: u64) -> Result<Vec<(u64, u32)>> {
        let folder = self.keys.blocks();
        // Numbers have a fixed width and all claims lie in one folder, so that every store's order of keys is the order of the numbers.
        let listing = match block.checked_sub(1) {
            Some(before) => self.store.list_with_offset(Some(&folder), &self.keys.block(before, ATTEMPTS_MAX)),
            None => self.store.list(Some(&folder)),
        };
        let listed: std::result::Result<Vec<Path>, StoreError> =
            listing.map_ok(|meta| meta.location).try_collect().await;
        match listed {
            Ok(keys) => {
                // Azurite ignores where a listing is to start.
                let claims = keys.iter().filter_map(|key| self.keys.parse_block(key)).filter(|(b, _)| *b >= block);
                let mut claims: Vec<(u64, u32)> = claims.collect();
                claims.sort_unstable();
                Ok(claims)
            }
            Err(StoreError::NotFound { .. }) => Ok(Vec::new()),
            Err(error) => Err(Error::unavailable(format!("{folder}: cannot be listed")).because(error)),
        }
    }

    /// A syncer's beat; none if it is absent or cannot be parsed.
    ///
    /// # Errors
    /// Unavailable.
    pub async fn beat(&self, syncer: &str) -> Result<Option<Beat>> {
        match self.get(&self.keys.syncer(syncer)).await {
            Ok(found) => Ok(found.and_then(|bytes| serde_json::from_slice(&bytes).ok())),
            Err(error) if error.kind() == Kind::Corrupt => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Overwrites a syncer's own beat.
    ///
    /// # Errors
    /// Unavailable.
    pub async fn put_beat(&self, beat: &Beat) -> Result<()> {
        self.put(&self.keys.syncer(&beat.syncer), json(beat)).await
    }
}
