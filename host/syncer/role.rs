//! The role of the syncer: who acts, who stands by, and the beats by which they know each other. Safety rests on none of this: two that act at
//! once waste work, and the log decides.

use super::run::{Cards, Desk, Next, Syncer, lock};
use crate::bucket::record::{Beat, Body, FORMAT, IslandState};
use crate::clock::{self, Duration};
use crate::error::Result;
use futures::future::join_all;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Cards that are read at once.
const READS_MAX: usize = 16;
/// Beats that an acting syncer may miss before another takes the role.
const MISSED_BEATS: u32 = 5;

/// Beats until it is aborted.
pub(super) async fn beat(desk: Arc<Desk>, acting: Arc<Mutex<Option<u64>>>) {
    for counter in 1u64.. {
        let beat = Beat { format: FORMAT, syncer: desk.id.clone(), counter, acting: *lock(&acting) };
        // A beat that does not get through is missed, not repeated.
        let _ = clock::timeout(desk.beat_every * MISSED_BEATS, desk.bucket.put_beat(&beat)).await;
        clock::sleep(desk.beat_every).await;
    }
}

/// Reads all islands' heartbeats, again and again, and the newest life of each whose life has changed.
pub(super) async fn watch_islands(desk: Arc<Desk>, cards: Cards, incarnations: Arc<Mutex<BTreeMap<String, u64>>>) {
    loop {
        let names = desk.bucket.islands().await.unwrap_or_default();
        for batch in names.chunks(READS_MAX) {
            let read = join_all(batch.iter().map(|name| desk.bucket.card(name))).await;
            for (name, card) in batch.iter().zip(read) {
                let Ok(Some(card)) = card else { continue };
                let training = card.state == IslandState::Training;
                let seen = (card.incarnation, card.counter, training, f64::from(card.step_ms));
                let before = lock(&cards).insert(name.clone(), seen);
                if before.is_none_or(|b| b.0 != card.incarnation)
                    && let Ok(newest) = desk.bucket.newest_incarnation(name).await
                {
                    lock(&incarnations).insert(name.clone(), newest);
                }
            }
        }
        clock::sleep(desk.beat_every).await;
    }
}

impl Syncer {
    /// Watches the acting syncer; takes the role when there is none or its beat has stopped.
    pub(super) async fn stand_by(&mut self) -> Result<Next> {
        let desk = self.desk.clone();
        let now = clock::now();
        // Nobody has the role yet: a syncer takes it at once, one beside an island leaves it to a syncer first.
        let (acting, counter) = match self.ledger().acting.clone() {
            Some(acting) => {
                let counter = desk.bucket.beat(&acting).await?.map_or(0, |b| b.counter);
                (acting, counter)
            }
            None => (String::new(), 0),
        };
        if self.watched.as_ref().is_none_or(|(id, c, _)| (id, *c) != (&acting, counter)) {
            self.watched = Some((acting.clone(), counter, now));
        }
        let quiet = self.watched.as_ref().map_or(Duration::ZERO, |(_, _, at)| now - *at);
        let silent = quiet > desk.beat_every * MISSED_BEATS || (acting.is_empty() && desk.eager);
        if silent {
            let term = self.ledger().term + 1;
            if self.append(Body::Term { number: term }, term).await? {
                desk.sink.note(&desk.id, format!("acts as the syncer of term {term}"));
                self.watched = None;
                return Ok(Next::Again(Duration::ZERO));
            }
        }
        Ok(Next::Again(desk.beat_every / 2))
    }
}
