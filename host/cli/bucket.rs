//! `tombolo bucket`: what is done to a bucket before runs are put into it.

use super::arguments::{BucketArguments, BucketCommand};
use crate::bucket::Location;
use crate::bucket::provision::init;
use crate::error::Result;

/// `tombolo bucket init`. A rule that the store refuses is said and no failure: no role needs it.
pub async fn command(arguments: BucketArguments) -> Result<()> {
    let BucketCommand::Init(arguments) = arguments.command;
    let location = Location { url: arguments.bucket, endpoint: arguments.server.endpoint };
    for step in init(&location).await? {
        say!("{}: {}", step.what, step.outcome);
    }
    Ok(())
}
