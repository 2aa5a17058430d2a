//! Builds the policies under plugins/ into components and writes down what they were built from.
//!
//! The components ship in the repository, so that nobody needs a WebAssembly toolchain to run them; `manifest.json` says which
//! compiler made them from which sources. Sources are named by one hash over every file under plugins/ (documents, build output and examples in
//! other languages left out) and wit/: path, length and content, in the order of the paths. Another compiler makes other bytes of the same sources; what it may
//! not make is other answers, which the golden vectors of the host's tests hold.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::toolchain::{Compiler, Fetch, TARGET};
use crate::{Failure, run};

/// What plugins/bundled/manifest.json holds.
#[derive(Debug, Serialize, Deserialize)]
struct Manifest {
    /// 1.
    format: u32,
    /// First line of the compiler's version.
    compiler: String,
    /// Hash of the sources.
    source: String,
    /// The components, by name.
    components: Vec<Component>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Component {
    name: String,
    sha256: String,
    bytes: u64,
}

/// `cargo xtask plugins`
pub(crate) fn bundle() -> Result<(), Failure> {
    build_into(&bundled(), Fetch::Allowed)
}

/// `cargo xtask plugins --out DIR`
pub(crate) fn build_into(folder: &Path, fetch: Fetch) -> Result<(), Failure> {
    let manifest = build(folder, fetch)?;
    println!("{} in {}", manifest.compiler, folder.display());
    for component in &manifest.components {
        println!("{:>8} bytes  {}  {}", component.bytes, component.sha256, component.name);
    }
    Ok(())
}

/// `cargo xtask plugins --check`
pub(crate) fn check() -> Result<(), Failure> {
    let path = bundled().join("manifest.json");
    let shipped: Manifest = serde_json::from_slice(&fs::read(&path)?)
        .map_err(|error| Failure::Failed(format!("{} is no manifest: {error}", path.display())))?;
    for component in &shipped.components {
        let path = bundled().join(format!("{}.wasm", component.name));
        if hex(&Sha256::digest(fs::read(&path)?)) != component.sha256 {
            return Err(Failure::Failed(format!(
                "{} is not what the manifest says; run cargo xtask plugins",
                path.display()
            )));
        }
    }
    let source = source_hash()?;
    if source != shipped.source {
        return Err(Failure::Failed(format!(
            "the bundled policies are older than their sources: manifest {}, found {source}; run cargo xtask plugins",
            shipped.source
        )));
    }
    println!("sources agree: {source}");
    let rebuilt = build(&root().join("target/plugins/check"), Fetch::Allowed)?;
    let differing: Vec<&str> = (rebuilt.components.iter())
        .filter(|component| !shipped.components.contains(component))
        .map(|component| component.name.as_str())
        .collect();
    if differing.is_empty() {
        println!("bytes agree: rebuilt with {}", rebuilt.compiler);
        Ok(())
    } else if rebuilt.compiler != shipped.compiler {
        println!(
            "bytes differ: {}; the compilers do, too: bundled with {}, rebuilt with {}",
            differing.join(", "),
            shipped.compiler,
            rebuilt.compiler
        );
        Ok(())
    } else {
        Err(Failure::Failed(format!("bytes differ though sources and compiler agree: {}", differing.join(", "))))
    }
}

/// `cargo xtask policy DIR`: cargo leaves the component where it does without this chore, below target/ in `folder`.
pub(crate) fn build_crate(folder: &Path, fetch: Fetch) -> Result<(), Failure> {
    let mut command = Compiler::find(fetch)?.cargo();
    command.current_dir(folder).args(["build", "--quiet", "--release", "--target", TARGET]);
    if fetch == Fetch::Forbidden {
        command.arg("--offline");
    }
    run(&mut command).map(|_| ())
}

/// Builds every component into `folder`, with its manifest.
fn build(folder: &Path, fetch: Fetch) -> Result<Manifest, Failure> {
    let compiler = Compiler::find(fetch)?;
    let source = source_hash()?;
    let target = root().join("target/plugins");
    let names = names()?;
    let mut command = compiler.cargo();
    command.current_dir(root().join("plugins")).env("CARGO_TARGET_DIR", &target).args([
        "build",
        "--quiet",
        "--release",
        "--locked",
        "--target",
        TARGET,
    ]);
    for name in &names {
        command.args(["-p", name]);
    }
    run(&mut command)?;

    fs::create_dir_all(folder)?;
    let mut components = Vec::new();
    for name in names {
        let built = target.join(TARGET).join("release").join(format!("{}.wasm", name.replace('-', "_")));
        let bytes = fs::read(&built)?;
        fs::write(folder.join(format!("{name}.wasm")), &bytes)?;
        components.push(Component { name, sha256: hex(&Sha256::digest(&bytes)), bytes: bytes.len() as u64 });
    }
    let manifest = Manifest { format: 1, compiler: compiler.version().into(), source, components };
    let mut json = serde_json::to_string_pretty(&manifest).map_err(|error| Failure::Failed(error.to_string()))?;
    json.push('\n');
    fs::write(folder.join("manifest.json"), json)?;
    Ok(manifest)
}

/// The packages under plugins/ that build to a component, sorted.
fn names() -> Result<Vec<String>, Failure> {
    let json = run(Command::new(cargo()).current_dir(root().join("plugins")).args([
        "metadata",
        "--no-deps",
        "--format-version",
        "1",
    ]))?;
    let metadata: serde_json::Value =
        serde_json::from_str(&json).map_err(|error| Failure::Failed(error.to_string()))?;
    let list = |value: &serde_json::Value| value.as_array().cloned().unwrap_or_default();
    let is_component = |package: &serde_json::Value| {
        list(&package["targets"]).iter().any(|target| list(&target["kind"]).iter().any(|kind| kind == "cdylib"))
    };
    let mut names: Vec<String> = list(&metadata["packages"])
        .iter()
        .filter(|package| is_component(package))
        .filter_map(|package| package["name"].as_str().map(String::from))
        .collect();
    names.sort();
    Ok(names)
}

fn source_hash() -> Result<String, Failure> {
    let mut files = Vec::new();
    for folder in ["plugins", "wit"] {
        collect(&root().join(folder), &mut files)?;
    }
    files.sort();
    let mut hash = Sha256::new();
    for file in files {
        let name = file.strip_prefix(root()).unwrap_or(&file).to_string_lossy().into_owned();
        let bytes = fs::read(&file)?;
        for part in [name.as_bytes(), &bytes] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
    }
    Ok(hex(&hash.finalize()))
}

/// Folders under plugins/ that no bundled policy is built from: output, and the examples in other languages.
const OTHERS: [&str; 5] = ["assemblyscript", "bundled", "c", "python", "target"];

/// Files under `folder`, without those and what is hidden.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), Failure> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with('.') || name.ends_with(".md") || OTHERS.contains(&&*name) {
            continue;
        }
        if entry.file_type()?.is_dir() {
            collect(&entry.path(), files)?;
        } else {
            files.push(entry.path());
        }
    }
    Ok(())
}

/// The cargo that runs this chore.
pub(crate) fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".into())
}

/// The repository.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_path_buf()
}

fn bundled() -> PathBuf {
    root().join("plugins/bundled")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
