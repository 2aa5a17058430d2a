//! The contract of the bucket: one body for each promise, run over memory, a local directory, and every S3 server of this machine. What a
//! store promises is in `server`; what is built on it in `create` (the one primitive), `log`, `object` (large ones) and `claim`.

#[path = "../support/mod.rs"]
mod support;

mod claim;
mod create;
mod doctor;
mod fuzz;
mod log;
mod object;
mod provision;
mod server;

use std::sync::Arc;

use tokio::sync::Barrier;
use tombolo::bucket::Bucket;
use tombolo::outer::Fragments;
use tombolo_engine::{Layout, ModelConfig};

use support::store::Place;

/// Fragments of [`model`].
const FRAGMENTS: usize = 5;

/// A run called `run` in the store of `place`.
fn bucket(place: &Place) -> Bucket {
    Bucket::new(place.store.clone(), "run")
}

/// A model of this width, and its fragments. At 160, its largest tensors take more than one chunk.
fn model(hidden: usize) -> (Layout, Fragments) {
    let layout = Layout::of(&ModelConfig {
        vocab_size: 256,
        hidden_size: hidden,
        intermediate_size: 2 * hidden,
        layers: 1,
        heads: 2,
        kv_heads: 2,
        head_dim: hidden / 2,
        context: 32,
        rope_theta: 10_000.0,
        norm_eps: 1e-5,
        tied: false,
        initializer_range: 0.02,
    });
    let fragments = Fragments::partition(&layout, FRAGMENTS).expect("more tensors than fragments");
    (layout, fragments)
}

/// Values that differ from each other and from those of another `seed`.
fn values(elements: usize, seed: usize) -> Vec<f32> {
    (0..elements).map(|i| (i * 7 + seed * 1_000_003) as f32 * 1e-3 - 40.0).collect()
}

/// Lets `count` racers loose at once on tasks of their own, and returns what each came to.
async fn race<T, F>(count: usize, racer: impl Fn(usize) -> F) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let start = Arc::new(Barrier::new(count));
    let racers: Vec<_> = (0..count)
        .map(|i| {
            let (start, run) = (start.clone(), racer(i));
            tokio::spawn(async move {
                start.wait().await;
                run.await
            })
        })
        .collect();
    let mut ends = Vec::new();
    for racer in racers {
        ends.push(racer.await.expect("a racer does not panic"));
    }
    ends
}
