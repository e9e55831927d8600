//! The collect phase: logs come out of the environment.

use std::time::Duration;

use super::{calls::bounded, context::TrialContext, separate};
use rollout_core::event::Phase;
use rollout_env::{CopyOut, Environment};

/// Getting logs out of a broken environment must not hold up the job.
const COLLECT_TIMEOUT: Duration = Duration::from_secs(300);

/// Brings `/logs` out, also when the agent failed. The verifier's come first: they are the evidence, and nothing that
/// the agent leaves beside them may keep them inside.
pub(super) async fn collect(
    context: &TrialContext<'_>,
    environment: &dyn Environment,
    notes: &mut Vec<String>,
) {
    context.enter(Phase::Collect);
    let trial = context.trial;
    let logs = trial.dir.logs();
    if separate::is_separate(context) {
        // The tests wrote theirs elsewhere: whatever is here pretends to be.
        if let Err(error) = bounded(environment.make_dirs(&["/logs/verifier"], true)).await {
            return notes.push(format!("/logs could not be copied: {error}"));
        }
    }
    let copy = CopyOut { source: "/logs", target: &logs, first: Some("verifier"), redactor: &trial.redactor };
    match tokio::time::timeout(COLLECT_TIMEOUT, environment.copy_from(copy)).await {
        Ok(Ok(report)) => {
            notes.extend(report.skipped.into_iter().map(|what| format!("not copied from /logs: {what}")));
        }
        Ok(Err(error)) => notes.push(format!("/logs could not be copied: {error}")),
        Err(_) => notes.push("/logs could not be copied in time".to_owned()),
    }
}
