//! Which files a corpus is made of: the sources of crates that cargo has fetched, or what a path
//! names.
//!
//! A listing is in an order that is a pure function of the files' names below the source's root, so
//! two machines with the same files agree, and spread over the source, so that a corpus cut off at
//! its size limit is a sample of all of it and not its first folders.

use std::env;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::error::{Error, Result};
use super::glob;

/// The crates whose sources are the default corpus: dependencies of this project on every platform,
/// in one version only, written by hand for the most part (no bindings, no Unicode tables),
/// together about 40 MiB. A fixed list, and the versions of this project's own `Cargo.lock`, so
/// that every machine that built the same Tombolo has the same corpus, whatever else its user has
/// compiled.
const CRATES: &str = "\
    aho-corasick anyhow arrow arrow-array arrow-buffer arrow-cast arrow-data arrow-ipc arrow-ord \
    arrow-schema arrow-select arrow-string aws-sigv4 aws-smithy-runtime aws-smithy-runtime-api \
    aws-smithy-types bumpalo bytes chrono clap_builder cranelift-codegen cranelift-frontend \
    crossbeam-deque crossbeam-epoch crossbeam-utils futures-util gemm-common gimli h2 http \
    httparse hyper hyper-util indexmap indicatif log lru memchr object object_store parking_lot \
    plotters rayon rayon-core regalloc2 reqwest rustls rustls-webpki safetensors serde \
    serde_core serde_derive serde_json slab smallvec tempfile tokio tokio-util toml toml_parser \
    tower url wasmtime wasmtime-environ wasmtime-internal-cranelift winnow";

/// The lock file of the build that this program is from.
const LOCK: &str = include_str!("../../Cargo.lock");

/// Kinds of file taken from a crate.
const EXTENSIONS: &[&str] = &["rs", "md", "toml"];

/// Folders deeper than this are not entered; a loop of links ends here too.
const DEPTH_MAX: usize = 64;

/// Where the text comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Rust, Markdown and TOML files of crates that this program was built from, out of cargo's
    /// registry (`$CARGO_HOME`, or `~/.cargo`).
    CargoRegistry,
    /// A text file, a folder (with everything below it; names that begin with a dot are passed
    /// over), or a glob with `*`, `?`, `[…]` and `**`.
    Path(PathBuf),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CargoRegistry => f.write_str("sources of the crates that this program is built from"),
            Self::Path(path) => write!(f, "{}", path.display()),
        }
    }
}

/// A file that may be text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Candidate {
    /// Its name below the source's root, with `/` between components.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
    /// Its size when it was listed.
    pub bytes: u64,
}

/// What a source holds, before anything was read.
#[derive(Debug)]
pub(super) struct Listing {
    /// In the order in which they are to be taken.
    pub files: Vec<Candidate>,
    /// Files that could not even be listed.
    pub unreadable: u64,
    /// The source in words.
    pub description: String,
}

/// Lists what `source` names.
pub(super) fn list(source: &Source) -> Result<Listing> {
    match source {
        Source::CargoRegistry => list_registry(&registry_homes()),
        Source::Path(path) => list_path(path),
    }
}

/// Where cargo may keep its registry. `CARGO_HOME` is set by whoever moved it (and by rustup); the
/// home folder is the default.
fn registry_homes() -> Vec<PathBuf> {
    let mut homes: Vec<PathBuf> =
        env::var_os("CARGO_HOME").filter(|home| !home.is_empty()).map(PathBuf::from).into_iter().collect();
    if let Some(home) = env::home_dir() {
        let default = home.join(".cargo");
        if !homes.contains(&default) {
            homes.push(default);
        }
    }
    homes
}

/// Lists the files of [`CRATES`] below `<home>/registry/src/<index>/`; a crate is taken from the
/// first place that has it.
pub(super) fn list_registry(homes: &[PathBuf]) -> Result<Listing> {
    let mut indexes = Vec::new();
    for home in homes {
        let root = home.join("registry").join("src");
        let mut found: Vec<PathBuf> =
            fs::read_dir(&root).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        found.sort();
        indexes.extend(found);
    }
    let wanted = locked_crates(LOCK);
    let mut walk = Walk::default();
    let mut missing = Vec::new();
    for folder in &wanted {
        match indexes.iter().map(|index| index.join(folder)).find(|path| path.is_dir()) {
            Some(path) => walk.folder(&path, folder, 0),
            None => missing.push(folder.as_str()),
        }
    }
    walk.files.retain(|file| file.name.rsplit_once('.').is_some_and(|(_, extension)| EXTENSIONS.contains(&extension)));
    if walk.files.is_empty() {
        let looked =
            homes.iter().map(|home| home.join("registry/src").display().to_string()).collect::<Vec<_>>().join(" and ");
        return Err(Error::RegistryEmpty {
            looked: if looked.is_empty() {
                "no place, as neither CARGO_HOME nor a home folder is set".to_owned()
            } else {
                looked
            },
            expected: wanted.len(),
            example: wanted.first().cloned().unwrap_or_default(),
        });
    }
    let mut description = format!("sources of {} crates from cargo's registry", wanted.len() - missing.len());
    if !missing.is_empty() {
        description.push_str(&format!(" ({} missing: {})", missing.len(), missing.join(", ")));
    }
    Ok(walk.listing(description))
}

