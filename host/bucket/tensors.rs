//! The large objects of a run, typed: fragment versions, the outer optimiser's states, offers, checkpoints. Each carries a header with the
//! layout's fingerprint and its content hash; whoever reads checks both, the shape, and that every value is finite.

use super::key::OfferId;
use super::ledger::{Ledger, MEMORY_ROUNDS};
use super::payload::{self, Chunk, Joiner, Object, Stored, content_hash, cut, join};
use super::record::{Body, Entry, FORMAT, Version};
use super::run::Bucket;
use super::spool::{Flat, MEMORY_BYTES, Vector};
use crate::data::Cursor;
use crate::error::{Error, Result};
use crate::nonce::nonce;
use crate::outer::Fragments;
use crate::policy::{BYTES_PER_VALUE_MAX, CHUNK_ELEMENTS};
use object_store::path::Path;
use serde::{Deserialize, Serialize};
use tombolo_engine::Layout;

/// Header of one version of one fragment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FragmentHeader {
    /// Format number.
    pub format: u32,
    /// Fingerprint of layout and fragments.
    pub layout: String,
    /// Fragment.
    pub fragment: usize,
    /// Round that made it.
    pub round: u64,
    /// Content hash.
    pub hash: String,
}

/// Header of the outer optimiser's state of one fragment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StateHeader {
    /// Format number.
    pub format: u32,
    /// Fingerprint of layout and fragments.
    pub layout: String,
    /// Fragment.
    pub fragment: usize,
    /// Round that made it.
    pub round: u64,
    /// Vectors of state.
    pub slots: usize,
    /// Whether what the way down lost lies beside them.
    #[serde(default)]
    pub residual: bool,
    /// What the policy wants to remember until the fragment's next round.
    pub memo: Vec<u8>,
    /// Content hash over the chunks; the memo is covered by the hash in the version, which is over both.
    pub hash: String,
}

/// What lies beside a version of a fragment until its next round; the syncer's alone.
#[derive(Debug, Default)]
pub struct OuterState {
    /// The outer optimiser's vectors, each as long as the fragment.
    pub slots: Vec<Vector>,
    /// What the merge policy wants to remember.
    pub memo: Vec<u8>,
    /// What the step to this version lost on the way down, where its codec wants it back.
    pub residual: Option<Vector>,
}

impl OuterState {
    /// All its vectors, in order.
    pub fn vectors(&self) -> impl Iterator<Item = &Vector> + Clone {
        self.slots.iter().chain(&self.residual)
    }

    /// As another merge policy finds it: its optimiser begins anew, and what the way down lost is still owed.
    pub fn of_another_policy(self) -> OuterState {
        OuterState { residual: self.residual, ..OuterState::default() }
    }
}

/// Header of an offer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OfferHeader {
    /// Format number.
    pub format: u32,
    /// Run.
    pub run: String,
    /// Fingerprint of layout and fragments.
    pub layout: String,
    /// Which offer; the same as its key says.
    #[serde(flatten)]
    pub id: OfferId,
    /// Fragment.
    pub fragment: usize,
    /// Round of the version that the island had adopted.
    pub base: u64,
    /// Tokens trained on since then.
    pub tokens: u64,
    /// Inner steps over the same span.
    pub steps: u32,
    /// Hash of the codec that encoded it.
    pub codec: String,
    /// That codec's configuration.
    pub codec_config: String,
    /// Content hash.
    pub hash: String,
}

/// An island's place in one fragment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FragmentFacts {
    /// Round of the version adopted last.
    pub base: u64,
    /// Inner steps since then.
    pub steps: u32,
    /// Tokens since then.
    pub tokens: u64,
}

/// Header of an island's checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckpointHeader {
    /// Format number.
    pub format: u32,
    /// Fingerprint of layout and fragments.
    pub layout: String,
    /// Island.
    pub island: String,
    /// Its life.
    pub incarnation: u64,
    /// Inner steps over all lives.
    pub step: u64,
    /// Tokens over all lives.
    pub tokens: u64,
    /// Of those, tokens trained on again.
    pub tokens_repeated: u64,
    /// Steps that Adam's moments have seen.
    pub adam_steps: u64,
    /// Tokens whose progress came too late to be merged, summed over the fragments.
    pub late: u64,
    /// Blocks of training data and the place in each: first the one in use.
    pub held: Vec<Cursor>,
    /// Place in every fragment.
    pub fragments: Vec<FragmentFacts>,
    /// Content hash.
    pub hash: String,
}

