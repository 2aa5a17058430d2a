//! Reading what a request brings along: bounded in bytes while it comes, and in time, so that nobody can hold a place by sending slowly.

use super::problem::Problem;
use crate::clock::{self, Duration};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::body::{Body, Incoming};

/// The longest that a body may stand still.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// The longest that a body may take, whatever its size.
const WHOLE_MAX: Duration = Duration::from_secs(60);
/// Bytes of a body that is too large that are read and thrown away, so that a client which sends before it listens reads why it was refused.
const EXCESS_BYTES_MAX: usize = 8 << 20;

/// The whole body, of at most `bytes_max` bytes; no more is ever held.
///
/// # Errors
/// 413 where it is larger; 408 where it comes too slowly; 400 where it breaks off.
pub async fn read(mut body: Incoming, bytes_max: usize) -> Result<Bytes, Problem> {
    let too_large = |found: String| {
        let problem = Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "the body is too large");
        problem.at("body", format!("at most {bytes_max} bytes"), found).closing()
    };
    let announced = body.size_hint().exact();
    if let Some(bytes) = announced.filter(|bytes| *bytes > (bytes_max + EXCESS_BYTES_MAX) as u64) {
        return Err(too_large(format!("{bytes} bytes")));
    }
    let whole = async {
        let (mut held, mut excess) = (BytesMut::new(), 0);
        while let Some(frame) = clock::timeout(PAUSE_MAX, body.frame()).await.map_err(|_| too_slow())? {
            let broken = |_| Problem::field("body", "a whole body", "one that breaks off").closing();
            let Ok(data) = frame.map_err(broken)?.into_data() else { continue };
            if excess > 0 || held.len() + data.len() > bytes_max {
                excess += data.len();
                held.clear();
                if excess > EXCESS_BYTES_MAX {
                    break;
                }
            } else {
                held.extend_from_slice(&data);
            }
        }
        match excess {
            0 => Ok(held.freeze()),
            _ => Err(too_large(announced.map_or("more".into(), |bytes| format!("{bytes} bytes")))),
        }
    };
    clock::timeout(WHOLE_MAX, whole).await.unwrap_or_else(|_| Err(too_slow()))
}

fn too_slow() -> Problem {
    Problem::new(StatusCode::REQUEST_TIMEOUT, "the body comes too slowly")
        .at("body", "a body that moves, within a minute", "one that does not")
        .closing()
}