/// `name-version` of each of [`CRATES`] that `lock` has from a registry, in the order of the list.
pub(super) fn locked_crates(lock: &str) -> Vec<String> {
    let field = |block: &str, key: &str| {
        block
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \"")?.strip_suffix('"').map(str::to_owned))
    };
    let mut locked = Vec::new();
    for block in lock.split("[[package]]").skip(1) {
        if let (Some(name), Some(version), Some(source)) =
            (field(block, "name"), field(block, "version"), field(block, "source"))
            && source.starts_with("registry+")
        {
            locked.push((name, version));
        }
    }
    CRATES
        .split_whitespace()
        .filter_map(|wanted| locked.iter().find(|(name, _)| name == wanted))
        .map(|(name, version)| format!("{name}-{version}"))
        .collect()
}

/// How many crates the default corpus is made of.
#[cfg(test)]
pub(super) fn crate_count() -> usize {
    CRATES.split_whitespace().count()
}

/// Lists a file, a folder or a glob.
fn list_path(path: &Path) -> Result<Listing> {
    let not_found = |problem| Error::NotFound { path: path.to_owned(), problem };
    let mut walk = Walk::default();
    let description;
    if path.is_dir() {
        fs::read_dir(path).map_err(|source| Error::Io { what: "reading", path: path.to_owned(), source })?;
        walk.folder(path, "", 0);
        if walk.files.is_empty() && walk.unreadable == 0 {
            return Err(not_found("no file in that folder"));
        }
        description = path.display().to_string();
    } else if path.exists() {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        walk.file(path.to_owned(), name);
        if walk.files.is_empty() {
            return Err(not_found("neither a file nor a folder"));
        }
        description = path.display().to_string();
    } else if glob::is_pattern(path) {
        let (root, pattern) = glob::split(path);
        if !root.is_dir() {
            return Err(not_found("the folder before the first wildcard does not exist"));
        }
        walk.folder(&root, "", 0);
        walk.files.retain(|file| glob::matches(&pattern, &file.name.split('/').collect::<Vec<_>>()));
        if walk.files.is_empty() {
            return Err(not_found("no file matches the pattern"));
        }
        description = format!("{} ({} files match)", path.display(), walk.files.len());
    } else {
        return Err(not_found("no such file or folder"));
    }
    Ok(walk.listing(description))
}

/// Collects files below folders.
#[derive(Default)]
struct Walk {
    files: Vec<Candidate>,
    unreadable: u64,
}

impl Walk {
    /// Everything below `path`, whose name below the root is `name`. Links to files are followed,
    /// links to folders are not.
    fn folder(&mut self, path: &Path, name: &str, depth: usize) {
        let Ok(entries) = fs::read_dir(path) else {
            self.unreadable += 1;
            return;
        };
        for entry in entries.flatten() {
            let file_name = entry.file_name().to_string_lossy().into_owned();
            if file_name.starts_with('.') {
                continue;
            }
            let below = if name.is_empty() { file_name } else { format!("{name}/{file_name}") };
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && depth < DEPTH_MAX => self.folder(&entry.path(), &below, depth + 1),
                Ok(kind) if kind.is_file() || kind.is_symlink() => self.file(entry.path(), below),
                Ok(_) => {}
                Err(_) => self.unreadable += 1,
            }
        }
    }

    fn file(&mut self, path: PathBuf, name: String) {
        match fs::metadata(&path) {
            Ok(metadata) if metadata.is_file() => self.files.push(Candidate { name, path, bytes: metadata.len() }),
            Ok(_) => {}
            Err(_) => self.unreadable += 1,
        }
    }

    /// Puts the files in their order: by a hash of the name, so that the order in which the file
    /// system lists them shows nowhere.
    fn listing(self, description: String) -> Listing {
        let mut files = self.files;
        files.sort_by_cached_key(|file| (<[u8; 32]>::from(Sha256::digest(file.name.as_bytes())), file.name.clone()));
        Listing { files, unreadable: self.unreadable, description }
    }
}
