//! What `tombolo chaos` can be asked for: for how long, with how many syncers, and on which buckets.

use crate::bucket::Location;
use crate::clock::Duration;
use crate::error::{Error, Result};
use crate::sim::Proxy;

/// The shortest time that has room for a quiet beginning, blows and a quiet end.
const LENGTH_MIN: Duration = Duration::from_secs(15);

/// What was asked for.
#[derive(Debug, Clone, Copy)]
pub struct Order {
    /// How long, from when the run is under way.
    pub length: Duration,
    /// Syncers beside the islands.
    pub syncers: usize,
}

/// Reads `90s`, `10m` or `2h`.
///
/// # Errors
/// It is something else.
pub fn span(text: &str) -> std::result::Result<Duration, String> {
    let units = [("s", 1), ("m", 60), ("h", 3600)];
    units
        .iter()
        .find_map(|(unit, seconds)| text.strip_suffix(unit)?.parse::<u32>().ok().map(|n| u64::from(n) * seconds))
        .map(Duration::from_secs)
        .filter(|length| (LENGTH_MIN..=Duration::from_secs(7 * 86_400)).contains(length))
        .ok_or_else(|| format!("expected {} s to 7 days such as 90s, 10m or 2h, found `{text}`", LENGTH_MIN.as_secs()))
}

/// The server whose links can be struck; none where the bucket is a directory.
///
/// # Errors
/// The bucket is in memory, or behind a server that no fault proxy can stand before.
pub fn server_to_strike(location: &Location) -> Result<Option<String>> {
    if location.is_memory()? {
        return Err(Error::invalid(
            "--bucket memory: has no processes to strike; expected file:DIR or s3://BUCKET/PREFIX",
        ));
    }
    if location.is_local()? {
        return Ok(None);
    }
    let server = location.s3_endpoint()?.ok_or_else(|| {
        Error::invalid(format!(
            "{}: chaos needs a server to put fault proxies before, such as --endpoint http://127.0.0.1:9000; found none",
            location.url
        ))
    })?;
    Proxy::check(&server)?;
    Ok(Some(server))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{quiet, schedule};

    #[test]
    fn spans_are_read_in_seconds_minutes_and_hours_and_too_short_ones_are_refused() {
        assert_eq!(span("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(span("10m"), Ok(Duration::from_secs(600)));
        assert_eq!(span("2h"), Ok(Duration::from_secs(7200)));
        for text in ["", "10", "m", "-1m", "1.5h", "14s", "8000h"] {
            assert!(span(text).expect_err(text).contains("such as 90s"), "{text}");
        }
    }

    #[test]
    fn the_shortest_span_has_blows() {
        assert!(!schedule(0, LENGTH_MIN, 4, true).is_empty() && quiet(LENGTH_MIN) * 2 < LENGTH_MIN);
    }
}
