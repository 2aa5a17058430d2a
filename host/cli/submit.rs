//! Putting a run into a bucket: check everything first, then policies, the initial model, the run's record, the first log entry.
//!
//! A crash before the record leaves objects that nothing names; a crash between the record and the first entry leaves a run that the same
//! command completes. Two machines that submit the same run at once end up with one.

use super::arguments::{SpecArguments, SubmitArguments};
use super::assembly::{Run, cores, open_corpus, open_for_writing, policy_runtime, policy_wasm};
use crate::activate::{require_admission, try_on, untuned};
use crate::bucket::record::{FORMAT, PolicyUse, RunRecord};
use crate::bucket::{Bucket, Location};
use crate::data::{Blocks, Corpus};
use crate::error::{Error, Result};
use crate::nonce::nonce;
use crate::outer::Fragments;
use crate::policy::{Role, Runtime, bundled_wasm};
use crate::spec::{PolicySpec, Spec};
use crate::syncer::Rules;
use object_store::ObjectStore;
use std::sync::Arc;
use tombolo_engine::{Layout, Model};

/// The spec that the arguments describe.
pub fn read_spec(arguments: &SpecArguments) -> Result<Spec> {
    let mut spec = match &arguments.spec {
        Some(path) => {
            let origin = path.display().to_string();
            let text = std::fs::read_to_string(path)
                .map_err(|e| Error::invalid(format!("{origin}: the run spec cannot be read")).because(e))?;
            Spec::parse(&text, &origin)?
        }
        None => Spec::default(),
    };
    if let Some(run) = &arguments.run {
        spec.run = run.clone();
    }
    if let Some(data) = &arguments.data {
        spec.data.path = data.clone();
    }
    spec.islands = arguments.islands.unwrap_or(spec.islands);
    spec.tokens = arguments.tokens.unwrap_or(spec.tokens);
    spec.seed = arguments.seed.unwrap_or(spec.seed);
    spec.check("the run spec with the command line")?;
    Ok(spec)
}

/// Everything that a run is made of, checked, before anything is written.
pub struct Draft {
    record: RunRecord,
    wasm: Vec<Vec<u8>>,
    model: Model,
    fragments: Fragments,
    /// The text.
    pub corpus: Corpus,
}

impl Draft {
    /// Checks the spec against the text, the engine and the policies.
    ///
    /// # Errors
    /// Whatever does not fit; nothing has been written.
    pub fn new(spec: &Spec, runtime: &Runtime) -> Result<Draft> {
        let corpus = open_corpus(spec, None)?;
        Blocks::new(&corpus, spec.seed, spec.model.context, spec.islands).map_err(|e| Error::invalid(e.to_string()))?;
        let config = spec.model_config();
        let layout = Layout::of(&config);
        let fragments = Fragments::partition(&layout, spec.outer.fragments)?;
        let (codec, codec_wasm) = policy_use("codec", &spec.codec, Role::Codec, runtime)?;
        let (merge, merge_wasm) = policy_use("merge", &spec.merge, Role::Merge, runtime)?;
        let (pace, pace_wasm) = policy_use("pace", &spec.pace, Role::Pace, runtime)?;
        let down = match spec.down.policy.as_str() {
            "" => None,
            _ => Some(policy_use("down", &spec.down, Role::Codec, runtime)?),
        };
        let mut policies = vec![
            ("codec", Role::Codec, &codec, codec_wasm),
            ("merge", Role::Merge, &merge, merge_wasm),
            ("pace", Role::Pace, &pace, pace_wasm),
        ];
        if let Some((down, wasm)) = &down {
            policies.push(("down", Role::Codec, down, wasm.clone()));
        }
        for (field, role, used, wasm) in &policies {
            let in_field = || Error::invalid(format!("{field}.policy: {}", used.name));
            let policy = runtime.load(wasm).map_err(|e| in_field().because(e))?;
            try_on(*role, &policy, &used.config, spec, &fragments).map_err(|e| in_field().because(e))?;
        }
        let wasm = policies.into_iter().map(|(.., wasm)| wasm).collect();
        let record = RunRecord {
            format: FORMAT,
            nonce: nonce(),
            spec: spec.clone(),
            layout: fragments.fingerprint().to_string(),
            corpus: corpus.fingerprint(),
            fragments: fragments.count(),
            codec,
            merge,
            pace,
            down: down.map(|(down, _)| down),
            chaos: false,
        };
        let model = Model::init(&config, spec.seed)?;
        Ok(Draft { record, wasm, model, fragments, corpus })
    }

