//! The HTTP interface of a bucket: policies to upload and look at, runs to look at and to switch to other policies. It knows the bucket, the log and
//! policies, and nothing of islands and syncers: whatever it changes, it changes through the bucket, as everybody does, and no run needs it.
//!
//! `route` says what is asked for, `token` who may, `allowance` how often; `body` and `query` read what comes along; `policy`, `run` and `activation` answer;
//! `problem` is every answer that is no success. `openapi.json` describes all of it, for people and for machines.
//!
//! What strangers can cost is bounded: connections, the size and the time of heads and bodies, uploads and downloads at once, one examination at a time, and
//! requests a second for each token. There is no TLS; a server that others reach needs a proxy before it that has it, since tokens come in clear text.

mod activation;
mod allowance;
mod body;
mod policy;
mod problem;
mod query;
mod route;
mod run;
mod token;

pub use token::Tokens;

use crate::bucket::Policies;
use crate::clock::{self, Duration};
use crate::error::{Error, Result};
use crate::event::Sink;
use crate::policy::Runtime;
use allowance::Allowance;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use object_store::ObjectStore;
use problem::Problem;
use route::Route;
use serde::Serialize;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use token::{Access, Caller};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

/// The description of this interface: OpenAPI 3.1.
const DOCUMENT: &str = include_str!("openapi.json");

/// Connections at once; further ones are closed.
const CONNECTIONS_MAX: usize = 256;
/// The longest life of a connection: whoever does not read answers gives its place back.
const CONNECTION_MAX: Duration = Duration::from_secs(300);
/// The longest that a request's head may take, and that a connection may be idle.
const HEAD_MAX: Duration = Duration::from_secs(10);
/// Bytes of a request's head: a configuration fits in, percent-encoded.
const HEAD_BYTES_MAX: usize = 32 << 10;
/// The longest that requests may take to end when the server is told to.
const DRAIN_MAX: Duration = Duration::from_secs(20);
/// Uploads that are read at once.
const UPLOADS_MAX: usize = 4;
/// Seconds after which it is worth asking again for an examination.
const EXAMINED_SECONDS: u64 = 5;
/// Pause before the next connection is accepted, after one could not be.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Components that are sent at once.
const DOWNLOADS_MAX: usize = 4;

/// What is answered.
type Answer = Response<Whole>;

/// The body of an answer, which is in memory as a whole, with what it takes up until it is sent or given up.
#[derive(Debug)]
struct Whole {
    bytes: Full<Bytes>,
    _place: Option<OwnedSemaphorePermit>,
}

impl Body for Whole {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, Infallible>>> {
        Pin::new(&mut self.bytes).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.bytes.size_hint()
    }
}

/// A bucket, and who may ask about it.
#[derive(Debug)]
pub struct Service {
    store: Arc<dyn ObjectStore>,
    policies: Policies,
    runtime: Runtime,
    tokens: Tokens,
    /// Of each token, in the order of the tokens.
    allowances: Mutex<Vec<Allowance>>,
    uploads: Semaphore,
    admissions: Arc<Semaphore>,
    downloads: Arc<Semaphore>,
    kept: Mutex<BTreeMap<String, run::Kept>>,
    sink: Sink,
}

impl Service {
    /// The bucket in `store`. `runtime` examines what is uploaded; it should keep no compiled code.
    pub fn new(store: Arc<dyn ObjectStore>, runtime: Runtime, tokens: Tokens, sink: Sink) -> Service {
        let full = vec![Allowance::new(clock::now()); tokens.callers().len()];
        Service {
            policies: Policies::new(store.clone()),
            store,
            runtime,
            tokens,
            allowances: Mutex::new(full),
            uploads: Semaphore::new(UPLOADS_MAX),
            admissions: Arc::new(Semaphore::new(1)),
            downloads: Arc::new(Semaphore::new(DOWNLOADS_MAX)),
            kept: Mutex::new(BTreeMap::new()),
            sink,
        }
    }