/// The most vectors that an outer optimiser's state has.
const SLOTS_MAX: usize = 8;

/// Sections of a state with this many vectors, in order.
fn state_sections(slots: usize, residual: bool) -> Vec<String> {
    (0..slots).map(|i| format!("state.{i}")).chain(residual.then(|| "residual".to_string())).collect()
}

/// A checkpoint, read: header, parameters, first and second moments, each in the arena's order.
pub type Checkpoint = (CheckpointHeader, Vec<f32>, Vec<f32>, Vec<f32>);

fn lengths(fragments: &Fragments, p: usize) -> Vec<usize> {
    fragments.tensors(p).map(|t| t.elements()).collect()
}

/// The most bytes that an object with `values` values in `chunks` chunks can take, with room for framing.
fn bytes_max(values: usize, chunks: usize) -> u64 {
    (values as u64) * 5 + (chunks as u64) * 4096 + (1 << 16)
}

fn chunk_count(lengths: &[usize]) -> usize {
    lengths.iter().map(|n| n.div_ceil(CHUNK_ELEMENTS)).sum()
}

fn check_finite(key: &Path, values: &[f32]) -> Result<()> {
    match tombolo_engine::first_not_finite(values) {
        Some(at) => Err(Error::corrupt(format!("{key}: expected finite values, found {} at {at}", values[at]))),
        None => Ok(()),
    }
}

pub(super) fn check_same(key: &Path, what: &str, expected: &str, found: &str) -> Result<()> {
    if expected == found {
        Ok(())
    } else {
        Err(Error::corrupt(format!("{key}: {what}: expected {expected}, found {}", found.escape_debug())))
    }
}

fn check_format(key: &Path, found: u32) -> Result<()> {
    check_same(key, "format", &FORMAT.to_string(), &found.to_string())
}

fn check_content<H>(key: &Path, object: &Object<H>, stated: &str) -> Result<()> {
    check_same(key, "content hash", stated, &content_hash(&object.chunks))
}

/// The content hash of chunks that are made one by one.
fn hash_of(chunks: impl Iterator<Item = Result<Chunk>>) -> Result<String> {
    let mut hash = payload::ContentHash::default();
    for chunk in chunks {
        hash.add(&chunk?);
    }
    Ok(hash.finish())
}

/// Reads the sections of an object into vectors, one pass over its chunks; returns its content hash, too. Every value is finite.
fn vectors<H>(
    key: &Path,
    object: &Stored<H>,
    sections: &[String],
    lengths: &[usize],
    memory_max: usize,
) -> Result<(Vec<Vector>, String)> {
    let elements = lengths.iter().sum();
    let mut joiners: Vec<Joiner<'_>> =
        sections.iter().map(|section| Joiner::new(key.as_ref(), section, lengths)).collect();
    let vectors: Vec<Vector> = sections.iter().map(|_| Vector::zeros(elements, memory_max)).collect::<Result<_>>()?;
    let mut hash = payload::ContentHash::default();
    for chunk in object.chunks() {
        let chunk = chunk?;
        hash.add(&chunk);
        for (joiner, vector) in joiners.iter_mut().zip(&vectors) {
            if let Some((start, values)) = joiner.take(&chunk)? {
                check_finite(key, values)?;
                vector.write(start, values)?;
            }
        }
    }
    joiners.into_iter().try_for_each(Joiner::finish)?;
    Ok((vectors, hash.finish()))
}

/// The content hash that names a version of fragment `p` with these values.
pub(super) fn fragment_hash(fragments: &Fragments, p: usize, values: &impl Flat) -> Result<String> {
    hash_of(cut("parameters", &lengths(fragments, p), values, CHUNK_ELEMENTS))
}

/// The largest offer or step of fragment `p` that is read: what a codec may make of it, with room for framing.
pub fn encoded_bytes_max(fragments: &Fragments, p: usize) -> u64 {
    let (values, chunks) = (fragments.elements(p), chunk_count(&lengths(fragments, p)));
    (values * BYTES_PER_VALUE_MAX) as u64 + bytes_max(0, chunks)
}

