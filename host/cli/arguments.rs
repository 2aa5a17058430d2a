//! What can be asked for on the command line.

use crate::bucket::Rate;
use crate::clock::Duration;
use crate::policy::Role;
use crate::sim::Attack;
use clap::{Args, Parser, Subcommand};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Train one language model on many islands of compute that meet only in an object-storage bucket.
#[derive(Debug, Parser)]
#[command(name = "tombolo", version, about)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train on this machine: islands and a syncer as processes of their own, progress, a summary, the exported model
    Run(RunArguments),
    /// Put a run into a bucket, for islands and syncers to be started by hand
    Submit(SubmitArguments),
    /// Take the role of one island of a run
    Island(IslandArguments),
    /// Take the role of a syncer of a run, or stand by for it
    Syncer(SyncerArguments),
    /// Show the runs of a bucket
    Status(StatusArguments),
    /// Write the committed model in Hugging Face form
    Export(ExportArguments),
    /// Print every offer of a run and what became of it
    Ledger(LedgerArguments),
    /// Recompute the merges of a run from the objects that its log names, and compare bytes
    Verify(VerifyArguments),
    /// Prove in seconds that a store can be a bucket, and say what does not work where it cannot
    Doctor(DoctorArguments),
    /// Make a bucket, with the lifecycle rules that its store takes
    Bucket(BucketArguments),
    /// Policies: write, check, push, list, show, activate, replay, shadow
    Policy(PolicyArguments),
    /// Serve a bucket over HTTP: upload policies, look at runs, switch them to other policies
    Serve(ServeArguments),
    /// Train on this machine like `run` while plugs are pulled on a schedule of the seed, and report what it cost
    Chaos(ChaosArguments),
    /// Simulate fleets under fire on virtual time, a seed each, and check every invariant
    Sim(SimArguments),
    /// Continue a text with an exported model
    Generate(GenerateArguments),
    /// Measure: islands against data-parallel training on the same text, or with liars among them against the honest ones alone, on virtual time
    Bench(BenchArguments),
}

/// Where a bucket is.
#[derive(Debug, Clone, Args)]
pub struct Server {
    /// Endpoint of a server other than the cloud's own: http://127.0.0.1:9000 (MinIO and other S3 servers, addressed path-style),
    /// http://127.0.0.1:10000/devstoreaccount1 (Azurite)
    #[arg(long, value_name = "URL", env = "TOMBOLO_ENDPOINT")]
    pub endpoint: Option<String>,
}

/// What a run is made from.
#[derive(Debug, Clone, Args)]
pub struct SpecArguments {
    /// The run spec (TOML); examples/quickstart.toml has every field and its default
    #[arg(value_name = "SPEC")]
    pub spec: Option<PathBuf>,
    /// Name of the run
    #[arg(long = "run", value_name = "NAME")]
    pub run: Option<String>,
    /// Text to train on: a directory, a file or a glob (default: the sources of the crates that cargo has fetched)
    #[arg(long, value_name = "PATH")]
    pub data: Option<String>,
    /// Islands of the run: `run` and `chaos` start as many
    #[arg(long, value_name = "N")]
    pub islands: Option<usize>,
    /// Tokens to merge before the run ends
    #[arg(long, value_name = "N")]
    pub tokens: Option<u64>,
    /// Seed of initial parameters and of the order of the data
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}

