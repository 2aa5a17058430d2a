//! Whether a store can be a bucket: good ones pass and keep nothing, and of those that break one promise exactly that is said.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use object_store::ObjectStore;
use tombolo::bucket::doctor::{Report, examine, require_conditions};
use tombolo::error::Kind;

use crate::support::careless::{Careless, Manner};
use crate::support::store::everywhere;
use crate::support::{flaky::Flaky, say};

/// As often as on stores that say nothing against it.
const BEAT_EVERY: Duration = Duration::from_millis(500);
const CREATES: [&str; 2] = ["create if absent", "racing creates"];

#[test]
fn a_store_that_can_be_a_bucket_passes_every_check_and_keeps_nothing() {
    everywhere(|place| async move {
        require_conditions(&*place.store, place.name).await.expect("it knows conditions");
        let mut told = Vec::new();
        let report = examine(&place.store, BEAT_EVERY, |finding| told.push(finding.clone())).await.expect("it answers");
        for finding in &report.findings {
            assert!(finding.ok, "{}: {finding:?}", place.name);
        }
        assert_eq!(report.findings.len(), 11, "{report:?}");
        assert_eq!(told, report.findings, "every finding is told once, in order");
        assert!(report.is_fit() && report.failed().is_empty());
        let measured = report.measured;
        assert!(measured.put.requests >= 14 && measured.get.requests == measured.put.requests, "{measured:?}");
        assert!(measured.put.median_ms <= measured.put.p99_ms, "{measured:?}");
        assert_eq!(measured.lost_create.requests, 8 * 15, "of sixteen racers fifteen lose");
        assert!(measured.up_mb_per_s > 0.0 && measured.down_mb_per_s > 0.0);
        say(&format!("{}: {measured:?}", place.name));
        assert!(place.store.list(None).next().await.is_none(), "{}: something was left", place.name);
    });
}

/// On paused time, so that a beat that stands still is found out at once.
fn on_paused_time<T>(body: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.expect("a runtime").block_on(body)
}

fn examined(manner: Manner) -> (Report, Arc<Careless>) {
    on_paused_time(async {
        let careless = Arc::new(Careless::new(manner));
        let store: Arc<dyn ObjectStore> = careless.clone();
        (
            examine(&store, BEAT_EVERY, |_| {}).await.unwrap_or_else(|error| panic!("{manner:?}: {}", error.chain())),
            careless,
        )
    })
}

#[test]
fn of_a_store_that_breaks_one_promise_exactly_that_is_said_and_everything_is_removed() {
    let breaks: [(Manner, &[&str], &str); 10] = [
        (Manner::CreateReplaces, &CREATES, "replaced the bytes"),
        (Manner::CreateChangesNothing, &CREATES, "changed nothing"),
        (Manner::CreateLooksFirst, &["racing creates"], "of 16 who created one key at once, 16 were told"),
        (
            Manner::CreateUnsupported,
            &["create if absent", "racing creates", "listing"],
            "cannot create an object only if",
        ),
        (Manner::ReadsStale, &["read after overwrite", "liveness"], "an earlier version came back"),
        (Manner::ListsLate, &["listing"], "was written, and a listing that starts after"),
        (Manner::CutsLarge, &["large put", "multipart upload"], "2097152 others came back"),
        (Manner::IgnoresRanges, &["ranges"], "were asked for, and 4101 others came back"),
        (Manner::NoMultipart, &["multipart upload"], "501 NotImplemented"),
        (Manner::KeepsDeleted, &["deletes"], "was deleted, and can still be read"),
    ];
    for (manner, checks, found) in breaks {
        let (report, store) = examined(manner);
        assert_eq!(report.failed(), checks, "{manner:?}: {report:#?}");
        assert!(!report.is_fit());
        let first = report.findings.iter().find(|f| !f.ok).expect("one failed");
        assert!(first.found.contains(found), "{manner:?}: {first:?}");
        assert!(!first.without.is_empty());
        let kept = manner == Manner::KeepsDeleted;
        assert_eq!(on_paused_time(store.is_empty()), !kept, "{manner:?}");
    }
}

#[test]
fn roles_are_refused_a_store_that_ignores_conditions() {
    on_paused_time(async {
        for manner in [Manner::CreateReplaces, Manner::CreateChangesNothing, Manner::CreateUnsupported] {
            let store = Careless::new(manner);
            let error = require_conditions(&store, "s3://shared/x").await.expect_err("it ignores conditions");
            assert_eq!(error.kind(), Kind::Invalid, "{manner:?}");
            for said in ["s3://shared/x: ", "`tombolo doctor`"] {
                assert!(error.chain().contains(said), "{manner:?}: {}", error.chain());
            }
            assert!(store.is_empty().await, "{manner:?}: something was left");
        }
        let store = Careless::new(Manner::ReadsStale);
        require_conditions(&store, "here").await.expect("a store that honours conditions is let pass");
        assert!(store.is_empty().await, "something was left");
    });
}

#[test]
fn a_store_that_does_not_answer_is_unavailable_and_not_unfit() {
    on_paused_time(async {
        let down: Arc<dyn ObjectStore> = Arc::new(Flaky::down(Arc::new(object_store::memory::InMemory::new())));
        let error =
            examine(&down, BEAT_EVERY, |finding| panic!("{finding:?}")).await.expect_err("nothing gets through");
        assert_eq!(error.kind(), Kind::Unavailable);
        assert_eq!(require_conditions(&*down, "here").await.expect_err("no answer").kind(), Kind::Unavailable);

        let dies: Arc<dyn ObjectStore> = Arc::new(Careless::new(Manner::Dies));
        let mut told = Vec::new();
        let error =
            examine(&dies, BEAT_EVERY, |finding| told.push(finding.check)).await.expect_err("it stopped answering");
        assert_eq!(error.kind(), Kind::Unavailable);
        assert!(error.chain().contains("stopped answering during `large put`"), "{}", error.chain());
        assert_eq!(told.last(), Some(&"listing"), "what was found before is told");
    });
}

#[test]
fn a_store_that_fails_now_and_then_is_found_fit_all_the_same() {
    // Its puts alone fail, and the client's own retries are not in between: the checks that create must come to the right end.
    on_paused_time(async {
        for seed in 0..5 {
            let flaky = Flaky::new(Arc::new(object_store::memory::InMemory::new()), 0.2, seed);
            match require_conditions(&flaky, "here").await {
                Ok(()) => {}
                Err(error) => panic!("seed {seed}: {}", error.chain()),
            }
        }
    });
}
