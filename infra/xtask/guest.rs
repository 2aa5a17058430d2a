//! Builds the worked examples in other languages under plugins/ to components.
//!
//! Their compilers come from package registries. Those of C and AssemblyScript make core modules; `infra/componentize` turns
//! them into components of `wit/policy.wit`. A compiler is looked for on PATH, and nothing is fetched.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

use crate::plugins::root;
use crate::{Failure, run};

/// A worked example.
struct Example {
    /// Its folder under plugins/, and the component's name.
    language: &'static str,
    /// The world of wit/policy.wit that its module is made for; none where the compiler makes a component itself.
    world: Option<&'static str>,
    /// Ways to call its compiler; the first that answers to `version` is taken.
    compilers: &'static [&'static [&'static str]],
    /// What makes it say its version.
    version: &'static str,
    /// Where the compiler comes from.
    install: &'static str,
    /// The compiler's arguments, in the folder of the source, where it is told to write this file.
    arguments: fn(&str) -> Vec<&str>,
}

const EXAMPLES: [Example; 3] = [
    Example {
        language: "c",
        world: Some("merge-policy"),
        compilers: &[&["zig"], &["python-zig"], &["python3", "-m", "ziglang"]],
        version: "version",
        install: "pip install ziglang==0.17.1",
        arguments: |module| {
            vec![
                "cc",
                "mean.c",
                "-o",
                module,
                "-target",
                "wasm32-freestanding",
                "-mcpu=generic+simd128",
                "-O3",
                "-std=c23",
                "-Wall",
                "-Werror",
                "-nostdlib",
                "-Wl,--no-entry",
                "-Wl,--strip-all",
            ]
        },
    },
    Example {
        language: "assemblyscript",
        world: Some("codec-policy"),
        compilers: &[&["asc"]],
        version: "--version",
        install: "npm install --global assemblyscript@0.28.20",
        arguments: |module| {
            vec![
                "bf16.ts",
                "-o",
                module,
                "-O3",
                "--enable",
                "simd",
                "--runtime",
                "stub",
                "--use",
                "abort=",
                "--transform",
                "./rename.mjs",
            ]
        },
    },
    Example {
        language: "python",
        world: None,
        compilers: &[&["componentize-py"]],
        version: "--version",
        install: "pip install componentize-py==0.25.1",
        arguments: |component| {
            vec![
                "--wit-path",
                "../../wit",
                "--world",
                "pace-policy",
                "componentize",
                "--stub-wasi",
                "app",
                "--output",
                component,
            ]
        },
    },
];

/// `cargo xtask guest LANGUAGE DIR`: leaves DIR/LANGUAGE.wasm.
pub(crate) fn build(language: &str, folder: &Path) -> Result<(), Failure> {
    let Some(example) = EXAMPLES.iter().find(|example| example.language == language) else {
        let known: Vec<&str> = EXAMPLES.iter().map(|example| example.language).collect();
        return Err(Failure::Usage(format!("no example is written in {language:?}; there are {}", known.join(", "))));
    };
    let answers = |compiler: &&&[&str]| {
        let mut command = Command::new(compiler[0]);
        command.args(&compiler[1..]).arg(example.version);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let Some(compiler) = example.compilers.iter().find(answers) else {
        return Err(Failure::NoGuestCompiler(format!("no compiler for {language} on PATH ({})", example.install)));
    };
    fs::create_dir_all(folder)?;
    let folder = folder.canonicalize()?;
    let module = folder.join(format!("{language}.module.wasm"));
    let module_name = module.to_string_lossy();
    let mut command = Command::new(compiler[0]);
    command.args(&compiler[1..]).args((example.arguments)(&module_name));
    run(command.current_dir(source(language)))?;
    let component = folder.join(format!("{language}.wasm"));
    match example.world {
        Some(world) => {
            componentize(&module, world, &component)?;
            fs::remove_file(&module)?;
        }
        None => fs::rename(&module, &component)?,
    }
    println!("{:>8} bytes  {}", fs::metadata(&component)?.len(), component.display());
    Ok(())
}

fn source(language: &str) -> PathBuf {
    root().join("plugins").join(language)
}

/// Makes a core module that keeps to the canonical ABI of this world a component.
fn componentize(module: &Path, world: &str, component: &Path) -> Result<(), Failure> {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["run", "--release", "--locked", "--quiet", "--manifest-path"]);
    command.arg(root().join("infra/componentize/Cargo.toml"));
    command.arg("--target-dir").arg(root().join("target/componentize"));
    run(command.arg("--").arg(root().join("wit")).arg(world).args([module, component]))?;
    Ok(())
}
