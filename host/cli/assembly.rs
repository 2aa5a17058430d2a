//! Putting the parts of a role together: a bucket from its URL, a run from its record, an island's engine, a syncer's policies.

use crate::activate::shape;
use crate::bucket::record::RunRecord;
use crate::bucket::{Bucket, Location, Shelf, doctor, run_names};
use crate::clock::Duration;
use crate::data::{Blocks, Corpus, CorpusLimits, Source};
use crate::error::{Error, Result};
use crate::event::Sink;
use crate::island::{Site, TextInner};
use crate::nonce::nonce;
use crate::outer::Fragments;
use crate::policy::{Limits, Runtime};
use crate::spec::{PolicySpec, Spec};
use crate::syncer::Desk;
use object_store::ObjectStore;
use std::path::PathBuf;
use std::sync::Arc;
use tombolo_engine::{Layout, Model, Trainer};

/// Bounds on policies: the defaults, or wider ones where the operator of this machine has set `TOMBOLO_POLICY_LIMITS=large`.
///
/// # Errors
/// Invalid: the variable has another value.
pub fn policy_limits() -> Result<Limits> {
    match std::env::var("TOMBOLO_POLICY_LIMITS").as_deref() {
        Err(std::env::VarError::NotPresent) | Ok("") | Ok("default") => Ok(Limits::default()),
        Ok("large") => Ok(Limits::large()),
        other => Err(Error::invalid(format!("TOMBOLO_POLICY_LIMITS: expected default or large, found {other:?}"))),
    }
}

/// The policy runtime with this user's cache of compiled components.
pub fn policy_runtime() -> Result<Runtime> {
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))
        .map(|dir| dir.join("tombolo/policy"));
    let program =
        std::env::current_exe().map_err(|e| Error::unavailable("this program does not find itself").because(e))?;
    let limits = policy_limits()?;
    let runtime = match Runtime::compiling_with(limits.clone(), cache.clone(), program.clone()) {
        Err(error) if cache.is_some() && error.is_of_host() => {
            eprintln!("warning: compiled policies are not kept: {error}");
            Runtime::compiling_with(limits, None, program)
        }
        runtime => runtime,
    };
    runtime.map_err(|e| Error::unavailable("the policy runtime does not start").because(e))
}

/// A policy by its bundled name, or from a file.
pub fn policy_wasm(spec: &PolicySpec, role: &str) -> Result<Vec<u8>> {
    if let Some(wasm) = crate::policy::bundled_wasm(&spec.policy) {
        return Ok(wasm.to_vec());
    }
    if !spec.policy.ends_with(".wasm") {
        return Err(Error::invalid(format!(
            "{role}.policy: expected a bundled policy ({}) or the path of a .wasm component, found `{}`",
            crate::policy::bundled_names().join(", "),
            spec.policy
        )));
    }
    std::fs::read(&spec.policy)
        .map_err(|e| Error::invalid(format!("{role}.policy: {}: cannot be read", spec.policy)).because(e))
}

/// Opens the text; `elsewhere` overrides the spec's place.
pub fn open_corpus(spec: &Spec, elsewhere: Option<&str>) -> Result<Corpus> {
    let path = elsewhere.unwrap_or(&spec.data.path);
    let source = if path.is_empty() { Source::CargoRegistry } else { Source::Path(path.into()) };
    Corpus::open(&source, &CorpusLimits::default()).map_err(|e| Error::invalid(e.to_string()))
}

/// A run that exists, with what every role needs of it.
#[derive(Clone)]
pub struct Run {
    /// The run's bucket.
    pub bucket: Bucket,
    /// Its record.
    pub record: RunRecord,
    /// Its model's layout.
    pub layout: Layout,
    /// Its fragments.
    pub fragments: Arc<Fragments>,
    /// Time between two heartbeats of an island or a syncer.
    pub beat_every: Duration,
}

/// Opens a bucket to write to it, made where it is absent if `create` is set: a store that ignores conditions is refused here.
///
/// # Errors
/// As [`Location::open`]; Invalid: the store cannot be a bucket.
pub async fn open_for_writing(location: &Location, create: bool) -> Result<Arc<dyn ObjectStore>> {
    let store = location.open(create).await?;
    doctor::require_conditions(&*store, &location.to_string()).await?;
    Ok(store)
}

