//! Finds, or makes, a compiler for `wasm32-unknown-unknown`.
//!
//! 1. The installed toolchain, where it has that target's standard library (`rustup target add wasm32-unknown-unknown`).
//! 2. Else a distribution's compiler with its library sources: Debian's `rustc-web` and `rust-web-src`, unpacked into a cache folder
//!    (nothing is installed), from which the standard library is built once, in about a minute, into a private sysroot.
//! 3. Else one message that says what would help.
//!
//! Either way the toolchain's own `wasm-component-ld` links, and makes the component in the same step. The cache folder is `TOMBOLO_GUEST_CACHE`, by default
//! `tombolo/guest` in the user's cache folder.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

use crate::plugins::{cargo, root};
use crate::{Failure, run};

/// The target that policies are built for: no system interface, so nothing that a component could import.
pub(crate) const TARGET: &str = "wasm32-unknown-unknown";

/// Whether a compiler may be fetched where none is here.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Fetch {
    /// From the distribution's packages.
    Allowed,
    /// Only what is here already counts.
    Forbidden,
}

/// A compiler that can build policies.
pub(crate) struct Compiler {
    /// The compiler to call; none: the one that cargo takes anyway.
    rustc: Option<PathBuf>,
    version: String,
}

impl Compiler {
    /// Finds one, by the ways that the module names, in this order.
    pub(crate) fn find(fetch: Fetch) -> Result<Compiler, Failure> {
        let installed = std::env::var_os("RUSTC").map_or_else(|| PathBuf::from("rustc"), PathBuf::from);
        if has_std(&installed) {
            return Ok(Compiler { rustc: None, version: version(&installed)? });
        }
        let rustc = private_sysroot(fetch).map_err(|why| {
            let why = match why {
                Failure::Usage(why) | Failure::Failed(why) | Failure::NoGuestCompiler(why) => why,
            };
            Failure::NoGuestCompiler(format!(
                "no compiler for {TARGET} here: run `rustup target add {TARGET}` (the other way, Debian's rustc-web, did not work: {})",
                why.trim_end()
            ))
        })?;
        Ok(Compiler { version: version(&rustc)?, rustc: Some(rustc) })
    }

    /// First line of its version.
    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// A cargo that builds components with it: SIMD on, paths of this machine left out.
    pub(crate) fn cargo(&self) -> Command {
        let bin = linker_folder();
        let flags = [
            "-Ctarget-feature=+simd128".to_string(),
            format!("-Clink-arg=--wasm-ld-path={}", bin.join("gcc-ld/wasm-ld").display()),
            format!("--remap-path-prefix={}=/tombolo", root().display()),
            format!("--remap-path-prefix={}=/cargo", cargo_home().display()),
        ];
        let mut command = clean_cargo();
        command
            .env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", bin.join("wasm-component-ld"))
            .env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS", flags.join(" "));
        if let Some(rustc) = &self.rustc {
            command.env("RUSTC", rustc);
        }
        command
    }
}

/// A cargo without what the surrounding build has set for itself.
fn clean_cargo() -> Command {
    let mut command = Command::new(cargo());
    for name in [
        "RUSTFLAGS",
        "CARGO_ENCODED_RUSTFLAGS",
        "CARGO_BUILD_TARGET",
        "CARGO_BUILD_RUSTFLAGS",
        "RUSTC_WRAPPER",
        "RUSTC_WORKSPACE_WRAPPER",
    ] {
        command.env_remove(name);
    }
    command
}

fn cargo_home() -> PathBuf {
    std::env::var_os("CARGO_HOME").map_or_else(|| home().join(".cargo"), PathBuf::from)
}

fn home() -> PathBuf {
    std::env::var_os("HOME").map_or_else(|| PathBuf::from("/"), PathBuf::from)
}

fn cache() -> PathBuf {
    if let Some(folder) = std::env::var_os("TOMBOLO_GUEST_CACHE") {
        return folder.into();
    }
    std::env::var_os("XDG_CACHE_HOME").map_or_else(|| home().join(".cache"), PathBuf::from).join("tombolo/guest")
}

fn version(rustc: &Path) -> Result<String, Failure> {
    Ok(run(Command::new(rustc).arg("-V"))?.trim().to_string())
}

