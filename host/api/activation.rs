//! Switching a run to another policy: what is asked for is read field by field, the policy must lie in the bucket and fit the run, and then the switch is an
//! entry of the run's log, as `activate` writes it.

use super::problem::{Problem, kind};
use super::query::Query;
use super::run::{find, follow};
use super::token::Caller;
use super::{Answer, Service, body, json};
use crate::activate::{activate, require_fit, untuned};
use crate::bucket::CONFIG_BYTES_MAX;
use crate::bucket::policy::canonical;
use crate::bucket::record::PolicyUse;
use crate::error::{Error, Kind};
use crate::policy::{Hash, Role, bundled_name};
use hyper::StatusCode;
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use tokio::runtime::Handle;

/// Bytes of a body: a configuration and what stands around it.
const BODY_BYTES_MAX: usize = CONFIG_BYTES_MAX + (4 << 10);
/// Fields of a body.
const FIELDS: [&str; 4] = ["role", "policy", "config", "from_round"];

/// What is asked for.
#[derive(Debug, Clone, PartialEq)]
struct Request {
    role: Role,
    policy: Hash,
    /// As [`canonical`] makes it.
    config: String,
    /// None for the next round that nobody can be under way with.
    from_round: Option<u64>,
}

impl Request {
    /// Reads a body.
    ///
    /// # Errors
    /// 400 with the field that is not what it should be.
    fn parse(body: &[u8]) -> Result<Request, Problem> {
        let wrong = |field: &str, expected: &str, found: &str| Problem::field(field, expected, found);
        let mut fields: Map<String, Value> = match serde_json::from_slice(body) {
            Ok(Value::Object(fields)) => fields,
            Ok(other) => return Err(wrong("body", "a JSON object", kind(&other))),
            Err(_) => return Err(wrong("body", "a JSON object", "what is no JSON")),
        };
        if let Some(name) = fields.keys().find(|name| !FIELDS.contains(&name.as_str())) {
            return Err(wrong("body", &format!("no fields but {}", FIELDS.join(", ")), name));
        }
        let mut take = |name: &str| fields.remove(name).unwrap_or(Value::Null);
        let text = |value: &Value| match value {
            Value::String(text) => text.clone(),
            other => kind(other).to_string(),
        };
        let role = take("role");
        let role = match role.as_str() {
            Some("codec") => Role::Codec,
            Some("merge") => Role::Merge,
            Some("pace") => Role::Pace,
            _ => return Err(wrong("body.role", "codec, merge or pace", &text(&role))),
        };
        let policy = take("policy");
        let hash = policy.as_str().and_then(|text| text.parse().ok());
        let expected = "the SHA-256 of a policy: 64 digits of 0-9 and a-f";
        let policy = hash.ok_or_else(|| wrong("body.policy", expected, &text(&policy)))?;
        let config = match take("config") {
            Value::Null => String::new(),
            Value::Object(fields) => canonical(&Value::Object(fields).to_string()).map_err(|_| {
                wrong("body.config", &format!("an object of at most {CONFIG_BYTES_MAX} bytes"), "a larger one")
            })?,
            other => return Err(wrong("body.config", "an object", kind(&other))),
        };
        let from_round = match take("from_round") {
            Value::Null => None,
            Value::String(text) if text == "next" => None,
            other => {
                let expected = "a round, or \"next\"";
                Some(other.as_u64().ok_or_else(|| wrong("body.from_round", expected, &other.to_string()))?)
            }
        };
        Ok(Request { role, policy, config, from_round })
    }
}