    fn note(&self, caller: &Caller, text: String) {
        self.sink.note("serve", format!("{}: {text}", caller.name));
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> std::result::Result<Answer, Infallible> {
        let mut answer = self.handle(request).await.unwrap_or_else(Problem::answer);
        let headers = answer.headers_mut();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        Ok(answer)
    }

    async fn handle(self: &Arc<Self>, request: Request<Incoming>) -> std::result::Result<Answer, Problem> {
        let (head, body) = request.into_parts();
        let (path, query) = (head.uri.path(), head.uri.query());
        let route = Route::parse(&head.method, path);
        match &route {
            Ok(Route::Health) => return Ok(json(StatusCode::OK, &serde_json::json!({ "status": "ok" }))),
            Ok(Route::Document) => return Ok(text_of_json(StatusCode::OK, Bytes::from_static(DOCUMENT.as_bytes()))),
            _ => {}
        }
        // Whoever is unknown is not told what there is.
        let caller = self.caller(&head.headers)?;
        let route = route?;
        if route.access() == Some(Access::Operate) && caller.access != Access::Operate {
            return Err(Problem::new(StatusCode::FORBIDDEN, "this token may only look").at(
                "header.authorization",
                "a token that may operate",
                "one that may read",
            ));
        }
        match route {
            Route::Policies => policy::list(self, query).await,
            Route::Upload => policy::upload(self, caller, query, &head.headers, body).await,
            Route::Policy(hash) => policy::card(self, hash, query).await,
            Route::Component(hash) => policy::component(self, hash, query).await,
            Route::Runs => run::list(self, query).await,
            Route::Run(name) => run::status(self, &name, query).await,
            Route::Activate(name) => activation::switch(self, caller, &name, query, &head.headers, body).await,
            Route::Health | Route::Document => unreachable!("answered above"),
        }
    }

    /// Who asks, if it may ask now.
    fn caller(&self, headers: &HeaderMap) -> std::result::Result<&Caller, Problem> {
        let mut values = headers.get_all(AUTHORIZATION).iter();
        let (Some(value), None) = (values.next(), values.next()) else {
            return Err(Problem::unknown_token("no such header, or several"));
        };
        let bearer = value.to_str().ok().and_then(|text| text.split_once(' '));
        let token = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, token)| token.trim());
        let token = token.ok_or_else(|| Problem::unknown_token("another kind of authorization"))?;
        let place = self.tokens.find(token).ok_or_else(|| Problem::unknown_token("a token that is not known"))?;
        let taken = self.allowances.lock().unwrap_or_else(PoisonError::into_inner)[place].take(clock::now());
        taken.map_err(|wait| {
            Problem::later(
                StatusCode::TOO_MANY_REQUESTS,
                "too many requests with this token",
                wait.as_secs_f64().ceil() as u64,
            )
        })?;
        Ok(&self.tokens.callers()[place])
    }
}

/// An answer of JSON.
fn json(status: StatusCode, value: &impl Serialize) -> Answer {
    text_of_json(status, serde_json::to_vec(value).expect("answers serialise").into())
}

fn text_of_json(status: StatusCode, text: Bytes) -> Answer {
    let mut answer = Response::new(Whole { bytes: Full::new(text), _place: None });
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

/// Holds that a body is announced as `expected`. A page in somebody's browser cannot announce that without asking first, which nobody answers here.
fn require_type(headers: &HeaderMap, expected: &'static str) -> std::result::Result<(), Problem> {
    let found = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("none");
    let kind = found.split(';').next().unwrap_or_default().trim();
    if kind.eq_ignore_ascii_case(expected) {
        return Ok(());
    }
    let wrong = Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "the body is of another type");
    Err(wrong.at("header.content-type", expected, found).closing())
}

/// Serves until `drain` completes; then no connection is accepted any more, and requests have [`DRAIN_MAX`] to end.
///
/// # Errors
/// None at present: a connection that fails is that connection's matter.
pub async fn serve(listener: TcpListener, service: Arc<Service>, drain: impl Future<Output = ()>) -> Result<()> {
    let (tell, told) = watch::channel(false);
    let mut connections = JoinSet::new();
    tokio::pin!(drain);
    loop {
        tokio::select! {
            biased;
            () = &mut drain => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) if connections.len() < CONNECTIONS_MAX => {
                    connections.spawn(connection(stream, service.clone(), told.clone()));
                }
                // Closed at once: no place is free.
                Ok(_) => {}
                Err(_) => clock::sleep(ACCEPT_PAUSE).await,
            },
        }
    }
    drop(listener);
    // Nobody listening means that there is no connection.
    let _ = tell.send(true);
    let ended = async { while connections.join_next().await.is_some() {} };
    match clock::timeout(DRAIN_MAX, ended).await {
        Ok(()) => Ok(()),
        Err(_) => Err(Error::unavailable(format!(
            "requests did not end within {} s; their connections are closed",
            DRAIN_MAX.as_secs()
        ))),
    }
}

/// One connection, until it closes, its time is over, or the server is told to drain.
async fn connection(stream: TcpStream, service: Arc<Service>, mut told: watch::Receiver<bool>) {
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service_fn(move |request| service.clone().answer(request)));
    tokio::pin!(serving);
    let over = async {
        tokio::select! {
            biased;
            _ = told.wait_for(|told| *told) => {}
            () = clock::sleep(CONNECTION_MAX) => {}
        }
    };
    tokio::select! {
        biased;
        // A client that breaks off is no concern of anybody else.
        _ = serving.as_mut() => return,
        () = over => serving.as_mut().graceful_shutdown(),
    }
    let _ = clock::timeout(DRAIN_MAX, serving).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;

    #[tokio::test]
    async fn a_place_is_taken_until_the_body_is_sent_or_given_up() {
        let places = Arc::new(Semaphore::new(2));
        let body = || {
            let place = places.clone().try_acquire_owned().expect("room");
            Whole { bytes: Full::new(Bytes::from_static(b"bytes")), _place: Some(place) }
        };
        let (read, left) = (body(), body());
        assert_eq!((places.available_permits(), read.size_hint().exact()), (0, Some(5)));
        assert_eq!(read.collect().await.expect("in memory").to_bytes(), "bytes");
        drop(left);
        assert_eq!(places.available_permits(), 2);
    }
}
