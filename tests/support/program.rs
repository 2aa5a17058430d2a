//! The binary as a user runs it: in a folder of its own with text and a spec, with a deadline on everything that is waited for.
//!
//! Nothing here outlives its test: a [`Running`] that is dropped is killed, and islands and syncers of a killed `tombolo run` end by
//! themselves when their standard input closes.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use object_store::local::LocalFileSystem;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use tempfile::TempDir;
use tombolo::bucket::Bucket;

/// The longest that anything here may take: far above what it takes, for a machine that others keep busy.
pub const DEADLINE: Duration = Duration::from_secs(180);

/// Time between two looks at what is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Waits until `event` gives something.
///
/// # Panics
/// If it has not within [`DEADLINE`].
pub fn wait_for<T>(what: &str, mut event: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = event() {
            return found;
        }
        assert!(began.elapsed() < DEADLINE, "waited {} s in vain for {what}", DEADLINE.as_secs());
        thread::sleep(LOOK_EVERY);
    }
}

/// Sends a signal to one process. It may be gone already.
pub fn signal(pid: u32, name: &str) {
    let sent = Command::new("sh").args(["-c", "kill -s \"$0\" \"$1\" 2>/dev/null", name]).arg(pid.to_string()).status();
    sent.expect("sh");
}

/// Text that a small model learns something from in a second: invented words, a few of them frequent, in sentences. The same `seed`
/// gives the same text.
pub fn text(bytes: usize, seed: u64) -> String {
    let mut random = StdRng::seed_from_u64(seed);
    let syllable = |random: &mut StdRng| {
        let consonant = char::from(b"bdfghklmnprstvw"[random.random_range(0..15)]);
        [consonant, char::from(b"aeiou"[random.random_range(0..5)])]
    };
    let words: Vec<String> = (0..200)
        .map(|_| (0..random.random_range(1..4)).flat_map(|_| syllable(&mut random)).collect::<String>())
        .collect();
    let mut text = String::new();
    while text.len() < bytes {
        for place in 0..random.random_range(4..11) {
            // Zipf's law, nearly: word n is about as frequent as 1/n.
            let rank = (1.0 / random.random_range(0.005..1.0f64)) as usize - 1;
            text.push_str(if place == 0 { "" } else { " " });
            text.push_str(&words[rank.min(words.len() - 1)]);
        }
        text.push_str(if random.random_bool(0.1) { ".\n" } else { ". " });
    }
    text
}

/// A model of 37,000 parameters that takes about a millisecond a step.
pub const SMALL: &str = "[model]\nhidden_size = 32\nintermediate_size = 64\nlayers = 2\nheads = 2\nkv_heads = 2\ncontext = 64\n\
                         [train]\nbatch = 4\nlearning_rate = 3e-3\n\
                         [outer]\nfragments = 8\nsync_steps = 16\n";

/// A model of 114,000 parameters that takes five to ten milliseconds a step: long enough for rounds to be paced by steps and not by requests.
pub const MEDIUM: &str = "[model]\nhidden_size = 64\nintermediate_size = 128\nlayers = 2\nheads = 2\nkv_heads = 2\ncontext = 64\n\
                          [train]\nbatch = 8\nlearning_rate = 3e-3\n\
                          [outer]\nfragments = 8\nsync_steps = 16\n";

/// A folder in which a user works: `text/`, `spec.toml`, and whatever the commands make.
pub struct Workshop {
    folder: TempDir,
    environment: BTreeMap<&'static str, String>,
}

impl Workshop {
    /// A folder with 400 kB of text and this spec: `head` is what stands above its sections, and `[data]` is added.
    pub fn new(head: &str, sections: &str) -> Self {
        let workshop = Self { folder: tempfile::tempdir().expect("a folder"), environment: BTreeMap::new() };
        fs::create_dir(workshop.path("text")).expect("a folder for text");
        for n in 0..8 {
            fs::write(workshop.path(&format!("text/{n}.txt")), text(50_000, n)).expect("a text");
        }
        workshop.write_spec(head, sections);
        workshop
    }