/// The hash by which a version names a state: over its content and its memo.
fn state_hash(content: &str, memo: &[u8]) -> String {
    let mut text = content.as_bytes().to_vec();
    text.extend_from_slice(memo);
    crate::nonce::sha256(&text)
}

impl Bucket {
    /// Writes a version of fragment `p` and returns its content hash.
    ///
    /// # Errors
    /// Unavailable.
    pub async fn put_fragment(
        &self,
        fragments: &Fragments,
        p: usize,
        round: u64,
        values: &impl Flat,
    ) -> Result<String> {
        let lengths = lengths(fragments, p);
        let hash = fragment_hash(fragments, p, values)?;
        let header = FragmentHeader {
            format: FORMAT,
            layout: fragments.fingerprint().into(),
            fragment: p,
            round,
            hash: hash.clone(),
        };
        let key = self.keys.fragment(p, round, &hash);
        payload::write(&*self.store, &key, &header, false, cut("parameters", &lengths, values, CHUNK_ELEMENTS)).await?;
        Ok(hash)
    }

    /// Writes the initial version of every fragment and then the log's first entry, which names them. Somebody else's first entry is as good: it
    /// names its own objects. `parameters` are in the arena's order.
    ///
    /// # Errors
    /// Unavailable; doing it again completes it.
    pub async fn start(&self, fragments: &Fragments, parameters: &[f32], window: u64, writer: &str) -> Result<()> {
        let mut versions = Vec::new();
        for p in 0..fragments.count() {
            let round = p as u64;
            let hash = self.put_fragment(fragments, p, round, &fragments.gather(p, parameters)).await?;
            versions.push(Version { round, hash, state: None, step: None });
        }
        let body = Body::Start { versions, window };
        let entry = Entry { format: FORMAT, seq: 0, nonce: nonce(), writer: writer.to_string(), term: 0, body };
        self.append(&entry).await.map(|_| ())
    }

    /// Reads the version of fragment `p` that the log names. Shape: (elements of p).
    ///
    /// # Errors
    /// Unavailable; corrupt if it is not what the log names.
    pub async fn fragment(&self, fragments: &Fragments, p: usize, version: &Version) -> Result<Vec<f32>> {
        self.fragment_within(fragments, p, version, usize::MAX).await?.into_vec()
    }

    /// As [`Bucket::fragment`], in memory that does not grow with the fragment.
    ///
    /// # Errors
    /// As [`Bucket::fragment`].
    pub async fn fragment_spooled(&self, fragments: &Fragments, p: usize, version: &Version) -> Result<Vector> {
        self.fragment_within(fragments, p, version, MEMORY_BYTES).await
    }

    async fn fragment_within(
        &self,
        fragments: &Fragments,
        p: usize,
        version: &Version,
        memory_max: usize,
    ) -> Result<Vector> {
        let key = self.keys.fragment(p, version.round, &version.hash);
        let lengths = lengths(fragments, p);
        let limit = bytes_max(fragments.elements(p), chunk_count(&lengths));
        let object = payload::fetch::<FragmentHeader>(&*self.store, &key, limit, memory_max).await?;
        check_format(&key, object.header.format)?;
        check_same(&key, "layout", fragments.fingerprint(), &object.header.layout)?;
        let (mut vectors, hash) = vectors(&key, &object, &["parameters".to_string()], &lengths, memory_max)?;
        check_same(&key, "content hash", &version.hash, &hash)?;
        Ok(vectors.remove(0))
    }

    /// Writes what lies beside a version; returns the hash that names it.
    ///
    /// # Errors
    /// Unavailable.
    pub async fn put_fragment_state(
        &self,
        fragments: &Fragments,
        p: usize,
        round: u64,
        state: &OuterState,
    ) -> Result<String> {
        let lengths = lengths(fragments, p);
        let names = state_sections(state.slots.len(), state.residual.is_some());
        let chunks =
            || names.iter().zip(state.vectors()).flat_map(|(name, values)| cut(name, &lengths, values, CHUNK_ELEMENTS));
        let content = hash_of(chunks())?;
        let hash = state_hash(&content, &state.memo);
        let header = StateHeader {
            format: FORMAT,
            layout: fragments.fingerprint().into(),
            fragment: p,
            round,
            slots: state.slots.len(),
            residual: state.residual.is_some(),
            memo: state.memo.clone(),
            hash: content,
        };
        payload::write(&*self.store, &self.keys.fragment_state(p, round, &hash), &header, false, chunks()).await?;
        Ok(hash)
    }

