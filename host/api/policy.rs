//! The policies of the bucket: what is there, cards, bytes, and uploads.
//!
//! An upload is read with a bound, hashed, admitted and stored; one that was begun goes on to its end though its caller has gone, so that never two
//! are examined at once.

use super::problem::Problem;
use super::query::Query;
use super::token::Caller;
use super::{Answer, Service, Whole, body, json};
use crate::bucket::policy::{Listed, Pushed, canonical};
use crate::error::{Error, Kind};
use crate::policy::{Card, Hash, Limits, bundled_name};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION};
use hyper::{Response, StatusCode};
use std::sync::Arc;

/// Bytes of a configuration in a query: percent-encoded it fits into a head.
const CONFIG_BYTES_MAX: usize = 8 << 10;
/// Policies in one answer, at most.
const LISTED_MAX: usize = 100;

/// `GET /v1/policies`: a page of the policies, by hash.
pub async fn list(service: &Service, query: Option<&str>) -> Result<Answer, Problem> {
    let mut query = Query::parse(query)?;
    let after =
        match query.take("after") {
            None => None,
            Some(text) => Some(text.parse::<Hash>().map_err(|_| {
                Problem::field("query.after", "the SHA-256 of a policy: 64 digits of 0-9 and a-f", &text)
            })?),
        };
    let limit = match query.take("limit") {
        None => LISTED_MAX,
        Some(text) => match text.parse() {
            Ok(limit @ 1..=LISTED_MAX) if text.bytes().all(|b| b.is_ascii_digit()) => limit,
            _ => return Err(Problem::field("query.limit", format!("a number from 1 to {LISTED_MAX}"), &text)),
        },
    };
    query.end(&["after", "limit"])?;
    let listed = service.policies.list(after, limit).await?;
    let next = if listed.len() == limit { listed.last().map(|last| last.policy) } else { None };
    let policies: Vec<_> = listed.into_iter().map(entry).collect();
    Ok(json(StatusCode::OK, &serde_json::json!({ "policies": policies, "next": next })))
}

/// What an answer says about one policy of the bucket.
fn entry(Listed { policy, component_bytes, card }: Listed) -> serde_json::Value {
    let roles = |card: &Card| -> Vec<_> {
        card.roles.iter().map(|role| serde_json::json!({ "role": role.role, "config": role.config })).collect()
    };
    serde_json::json!({
        "policy": policy,
        "component_bytes": component_bytes,
        "bundled": bundled_name(policy),
        "admitted": card.as_ref().map_or(Vec::new(), roles),
    })
}

fn absent(policy: Hash) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "this policy is not here, or was not admitted here").at(
        "path.hash",
        "one that GET /v1/policies lists as admitted",
        policy.to_string(),
    )
}

/// `GET /v1/policies/HASH`: the card of its admission.
pub async fn card(service: &Service, policy: Hash, query: Option<&str>) -> Result<Answer, Problem> {
    Query::parse(query)?.end(&[])?;
    let card = service.policies.card(policy).await?.ok_or_else(|| absent(policy))?;
    Ok(json(StatusCode::OK, &card))
}

/// `GET /v1/policies/HASH/component`: its bytes.
pub async fn component(service: &Service, policy: Hash, query: Option<&str>) -> Result<Answer, Problem> {
    Query::parse(query)?.end(&[])?;
    // Kept until the last byte is sent, and as long as somebody is slow to take it.
    let place = service.downloads.clone().try_acquire_owned();
    let place = place.map_err(|_| {
        Problem::later(StatusCode::SERVICE_UNAVAILABLE, "too many components are being sent", super::EXAMINED_SECONDS)
    })?;
    let bytes = service.policies.component_if_whole(&policy.to_string()).await?.ok_or_else(|| absent(policy))?;
    let mut answer = Response::new(Whole { bytes: Full::new(bytes), _place: Some(place) });
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/wasm"));
    Ok(answer)
}

/// `PUT /v1/policies`: admits a component under the configuration of the query and stores it by its hash. 201 where it is new, 200 where it was there.
pub async fn upload(
    service: &Arc<Service>,
    caller: &Caller,
    query: Option<&str>,
    headers: &HeaderMap,
    body: Incoming,
) -> Result<Answer, Problem> {
    let mut query = Query::parse(query)?;
    let config = query.take("config").unwrap_or_default();
    query.end(&["config"])?;
    let canonical = canonical(&config).ok().filter(|_| config.len() <= CONFIG_BYTES_MAX);
    let config = canonical.ok_or_else(|| {
        Problem::field("query.config", format!("a JSON object of at most {CONFIG_BYTES_MAX} bytes"), &config)
    })?;
    super::require_type(headers, "application/wasm")?;
    let busy = |what| Problem::later(StatusCode::SERVICE_UNAVAILABLE, what, super::EXAMINED_SECONDS);
    let _place = service.uploads.try_acquire().map_err(|_| busy("too many uploads at once").closing())?;
    let wasm = body::read(body, Limits::default().component_bytes_max).await?;
    let alone = service.admissions.clone().try_acquire_owned();
    let alone = alone.map_err(|_| busy("another policy is being examined"))?;
    let (policies, runtime) = (service.policies.clone(), service.runtime.clone());
    // In a task of its own: a caller that goes away does not end an examination, and its place must not be free before it ends.
    let pushed = tokio::spawn(async move {
        let pushed = policies.push(&runtime, wasm, &config).await;
        drop(alone);
        pushed
    });
    let pushed = pushed.await.map_err(|e| Error::bug("an upload panicked").because(e))?;
    match pushed {
        Ok(Pushed::New(card)) => {
            service.note(caller, format!("stored policy {}", card.policy));
            Ok(stored(StatusCode::CREATED, &card))
        }
        Ok(Pushed::Known(card)) => Ok(stored(StatusCode::OK, &card)),
        Ok(Pushed::Refused(card)) => Err(refused(&card)),
        // What a component is refused for before it is examined: its own fault and the policy runtime's words, not the store's.
        Err(error) if error.kind() == Kind::Invalid => Err(Problem::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "the component is refused",
        )
        .at("body", "a component that this host runs", error.chain())),
        Err(error) => {
            service.note(caller, format!("an upload failed: {}", error.chain()));
            Err(error.into())
        }
    }
}

fn stored(status: StatusCode, card: &Card) -> Answer {
    let mut answer = json(status, card);
    let place = HeaderValue::from_str(&format!("/v1/policies/{}", card.policy)).expect("a hash is ASCII");
    answer.headers_mut().insert(LOCATION, place);
    answer
}

/// The first property that a component does not hold.
fn refused(card: &Card) -> Problem {
    let first = card.roles.iter().find_map(|role| Some((role.role, role.refused.as_ref()?)));
    let (role, check) = first.expect("one that is refused says why");
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, format!("the component is refused as {role}")).at(
        "body",
        check.property.clone(),
        &check.found,
    )
}
