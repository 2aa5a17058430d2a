//! Lives of one island: what a new one takes over from those before it, and what an old one may not do any more.

use super::*;
use crate::support::watched::Watched;

/// An inner loop that keeps the blocks it is given.
struct Keeping {
    constant: Constant,
    given: Arc<std::sync::Mutex<Vec<Cursor>>>,
}

impl Inner for Keeping {
    fn parameters(&self) -> &[f32] {
        self.constant.parameters()
    }
    fn parameters_mut(&mut self) -> &mut [f32] {
        self.constant.parameters_mut()
    }
    fn step(&mut self, learning_rate: f32) -> Result<Stepped> {
        self.constant.step(learning_rate)
    }
    fn moments(&self) -> (&[f32], &[f32], u64) {
        self.constant.moments()
    }
    fn set_moments(&mut self, first: &[f32], second: &[f32], steps: u64) -> Result<()> {
        self.constant.set_moments(first, second, steps)
    }
    fn held(&self) -> Vec<Cursor> {
        Vec::new()
    }
    fn wants_block(&self) -> bool {
        false
    }
    fn give_block(&mut self, block: Cursor) {
        self.given.lock().unwrap().push(block);
    }
}

/// The blocks that island `a` begins its next life with, as block and window.
async fn begins_with(world: &World) -> Result<Vec<(u64, u64)>> {
    let given = Arc::new(std::sync::Mutex::new(Vec::new()));
    let inner = Keeping { constant: Constant { parameters: vec![0.0], gradient: vec![0.1] }, given: given.clone() };
    let mut site = Some(world.site("a", Box::new(inner), STEP));
    let once = move || std::future::ready(site.take().ok_or_else(|| Error::bug("one life")));
    island::live(once, Drive::Virtual(STEP), clock::sleep(STEP * 3)).await?;
    let given = given.lock().unwrap();
    Ok(given.iter().map(|cursor| (cursor.block, cursor.window as u64)).collect())
}

#[test]
fn a_new_life_takes_over_what_the_last_one_claimed_after_its_last_heartbeat() {
    on_virtual_time(71, async {
        let world = world(spec(1, "mean", ""), 1, 1).await?;
        let bucket = &world.bucket;
        assert_eq!(bucket.claim_incarnation("a").await?, 1);
        for (block, island) in [(0, "a"), (1, "b"), (2, "a"), (3, "b")] {
            assert!(bucket.claim_block(block, island, 1).await?);
        }
        let held = vec![Cursor { window: 7, ..Cursor::at(0) }];
        let card = Card { format: FORMAT, island: "a".into(), incarnation: 1, counter: 9, held, ..Card::default() };
        bucket.put_card(&card).await?;
        assert_eq!(begins_with(&world).await?, [(0, 7), (2, 0)]);
        // Killed before its first heartbeat, a life has said nothing at all.
        let world = super::world(spec(1, "mean", ""), 1, 1).await?;
        assert_eq!(world.bucket.claim_incarnation("a").await?, 1);
        assert!(world.bucket.claim_block(0, "a", 1).await?);
        assert_eq!(begins_with(&world).await?, [(0, 0)]);
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_life_that_was_succeeded_writes_no_checkpoint_and_removes_none() {
    on_virtual_time(72, async {
        let mut spec = spec(1, "mean", "");
        (spec.keep.checkpoint_seconds, spec.keep.checkpoints) = (1, 2);
        let world = world(spec, 1, 1).await?;
        let inner = Box::new(Constant { parameters: vec![0.0], gradient: vec![0.1] });
        // A heart that beats once in ten minutes, and so looks for a newer life as rarely.
        let mut site = Some(Site { beat_every: Duration::from_secs(600), ..world.site("a", inner, STEP) });
        let once = move || std::future::ready(site.take().ok_or_else(|| Error::bug("one life")));
        let old = tokio::spawn(island::live(once, Drive::Virtual(STEP), std::future::pending()));
        while world.bucket.checkpoints("a").await?.len() < 2 {
            clock::sleep(STEP).await;
        }
        assert_eq!(world.bucket.claim_incarnation("a").await?, 2);
        let there = world.bucket.checkpoints("a").await?;
        let ended = clock::timeout(Duration::from_secs(30), old).await.expect("it ends").expect("no panic");
        assert_eq!(ended.expect_err("there is a newer one").kind(), Kind::Fenced);
        assert_eq!(world.bucket.checkpoints("a").await?, there);
        Ok(())
    })
    .unwrap();
}

#[test]
fn an_island_whose_download_outlasts_a_version_joins_with_the_one_after_it() {
    let ledger = on_virtual_time(73, async {
        let mut spec = spec(2, "mean", "eta = 0.1\n");
        spec.keep.versions = 1;
        let world = world(spec, 2, 2).await?;
        let desk = world.desk(STEP);
        tokio::spawn(async move { syncer::run(desk, std::future::pending()).await.expect("the syncer works") });
        let constant = || Box::new(Constant { parameters: vec![0.0; 2], gradient: vec![0.1; 2] });
        let mut site = Some(world.site("a", constant(), STEP));
        let once = move || std::future::ready(site.take().ok_or_else(|| Error::bug("one life")));
        tokio::spawn(island::live(once, Drive::Virtual(STEP), std::future::pending()));
        while world.ledger().await?.rounds_committed() < 10 {
            clock::sleep(STEP).await;
        }
        // Long enough for the version to be succeeded many times over, and deleted.
        let slow = Watched::late(
            world.bucket.store().clone(),
            |key| key.contains("/fragment/"),
            std::time::Duration::from_secs(60),
            1,
        );
        let far = World { bucket: Bucket::new(Arc::new(slow), &world.record.spec.run), ..world.clone() };
        let mut site = Some(far.site("b", constant(), STEP));
        let once = move || std::future::ready(site.take().ok_or_else(|| Error::bug("one life")));
        let joined = tokio::spawn(island::live(once, Drive::Virtual(STEP), std::future::pending()));
        clock::sleep(Duration::from_secs(120)).await;
        assert!(!joined.is_finished(), "it trains");
        world.ledger().await
    })
    .unwrap();
    assert!(
        ledger.accounts.get("b").is_some_and(|account| account.fragment_tokens > 0),
        "{:?}",
        ledger.accounts.keys()
    );
}
