//! What the bucket protocol rests on, tried on the stores themselves: of many who create one key at once, exactly one wins, and a lone
//! writer is answered quickly.

use std::fs;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use tokio::sync::Barrier;

use crate::support;
use crate::support::server::{servers, start_all};
use crate::support::store::on_server;

/// Racers for a key, and keys raced for. SeaweedFS makes the losers of a key wait for seconds, so
/// the keys are few.
const RACERS: usize = 16;
const KEYS: usize = 4;

fn milliseconds(sorted: &[Duration], percent: usize) -> f64 {
    sorted[(sorted.len() - 1) * percent / 100].as_secs_f64() * 1000.0
}

/// Lets all racers create `path` at once; how long the winner took, and how long each loser.
///
/// # Panics
/// If there is not exactly one winner, or if what is there is not what it wrote.
async fn race(name: &str, store: Arc<dyn ObjectStore>, path: Path) -> (Duration, Vec<Duration>) {
    let start = Arc::new(Barrier::new(RACERS));
    let racer = |racer: usize| {
        let (store, start, path) = (store.clone(), start.clone(), path.clone());
        tokio::spawn(async move {
            start.wait().await;
            let began = Instant::now();
            let body = format!("racer {racer}").into();
            let result = store.put_opts(&path, body, PutOptions::from(PutMode::Create)).await;
            (racer, result, began.elapsed())
        })
    };
    let racers: Vec<_> = (0..RACERS).map(racer).collect();
    let (mut winners, mut lost) = (Vec::new(), Vec::new());
    for racer in racers {
        match racer.await.expect("no panic") {
            (racer, Ok(_), time) => winners.push((racer, time)),
            (_, Err(Error::AlreadyExists { .. }), time) => lost.push(time),
            (racer, Err(error), _) => panic!("{name}: racer {racer} got {error}"),
        }
    }
    assert_eq!(winners.len(), 1, "{name}: winners of {path}: {winners:?}");
    let (winner, won) = winners[0];
    let body = store.get(&path).await.expect("the object").bytes().await.expect("its body");
    assert_eq!(body, format!("racer {winner}"), "{name}: the winner's body is what is there");
    (won, lost)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_sixteen_who_create_one_key_exactly_one_wins() {
    for server in servers() {
        let store = on_server(server, &server.bucket());
        let path = |key: usize| Path::from(format!("run/log/{key:020}.json"));
        let races: Vec<_> = (0..KEYS).map(|key| tokio::spawn(race(server.name, store.clone(), path(key)))).collect();
        let (mut won, mut lost) = (Vec::new(), Vec::new());
        for race in races {
            let (winner, losers) = race.await.expect("one winner");
            won.push(winner);
            lost.extend(losers);
        }
        won.sort();
        lost.sort();
        support::say(&format!(
            "{}: create won in {:.1} ms (worst {:.1}), lost in {:.1} ms (worst {:.1})",
            server.name,
            milliseconds(&won, 50),
            milliseconds(&won, 100),
            milliseconds(&lost, 50),
            milliseconds(&lost, 100)
        ));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lone_writer_is_answered_quickly() {
    for server in servers() {
        let store = on_server(server, &server.bucket());
        let mut times = Vec::new();
        for key in 0..50 {
            let path = Path::from(format!("run/log/{key:020}.json"));
            let began = Instant::now();
            let options = PutOptions::from(PutMode::Create);
            store.put_opts(&path, vec![b'x'; 1024].into(), options).await.expect("created");
            times.push(began.elapsed());
            assert_eq!(store.get(&path).await.expect("read after write").meta.size, 1024);
        }
        times.sort();
        support::say(&format!(
            "{}: create of 1 KiB in {:.1} ms (99 of 100: {:.1} ms)",
            server.name,
            milliseconds(&times, 50),
            milliseconds(&times, 99)
        ));
    }
}

#[test]
fn a_dropped_server_is_gone_and_leaves_nothing_behind() {
    for server in start_all() {
        let address = server.endpoint.trim_start_matches("http://").to_owned();
        let folder = server.folder().to_owned();
        assert!(folder.join("data").is_dir() && TcpStream::connect(&address).is_ok());
        let name = server.name;
        drop(server);
        assert!(TcpStream::connect(&address).is_err(), "{name} still listens");
        assert!(fs::metadata(&folder).is_err(), "{name} left {}", folder.display());
    }
}
