//! The collect phase: copies logs out of the environment.

use std::time::Duration;

use super::{calls::bounded, context::TrialContext};
use rollout_core::event::Phase;
use rollout_env::{CopyOut, Environment};

/// Copying logs out of a broken environment must not block the job.
const COLLECT_TIMEOUT: Duration = Duration::from_secs(300);

/// Copies `/logs` out, even if the agent failed. The verifier's logs come first: they are the evidence, and other files
/// of the agent must not prevent their copy.
pub(super) async fn collect(
    context: &TrialContext<'_>,
    environment: &dyn Environment,
    notes: &mut Vec<String>,
) {
    context.enter(Phase::Collect);
    let trial = context.trial;
    let logs = context.step.dir.logs();
    if context.step.is_separate {
        // The tests wrote their logs elsewhere: whatever is here is from the agent.
        if let Err(error) = bounded(environment.make_dirs(&["/logs/verifier"], true)).await {
            return notes.push(format!("cannot copy /logs: {error}"));
        }
    }
    let copy = CopyOut { source: "/logs", target: &logs, first: Some("verifier"), redactor: &trial.redactor };
    match tokio::time::timeout(COLLECT_TIMEOUT, environment.copy_from(copy)).await {
        Ok(Ok(report)) => {
            notes.extend(report.skipped.into_iter().map(|what| format!("not copied from /logs: {what}")));
        }
        Ok(Err(error)) => notes.push(format!("cannot copy /logs: {error}")),
        Err(_) => notes.push("copying /logs timed out".to_owned()),
    }
}