impl Run {
    /// As [`Run::find`], to take a role in the run.
    ///
    /// # Errors
    /// Those of [`Run::find`]; Invalid: the store ignores conditions, and no role is safe there.
    pub async fn enter(store: Arc<dyn ObjectStore>, location: &Location, name: Option<&str>) -> Result<Run> {
        let run = Run::find(store, location, name).await?;
        doctor::require_conditions(&**run.bucket.store(), &location.to_string()).await?;
        Ok(run)
    }

    /// Opens the run called `name`, or the only one of the bucket.
    ///
    /// # Errors
    /// No such run, or several and no name; an unreadable bucket.
    pub async fn open(location: &Location, name: Option<&str>) -> Result<Run> {
        Run::find(location.open(false).await?, location, name).await
    }

    /// As [`Run::open`], through a store that is open already.
    ///
    /// # Errors
    /// No such run, or several and no name; an unreadable bucket.
    pub async fn find(store: Arc<dyn ObjectStore>, location: &Location, name: Option<&str>) -> Result<Run> {
        let names = run_names(&*store).await?;
        let known = || if names.is_empty() { "none".to_string() } else { names.join(", ") };
        let name = match (name, names.as_slice()) {
            (Some(name), _) if names.iter().any(|n| n == name) => name.to_string(),
            (Some(name), _) => {
                return Err(Error::invalid(format!(
                    "{}: expected a run called `{name}`, found {}; start one with `tombolo run` or `tombolo submit`",
                    location.url,
                    known()
                )));
            }
            (None, [one]) => one.clone(),
            (None, []) => {
                return Err(Error::invalid(format!(
                    "{}: expected a run, found none; start one with `tombolo run` or `tombolo submit`",
                    location.url
                )));
            }
            (None, _) => {
                return Err(Error::invalid(format!(
                    "{}: holds several runs; say which with --run: {}",
                    location.url,
                    known()
                )));
            }
        };
        let bucket = Bucket::new(store, &name);
        let record = bucket
            .run_record()
            .await?
            .ok_or_else(|| Error::unavailable(format!("{}: run {name} was there and is gone", location.url)))?;
        Run::of(bucket, record, location)
    }

    /// The run of this record, in a bucket at `location`.
    pub fn of(bucket: Bucket, record: RunRecord, location: &Location) -> Result<Run> {
        let (layout, fragments) = shape(&record)?;
        Ok(Run { bucket, record, layout, fragments: Arc::new(fragments), beat_every: location.beat_every()? })
    }

    /// Everything that an island of this run needs.
    pub async fn site(
        &self,
        runtime: &Runtime,
        name: &str,
        threads: usize,
        data: Option<&str>,
        sink: Sink,
    ) -> Result<Site> {
        if !crate::bucket::key::is_name(name) {
            return Err(Error::invalid(format!(
                "--name: expected 1 to 64 lower-case letters, digits and dashes, found `{}`",
                name.escape_debug()
            )));
        }
        let spec = &self.record.spec;
        let corpus = open_corpus(spec, data)?;
        if corpus.fingerprint() != self.record.corpus {
            return Err(Error::invalid(format!(
                "island {name}: the text here ({}) has fingerprint {}, the run's has {}; give this island the same text with --data",
                corpus.description(),
                corpus.fingerprint(),
                self.record.corpus
            )));
        }
        let blocks =
            Blocks::new(&corpus, spec.seed, spec.model.context, 1).map_err(|e| Error::invalid(e.to_string()))?;
        // The parameters are overwritten by what is committed; only their shape matters here.
        let trainer = Trainer::new(Model::init(&spec.model_config(), spec.seed)?, spec.adamw(), threads)?;
        Ok(Site {
            bucket: self.bucket.clone(),
            record: self.record.clone(),
            name: name.to_string(),
            layout: self.layout.clone(),
            fragments: self.fragments.clone(),
            shelf: Shelf::new(runtime, &self.bucket),
            inner: Box::new(TextInner::new(trainer, blocks, spec.train.batch)),
            sink,
            beat_every: self.beat_every,
        })
    }

    /// Everything that a syncer of this run needs.
    pub async fn desk(&self, runtime: &Runtime, threads: usize, sink: Sink) -> Result<Desk> {
        Ok(Desk {
            bucket: self.bucket.clone(),
            record: self.record.clone(),
            id: format!("syncer-{}", &nonce()[..8]),
            fragments: self.fragments.clone(),
            tensors: (0..self.fragments.count()).map(|p| self.fragments.policy_tensors(p)).collect(),
            shelf: Shelf::new(runtime, &self.bucket),
            threads,
            eager: true,
            sink,
            beat_every: self.beat_every,
        })
    }
}

/// Cores of this machine.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}