#[derive(Debug, Clone, Args)]
pub struct RunArguments {
    #[command(flatten)]
    pub spec: SpecArguments,
    /// Where the islands meet: file:DIR, memory: (islands in this process), s3://BUCKET/PREFIX, az://CONTAINER/PREFIX or gs://BUCKET/PREFIX
    /// with the environment variables of the cloud
    #[arg(long, value_name = "URL")]
    pub bucket: Option<String>,
    #[command(flatten)]
    pub server: Server,
    /// Cap what each island and syncer sends to and fetches from the bucket, both together: 800kbit, 50mbit, 2gbit (per second)
    #[arg(long, value_name = "RATE")]
    pub link: Option<Rate>,
    /// Folder for the picture, the summary and the exported model (default: tombolo-runs/NAME)
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Also write the summary as JSON to this file
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
pub struct ChaosArguments {
    #[command(flatten)]
    pub spec: SpecArguments,
    /// How long: 90s, 10m, 2h; the run ends before that if it has merged its tokens. The seed gives the blows, too
    #[arg(long = "for", value_name = "TIME", default_value = "10m", value_parser = super::chaos::span)]
    pub length: Duration,
    /// Syncers to start
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub syncers: u8,
    /// Where the islands meet: file:DIR (processes are struck) or s3://BUCKET/PREFIX on a server of plain HTTP (links, too)
    #[arg(long, value_name = "URL")]
    pub bucket: Option<String>,
    #[command(flatten)]
    pub server: Server,
    /// Cap what each island and syncer sends to and fetches from the bucket, both together: 800kbit, 50mbit, 2gbit (per second)
    #[arg(long, value_name = "RATE")]
    pub link: Option<Rate>,
    /// Folder for the picture, the summary and the exported model (default: tombolo-runs/NAME)
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Also write the report as JSON to this file
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
pub struct SubmitArguments {
    #[command(flatten)]
    pub spec: SpecArguments,
    /// The bucket: file:DIR, s3://BUCKET/PREFIX, az://CONTAINER/PREFIX or gs://BUCKET/PREFIX
    #[arg(long, value_name = "URL")]
    pub bucket: String,
    #[command(flatten)]
    pub server: Server,
}

/// One run of one bucket.
#[derive(Debug, Clone, Args)]
pub struct Target {
    /// The bucket: file:DIR, s3://BUCKET/PREFIX, az://CONTAINER/PREFIX or gs://BUCKET/PREFIX
    #[arg(value_name = "BUCKET")]
    pub bucket: String,
    /// Name of the run; may be left out where the bucket holds one
    #[arg(long = "run", value_name = "NAME")]
    pub run: Option<String>,
    #[command(flatten)]
    pub server: Server,
}

#[derive(Debug, Clone, Args)]
pub struct IslandArguments {
    #[command(flatten)]
    pub target: Target,
    /// Name of this island: lower-case letters, digits and dashes, another for every island
    #[arg(long, value_name = "NAME")]
    pub name: String,
    /// Threads of the training loop (default: all cores)
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// The text, where it lies elsewhere on this machine than the spec says
    #[arg(long, value_name = "PATH")]
    pub data: Option<String>,
    /// Also stand by as a syncer, and take the role when the acting one's beat stops
    #[arg(long)]
    pub may_sync: bool,
    /// Cap what this process sends to and fetches from the bucket, both together: 800kbit, 50mbit, 2gbit (per second)
    #[arg(long, value_name = "RATE")]
    pub link: Option<Rate>,
    /// Speak to a supervisor: events as JSON lines on standard output, end when standard input closes
    #[arg(long, hide = true)]
    pub supervised: bool,
}

#[derive(Debug, Clone, Args)]
pub struct SyncerArguments {
    #[command(flatten)]
    pub target: Target,
    /// Name of this syncer, as the log will say it: lower-case letters, digits and dashes
    #[arg(long, value_name = "NAME", default_value = "syncer")]
    pub name: String,
    /// Threads of a merge (default: all cores)
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Cap what this process sends to and fetches from the bucket, both together: 800kbit, 50mbit, 2gbit (per second)
    #[arg(long, value_name = "RATE")]
    pub link: Option<Rate>,
    /// Speak to a supervisor: events as JSON lines on standard output, end when standard input closes
    #[arg(long, hide = true)]
    pub supervised: bool,
}

#[derive(Debug, Clone, Args)]
pub struct StatusArguments {
    #[command(flatten)]
    pub target: Target,
}

#[derive(Debug, Clone, Args)]
pub struct ExportArguments {
    #[command(flatten)]
    pub target: Target,
    /// Folder to write config.json, model.safetensors and the tokenizer to
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}

#[derive(Debug, Clone, Args)]
pub struct GenerateArguments {
    /// Folder with an exported model
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Text to continue
    #[arg(long, default_value = "fn main() {\n")]
    pub prompt: String,
    /// Tokens to generate
    #[arg(long, default_value_t = 200)]
    pub tokens: usize,
    /// Randomness; 0 always takes the likeliest token
    #[arg(long, default_value_t = 0.8)]
    pub temperature: f32,
    /// Only the likeliest K tokens are drawn from; 0 for all
    #[arg(long, default_value_t = 40)]
    pub top_k: usize,
    /// Seed of the draw
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
}

#[derive(Debug, Clone, Args)]
pub struct BenchArguments {
    #[command(flatten)]
    pub spec: SpecArguments,
    /// Inner steps of each island
    #[arg(long, default_value_t = 600)]
    pub steps: u64,
    /// Seeds to measure, from the spec's on
    #[arg(long, default_value_t = 1)]
    pub seeds: u64,
    /// Leave out what the islands are compared with, to compare variants of the islands alone
    #[arg(long)]
    pub no_baseline: bool,
    /// Let the last N islands lie, and compare with the honest ones alone instead of with data-parallel training
    #[arg(long, value_name = "N", requires = "attack")]
    pub liars: Option<usize>,
    /// What liars offer: noise (100 times as long as their updates), flip (their updates with the opposite sign) or nan
    #[arg(long, value_name = "ATTACK", requires = "liars", value_parser = super::bench::attack)]
    pub attack: Option<Attack>,
    /// Threads of the trainer (default: all cores)
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
}

#[derive(Debug, Clone, Args)]
pub struct LedgerArguments {
    #[command(flatten)]
    pub target: Target,
    /// One JSON object per line
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Args)]
pub struct VerifyArguments {
    #[command(flatten)]
    pub target: Target,
    /// Recompute only every N-th round
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub every: u64,
}

#[derive(Debug, Clone, Args)]
pub struct SimArguments {
    /// First seed
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// How many seeds
    #[arg(long, default_value_t = 500)]
    pub seeds: u64,
}

#[derive(Debug, Clone, Args)]
pub struct DoctorArguments {
    /// The bucket: file:DIR, memory:, s3://BUCKET/PREFIX, az://CONTAINER/PREFIX or gs://BUCKET/PREFIX; what is written there is removed again
    #[arg(value_name = "BUCKET")]
    pub bucket: String,
    #[command(flatten)]
    pub server: Server,
    /// One JSON object instead of lines
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Args)]
pub struct PolicyArguments {
    #[command(subcommand)]
    pub command: PolicyCommand,
}

