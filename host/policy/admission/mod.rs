//! Admission: does a policy keep its contract? Each role is put through properties that a run relies on, and what came of it is a card.
//!
//! What is admitted has answered well here, and no more is claimed: at run time every answer is checked again. What is refused comes with the first
//! counterexample. The questions are the same for everybody and hold no chance, so a component is admitted everywhere or nowhere; only the speeds,
//! which are measured where a clock is given, differ.
//!
//! A hostile component costs a bounded time: each call is bounded by fuel and by the clock, there are a few hundred calls, and no new one begins once they have
//! taken [`EXAMINATION_MAX`] together, a hundred times what the slowest honest policy needs.

mod codec;
mod merge;
mod pace;
mod probe;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{Error, Hash, Policy, Result, Role, Runtime, Tuned, tuned};

/// The number in [`Card::format`].
pub const CARD_FORMAT: u32 = 1;

/// What admission found out about a component: what stands beside it in a bucket.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Card {
    /// 1.
    pub format: u32,
    /// Hash of the component.
    pub policy: Hash,
    /// Bytes of the component.
    pub component_bytes: u64,
    /// Milliseconds that compiling took, child process included.
    pub compile_ms: f64,
    /// Each of its roles.
    pub roles: Vec<RoleCard>,
    /// What a bundled merge rule was tuned with; empty where nothing is known. No result of the admission.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tuned: Vec<Tuned>,
}

/// What admission found out about one role of a component under one configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RoleCard {
    /// The role.
    pub role: Role,
    /// The configuration (JSON; empty for the defaults).
    pub config: String,
    /// Properties that hold, in the order in which they were tried.
    pub passed: Vec<Check>,
    /// The property that does not hold; nothing was tried after it.
    pub refused: Option<Check>,
    /// Numbers, by names that end in their unit.
    pub facts: BTreeMap<String, f64>,
}

/// One property.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// What must hold.
    pub property: String,
    /// On what it was tried; where it does not hold, the counterexample.
    pub found: String,
}

impl Card {
    /// Whether every role was admitted.
    pub fn is_admitted(&self) -> bool {
        self.roles.iter().all(|role| role.refused.is_none())
    }

    /// Whether the component was admitted for `role` under exactly this configuration.
    pub fn admits(&self, role: Role, config: &str) -> bool {
        self.roles.iter().any(|card| card.role == role && card.config == config && card.refused.is_none())
    }
}

impl RoleCard {
    /// In one line why the role is refused; none where it is admitted.
    pub fn refusal(&self) -> Option<String> {
        let refused = self.refused.as_ref()?;
        Some(format!("refused as {}: {}: {}", self.role, refused.property, refused.found))
    }
}

/// Time since some instant of the past.
pub type Clock<'a> = &'a dyn Fn() -> Duration;

/// Loads a component and puts each of its roles through admission under `config` (JSON; empty for the defaults), speeds included. `clock` is the time
/// since some instant of the past. The card says what compiling takes only if `runtime` keeps no compiled code.
///
/// Errors: those of [`Runtime::load`]. A component that breaks its contract is no error, but a card that says so.
pub fn examine(runtime: &Runtime, wasm: &[u8], config: &str, clock: Clock<'_>) -> Result<Card> {
    let begun = clock();
    let policy = runtime.load(wasm)?;
    let compile_ms = clock().saturating_sub(begun).as_secs_f64() * 1_000.0;
    let roles = policy.roles().iter().map(|role| admit(&policy, *role, config.as_bytes(), Some(clock)));
    let roles = roles.collect::<Result<_>>()?;
    let (policy, component_bytes) = (policy.hash(), wasm.len() as u64);
    Ok(Card { format: CARD_FORMAT, policy, component_bytes, compile_ms, roles, tuned: tuned(policy) })
}