/// Whether `rustc` brings the target's standard library along.
fn has_std(rustc: &Path) -> bool {
    run(Command::new(rustc).args(["--print", "target-libdir", "--target", TARGET]))
        .is_ok_and(|folder| holds(Path::new(folder.trim()), "libcore-"))
}

/// Whether `folder` holds a file whose name starts with `prefix`.
fn holds(folder: &Path, prefix: &str) -> bool {
    fs::read_dir(folder)
        .is_ok_and(|entries| entries.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with(prefix)))
}

/// Where the installed toolchain keeps its linkers: they come with every rustup toolchain, whatever its targets.
fn linker_folder() -> PathBuf {
    let print = |what: &[&str]| run(Command::new("rustc").env_remove("RUSTC").args(what)).unwrap_or_default();
    let sysroot = print(&["--print", "sysroot"]);
    let version = print(&["-vV"]);
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap_or_default();
    Path::new(sysroot.trim()).join("lib/rustlib").join(host).join("bin")
}

/// A compiler whose private sysroot has the target's standard library, made if need be.
fn private_sysroot(fetch: Fetch) -> Result<PathBuf, Failure> {
    fs::create_dir_all(cache())?;
    let rustc = distribution(fetch)?;
    let version = run(Command::new(&rustc).arg("-vV"))?;
    let key: String = Sha256::digest(&version).iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    let sysroot = cache().join(format!("sysroot-{key}"));
    let wrapper = sysroot.join("rustc.sh");
    if wrapper.exists() {
        return Ok(wrapper);
    }
    eprintln!("building the standard library for {TARGET} once, with {}", version.lines().next().unwrap_or_default());
    let scratch = cache().join(format!("scratch-{}", std::process::id()));
    let made = make_sysroot(&rustc, &version, &scratch, &sysroot);
    let _ = fs::remove_dir_all(&scratch);
    made.map(|()| wrapper)
}

/// Builds the standard library in `scratch` and moves the finished sysroot into place, so that a half-made one is never seen.
fn make_sysroot(rustc: &Path, version: &str, scratch: &Path, sysroot: &Path) -> Result<(), Failure> {
    let package = scratch.join("package");
    fs::create_dir_all(package.join("src"))?;
    let manifest = "[package]\nname = \"empty\"\nversion = \"0.0.0\"\nedition = \"2021\"\n\n[profile.release]\npanic = \"abort\"\nopt-level = 3\n\n[workspace]\n";
    fs::write(package.join("Cargo.toml"), manifest)?;
    fs::write(package.join("src/lib.rs"), "")?;
    let theirs = PathBuf::from(run(Command::new(rustc).args(["--print", "sysroot"]))?.trim());
    let flags = [
        "-Ctarget-feature=+simd128".to_string(),
        "-Cembed-bitcode=yes".to_string(),
        format!("--remap-path-prefix={}=/rust", theirs.join("lib/rustlib/src/rust").display()),
        format!("--remap-path-prefix={}=/cargo", cargo_home().display()),
    ];
    // RUSTC_BOOTSTRAP: building the library is behind a nightly flag, whichever compiler does it.
    run(clean_cargo()
        .current_dir(&package)
        .env("RUSTC", rustc)
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", flags.join(" "))
        .env("CARGO_TARGET_DIR", scratch.join("target"))
        .args(["build", "--quiet", "--release", "-Zbuild-std=std,panic_abort", "--target", TARGET]))?;

    let staged = scratch.join("sysroot");
    let libraries = staged.join("lib/rustlib").join(TARGET).join("lib");
    fs::create_dir_all(&libraries)?;
    for entry in fs::read_dir(scratch.join("target").join(TARGET).join("release/deps"))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(".rlib") && !name.starts_with("libempty-") {
            fs::copy(entry.path(), libraries.join(name))?;
        }
    }
    if !holds(&libraries, "libstd-") {
        return Err(Failure::Failed(
            "the standard library was built, but is not where cargo should have put it".into(),
        ));
    }
    // Procedural macros run on this machine: their half of the sysroot stays the distribution's.
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap_or_default();
    std::os::unix::fs::symlink(theirs.join("lib/rustlib").join(host), staged.join("lib/rustlib").join(host))?;
    let script = format!("#!/bin/sh\nexec '{}' --sysroot '{}' \"$@\"\n", rustc.display(), sysroot.display());
    write_script(&staged.join("rustc.sh"), &script)?;
    if fs::rename(&staged, sysroot).is_err() && !sysroot.join("rustc.sh").exists() {
        return Err(Failure::Failed(format!("cannot move the finished sysroot to {}", sysroot.display())));
    }
    Ok(())
}