    /// Writes `spec.toml` anew.
    pub fn write_spec(&self, head: &str, sections: &str) {
        let spec = format!("{head}\n{sections}\n[data]\npath = \"{}\"\n", self.path("text").display());
        fs::write(self.path("spec.toml"), spec).expect("a spec");
    }

    /// Adds what every command is to find in its environment.
    pub fn set(&mut self, variables: impl IntoIterator<Item = (&'static str, String)>) {
        self.environment.extend(variables);
    }

    /// A place in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Names in the folder, sorted.
    pub fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).expect("the folder");
        let mut names: Vec<String> =
            entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Starts the binary with these arguments, separated by spaces.
    pub fn start(&self, arguments: &str) -> Running {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tombolo"));
        // What this machine's user has set is not for tests.
        for (name, _) in std::env::vars_os() {
            if ["TOMBOLO_ENDPOINT", "TOMBOLO_TOKENS", "AWS_", "AZURE_", "GOOGLE_"]
                .iter()
                .any(|p| name.to_string_lossy().starts_with(p))
            {
                command.env_remove(name);
            }
        }
        command
            .args(arguments.split_whitespace())
            .current_dir(self.folder.path())
            // Compiled policies are shared by all tests, and not with the user.
            .env("XDG_CACHE_HOME", Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache"))
            .envs(&self.environment)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // An interrupt from the terminal is for the test program, whose end ends this.
            .process_group(0);
        let mut child = command.spawn().expect("the binary starts");
        let stdout = Transcript::of(child.stdout.take().expect("piped"));
        let stderr = Transcript::of(child.stderr.take().expect("piped"));
        Running { child, stdout, stderr, arguments: arguments.to_owned(), ended: false }
    }

    /// Runs the binary to its end.
    pub fn run(&self, arguments: &str) -> Ended {
        self.start(arguments).end()
    }

    /// Runs the binary to its end, which must be a good one.
    pub fn run_well(&self, arguments: &str) -> Ended {
        self.run(arguments).well()
    }

    /// A JSON file of the folder.
    pub fn json(&self, name: &str) -> Value {
        let text = fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}: {text}"))
    }

    /// Entries in the log of run `small` in the local directory `bucket` of the folder.
    pub fn log_entries(&self) -> usize {
        fs::read_dir(self.path("bucket/small/log")).map_or(0, Iterator::count)
    }

    /// Run `small` in the local directory `bucket` of the folder.
    pub fn bucket(&self) -> Bucket {
        let store = LocalFileSystem::new_with_prefix(self.path("bucket")).expect("the bucket is there");
        Bucket::new(Arc::new(store), "small")
    }
}

/// What a process writes, line by line, as it comes.
struct Transcript {
    lines: Arc<Mutex<Vec<String>>>,
    reader: Option<JoinHandle<()>>,
}

impl Transcript {
    fn of(pipe: impl Read + Send + 'static) -> Self {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let filled = lines.clone();
        let reader = thread::spawn(move || {
            let mut pipe = BufReader::new(pipe);
            let mut line = Vec::new();
            while pipe.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
                let text = String::from_utf8_lossy(&line).trim_end_matches('\n').to_owned();
                filled.lock().expect("nobody panics with it").push(text);
                line.clear();
            }
        });
        Self { lines, reader: Some(reader) }
    }

    fn so_far(&self) -> String {
        self.lines.lock().expect("nobody panics with it").join("\n")
    }

    /// Everything, once the process (and whoever inherited the pipe) is gone.
    fn whole(&mut self) -> String {
        if let Some(reader) = self.reader.take() {
            reader.join().expect("reading does not panic");
        }
        self.so_far()
    }
}

/// A process of the binary; killed when dropped.
pub struct Running {
    child: Child,
    stdout: Transcript,
    stderr: Transcript,
    arguments: String,
    ended: bool,
}

impl Running {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its islands and its syncer, by what they were started as: name and process id.
    pub fn roles(&self) -> BTreeMap<String, u32> {
        children(self.pid())
    }

    /// What it has written to standard error so far.
    pub fn stderr(&self) -> String {
        self.stderr.so_far()
    }