    /// Reads what lies beside a version, in memory that does not grow with the fragment; nothing beside an initial version.
    ///
    /// # Errors
    /// Unavailable; corrupt if it is not what the log names.
    pub async fn fragment_state(&self, fragments: &Fragments, p: usize, version: &Version) -> Result<OuterState> {
        let Some(hash) = &version.state else { return Ok(OuterState::default()) };
        let key = self.keys.fragment_state(p, version.round, hash);
        let lengths = lengths(fragments, p);
        let most = SLOTS_MAX + 1;
        let limit = bytes_max(most * fragments.elements(p), most * chunk_count(&lengths)) + (1 << 20);
        let object = payload::fetch::<StateHeader>(&*self.store, &key, limit, MEMORY_BYTES).await?;
        check_format(&key, object.header.format)?;
        check_same(&key, "layout", fragments.fingerprint(), &object.header.layout)?;
        let StateHeader { slots, residual, .. } = object.header;
        if slots > SLOTS_MAX {
            return Err(Error::corrupt(format!("{key}: expected at most {SLOTS_MAX} vectors of state, found {slots}")));
        }
        let (mut vectors, content) = vectors(&key, &object, &state_sections(slots, residual), &lengths, MEMORY_BYTES)?;
        check_same(&key, "hash", hash, &state_hash(&content, &object.header.memo))?;
        let residual = if residual { vectors.pop() } else { None };
        Ok(OuterState { slots: vectors, memo: object.header.memo, residual })
    }

    /// Publishes an offer. Its key belongs to one life of one island in one round, so writing it again writes the same.
    ///
    /// # Errors
    /// Unavailable.
    pub async fn put_offer(&self, header: &OfferHeader, chunks: Vec<Chunk>) -> Result<u64> {
        payload::write(&*self.store, &self.keys.offer(&header.id), header, true, chunks.into_iter().map(Ok)).await
    }

    /// Reads an offer of at most `bytes_max` bytes. Its facts are the island's claims and still have to be checked.
    ///
    /// # Errors
    /// Unavailable; corrupt if it is not an offer, or its bytes are not those its header names.
    pub async fn offer(&self, id: &OfferId, bytes_max: u64) -> Result<Object<OfferHeader>> {
        let key = self.keys.offer(id);
        let object = payload::read::<OfferHeader>(&*self.store, &key, bytes_max).await?;
        check_content(&key, &object, &object.header.hash)?;
        Ok(object)
    }

    /// Fetches an offer, in memory that does not grow with it. Nothing has been checked yet, not even that its bytes are those its header names:
    /// whoever passes over its chunks does.
    ///
    /// # Errors
    /// Unavailable; corrupt if it is not an offer.
    pub async fn offer_spooled(&self, id: &OfferId, bytes_max: u64) -> Result<Stored<OfferHeader>> {
        payload::fetch(&*self.store, &self.keys.offer(id), bytes_max, MEMORY_BYTES).await
    }

    /// Writes a checkpoint; `header.hash` is filled in here. Vectors in the arena's order. Shape of each: (elements of the model).
    ///
    /// # Errors
    /// Unavailable.
    pub async fn put_checkpoint(
        &self,
        layout: &Layout,
        mut header: CheckpointHeader,
        vectors: [&[f32]; 3],
    ) -> Result<()> {
        let lengths: Vec<usize> = layout.tensors.iter().map(|t| t.elements()).collect();
        let chunks = || {
            CHECKPOINT_SECTIONS
                .iter()
                .zip(&vectors)
                .flat_map(|(section, values)| cut(section, &lengths, values, CHUNK_ELEMENTS))
        };
        header.hash = hash_of(chunks())?;
        let key = self.keys.checkpoint(&header.island, header.step);
        payload::write(&*self.store, &key, &header, false, chunks()).await?;
        Ok(())
    }

