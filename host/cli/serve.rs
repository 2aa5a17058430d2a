//! `tombolo serve`: the HTTP interface of a bucket.

use super::arguments::ServeArguments;
use super::assembly::open_for_writing;
use super::policy::examiner;
use super::role::drained;
use crate::api::{Service, Tokens, serve};
use crate::bucket::Location;
use crate::error::{Error, Result};
use crate::event::Sink;
use std::sync::Arc;
use tokio::net::TcpListener;

/// Holds tokens where no file does.
const VARIABLE: &str = "TOMBOLO_TOKENS";

/// `tombolo serve`.
pub async fn command(arguments: ServeArguments) -> Result<()> {
    let drain = drained(false)?;
    let tokens = match (&arguments.tokens, std::env::var(VARIABLE)) {
        (Some(file), _) => Tokens::read(file)?,
        (None, Ok(text)) => Tokens::parse(&text, VARIABLE)?,
        (None, Err(_)) => {
            return Err(Error::invalid(format!(
                "expected tokens, in a file (--tokens FILE) or in the environment variable {VARIABLE}: lines `read NAME TOKEN` or `operate NAME TOKEN`; found neither"
            )));
        }
    };
    let location = Location { url: arguments.bucket, endpoint: arguments.server.endpoint };
    if location.is_memory()? {
        return Err(Error::invalid("memory: ends with this process; expected a bucket that other processes reach"));
    }
    let store = open_for_writing(&location, false).await?;
    let listener = TcpListener::bind(arguments.listen)
        .await
        .map_err(|e| Error::invalid(format!("--listen {}: cannot be listened on", arguments.listen)).because(e))?;
    let address = listener.local_addr().map_err(|e| Error::bug("a listener has no address").because(e))?;
    let sink = Sink::Words;
    if !address.ip().is_loopback() {
        sink.note("serve", "tokens come in clear text: let others reach this through a proxy with TLS only");
    }
    sink.note("serve", format!("{} is at http://{address}/v1", location.url));
    serve(listener, Arc::new(Service::new(store, examiner()?, tokens, sink.clone())), drain).await?;
    sink.note("serve", "ends: it was told to");
    Ok(())
}