#[derive(Debug, Clone, Subcommand)]
pub enum PolicyCommand {
    /// Put a component through admission, and print its card: properties, fuel, speed, or the first counterexample
    Check(PolicyCheckArguments),
    /// Make a crate that builds to a policy, with the kit beside it
    New(PolicyNewArguments),
    /// Switch a run to another policy, from a round on, while it goes on: every island and syncer at the same round
    Activate(PolicyActivateArguments),
    /// Merge rounds that were committed again under another policy, and print how its steps differ; nothing is written
    Replay(PolicyReplayArguments),
    /// Let a merge policy follow a run in the shadow of the active one: the next rounds are merged with it, too, and nothing is written
    Shadow(PolicyShadowArguments),
    /// Put a component through admission, and into a bucket with its card
    Push(PolicyPushArguments),
    /// List the policies of a bucket, and what they were admitted as
    List(PolicyListArguments),
    /// Print the card of a policy of a bucket
    Show(PolicyShowArguments),
}

/// A merge policy that is tried on real rounds.
#[derive(Debug, Clone, Args)]
pub struct CandidateArguments {
    /// The merge policy: a bundled one's name, a component's file, or the hash of one in the bucket
    #[arg(long, value_name = "POLICY")]
    pub merge: String,
    /// Its configuration (default: none, which means the policy's own defaults)
    #[arg(long, value_name = "JSON")]
    pub config: Option<String>,
    /// One JSON object a round, with every tensor, instead of lines
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Args)]
pub struct PolicyReplayArguments {
    #[command(flatten)]
    pub target: Target,
    #[command(flatten)]
    pub candidate: CandidateArguments,
    /// The rounds: A..B, both included; those whose offers have been collected are left out (default: all)
    #[arg(long, value_name = "A..B", value_parser = super::replay::range)]
    pub rounds: Option<(u64, u64)>,
}

#[derive(Debug, Clone, Args)]
pub struct PolicyShadowArguments {
    #[command(flatten)]
    pub target: Target,
    #[command(flatten)]
    pub candidate: CandidateArguments,
    /// Rounds to follow
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub rounds: u64,
}

