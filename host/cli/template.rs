//! `tombolo policy new`: a crate that builds to a policy, with all that it needs beside it, so that it builds outside of this repository, too.
//!
//! The SDK lies in `vendor/sdk` and the contract in `wit/`, at the distance at which the SDK looks for it; the crate's manifest is the workspace of
//! both. The lock file is the one that the bundled policies are built with: cargo takes the versions that are needed from it.

use super::arguments::PolicyNewArguments;
use crate::bucket::key::is_name;
use crate::error::{Error, Result};
use crate::policy::Role;
use std::path::Path;

/// What is the same for every crate: its place in it, and the text.
const FILES: &[(&str, &str)] = &[
    ("Cargo.lock", include_str!("../../plugins/Cargo.lock")),
    ("wit/policy.wit", include_str!("../../wit/policy.wit")),
    ("vendor/sdk/Cargo.toml", include_str!("../../plugins/sdk/Cargo.toml")),
    ("vendor/sdk/src/bindings.rs", include_str!("../../plugins/sdk/src/bindings.rs")),
    ("vendor/sdk/src/config.rs", include_str!("../../plugins/sdk/src/config.rs")),
    ("vendor/sdk/src/lib.rs", include_str!("../../plugins/sdk/src/lib.rs")),
    ("vendor/sdk/src/nibble.rs", include_str!("../../plugins/sdk/src/nibble.rs")),
    ("vendor/sdk/src/outer.rs", include_str!("../../plugins/sdk/src/outer.rs")),
    ("vendor/sdk/src/outer/adam.rs", include_str!("../../plugins/sdk/src/outer/adam.rs")),
    ("vendor/sdk/src/outer/choice.rs", include_str!("../../plugins/sdk/src/outer/choice.rs")),
    ("vendor/sdk/src/outer/delayed.rs", include_str!("../../plugins/sdk/src/outer/delayed.rs")),
    ("vendor/sdk/src/quantise.rs", include_str!("../../plugins/sdk/src/quantise.rs")),
    ("vendor/sdk/src/robust.rs", include_str!("../../plugins/sdk/src/robust.rs")),
    ("vendor/sdk/src/role.rs", include_str!("../../plugins/sdk/src/role.rs")),
    ("vendor/sdk/src/sparse.rs", include_str!("../../plugins/sdk/src/sparse.rs")),
    ("vendor/sdk/src/vector.rs", include_str!("../../plugins/sdk/src/vector.rs")),
    ("vendor/sdk/src/weight.rs", include_str!("../../plugins/sdk/src/weight.rs")),
];

/// The linker comes with every Rust toolchain, and makes the component in the same step.
const CARGO_CONFIG: &str = "\
# The linker, which comes with every Rust toolchain, makes a component at once. SIMD is required of codecs and merge rules.
[target.wasm32-unknown-unknown]
linker = \"wasm-component-ld\"
rustflags = [\"-Ctarget-feature=+simd128\"]
";

/// `tombolo policy new`.
///
/// # Errors
/// Invalid: the name cannot be a crate's, or there is something of this name; unavailable: the files cannot be written.
pub fn command(arguments: &PolicyNewArguments) -> Result<()> {
    let name = arguments.name.as_str();
    if !is_name(name) || !name.starts_with(|first: char| first.is_ascii_lowercase()) {
        return Err(Error::invalid(format!(
            "expected the name of a crate (lower-case letters, digits and dashes, a letter first), found `{}`",
            name.escape_debug()
        )));
    }
    let folder = Path::new(name);
    std::fs::create_dir(folder).map_err(|e| {
        Error::invalid(format!("{name}: cannot be made here; choose another name or folder")).because(e)
    })?;
    let role = arguments.role;
    let source = match role {
        Role::Merge => include_str!("template/merge.rs"),
        Role::Codec => include_str!("template/codec.rs"),
        Role::Pace => include_str!("template/pace.rs"),
    };
    let own = [
        ("Cargo.toml", manifest(name, role)),
        (".cargo/config.toml", CARGO_CONFIG.to_string()),
        (".gitignore", "/target\n".to_string()),
        ("README.md", readme(name, role)),
        ("src/lib.rs", source.to_string()),
    ];
    let shared = FILES.iter().map(|(file, text)| (*file, *text));
    for (file, text) in shared.chain(own.iter().map(|(file, text)| (*file, text.as_str()))) {
        write(&folder.join(file), text)
            .map_err(|e| Error::unavailable(format!("{name}/{file}: cannot be written")).because(e))?;
    }
    say!("{name} is a crate with a {role} policy, {name}/src/lib.rs; to build and check it:");
    say!("  cd {name}");
    say!("  rustup target add wasm32-unknown-unknown   # once");
    say!("  cargo build --release --target wasm32-unknown-unknown");
    say!("  tombolo policy check {}", built(name));
    Ok(())
}

fn write(path: &Path, text: &str) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(path, text)
}

/// Where cargo leaves the component.
fn built(name: &str) -> String {
    format!("target/wasm32-unknown-unknown/release/{}.wasm", name.replace('-', "_"))
}

fn manifest(name: &str, role: Role) -> String {
    format!(
        r#"[package]
name = "{name}"
description = "A {role} policy for Tombolo"
version = "0.1.0"
edition = "2024"
publish = false

[lib]
crate-type = ["cdylib", "lib"]

[dependencies]
tombolo-policy-sdk = {{ path = "vendor/sdk" }}

# The SDK takes over from here what it has in common with Tombolo's own policies.
[workspace]
members = ["vendor/sdk"]
resolver = "3"

[workspace.package]
version = "{version}"
edition = "2024"
license = "Apache-2.0"
rust-version = "1.95"
publish = false

[workspace.lints.rust]
missing_docs = "warn"
unused_must_use = "deny"

# Small and fast at once: one unit of code, no unwinding, no symbols.
[profile.release]
opt-level = 3
lto = "fat"
codegen-units = 1
panic = "abort"
strip = true
"#,
        version = env!("CARGO_PKG_VERSION"),
    )
}

fn readme(name: &str, role: Role) -> String {
    format!(
        "# {name}\n\nA {role} policy for Tombolo: one trait of the SDK in `src/lib.rs`, which says what it does. `vendor/sdk` is the SDK, \
         `wit/policy.wit` the contract with what the host checks.\n\n\
         Test it on this machine: `cargo test --release`. Build it:\n\n```sh\ncargo build --release --target wasm32-unknown-unknown\n```\n\n\
         which needs the target's library once (`rustup target add wasm32-unknown-unknown`) and leaves the component at\n\
         `{file}`. Check it:\n\n```sh\ntombolo policy check {file}\n```\n",
        file = built(name),
    )
}