/// Puts `policy` through the properties of `role` under `config` (JSON; empty for the defaults); where there is a `clock` (time since some instant of the
/// past), measures its speed, too.
///
/// Errors: [`Error::WrongRole`]; [`Error::Host`] where this machine fails. A policy that fails is no error, but a card that says so.
pub fn admit(policy: &Policy, role: Role, config: &[u8], clock: Option<Clock<'_>>) -> Result<RoleCard> {
    if !policy.roles().contains(&role) {
        return Err(Error::WrongRole { policy: policy.hash(), role, has: policy.roles().to_vec() });
    }
    let begun = Instant::now();
    let mut examination = Examination { policy, config, clock, begun, passed: Vec::new(), facts: BTreeMap::new() };
    let ended = match role {
        Role::Codec => codec::examine(&mut examination),
        Role::Merge => merge::examine(&mut examination),
        Role::Pace => pace::examine(&mut examination),
    };
    let refused = match ended {
        Ok(()) => None,
        Err(End::Refused(check)) => Some(check),
        Err(End::Failed(error)) => return Err(error),
    };
    let Examination { passed, facts, .. } = examination;
    let config = String::from_utf8_lossy(config).into_owned();
    Ok(RoleCard { role, config, passed, refused, facts })
}

/// An examination while it goes on.
struct Examination<'a> {
    policy: &'a Policy,
    config: &'a [u8],
    clock: Option<Clock<'a>>,
    begun: Instant,
    passed: Vec<Check>,
    facts: BTreeMap<String, f64>,
}

/// Why an examination ended before its end.
enum End {
    /// A property does not hold.
    Refused(Check),
    /// This machine failed.
    Failed(Error),
}

/// Time that one speed is measured for, and the turns after which it is enough anyway.
const MEASURE: Duration = Duration::from_millis(200);
const TURNS_MAX: u32 = 1_000;

/// The longest that the examination of one role goes on.
const EXAMINATION_MAX: Duration = Duration::from_secs(180);

impl Examination<'_> {
    /// Holds that there is time for another call.
    fn in_time(&self) -> std::result::Result<(), End> {
        let taken = self.begun.elapsed();
        if taken <= EXAMINATION_MAX {
            return Ok(());
        }
        let property = format!("its examination ends within {} s", EXAMINATION_MAX.as_secs());
        Err(refused(&property, format!("{} s in, after {} properties", taken.as_secs(), self.passed.len())))
    }

    fn pass(&mut self, property: &str, found: impl Into<String>) {
        self.passed.push(Check { property: property.into(), found: found.into() });
    }

    fn fact(&mut self, name: &str, value: f64) {
        self.facts.insert(name.into(), value);
    }

    /// Measures how many GB/s `turn` moves, which moves `bytes` each time. Nothing without a clock.
    fn speed(
        &mut self,
        name: &str,
        bytes: usize,
        mut turn: impl FnMut() -> std::result::Result<(), End>,
    ) -> std::result::Result<(), End> {
        let Some(clock) = self.clock else { return Ok(()) };
        let begun = clock();
        let mut turns = 0;
        let taken = loop {
            turn()?;
            turns += 1;
            let taken = clock().saturating_sub(begun);
            if taken >= MEASURE || turns >= TURNS_MAX {
                break taken;
            }
        };
        let gigabytes = bytes as f64 * f64::from(turns) / 1e9;
        self.fact(name, gigabytes / taken.as_secs_f64().max(1e-9));
        Ok(())
    }
}

/// A property that does not hold.
fn refused(property: &str, found: impl Into<String>) -> End {
    End::Refused(Check { property: property.into(), found: found.into() })
}

/// What the policy answered; an answer that it failed to give is a counterexample to `property`, at `place`.
fn answered<T>(property: &str, place: impl FnOnce() -> String, answer: Result<T>) -> std::result::Result<T, End> {
    answer.map_err(|error| {
        if error.is_policy_failure() { refused(property, format!("{}: {error}", place())) } else { End::Failed(error) }
    })
}

/// The first place where two lists have other bits.
fn other_bits(a: &[f32], b: &[f32]) -> Option<usize> {
    if a.len() != b.len() {
        return Some(a.len().min(b.len()));
    }
    a.iter().zip(b).position(|(a, b)| a.to_bits() != b.to_bits())
}