fn write_script(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// A distribution's compiler that has the library's sources beside it: one in the cache, an installed one, or one fetched now.
fn distribution(fetch: Fetch) -> Result<PathBuf, Failure> {
    let cached = cache().join("debian/rustc.sh");
    for rustc in [cached.clone(), PathBuf::from("/usr/bin/rustc")] {
        if rustc.exists() && has_sources(&rustc) {
            return Ok(rustc);
        }
    }
    if fetch == Fetch::Forbidden {
        return Err(Failure::Failed("it is not here, and nothing may be fetched".into()));
    }
    fetch_debian()?;
    if has_sources(&cached) {
        Ok(cached)
    } else {
        Err(Failure::Failed("the fetched compiler has no library sources beside it".into()))
    }
}

fn has_sources(rustc: &Path) -> bool {
    run(Command::new(rustc).args(["--print", "sysroot"]))
        .is_ok_and(|sysroot| Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library/Cargo.lock").exists())
}

/// Unpacks Debian's compiler and sources into the cache.
fn fetch_debian() -> Result<(), Failure> {
    let policy = run(Command::new("apt-cache").args(["policy", "rust-web-src"]))?;
    let version = (policy.lines())
        .find_map(|line| line.trim().strip_prefix("Candidate: "))
        .filter(|version| *version != "(none)")
        .ok_or_else(|| {
            Failure::Failed(
                "apt knows no package rust-web-src (is its list of packages there? `apt-get update`)".into(),
            )
        })?;
    let depends = |package: &str, prefix: &str| -> Result<String, Failure> {
        let text = run(Command::new("apt-cache").args(["depends", package]))?;
        text.lines()
            .filter_map(|line| line.trim().strip_prefix("Depends: "))
            .find(|name| name.starts_with(prefix))
            .map(String::from)
            .ok_or_else(|| Failure::Failed(format!("{package} depends on no {prefix}…")))
    };
    let std = depends(&format!("libstd-rust-web-dev={version}"), "libstd-rust-web-")?;
    let llvm = depends(&std, "libllvm")?;

    let scratch = cache().join(format!("debian-{}", std::process::id()));
    let packages = scratch.join("packages");
    fs::create_dir_all(&packages)?;
    let fetched = run(Command::new("apt-get").current_dir(&packages).args(["download", "-q"]).args([
        format!("rustc-web={version}"),
        format!("libstd-rust-web-dev={version}"),
        format!("{std}={version}"),
        format!("rust-web-src={version}"),
        llvm,
    ]))
    .and_then(|_| unpack(&packages, &scratch.join("root")));
    if let Err(failure) = fetched {
        let _ = fs::remove_dir_all(&scratch);
        return Err(failure);
    }
    fs::remove_dir_all(&packages)?;
    let root = cache().join("debian/root");
    let libraries = fs::read_dir(scratch.join("root/usr/lib"))?
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .find(|name| name.ends_with("-linux-gnu"))
        .unwrap_or_default();
    let script = format!(
        "#!/bin/sh\nLD_LIBRARY_PATH='{0}/usr/lib/{libraries}'${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}} exec '{0}/usr/bin/rustc' \"$@\"\n",
        root.display()
    );
    write_script(&scratch.join("rustc.sh"), &script)?;
    if fs::rename(&scratch, cache().join("debian")).is_err() {
        // Another build was faster, or an older attempt is in the way.
        let _ = fs::remove_dir_all(&scratch);
    }
    Ok(())
}

fn unpack(packages: &Path, root: &Path) -> Result<(), Failure> {
    for entry in fs::read_dir(packages)? {
        run(Command::new("dpkg").arg("-x").arg(entry?.path()).arg(root))?;
    }
    Ok(())
}
