//! The engine that runs policies, and a policy that it has loaded.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use wasmtime::Engine;
use wasmtime::component::Linker;

use super::bindings::{codec::CodecPolicyPre, merge::MergePolicyPre, pace::PacePolicyPre};
use super::bundled::bundled_wasm;
use super::compile::{Compiler, engine};
use super::inspect::inspect;
use super::instance::{Guest, Instance, TICKS_PER_SECOND, shown};
use super::{Error, Hash, Limits, Result, Role};

/// Loads policies. Cheap to clone; all clones share one engine.
#[derive(Clone)]
pub struct Runtime {
    shared: Arc<Shared>,
}

struct Shared {
    engine: Engine,
    limits: Limits,
    compiler: Compiler,
    bundled: Mutex<BTreeMap<String, Policy>>,
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime").field("limits", &self.shared.limits).field("compiler", &self.shared.compiler).finish()
    }
}

impl Runtime {
    /// An engine with these limits that keeps compiled code in the folder `cache` (made if need be; it must be closed to other users),
    /// and compiles in this process.
    ///
    /// Errors: [`Error::Host`] where the engine cannot start or the folder cannot be used.
    pub fn new(limits: Limits, cache: Option<PathBuf>) -> Result<Runtime> {
        Runtime::build(limits, cache, None)
    }

    /// As [`new`](Runtime::new), but components that do not come with the program are compiled in child processes: `program`, which must hand
    /// the arguments after [`COMPILE_COMMAND`](super::COMPILE_COMMAND) to [`compile_child`](super::compile_child). Usually the running program itself.
    pub fn compiling_with(limits: Limits, cache: Option<PathBuf>, program: PathBuf) -> Result<Runtime> {
        Runtime::build(limits, cache, Some(program))
    }

    fn build(limits: Limits, cache: Option<PathBuf>, program: Option<PathBuf>) -> Result<Runtime> {
        let engine = engine(true)?;
        let mut compiler = Compiler::new(engine.clone(), cache)?;
        if let Some(program) = program {
            compiler.set_program(program);
        }
        tick(&engine)?;
        Ok(Runtime { shared: Arc::new(Shared { engine, limits, compiler, bundled: Mutex::default() }) })
    }

    /// Loads a component.
    ///
    /// Errors: [`Error::NotAPolicy`], [`Error::TooCostly`], what its start did wrong, [`Error::Host`].
    pub fn load(&self, wasm: &[u8]) -> Result<Policy> {
        self.load_as(wasm, false)
    }

    /// The bundled policy `name`.
    ///
    /// Errors: [`Error::Unknown`], [`Error::Host`].
    pub fn bundled(&self, name: &str) -> Result<Policy> {
        let wasm = bundled_wasm(name).ok_or_else(|| Error::Unknown { name: name.into() })?;
        let mut bundled = self.shared.bundled.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(policy) = bundled.get(name) {
            return Ok(policy.clone());
        }
        let policy = self.load_as(wasm, true)?;
        bundled.insert(name.into(), policy.clone());
        Ok(policy)
    }

    fn load_as(&self, wasm: &[u8], trusted: bool) -> Result<Policy> {
        let Shared { engine, limits, compiler, .. } = &*self.shared;
        let hash = Hash::of(wasm);
        let roles = inspect(hash, wasm, limits)?;
        let component = compiler.component(hash, wasm, limits, trusted)?;
        let misfit = |error: wasmtime::Error| Error::NotAPolicy {
            what: "its world".into(),
            found: shown(&format!("{error:#}")),
            hint: "build against wit/policy.wit of this version".into(),
        };
        // An empty linker: whatever a component imports beside types is missing here.
        let pre = Linker::<Guest>::new(engine).instantiate_pre(&component).map_err(misfit)?;
        let filled = |role| roles.contains(&role);
        let codec = filled(Role::Codec).then(|| CodecPolicyPre::new(pre.clone())).transpose().map_err(misfit)?;
        let merge = filled(Role::Merge).then(|| MergePolicyPre::new(pre.clone())).transpose().map_err(misfit)?;
        let pace = filled(Role::Pace).then(|| PacePolicyPre::new(pre)).transpose().map_err(misfit)?;
        let loaded = Loaded { hash, roles, engine: engine.clone(), limits: limits.clone(), codec, merge, pace };
        let policy = Policy { loaded: Arc::new(loaded) };
        policy.try_start()?;
        Ok(policy)
    }
}

/// Moves the engine's epoch on, as long as the engine lives. The deadline of a call is counted in these ticks, so a process that was stopped for a while
/// does not find its policies late.
fn tick(engine: &Engine) -> Result<()> {
    let weak = engine.weak();
    let ticker = move || {
        while let Some(engine) = weak.upgrade() {
            engine.increment_epoch();
            drop(engine);
            thread::sleep(Duration::from_millis(1_000 / TICKS_PER_SECOND));
        }
    };
    let spawned = thread::Builder::new().name("policy-epoch".into()).spawn(ticker);
    spawned.map(drop).map_err(|error| Error::host("starting the engine's clock", error))
}

/// A loaded policy. Cheap to clone.
#[derive(Clone)]
pub struct Policy {
    loaded: Arc<Loaded>,
}

struct Loaded {
    hash: Hash,
    roles: Vec<Role>,
    engine: Engine,
    limits: Limits,
    codec: Option<CodecPolicyPre<Guest>>,
    merge: Option<MergePolicyPre<Guest>>,
    pace: Option<PacePolicyPre<Guest>>,
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Policy({}: {})", self.hash().short(), Role::list(self.roles()))
    }
}

impl Policy {
    /// SHA-256 of the component: its name.
    pub fn hash(&self) -> Hash {
        self.loaded.hash
    }

    /// The roles that it can fill, sorted.
    pub fn roles(&self) -> &[Role] {
        &self.loaded.roles
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.loaded.engine
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.loaded.limits
    }

    pub(super) fn codec(&self) -> Result<&CodecPolicyPre<Guest>> {
        self.loaded.codec.as_ref().ok_or_else(|| self.lacks(Role::Codec))
    }

    pub(super) fn merge(&self) -> Result<&MergePolicyPre<Guest>> {
        self.loaded.merge.as_ref().ok_or_else(|| self.lacks(Role::Merge))
    }

    pub(super) fn pace(&self) -> Result<&PacePolicyPre<Guest>> {
        self.loaded.pace.as_ref().ok_or_else(|| self.lacks(Role::Pace))
    }

    fn lacks(&self, role: Role) -> Error {
        Error::WrongRole { policy: self.hash(), role, has: self.roles().to_vec() }
    }

    /// Instantiates it once for every role: an interface of the right name with other functions shows here.
    fn try_start(&self) -> Result<()> {
        let Loaded { codec, merge, pace, .. } = &*self.loaded;
        if let Some(pre) = codec {
            Instance::new(self, |store| pre.instantiate(store))?;
        }
        if let Some(pre) = merge {
            Instance::new(self, |store| pre.instantiate(store))?;
        }
        if let Some(pre) = pace {
            Instance::new(self, |store| pre.instantiate(store))?;
        }
        Ok(())
    }
}