    /// Steps of an island's checkpoints, ascending.
    ///
    /// # Errors
    /// Unavailable.
    pub async fn checkpoints(&self, island: &str) -> Result<Vec<u64>> {
        let listed = self.list(&self.keys.checkpoints(island)).await?;
        Ok(listed.iter().filter_map(|(k, _)| self.keys.parse_checkpoint(k)).collect())
    }

    /// Reads an island's checkpoint.
    ///
    /// # Errors
    /// Unavailable; corrupt if it is damaged or of another layout.
    pub async fn checkpoint(
        &self,
        layout: &Layout,
        fragments: &Fragments,
        island: &str,
        step: u64,
    ) -> Result<Checkpoint> {
        let key = self.keys.checkpoint(island, step);
        let lengths: Vec<usize> = layout.tensors.iter().map(|t| t.elements()).collect();
        let limit = bytes_max(3 * layout.elements(), 3 * chunk_count(&lengths));
        let object = payload::read::<CheckpointHeader>(&*self.store, &key, limit).await?;
        check_format(&key, object.header.format)?;
        check_same(&key, "layout", fragments.fingerprint(), &object.header.layout)?;
        check_content(&key, &object, &object.header.hash)?;
        if object.header.fragments.len() != fragments.count() {
            let found = object.header.fragments.len();
            return Err(Error::corrupt(format!("{key}: expected {} fragments, found {found}", fragments.count())));
        }
        let mut vectors = Vec::new();
        for section in CHECKPOINT_SECTIONS {
            let values = join(key.as_ref(), section, &lengths, &object.chunks)?;
            check_finite(&key, &values)?;
            vectors.push(values);
        }
        let [parameters, first, second] = <[Vec<f32>; 3]>::try_from(vectors).expect("three sections");
        Ok((object.header, parameters, first, second))
    }

    /// Removes all but the `keep` checkpoints of an island up to step `newest`; those beyond it are of a life that could not be restored. The
    /// island's own business.
    ///
    /// # Errors
    /// Unavailable.
    pub async fn prune_checkpoints(&self, island: &str, newest: u64, keep: usize) -> Result<()> {
        let mut steps = self.checkpoints(island).await?;
        for step in steps.extract_if(.., |step| *step > newest) {
            self.delete(&self.keys.checkpoint(island, step)).await?;
        }
        for &step in steps.iter().take(steps.len().saturating_sub(keep)) {
            self.delete(&self.keys.checkpoint(island, step)).await?;
        }
        Ok(())
    }

    /// Removes versions of fragment `p`, and their states, made before round `round`, but never `current`.
    ///
    /// # Errors
    /// Unavailable.
    pub async fn prune_fragment(&self, p: usize, round: u64, current: &Version) -> Result<()> {
        for (key, _) in self.list(&self.keys.fragment_folder(p)).await? {
            if self.keys.parse_fragment_round(&key).is_some_and(|made| made < round && made != current.round) {
                self.delete(&key).await?;
            }
        }
        Ok(())
    }

    /// Removes the offers of all rounds before `round` that have their fate, or are too old to get one.
    ///
    /// # Errors
    /// Unavailable.
    pub async fn prune_offers(&self, round: u64, ledger: &Ledger) -> Result<()> {
        for (id, _) in self.all_offers().await? {
            let forgotten = id.round + MEMORY_ROUNDS < ledger.next_round;
            if id.round < round && (forgotten || ledger.is_decided(id.round, &id.island, id.incarnation)) {
                self.delete(&self.keys.offer(&id)).await?;
            }
        }
        Ok(())
    }

    /// The committed model: every fragment in the version that the log names. Shape: (elements of the model), in the arena's order.
    ///
    /// # Errors
    /// Unavailable; corrupt if an object is not what the log names.
    pub async fn committed(&self, fragments: &Fragments, versions: &[Version]) -> Result<Vec<f32>> {
        let mut arena = vec![0.0; fragments.elements_total()];
        for (p, version) in versions.iter().enumerate() {
            fragments.scatter(p, &self.fragment(fragments, p, version).await?, &mut arena);
        }
        Ok(arena)
    }
}

/// What a checkpoint holds, in this order.
const CHECKPOINT_SECTIONS: [&str; 3] = ["parameters", "first_moment", "second_moment"];