/// `POST /v1/runs/RUN/activate`.
pub async fn switch(
    service: &Arc<Service>,
    caller: &Caller,
    run: &str,
    query: Option<&str>,
    headers: &HeaderMap,
    body: Incoming,
) -> Result<Answer, Problem> {
    Query::parse(query)?.end(&[])?;
    super::require_type(headers, "application/json")?;
    let Request { role, policy, config, from_round } = Request::parse(&body::read(body, BODY_BYTES_MAX).await?)?;
    let hash = policy.to_string();
    let (bucket, record, fragments) = find(service, run).await?;
    if service.policies.component_if_whole(&hash).await?.is_none() {
        let problem = Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "this policy is not in the bucket");
        return Err(problem.at("body.policy", "one that GET /v1/policies lists", hash));
    }
    let ledger = follow(service, run, &bucket, &record).await?.tail.ledger;
    if let Some(reason) = &ledger.stopped {
        let problem = Problem::new(StatusCode::CONFLICT, "this run has ended");
        return Err(problem.at("path.run", "a run that goes on", reason));
    }
    let next = ledger.open_rounds().end;
    if let Some(round) = from_round.filter(|round| *round < next) {
        return Err(passed(next, round));
    }
    let alone = service.admissions.clone().try_acquire_owned();
    let alone = alone.map_err(|_| {
        Problem::later(StatusCode::SERVICE_UNAVAILABLE, "another policy is being examined", super::EXAMINED_SECONDS)
    })?;
    let name = bundled_name(policy).map_or_else(|| policy.short(), str::to_string);
    let used = PolicyUse { name, hash, config };
    let (runtime, wanted, place) = (service.runtime.clone(), used.clone(), bucket.clone());
    // As an upload: whoever goes away does not end it. On a thread that may be busy for a while.
    let (handle, examined) = (Handle::current(), record.clone());
    let fits = tokio::task::spawn_blocking(move || {
        let fits = handle.block_on(require_fit(&place, &examined, &fragments, &runtime, role, &wanted));
        drop(alone);
        fits
    });
    let fits = fits.await.map_err(|e| Error::bug("an examination panicked").because(e))?;
    fits.map_err(|error| match error.kind() {
        Kind::Invalid => Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "the policy does not fit the run").at(
            "body.policy",
            format!("a component that fits the run as {role} under this configuration"),
            error.chain(),
        ),
        _ => error.into(),
    })?;
    let switch = activate(&bucket, &record, role, &used, from_round).await;
    let switch = match switch {
        Ok(switch) => switch,
        Err(error) if error.kind() == Kind::Invalid => return Err(outrun(&error, from_round)),
        Err(error) => return Err(error.into()),
    };
    let PolicyUse { hash, config, .. } = &used;
    service.note(caller, format!("run {run}: {role} policy {hash} from round {} on", switch.from_round));
    Ok(json(
        StatusCode::OK,
        &json!({
            "run": run,
            "role": role,
            "policy": hash,
            "config": config,
            "from_round": switch.from_round,
            "log_entry": switch.seq,
            "warning": untuned(role, &used, &record.spec),
        }),
    ))
}

fn passed(next: u64, found: u64) -> Problem {
    Problem::new(StatusCode::CONFLICT, "earlier rounds are closed or open").at(
        "body.from_round",
        format!("{next} or later"),
        found.to_string(),
    )
}

/// The log went on while the policy was examined, and the switch does not fit any more; or too many lie ahead.
fn outrun(error: &Error, from_round: Option<u64>) -> Problem {
    let found = from_round.map_or("next".to_string(), |round| round.to_string());
    let problem = Problem::new(StatusCode::CONFLICT, format!("the switch does not fit: {}", error.chain()));
    problem.at("body.from_round", "a round that the log of the run has room for", found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_field_by_field_and_what_is_wrong_is_named() {
        let hash = "ab".repeat(32);
        let whole = json!({ "role": "merge", "policy": hash, "config": { "b": 1, "a": 0.50 }, "from_round": 7 });
        let request = Request::parse(whole.to_string().as_bytes()).unwrap();
        let expected = Request {
            role: Role::Merge,
            policy: hash.parse().unwrap(),
            config: "{\"a\":0.5,\"b\":1}".into(),
            from_round: Some(7),
        };
        assert_eq!(request, expected);
        for next in [
            json!({ "role": "pace", "policy": hash }),
            json!({ "role": "pace", "policy": hash, "from_round": "next", "config": {} }),
        ] {
            let request = Request::parse(next.to_string().as_bytes()).unwrap();
            assert_eq!((request.config.as_str(), request.from_round, request.role), ("", None, Role::Pace));
        }
        let wrong = |name: &str, value: Value| {
            let mut body = whole.clone();
            body[name] = value;
            Request::parse(body.to_string().as_bytes()).unwrap_err()
        };
        let role = |found| Problem::field("body.role", "codec, merge or pace", found);
        assert_eq!(wrong("role", json!("judge")), role("judge"));
        assert_eq!(wrong("role", json!(null)), role("null"));
        assert_eq!(wrong("policy", json!(5)).named(), Some("body.policy"));
        assert_eq!(wrong("policy", json!("../run")).named(), Some("body.policy"));
        assert_eq!(wrong("config", json!("{}")).named(), Some("body.config"));
        assert_eq!(wrong("config", json!({ "a": "x".repeat(CONFIG_BYTES_MAX) })).named(), Some("body.config"));
        for round in [json!(-1), json!(1.5), json!("soon"), json!([]), json!(1e30)] {
            assert_eq!(wrong("from_round", round).named(), Some("body.from_round"));
        }
        assert_eq!(wrong("form_round", json!(1)).named(), Some("body"));
        for body in ["", "[]", "{", "null", "\u{0}"] {
            assert_eq!(Request::parse(body.as_bytes()).unwrap_err().named(), Some("body"), "{body}");
        }
    }
}
