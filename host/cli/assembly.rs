//! Putting the parts of a role together: a bucket from its URL, a run from its record, an island's engine, a syncer's policies.

use crate::bucket::record::{PolicyUse, RunRecord};
use crate::bucket::{Bucket, Location, doctor};
use crate::clock::Duration;
use crate::data::{Blocks, Corpus, CorpusLimits, Source};
use crate::error::{Error, Result};
use crate::event::Sink;
use crate::island::{Site, TextInner};
use crate::nonce::nonce;
use crate::outer::Fragments;
use crate::policy::{Limits, Policy, Runtime};
use crate::spec::{PolicySpec, Spec};
use crate::syncer::Desk;
use object_store::ObjectStore;
use std::path::PathBuf;
use std::sync::Arc;
use tombolo_engine::{Layout, Model, Trainer};

/// Time between two heartbeats of an island or a syncer.
pub const BEAT_EVERY: Duration = Duration::from_millis(500);

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
    Runtime::compiling_with(policy_limits()?, cache, program)
        .map_err(|e| Error::unavailable("the policy runtime does not start").because(e))
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
        let names = run_names(&store).await?;
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
        Run::of(bucket, record)
    }

    /// The run of this record.
    pub fn of(bucket: Bucket, record: RunRecord) -> Result<Run> {
        record.spec.check("run.json")?;
        let layout = Layout::of(&record.spec.model_config());
        let fragments = Fragments::partition(&layout, record.spec.outer.fragments)?;
        if fragments.fingerprint() != record.layout || fragments.count() != record.fragments {
            return Err(Error::invalid(format!(
                "run {}: its model's layout is {}, this version of tombolo makes {} of its spec; use the version that made the run",
                record.spec.run,
                record.layout,
                fragments.fingerprint()
            )));
        }
        Ok(Run { bucket, record, layout, fragments: Arc::new(fragments) })
    }

    /// A policy of the run, from the bucket, checked against its hash.
    pub async fn policy(&self, runtime: &Runtime, which: &PolicyUse) -> Result<Policy> {
        let wasm = self.bucket.policy(&which.hash).await?;
        runtime.load(&wasm).map_err(|e| Error::invalid(format!("policy {} ({})", which.name, which.hash)).because(e))
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
            codec: self.policy(runtime, &self.record.codec).await?,
            inner: Box::new(TextInner::new(trainer, blocks, spec.train.batch)),
            sink,
            beat_every: BEAT_EVERY,
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
            codec: self.policy(runtime, &self.record.codec).await?,
            merge: self.policy(runtime, &self.record.merge).await?,
            threads,
            eager: true,
            sink,
            beat_every: BEAT_EVERY,
        })
    }
}

/// Names of the runs in a store, sorted.
pub async fn run_names(store: &Arc<dyn ObjectStore>) -> Result<Vec<String>> {
    use object_store::ObjectStoreExt;
    let listed = store.list_with_delimiter(None).await.map_err(|e| {
        Error::unavailable("the bucket cannot be listed; check its name, the endpoint and the credentials").because(e)
    })?;
    let mut names = Vec::new();
    for prefix in listed.common_prefixes {
        let Some(name) = prefix.filename().filter(|n| crate::bucket::key::is_run_name(n)) else { continue };
        if store.head(&crate::bucket::Keys::new(name).run()).await.is_ok() {
            names.push(name.to_string());
        }
    }
    names.sort();
    Ok(names)
}

/// Cores of this machine.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}
