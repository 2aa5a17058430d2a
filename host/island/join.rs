//! Bringing an island into a run: claim a life, read the log, restore, take in what was committed.
//!
//! What is restored, in this order of preference: the island's own newest checkpoint (parameters, moments); the moments of
//! the freshest peer's checkpoint; fresh moments. Fragments committed since are taken in whole; where the checkpoint's base is still the
//! current version, the island's own progress is kept.
//!
//! The place in the data comes from the last heartbeat, which is newer than any checkpoint: what was trained on after the checkpoint has mostly been
//! merged, and to go over it again would count it twice. Each block that is gone on with is claimed once more, so that of this life, an earlier one
//! that is not dead, and a peer that took the block over, one has it.
//!
//! A crash at any point here leaves a claimed life that nobody uses, which is harmless: the next one is newer.

use super::inner::Inner;
use super::machine::{Machine, Rules};
use super::stepper::{Base, Status};
use crate::bucket::record::{Card, FORMAT, IslandState, RunRecord, Version};
use crate::bucket::{Bucket, FragmentFacts, Shelf, Tail};
use crate::clock::Duration;
use crate::data::Cursor;
use crate::error::{Error, Kind, Result};
use crate::event::Sink;
use crate::outer::{Fragments, Period};
use crate::policy::Role;
use std::sync::Arc;
use tombolo_engine::Layout;

/// Blocks that a heartbeat or a checkpoint is believed to hold; the claims themselves are in the bucket.
const BLOCKS_HELD_MAX: usize = 16;

/// Everything that an island is given.
pub struct Site {
    /// The run's bucket.
    pub bucket: Bucket,
    /// The run's record.
    pub record: RunRecord,
    /// Name of the island.
    pub name: String,
    /// Layout of the model.
    pub layout: Layout,
    /// Fragments of the model.
    pub fragments: Arc<Fragments>,
    /// The run's policies.
    pub shelf: Shelf,
    /// The inner loop; its parameters are overwritten.
    pub inner: Box<dyn Inner>,
    /// Where events go.
    pub sink: Sink,
    /// Time between two heartbeats.
    pub beat_every: Duration,
}

/// An island that is ready to train.
pub(super) struct Joined {
    pub site: Site,
    pub incarnation: u64,
    pub tail: Tail,
    pub machine: Machine,
    pub status: Status,
    pub bases: Vec<Base>,
}

/// Brings an island into its run; `trust` says whether its own checkpoint may be gone on from.
///
/// # Errors
/// Unavailable or corrupt bucket; no codec of the run can be used; the run has not started; the model's layout is not the run's.
pub(super) async fn join(mut site: Site, trust: bool) -> Result<Joined> {
    if site.fragments.fingerprint() != site.record.layout {
        return Err(Error::invalid(format!(
            "island {}: the model's layout is {}, the run's is {}; both must come from the same spec",
            site.name,
            site.fragments.fingerprint(),
            site.record.layout
        )));
    }
    // Before anything is written: an island that could never offer leaves nothing behind.
    let mut tail = Tail::of(&site.bucket, &site.record).await?;
    tail.advance(&site.bucket, usize::MAX).await?;
    site.shelf.require(Role::Codec, &tail.ledger.active, tail.ledger.next_round).await?;
    let incarnation = site.bucket.claim_incarnation(&site.name).await?;
    let last = site.bucket.card(&site.name).await?.unwrap_or_default();
    site.bucket.put_card(&starting(&site, incarnation, &last)).await?;
    tail.advance(&site.bucket, usize::MAX).await?;
    if tail.ledger.versions.is_empty() {
        return Err(Error::unavailable(format!(
            "run {}: has no start entry in its log yet; try again",
            site.record.spec.run
        )));
    }

    let mut status =
        Status { step: last.step, tokens_repeated: last.tokens_repeated, held: last.held, ..Status::default() };
    let (mut trained, mut late) = (last.tokens, last.progress.late);
    let mut facts: Vec<FragmentFacts> =
        (0..site.fragments.count()).map(|_| FragmentFacts { base: u64::MAX, steps: 0, tokens: 0 }).collect();
    let own = if trust { newest_checkpoint(&site, &site.name).await? } else { None };
    if let Some((header, parameters, first, second)) = own {
        site.inner.parameters_mut().copy_from_slice(&parameters);
        site.inner.set_moments(&first, &second, header.adam_steps)?;
        if header.step >= status.step {
            (status.step, status.tokens_repeated, status.held) = (header.step, header.tokens_repeated, header.held);
            (trained, late) = (header.tokens, header.late);
        }
        facts = header.fragments;
        site.sink.note(&site.name, format!("life {incarnation} goes on from its checkpoint at step {}", header.step));
    } else if let Some((peer, header, first, second)) = freshest_peer(&site).await? {
        site.inner.set_moments(&first, &second, header.adam_steps)?;
        site.sink.note(&site.name, format!("joins with the moments of {peer} at step {}", header.step));
    }

    let mut bases = Vec::new();
    for (p, facts) in facts.iter_mut().enumerate() {
        let (version, values) = current(&site, &mut tail, p).await?;
        if facts.base != version.round {
            site.fragments.scatter(p, &values, site.inner.parameters_mut());
            *facts = FragmentFacts { base: version.round, steps: 0, tokens: 0 };
        }
        bases.push(Base { round: version.round, values });
    }
    let outer = &site.record.spec.outer;
    let rules =
        Rules { fragments: site.fragments.count(), period: Period::of(outer), staleness_max: outer.staleness_max };
    let mut machine = Machine::new(&site.name, incarnation, rules, &tail.ledger);
    machine.restore(&facts);
    machine.account(trained, late);
    if machine.stopped().is_none() {
        status.held = resume(&site.bucket, &site.name, incarnation, &status.held).await?;
        status.held.iter().for_each(|&block| site.inner.give_block(block));
    }
    Ok(Joined { site, incarnation, tail, machine, status, bases })
}