    /// Whether it still runs.
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().expect("a child can be asked").is_none()
    }

    /// Waits until `event` gives something.
    ///
    /// # Panics
    /// If the process ends before, or nothing happens within [`DEADLINE`].
    pub fn until<T>(&mut self, what: &str, mut event: impl FnMut(&mut Self) -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            if let Some(found) = event(self) {
                return found;
            }
            let waited = began.elapsed();
            let stands = if !self.runs() {
                "it ended".to_owned()
            } else if waited > DEADLINE {
                format!("it went on for {} s", waited.as_secs())
            } else {
                thread::sleep(LOOK_EVERY);
                continue;
            };
            panic!("`tombolo {}`: {stands} before {what}; it said:\n{}", self.arguments, self.stderr());
        }
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// If it does not end within [`DEADLINE`].
    pub fn end(mut self) -> Ended {
        let began = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
                break status;
            }
            let said = || self.stderr();
            assert!(began.elapsed() < DEADLINE, "`tombolo {}` does not end; it said:\n{}", self.arguments, said());
            thread::sleep(LOOK_EVERY);
        };
        self.ended = true;
        let (stdout, stderr) = (self.stdout.whole(), self.stderr.whole());
        Ended { arguments: self.arguments.clone(), status, stdout, stderr }
    }

    /// Kills it with SIGKILL, itself and nobody else, and waits until it is gone.
    pub fn kill(&mut self) {
        // Already gone is as good.
        let _ = self.child.kill();
        self.child.wait().expect("a killed child is gone");
        self.ended = true;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            self.kill();
        }
    }
}

/// How a process ended.
pub struct Ended {
    arguments: String,
    status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Ended {
    /// Its exit code; none if a signal ended it.
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// Itself, if it ended well.
    ///
    /// # Panics
    /// If it did not, with what it said.
    pub fn well(self) -> Self {
        assert!(
            self.status.success(),
            "`tombolo {}` ended with {}:\n{}\n{}",
            self.arguments,
            self.status,
            self.stdout,
            self.stderr
        );
        self
    }

    /// The one error that it ended with, without the `error: ` before it, and what followed.
    ///
    /// # Panics
    /// If it did not end with this exit code, or did not say exactly one error.
    pub fn error(&self, code: i32) -> &str {
        let said = format!("`tombolo {}` said:\n{}\n{}", self.arguments, self.stdout, self.stderr);
        assert_eq!(self.code(), Some(code), "{said}");
        assert!(!said.contains("panicked"), "{said}");
        let errors = self.stderr.match_indices("error: ").map(|(at, _)| at);
        let starts: Vec<usize> = errors.filter(|&at| at == 0 || self.stderr.as_bytes()[at - 1] == b'\n').collect();
        assert_eq!(starts.len(), 1, "one error: {said}");
        &self.stderr[starts[0]..]["error: ".len()..]
    }
}

/// The children of a supervisor that have a role, by name: `island-0` … and `syncer`.
pub fn children(supervisor: u32) -> BTreeMap<String, u32> {
    let mut roles = BTreeMap::new();
    for entry in fs::read_dir("/proc").expect("/proc").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        if parent(pid) == Some(supervisor)
            && let Some(role) = role(pid)
        {
            roles.insert(role, pid);
        }
    }
    roles
}

/// The parent of a process that has not ended.
fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program, in parentheses, may hold anything; after it come the state and the parent.
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    (fields.next()? != "Z").then(|| fields.next()?.parse().ok()).flatten()
}

/// What a process of the binary was started as.
fn role(pid: u32) -> Option<String> {
    let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let arguments: Vec<String> = command.split(|&b| b == 0).map(|a| String::from_utf8_lossy(a).into_owned()).collect();
    match arguments.get(1)?.as_str() {
        "island" => {
            let name = arguments.iter().position(|a| a == "--name")?;
            arguments.get(name + 1).cloned()
        }
        "syncer" => Some("syncer".to_owned()),
        _ => None,
    }
}

/// Whether a process exists and has not ended.
pub fn exists(pid: u32) -> bool {
    parent(pid).is_some()
}
