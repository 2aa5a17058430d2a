//! What a request is told that cannot be served: a status, and JSON that says what, which field, what was expected and what was found. Nothing of a
//! token, and nothing that a store said in its own words, ever stands in it.

use super::{Answer, json};
use crate::error::{Error, Kind};
use hyper::StatusCode;
use hyper::header::{ALLOW, CONNECTION, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use serde_json::Value;

/// Characters of what was found that are repeated.
const FOUND_CHARS_MAX: usize = 200;

/// An answer that is no success. Boxed, since it is the rare end of every function here.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem(Box<Said>);

#[derive(Debug, Clone, PartialEq)]
struct Said {
    status: StatusCode,
    what: String,
    field: Option<String>,
    expected: Option<String>,
    found: Option<String>,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl Problem {
    /// A problem with this status.
    pub fn new(status: StatusCode, what: impl Into<String>) -> Problem {
        let what = what.into();
        Problem(Box::new(Said { status, what, field: None, expected: None, found: None, headers: Vec::new() }))
    }

    /// Something of the request is not what it should be (400): which part, what was expected, what was found.
    pub fn field(field: &str, expected: impl Into<String>, found: impl AsRef<str>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, format!("{field} is not what it should be")).at(field, expected, found)
    }

    /// Says which part of the request it is about, what was expected there and what was found.
    pub fn at(mut self, field: &str, expected: impl Into<String>, found: impl AsRef<str>) -> Problem {
        let mut shown: String = found.as_ref().chars().take(FOUND_CHARS_MAX).collect();
        if shown.len() < found.as_ref().len() {
            shown.push('…');
        }
        (self.0.field, self.0.expected, self.0.found) = (Some(field.into()), Some(expected.into()), Some(shown));
        self
    }

    /// Not at this time (429 or 503): come again after so many seconds.
    pub fn later(status: StatusCode, what: &str, seconds: u64) -> Problem {
        Problem::new(status, what).with(RETRY_AFTER, HeaderValue::from(seconds.max(1)))
    }

    /// No token, or one that is not known (401).
    pub fn unknown_token(found: &str) -> Problem {
        Problem::new(StatusCode::UNAUTHORIZED, "this needs a token that the server knows")
            .at("header.authorization", "Bearer TOKEN", found)
            .with(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))
    }

    /// The path has other methods (405).
    pub fn method(allowed: &'static str, found: &str) -> Problem {
        Problem::new(StatusCode::METHOD_NOT_ALLOWED, "this path has another method")
            .at("method", allowed, found)
            .with(ALLOW, HeaderValue::from_static(allowed))
    }

    /// Closes the connection after the answer, since the rest of the request will not be read.
    pub fn closing(self) -> Problem {
        self.with(CONNECTION, HeaderValue::from_static("close"))
    }

    fn with(mut self, name: HeaderName, value: HeaderValue) -> Problem {
        self.0.headers.push((name, value));
        self
    }

    /// The status that is answered.
    #[cfg(test)]
    pub fn status(&self) -> StatusCode {
        self.0.status
    }

    /// The field that it names.
    #[cfg(test)]
    pub fn named(&self) -> Option<&str> {
        self.0.field.as_deref()
    }

    /// The answer.
    pub fn answer(self) -> Answer {
        let Said { status, what, field, expected, found, headers } = *self.0;
        let error = serde_json::json!({ "what": what, "field": field, "expected": expected, "found": found });
        let mut answer = json(status, &serde_json::json!({ "error": error }));
        answer.headers_mut().extend(headers);
        answer
    }
}

impl From<Error> for Problem {
    /// Only what this program itself says: what a store or its client said may hold more than a caller should see.
    fn from(error: Error) -> Problem {
        match error.kind() {
            Kind::Invalid => Problem::new(StatusCode::UNPROCESSABLE_ENTITY, error.to_string()),
            Kind::Unavailable => Problem::later(StatusCode::SERVICE_UNAVAILABLE, &error.to_string(), 5),
            Kind::Fenced => Problem::new(StatusCode::CONFLICT, error.to_string()),
            Kind::Corrupt | Kind::Bug => Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        }
    }
}

/// What kind of JSON value this is, in words.
pub fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}