/// The current version of fragment `p`. Over a slow link the versions before it take so long that this one may have been succeeded and deleted meanwhile; then the log is read on.
async fn current(site: &Site, tail: &mut Tail, p: usize) -> Result<(Version, Vec<f32>)> {
    loop {
        let version = tail.ledger.versions[p].clone();
        match site.bucket.fragment(&site.fragments, p, &version).await {
            Ok(values) => return Ok((version, values)),
            Err(error) if error.kind() == Kind::Unavailable => {
                tail.advance(&site.bucket, usize::MAX).await?;
                if tail.ledger.versions[p] == version {
                    return Err(error);
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// Claims the blocks that earlier lives left unfinished, those included that were claimed after the last heartbeat; or else the first that nobody has.
async fn resume(bucket: &Bucket, name: &str, incarnation: u64, held: &[Cursor]) -> Result<Vec<Cursor>> {
    let mut mine = Vec::new();
    let mut left = held.to_vec();
    let unknown = held.iter().map(|held| held.block.saturating_add(1)).max().unwrap_or(0);
    if incarnation > 1 {
        let more = bucket.blocks_held_from(unknown, name, 1..=incarnation - 1).await?;
        left.extend(more.into_iter().map(Cursor::at));
    }
    for left in left.into_iter().filter(|left| !left.is_used_up()).take(BLOCKS_HELD_MAX) {
        if let Some(attempt) = bucket.take_over_block(left.block, name, name, incarnation).await? {
            mine.push(Cursor { attempt, ..left });
        }
    }
    if mine.is_empty() {
        let mut block = bucket.next_block().await?;
        while !bucket.claim_block(block, name, incarnation).await? {
            block += 1;
        }
        mine.push(Cursor::at(block));
    }
    Ok(mine)
}

/// The first heartbeat of a life. It repeats where the last life stood, so that nothing is forgotten if this one dies while it joins.
fn starting(site: &Site, incarnation: u64, last: &Card) -> Card {
    Card {
        format: FORMAT,
        island: site.name.clone(),
        incarnation,
        counter: 1,
        state: IslandState::Starting,
        layout: site.fragments.fingerprint().to_string(),
        step: last.step,
        tokens: last.tokens,
        tokens_repeated: last.tokens_repeated,
        progress: last.progress,
        held: last.held.clone(),
        ..Card::default()
    }
}

/// An island's newest checkpoint that is whole; a damaged one is passed over with a note.
async fn newest_checkpoint(site: &Site, island: &str) -> Result<Option<crate::bucket::Checkpoint>> {
    for step in site.bucket.checkpoints(island).await?.into_iter().rev() {
        match site.bucket.checkpoint(&site.layout, &site.fragments, island, step).await {
            Ok(checkpoint) => return Ok(Some(checkpoint)),
            // The bucket is away: forgetting what one has learned would be worse than trying again.
            Err(error) if error.kind() == Kind::Unavailable && island == site.name => return Err(error),
            Err(error) => site.sink.note(&site.name, format!("passes over a checkpoint: {}", error.chain())),
        }
    }
    Ok(None)
}

/// The moments of the peer that got furthest: its name, its checkpoint's header, first and second moments.
async fn freshest_peer(site: &Site) -> Result<Option<(String, crate::bucket::CheckpointHeader, Vec<f32>, Vec<f32>)>> {
    let mut furthest: Option<(u64, String)> = None;
    for peer in site.bucket.islands().await? {
        if peer != site.name
            && let Some(&step) = site.bucket.checkpoints(&peer).await?.last()
        {
            furthest = furthest.max(Some((step, peer)));
        }
    }
    let Some((_, peer)) = furthest else { return Ok(None) };
    Ok(newest_checkpoint(site, &peer).await?.map(|(header, _, first, second)| (peer, header, first, second)))
}
