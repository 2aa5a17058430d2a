//! The way down, as the syncer takes it with every merge and `verify` again: see `bucket/step.rs` for what a step is.

use super::merge::RoundOutput;
use super::run::Desk;
use crate::bucket::{Step, Vector};
use crate::error::Result;
use crate::policy::Role;

/// Takes the way down: where the run names a codec for it, what is committed of a merge is `before` and the step as it decodes. The step carries what the last one
/// lost, `residual`. An error leaves `output` as it was.
///
/// # Errors
/// Unavailable: a temporary file or the bucket fails. Anything else: the codec cannot be loaded, or fails.
pub(super) async fn step_down(
    desk: &Desk,
    p: usize,
    before: &Vector,
    output: &mut RoundOutput,
    residual: Option<&Vector>,
) -> Result<Option<Step>> {
    let Some(down) = &desk.record.down else { return Ok(None) };
    let codec = desk.shelf.get(Role::Codec, down).await?;
    let codec = (&codec, down.config.as_bytes());
    let (step, committed, lost) =
        Step::encode(&down.name, codec, &desk.tensors[p], before, &output.parameters, residual)?;
    output.parameters = committed;
    output.state.residual = lost;
    Ok(Some(step))
}
