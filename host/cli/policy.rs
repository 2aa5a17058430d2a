//! `tombolo policy`: what a component is, and whether a run may use it. New crates are `template`.

use super::arguments::{PolicyCheckArguments, PolicyCommand};
use super::assembly::policy_limits;
use super::template;
use crate::clock;
use crate::error::{Error, Result};
use crate::policy::{CARD_FORMAT, Card, Policy, Role, RoleCard, Runtime, admit, bundled_wasm};

/// `tombolo policy`.
///
/// # Errors
/// Invalid: the policy is refused.
pub fn command(command: &PolicyCommand) -> Result<()> {
    match command {
        PolicyCommand::Check(arguments) => check(arguments),
        PolicyCommand::New(arguments) => template::command(arguments),
    }
}

/// A role by its name.
pub fn role(name: &str) -> std::result::Result<Role, String> {
    match name {
        "codec" => Ok(Role::Codec),
        "merge" => Ok(Role::Merge),
        "pace" => Ok(Role::Pace),
        _ => Err("expected merge, codec or pace".into()),
    }
}

/// Holds that a component of a user's keeps the contract of `role` under `config`; speeds are not measured.
///
/// # Errors
/// Invalid, with the property that does not hold and the first counterexample.
pub fn require_admission(name: &str, policy: &Policy, role: Role, config: &str) -> Result<()> {
    let failed = |e| Error::unavailable(format!("{name}: cannot be examined here")).because(e);
    match admit(policy, role, config.as_bytes(), None).map_err(failed)?.refusal() {
        None => Ok(()),
        Some(refusal) => Err(Error::invalid(format!(
            "{role}.policy: {name}: {refusal}; `tombolo policy check {name}` shows what it passes"
        ))),
    }
}

/// `tombolo policy check`. Ends well only if every role of the component is admitted.
fn check(arguments: &PolicyCheckArguments) -> Result<()> {
    let file = &arguments.file;
    let examined = examine(file, arguments.config.as_deref().unwrap_or_default());
    match examined {
        Ok(card) => {
            if arguments.json {
                say!("{}", serde_json::to_string_pretty(&card).expect("a card serialises"));
            } else {
                show(&card);
            }
            let refusals: Vec<String> = card.roles.iter().filter_map(RoleCard::refusal).collect();
            if refusals.is_empty() { Ok(()) } else { Err(Error::invalid(format!("{file}: {}", refusals.join("; ")))) }
        }
        Err(error) => {
            if arguments.json {
                say!("{:#}", serde_json::json!({ "format": CARD_FORMAT, "refused": error.chain() }));
            }
            Err(error)
        }
    }
}

/// Loads the component in `file` (or the bundled policy of that name) and puts each of its roles through admission. It is compiled anew, in a child process:
/// the cache of compiled code is left out, so that the card says what compiling takes.
fn examine(file: &str, config: &str) -> Result<Card> {
    let wasm = match bundled_wasm(file) {
        Some(wasm) => wasm.to_vec(),
        None => read(file)?,
    };
    let program =
        std::env::current_exe().map_err(|e| Error::unavailable("this program does not find itself").because(e))?;
    let failed = |e: crate::policy::Error| match e {
        crate::policy::Error::Host { .. } => Error::unavailable(format!("{file}: cannot be examined here")).because(e),
        e => Error::invalid(file.to_string()).because(e),
    };
    let runtime = Runtime::compiling_with(policy_limits()?, None, program).map_err(failed)?;
    let begun = clock::now();
    let policy = runtime.load(&wasm).map_err(failed)?;
    let compile_ms = clock::ms(begun.elapsed());
    let elapsed = || begun.elapsed();
    let roles: Vec<RoleCard> = (policy.roles().iter())
        .map(|role| admit(&policy, *role, config.as_bytes(), Some(&elapsed)).map_err(failed))
        .collect::<Result<_>>()?;
    Ok(Card { format: CARD_FORMAT, policy: policy.hash(), component_bytes: wasm.len() as u64, compile_ms, roles })
}

/// The bytes of a file, if they are not more than a component may have.
fn read(file: &str) -> Result<Vec<u8>> {
    let unreadable = |e| {
        let known = crate::policy::bundled_names().join(", ");
        Error::invalid(format!("{file}: cannot be read; expected a component's file or a bundled policy ({known})"))
            .because(e)
    };
    let limit = policy_limits()?.component_bytes_max as u64;
    let found = std::fs::metadata(file).map_err(unreadable)?.len();
    if found > limit {
        return Err(Error::invalid(format!(
            "{file}: a component has at most {limit} bytes, found {found}; TOMBOLO_POLICY_LIMITS=large allows more"
        )));
    }
    std::fs::read(file).map_err(unreadable)
}

fn show(card: &Card) {
    say!("policy   {}", card.policy);
    say!("size     {} bytes, compiled in {:.0} ms", card.component_bytes, card.compile_ms);
    for role in &card.roles {
        say!("role     {}", role.role);
        for check in &role.passed {
            say!("ok       {:<58} {}", check.property, check.found);
        }
        if let Some(check) = &role.refused {
            say!("FAILS    {:<58} {}", check.property, check.found);
        }
        for (name, value) in &role.facts {
            say!("measured {:<58} {}", name.replace('_', " "), short(*value));
        }
    }
    say!("{}", if card.is_admitted() { "admitted" } else { "refused" });
}

/// A number with three digits that count; whole ones as they are.
fn short(value: f64) -> String {
    let whole = value.fract() == 0.0 && value.abs() < 1e15;
    match value.abs() {
        _ if whole => format!("{value}"),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 1.0 => format!("{value:.2}"),
        size if size >= 1e-3 => format!("{value:.5}"),
        _ => format!("{value:.2e}"),
    }
}