    /// Marks the run as one that `tombolo chaos` strikes, if it does.
    pub fn struck(mut self, chaos: bool) -> Draft {
        self.record.chaos = chaos;
        self
    }

    /// What whoever starts the run should be told of how its merge rule was tuned, if anything.
    pub fn warning(&self) -> Option<String> {
        untuned(Role::Merge, &self.record.merge, &self.record.spec)
    }

    /// Puts the run into the bucket at `location`, or finds that it is there already.
    ///
    /// # Errors
    /// Another run has this name (with every difference), or the bucket does not answer.
    pub async fn submit(self, store: Arc<dyn ObjectStore>, location: &Location) -> Result<Run> {
        let bucket = Bucket::new(store, &self.record.spec.run);
        let mut existing = bucket.run_record().await?;
        if existing.is_none() {
            for wasm in &self.wasm {
                bucket.policies().put(wasm).await?;
            }
            existing = Some(bucket.create_run(&self.record).await?);
        }
        let existing = existing.expect("it was there or has been created");
        let differences = self.record.differences(&existing);
        if !differences.is_empty() {
            return Err(Error::invalid(format!(
                "the bucket already holds a different run called `{}`; give this one another name with --run. Differences:\n  {}",
                self.record.spec.run,
                differences.join("\n  ")
            )));
        }
        if bucket.log_bytes(0).await?.is_none() {
            let window = Rules::of(&existing.spec, self.fragments.count()).first_window();
            bucket.start(&self.fragments, &self.model.parameters, window, "submit").await?;
        }
        Run::of(bucket, existing, location)
    }
}

/// A policy of the spec. One that does not come with the program goes through admission.
fn policy_use(field: &str, spec: &PolicySpec, role: Role, runtime: &Runtime) -> Result<(PolicyUse, Vec<u8>)> {
    let wasm = policy_wasm(spec, field)?;
    let policy =
        runtime.load(&wasm).map_err(|e| Error::invalid(format!("{field}.policy: {}", spec.policy)).because(e))?;
    if !policy.roles().contains(&role) {
        let roles: Vec<String> = policy.roles().iter().map(ToString::to_string).collect();
        return Err(Error::invalid(format!(
            "{field}.policy: {}: expected a {role} policy, found {}",
            spec.policy,
            roles.join(" and ")
        )));
    }
    let used = PolicyUse::of(spec, &policy);
    if bundled_wasm(&spec.policy).is_none() {
        require_admission(&spec.policy, &policy, role, &used.config)?;
    }
    Ok((used, wasm))
}

/// `tombolo submit`.
pub async fn command(arguments: SubmitArguments) -> Result<()> {
    let spec = read_spec(&arguments.spec)?;
    let location = Location { url: arguments.bucket, endpoint: arguments.server.endpoint };
    if location.is_memory()? {
        return Err(Error::invalid("memory: ends with this process; expected a bucket that other processes reach"));
    }
    let draft = Draft::new(&spec, &policy_runtime()?)?;
    let warning = draft.warning();
    let run = draft.submit(open_for_writing(&location, true).await?, &location).await?;
    if let Some(told) = warning {
        eprintln!("warning: {told}");
    }
    say!(
        "run {} is in {}; start islands and a syncer on any machine that reaches it:",
        run.record.spec.run,
        location.url
    );
    say!("  tombolo syncer {} --run {}", location.url, run.record.spec.run);
    say!("  tombolo island {} --run {} --name NAME   ({} cores here)", location.url, run.record.spec.run, cores());
    Ok(())
}
