//! `tombolo policy`: what a component is, whether a run may use it, and the policies of a bucket. New crates are `template`.

use super::arguments::{
    PolicyActivateArguments, PolicyCheckArguments, PolicyCommand, PolicyListArguments, PolicyPushArguments,
    PolicyShowArguments,
};
use super::assembly::{Run, open_for_writing, policy_limits, policy_runtime};
use super::role::location;
use super::{replay, template};
use crate::activate::{self, require_fit};
use crate::bucket::policy::{Listed, Pushed, canonical};
use crate::bucket::record::PolicyUse;
use crate::bucket::{Location, Policies, unfit};
use crate::clock;
use crate::error::{Error, Result};
use crate::policy::{CARD_FORMAT, Card, Hash, Role, RoleCard, Runtime, bundled_name, bundled_wasm, examine};

/// `tombolo policy`.
///
/// # Errors
/// Invalid: the policy is refused, or does not fit the run. Unavailable: the bucket does not answer.
pub async fn command(command: PolicyCommand) -> Result<()> {
    match command {
        PolicyCommand::Check(arguments) => tokio::task::spawn_blocking(move || check(&arguments))
            .await
            .map_err(|e| Error::bug("the examination panicked").because(e))?,
        PolicyCommand::New(arguments) => template::command(&arguments),
        PolicyCommand::Activate(arguments) => activate(&arguments).await,
        PolicyCommand::Replay(arguments) => replay::replay_command(&arguments).await,
        PolicyCommand::Shadow(arguments) => replay::shadow_command(&arguments).await,
        PolicyCommand::Push(arguments) => push(arguments).await,
        PolicyCommand::List(arguments) => list(arguments).await,
        PolicyCommand::Show(arguments) => show_stored(arguments).await,
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

/// `tombolo policy check`. Ends well only if every role of the component is admitted.
fn check(arguments: &PolicyCheckArguments) -> Result<()> {
    let file = &arguments.file;
    let examined = component(file).and_then(|wasm| {
        let begun = clock::now();
        let config = arguments.config.as_deref().unwrap_or_default();
        examine(&examiner()?, &wasm, config, &|| begun.elapsed()).map_err(|e| match e {
            crate::policy::Error::Host { .. } => {
                Error::unavailable(format!("{file}: cannot be examined here")).because(e)
            }
            e => Error::invalid(file.clone()).because(e),
        })
    });
    match examined {
        Ok(card) => {
            print(&card, arguments.json);
            if card.is_admitted() { Ok(()) } else { Err(refusal(file, &card)) }
        }
        Err(error) => {
            if arguments.json {
                say!("{:#}", serde_json::json!({ "format": CARD_FORMAT, "refused": error.chain() }));
            }
            Err(error)
        }
    }
}

/// `tombolo policy push`: admission, then the bucket.
async fn push(arguments: PolicyPushArguments) -> Result<()> {
    let file = &arguments.file;
    let config = canonical(arguments.config.as_deref().unwrap_or_default()).map_err(|e| e.at("--config"))?;
    let wasm = component(file)?;
    let location = Location { url: arguments.bucket, endpoint: arguments.server.endpoint };
    let policies = Policies::new(open_for_writing(&location, false).await?);
    let (card, known) = match policies.push(&examiner()?, wasm.into(), &config).await.map_err(|e| e.at(file))? {
        Pushed::New(card) => (card, false),
        Pushed::Known(card) => (card, true),
        Pushed::Refused(card) => return Err(refusal(file, &card)),
    };
    if arguments.json {
        print(&card, true);
    } else {
        let known = if known { "was there already, admitted" } else { "is stored" };
        say!("policy {} {known}, as {}", card.policy, roles(&card));
    }
    Ok(())
}

/// `tombolo policy activate`. The policy is one of the bucket, named by its hash; a bundled one or a file's is put there first.
async fn activate(arguments: &PolicyActivateArguments) -> Result<()> {
    let PolicyActivateArguments { target, role, policy, config, from_round } = arguments;
    let place = location(target);
    let run = Run::enter(place.open(false).await?, &place, target.run.as_deref()).await?;
    let runtime = policy_runtime()?;
    let config = canonical(config.as_deref().unwrap_or_default()).map_err(|e| e.at("--config"))?;
    let hash = match policy.parse::<Hash>() {
        Ok(_) => policy.clone(),
        Err(_) => {
            let wasm = component(policy)?;
            // Whether it is a policy at all is looked at before it gets into the bucket.
            runtime.load(&wasm).map_err(|e| unfit(policy.clone(), e))?;
            run.bucket.policies().put(&wasm).await?
        }
    };
    let policy = PolicyUse { name: policy.clone(), hash, config };
    require_fit(&run.bucket, &run.record, &run.fragments, &runtime, *role, &policy).await?;
    if let Some(told) = activate::untuned(*role, &policy, &run.record.spec) {
        eprintln!("warning: {told}");
    }
    let switch = activate::activate(&run.bucket, &run.record, *role, &policy, *from_round).await?;
    say!(
        "run {}: {role} policy {} ({}) from round {} on, by log entry {}",
        run.record.spec.run,
        policy.name,
        policy.hash,
        switch.from_round,
        switch.seq
    );
    Ok(())
}

/// `tombolo policy list`.
async fn list(arguments: PolicyListArguments) -> Result<()> {
    let location = Location { url: arguments.bucket, endpoint: arguments.server.endpoint };
    let listed = Policies::new(location.open(false).await?).list(None, usize::MAX).await?;
    if arguments.json {
        let lines: Vec<_> = listed.iter().map(|l| serde_json::json!({ "policy": l.policy, "component_bytes": l.component_bytes, "bundled": bundled_name(l.policy), "card": l.card })).collect();
        say!("{:#}", serde_json::Value::from(lines));
        return Ok(());
    }
    if listed.is_empty() {
        say!("{}: no policies", location.url);
    }
    for Listed { policy, component_bytes, card } in listed {
        let what = match (&card, bundled_name(policy)) {
            (Some(card), _) => format!("admitted as {}", roles(card)),
            (None, Some(_)) => "comes with the program".into(),
            (None, None) => "not admitted".into(),
        };
        let name = bundled_name(policy).unwrap_or("-");
        say!("{policy}  {component_bytes:>8} bytes  {name:<16} {what}");
    }
    Ok(())
}

/// `tombolo policy show`.
async fn show_stored(arguments: PolicyShowArguments) -> Result<()> {
    let location = Location { url: arguments.bucket, endpoint: arguments.server.endpoint };
    let policies = Policies::new(location.open(false).await?);
    let policy = by_prefix(&policies, &arguments.policy).await?;
    match policies.card(policy).await? {
        Some(card) => {
            print(&card, arguments.json);
            Ok(())
        }
        None => Err(Error::invalid(format!(
            "{policy}: expected a card beside it, found none: it was not admitted here; `tombolo policy push` admits it"
        ))),
    }
}

/// The one policy of a bucket whose hash begins like this.
async fn by_prefix(policies: &Policies, prefix: &str) -> Result<Hash> {
    let hashes = policies.hashes().await?;
    let found: Vec<Hash> =
        hashes.into_iter().map(|(hash, _)| hash).filter(|hash| hash.to_string().starts_with(prefix)).collect();
    match found[..] {
        [one] => Ok(one),
        [] => Err(Error::invalid(format!(
            "expected the hash of a policy of the bucket, or how it begins, found `{}`; `tombolo policy list` has them",
            prefix.escape_debug()
        ))),
        [first, second, ..] => Err(Error::invalid(format!(
            "`{}`: expected how one hash begins, found {}: {} and {} among them",
            prefix.escape_debug(),
            found.len(),
            first.short(),
            second.short()
        ))),
    }
}

/// A runtime that compiles in a child process and keeps no compiled code, so that a card says what compiling takes.
pub fn examiner() -> Result<Runtime> {
    let program =
        std::env::current_exe().map_err(|e| Error::unavailable("this program does not find itself").because(e))?;
    Runtime::compiling_with(policy_limits()?, None, program)
        .map_err(|e| Error::unavailable("the policy runtime does not start").because(e))
}

/// The component in a file, if it is not larger than one may be, or the bundled one of this name.
///
/// # Errors
/// Invalid.
pub fn component(file: &str) -> Result<Vec<u8>> {
    if let Some(wasm) = bundled_wasm(file) {
        return Ok(wasm.to_vec());
    }
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

fn refusal(file: &str, card: &Card) -> Error {
    let refusals: Vec<String> = card.roles.iter().filter_map(RoleCard::refusal).collect();
    Error::invalid(format!("{file}: {}", refusals.join("; ")))
}

/// The roles of a card, each with the configurations that it was admitted under.
fn roles(card: &Card) -> String {
    let role = |card: &RoleCard| match card.config.as_str() {
        "" => card.role.to_string(),
        config => format!("{} with {}", card.role, plain(config)),
    };
    card.roles.iter().map(role).collect::<Vec<_>>().join(", ")
}

fn print(card: &Card, json: bool) {
    if json {
        say!("{}", serde_json::to_string_pretty(card).expect("a card serialises"));
    } else {
        show(card);
    }
}

/// Text of a card, which may come from a bucket: no control characters, so that it cannot steer a terminal.
fn plain(text: &str) -> String {
    text.chars().map(|char| if char.is_control() { ' ' } else { char }).collect()
}

fn show(card: &Card) {
    say!("policy   {}", card.policy);
    say!("size     {} bytes, compiled in {:.0} ms", card.component_bytes, card.compile_ms);
    for role in &card.roles {
        let config = if role.config.is_empty() { String::new() } else { format!(" with {}", plain(&role.config)) };
        say!("role     {}{config}", role.role);
        for check in &role.passed {
            say!("ok       {:<58} {}", plain(&check.property), plain(&check.found));
        }
        if let Some(check) = &role.refused {
            say!("FAILS    {:<58} {}", plain(&check.property), plain(&check.found));
        }
        for (name, value) in &role.facts {
            say!("measured {:<58} {}", plain(name).replace('_', " "), short(*value));
        }
    }
    for tuned in &card.tuned {
        say!("tuned    {}", plain(&tuned.to_string()));
    }
    if card.tuned.is_empty() && card.roles.iter().any(|role| role.role == Role::Merge) {
        say!("tuned    not that is known here");
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
