//! From a component's bytes to code: in a child process under limits, kept in the host's own cache.
//!
//! Protocol between parent and child: the program is started again with the arguments [`COMPILE_COMMAND`], bytes of address space, seconds of processor
//! time. The component comes on standard input, the compiled code goes to standard output, a failure to standard error with exit code
//! 1. The child sets its own limits before it reads a byte. The parent waits as long as the limits say on the clock, then kills it.
//!
//! Cache: one file a component and engine, `<sha256 of component>-<engine>.code`, holding the SHA-256 of the code and the code. Written under another name
//! and renamed, so a crash leaves nothing behind that could be taken for code. The folder must belong to this user and be closed to others.

use std::fs;
use std::hash::Hasher;
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use wasmtime::component::Component;
use wasmtime::{Config, Engine};

use super::artefact::{deserialize, limit_process, user};
use super::instance::shown;
use super::nan::{REWRITING, canonical};
use super::{Error, Hash, Limits, Result};

/// First argument of the program when it is started to compile a policy.
pub const COMPILE_COMMAND: &str = "__compile-policy";

/// Compiled code is larger than its component by a factor of 5 to 10; more than this is refused unread.
const CODE_BYTES_MAX: u64 = 128 << 20;

/// The engine that policies run on. Every process that compiles or runs policies uses these settings.
pub(super) fn engine(parallel: bool) -> Result<Engine> {
    let mut config = Config::new();
    config
        .wasm_component_model(true)
        .wasm_simd(true)
        .wasm_relaxed_simd(false)
        .wasm_memory64(false)
        .wasm_multi_memory(false)
        .wasm_tail_call(false)
        // What a policy could see of NaNs is made canonical in the component itself: see `nan`.
        .cranelift_nan_canonicalization(false)
        .consume_fuel(true)
        .epoch_interruption(true)
        .parallel_compilation(parallel);
    Engine::new(&config).map_err(|error| Error::host("starting the WebAssembly engine", format!("{error:#}")))
}

