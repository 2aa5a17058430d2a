//! `tombolo doctor`: whether a store can be a bucket, one line for each check.

use super::arguments::DoctorArguments;
use crate::bucket::Location;
use crate::bucket::doctor::{Finding, Report, examine};
use crate::error::{Error, Result};

/// `tombolo doctor`. Ends well only on a store that passes every check.
pub async fn command(arguments: DoctorArguments) -> Result<()> {
    let location = Location { url: arguments.bucket, endpoint: arguments.server.endpoint };
    let store = location.open(false).await?;
    let report = examine(&store, location.beat_every()?, |finding| {
        if !arguments.json {
            show(finding);
        }
    })
    .await
    .map_err(|error| error.at(&location.to_string()))?;
    if arguments.json {
        let line = serde_json::json!({
            "bucket": location.url,
            "endpoint": location.endpoint,
            "fit": report.is_fit(),
            "checks": report.findings,
            "measured": report.measured,
        });
        say!("{line:#}");
    } else {
        show_measured(&report);
    }
    if report.is_fit() {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{location}: expected a store that can be a bucket, found one that fails: {}; use another one",
        report.failed().join(", ")
    )))
}

fn show(finding: &Finding) {
    say!("{:<6} {:<20} {}", if finding.ok { "ok" } else { "FAILS" }, finding.check, finding.found);
    if !finding.ok {
        say!("{:<6} {:<20} without it: {}", "", "", finding.without);
    }
}

fn show_measured(report: &Report) {
    let measured = &report.measured;
    for (what, spread) in
        [("put", measured.put), ("get", measured.get), ("create, lost among 16", measured.lost_create)]
    {
        if spread.requests > 0 {
            say!(
                "measured: {what}: median {:.1} ms, 99 of 100 within {:.1} ms ({} requests)",
                spread.median_ms,
                spread.p99_ms,
                spread.requests
            );
        }
    }
    say!("measured: {:.1} MB/s up, {:.1} MB/s down", measured.up_mb_per_s, measured.down_mb_per_s);
    if report.is_fit() {
        say!("this store can be a bucket");
    }
}