#[derive(Debug, Clone, Args)]
pub struct PolicyActivateArguments {
    #[command(flatten)]
    pub target: Target,
    /// The role that it is to fill: merge, codec or pace
    #[arg(long, value_name = "ROLE", value_parser = super::policy::role)]
    pub role: Role,
    /// A bundled policy's name, a component's file, or the hash of one in the bucket
    #[arg(long, value_name = "POLICY")]
    pub policy: String,
    /// Its configuration (default: none, which means the policy's own defaults)
    #[arg(long, value_name = "JSON")]
    pub config: Option<String>,
    /// The first round that it fills the role in (default: the first that nobody can offer for yet)
    #[arg(long, value_name = "ROUND")]
    pub from_round: Option<u64>,
}

#[derive(Debug, Clone, Args)]
pub struct ServeArguments {
    /// The bucket: file:DIR, s3://BUCKET/PREFIX, az://CONTAINER/PREFIX or gs://BUCKET/PREFIX
    #[arg(value_name = "BUCKET")]
    pub bucket: String,
    #[command(flatten)]
    pub server: Server,
    /// Address and port to listen on; port 0 for any that is free
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,
    /// File with the tokens, one a line: `read NAME TOKEN` or `operate NAME TOKEN` (default: the environment variable TOMBOLO_TOKENS, which holds such
    /// lines, or the same separated by commas)
    #[arg(long, value_name = "FILE")]
    pub tokens: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
pub struct PolicyPushArguments {
    /// The component's file, or the name of a bundled policy
    #[arg(value_name = "FILE")]
    pub file: String,
    /// The bucket: file:DIR, s3://BUCKET/PREFIX, az://CONTAINER/PREFIX or gs://BUCKET/PREFIX
    #[arg(long, value_name = "URL")]
    pub bucket: String,
    #[command(flatten)]
    pub server: Server,
    /// Configuration to admit it under (default: none, which means the policy's own defaults)
    #[arg(long, value_name = "JSON")]
    pub config: Option<String>,
    /// The card as one JSON object instead of a line
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Args)]
pub struct PolicyListArguments {
    /// The bucket: file:DIR, s3://BUCKET/PREFIX, az://CONTAINER/PREFIX or gs://BUCKET/PREFIX
    #[arg(value_name = "BUCKET")]
    pub bucket: String,
    #[command(flatten)]
    pub server: Server,
    /// One JSON array with the cards instead of lines
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Args)]
pub struct PolicyShowArguments {
    /// The bucket: file:DIR, s3://BUCKET/PREFIX, az://CONTAINER/PREFIX or gs://BUCKET/PREFIX
    #[arg(value_name = "BUCKET")]
    pub bucket: String,
    /// Hash of the policy, or how it begins
    #[arg(value_name = "HASH")]
    pub policy: String,
    #[command(flatten)]
    pub server: Server,
    /// The card as one JSON object instead of lines
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Args)]
pub struct PolicyNewArguments {
    /// Name of the crate and of its folder, which is made here: lower-case letters, digits and dashes, a letter first
    #[arg(value_name = "NAME")]
    pub name: String,
    /// What the policy is to do: merge, codec or pace
    #[arg(long, value_name = "ROLE", value_parser = super::policy::role)]
    pub role: Role,
}

#[derive(Debug, Clone, Args)]
pub struct PolicyCheckArguments {
    /// The component's file, or the name of a bundled policy
    #[arg(value_name = "FILE")]
    pub file: String,
    /// Configuration to check it under (default: none, which means the policy's own defaults)
    #[arg(long, value_name = "JSON")]
    pub config: Option<String>,
    /// The card as one JSON object instead of lines
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Args)]
pub struct BucketArguments {
    #[command(subcommand)]
    pub command: BucketCommand,
}

#[derive(Debug, Clone, Subcommand)]
pub enum BucketCommand {
    /// Make the bucket if it is absent, set lifecycle rules as a backstop, and say which of them the store took
    Init(BucketInitArguments),
}

#[derive(Debug, Clone, Args)]
pub struct BucketInitArguments {
    /// The bucket: file:DIR, s3://BUCKET/PREFIX, az://CONTAINER/PREFIX or gs://BUCKET/PREFIX
    #[arg(value_name = "BUCKET")]
    pub bucket: String,
    #[command(flatten)]
    pub server: Server,
}