/// What the program does when it is started with [`COMPILE_COMMAND`]: `arguments` are those after it. Reads a component from standard input and writes its
/// code to standard output.
pub fn compile_child(arguments: &[String]) -> ExitCode {
    match compile_here(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn compile_here(arguments: &[String]) -> std::result::Result<(), String> {
    let numbers: Vec<u64> = arguments.iter().filter_map(|argument| argument.parse().ok()).collect();
    let [bytes, seconds] = numbers[..] else {
        return Err(format!(
            "{COMPILE_COMMAND} takes bytes of memory and seconds of time; it is for this program's own use"
        ));
    };
    limit_process(bytes, seconds).map_err(|error| format!("cannot limit the compiling process: {error}"))?;
    let mut wasm = Vec::new();
    std::io::stdin().lock().read_to_end(&mut wasm).map_err(|error| error.to_string())?;
    // One thread: the memory that compiling takes should depend on the component only.
    let engine = engine(false).map_err(|error| error.to_string())?;
    let code = code_of(&engine, &wasm)?;
    let mut out = std::io::stdout().lock();
    out.write_all(&code).and_then(|()| out.flush()).map_err(|error| error.to_string())
}

/// Compiles a component whose bytes have been validated.
fn code_of(engine: &Engine, wasm: &[u8]) -> std::result::Result<Vec<u8>, String> {
    let wasm = canonical(wasm).map_err(|error| error.to_string())?;
    engine.precompile_component(&wasm).map_err(|error| format!("{error:#}"))
}

/// Compiles components for one engine.
#[derive(Debug)]
pub(super) struct Compiler {
    engine: Engine,
    /// The program to start for compiling; none: compile in this process.
    program: Option<PathBuf>,
    cache: Option<Cache>,
}

impl Compiler {
    pub(super) fn new(engine: Engine, cache: Option<PathBuf>) -> Result<Compiler> {
        let cache = cache.map(|folder| Cache::open(folder, &engine)).transpose()?;
        Ok(Compiler { engine, program: None, cache })
    }

    pub(super) fn set_program(&mut self, program: PathBuf) {
        self.program = Some(program);
    }

    /// Code for `wasm`, from the cache or compiled now. `trusted` components (those that come with the program) are compiled in this process.
    pub(super) fn component(&self, policy: Hash, wasm: &[u8], limits: &Limits, trusted: bool) -> Result<Component> {
        if let Some(code) = self.cache.as_ref().and_then(|cache| cache.get(policy)) {
            // Code that does not fit this engine is compiled anew.
            if let Ok(component) = deserialize(&self.engine, &code) {
                return Ok(component);
            }
        }
        let code = match &self.program {
            Some(program) if !trusted => in_child(program, policy, wasm, limits)?,
            _ => code_of(&self.engine, wasm).map_err(uncompilable)?,
        };
        if let Some(cache) = &self.cache {
            // Code that cannot be kept (no room, say) is compiled again by the next process.
            let _ = cache.put(policy, &code);
        }
        deserialize(&self.engine, &code).map_err(|error| Error::host("loading compiled code", format!("{error:#}")))
    }
}

fn uncompilable(found: String) -> Error {
    Error::NotAPolicy {
        what: "compiling the component".into(),
        found: shown(&found),
        hint: "policies are components of WebAssembly 2.0 that import nothing".into(),
    }
}

/// Runs the compiling child.
fn in_child(program: &Path, policy: Hash, wasm: &[u8], limits: &Limits) -> Result<Vec<u8>> {
    let failed =
        |reason: std::io::Error| Error::host(format!("compiling in a child process of {}", program.display()), reason);
    let mut child = Command::new(program)
        .args([
            COMPILE_COMMAND.to_string(),
            limits.compile_bytes_max.to_string(),
            limits.compile_seconds_max.to_string(),
        ])
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let deadline = Instant::now() + Duration::from_secs(limits.compile_seconds_max);
    let (status, code, message) = thread::scope(|scope| {
        scope.spawn(move || {
            // A child that dies before it has read everything shows by its exit code.
            let _ = stdin.map(|mut pipe| pipe.write_all(wasm));
        });
        let code = scope.spawn(move || read_up_to(stdout, CODE_BYTES_MAX + 1));
        let message = scope.spawn(move || read_up_to(stderr, 4 << 10));
        let status = loop {
            match child.try_wait() {
                Ok(Some(status)) => break Ok(Some(status)),
                Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(2)),
                Ok(None) => {
                    let _ = child.kill();
                    let _ = child.wait();
                    break Ok(None);
                }
                Err(error) => {
                    let _ = child.kill();
                    break Err(error);
                }
            }
        };
        (status, code.join().unwrap_or_default(), message.join().unwrap_or_default())
    });
    let too_costly = |found: String| Error::TooCostly {
        policy,
        what: "compiling".into(),
        limit: format!("{} MiB and {} s", limits.compile_bytes_max >> 20, limits.compile_seconds_max),
        found,
    };
    if code.len() as u64 > CODE_BYTES_MAX {
        return Err(Error::TooCostly {
            policy,
            what: "compiled code".into(),
            limit: format!("{} MiB", CODE_BYTES_MAX >> 20),
            found: "more".into(),
        });
    }
    match status.map_err(failed)? {
        Some(status) if status.success() => Ok(code),
        Some(status) => match status.signal() {
            Some(signal) => Err(too_costly(format!("the compiler died of signal {signal}"))),
            None => Err(uncompilable(String::from_utf8_lossy(&message).trim_end().to_string())),
        },
        None => Err(too_costly("no end".into())),
    }
}

fn read_up_to(pipe: Option<impl Read>, bytes: u64) -> Vec<u8> {
    let mut read = Vec::new();
    if let Some(pipe) = pipe {
        let _ = pipe.take(bytes).read_to_end(&mut read);
    }
    read
}

/// The folder with compiled code.
#[derive(Debug)]
struct Cache {
    folder: PathBuf,
    /// Names the engine's version and settings, and how components are rewritten for it.
    engine: String,
}

impl Cache {
    fn open(folder: PathBuf, engine: &Engine) -> Result<Cache> {
        let failed = |reason: String| Error::host(format!("using {} for compiled policies", folder.display()), reason);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(|error| failed(error.to_string()))?;
        let found = fs::metadata(&folder).map_err(|error| failed(error.to_string()))?;
        if found.uid() != user() || found.mode() & 0o077 != 0 {
            return Err(failed(format!(
                "it must belong to this user and be closed to others (chmod 700); its owner is {} and its mode {:o}",
                found.uid(),
                found.mode() & 0o777
            )));
        }
        let mut hasher = Fingerprint(Sha256::new());
        std::hash::Hash::hash(&engine.precompile_compatibility_hash(), &mut hasher);
        hasher.write(REWRITING.as_bytes());
        let engine = hasher.0.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        Ok(Cache { folder, engine })
    }

    fn path(&self, policy: Hash) -> PathBuf {
        self.folder.join(format!("{policy}-{}.code", self.engine))
    }

    /// Code of an earlier compilation, if it is there and whole.
    fn get(&self, policy: Hash) -> Option<Vec<u8>> {
        let bytes = fs::read(self.path(policy)).ok()?;
        let (sum, code) = bytes.split_first_chunk::<32>()?;
        (Sha256::digest(code).as_slice() == sum).then(|| code.to_vec())
    }

    fn put(&self, policy: Hash, code: &[u8]) -> std::io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(&self.folder)?;
        file.write_all(&Sha256::digest(code))?;
        file.write_all(code)?;
        file.persist(self.path(policy))?;
        Ok(())
    }
}

/// A hasher whose answer is the same in every build of the program.
struct Fingerprint(Sha256);

impl Hasher for Fingerprint {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        0
    }
}
