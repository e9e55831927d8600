//! The collect phase: logs come out of the environment.

use std::{sync::Arc, time::Duration};

use super::context::TrialContext;
use rollout_core::event::Phase;
use rollout_env::{Environment, blocking::blocking};

/// Getting logs out of a broken environment must not hold up the job.
const COLLECT_TIMEOUT: Duration = Duration::from_secs(300);

/// Brings `/logs` out, also when the agent failed. Where there are secrets, nothing is in its place before they are
/// masked.
pub(super) async fn collect(
    context: &TrialContext<'_>,
    environment: &dyn Environment,
    notes: &mut Vec<String>,
) {
    context.enter(Phase::Collect);
    let trial = context.trial;
    let logs = trial.dir.logs();
    let secrets = !trial.redactor.is_empty();
    let target = if secrets { trial.dir.unredacted_logs() } else { logs.clone() };
    match tokio::time::timeout(COLLECT_TIMEOUT, environment.copy_from("/logs", &target)).await {
        Ok(Ok(report)) => {
            notes.extend(report.skipped.into_iter().map(|what| format!("not copied from /logs: {what}")));
        }
        // A copy that was cut off may still be going on, behind the back of whoever masks it: it stays unmasked, and
        // teardown removes it.
        Ok(Err(error)) => return notes.push(format!("/logs could not be copied: {error}")),
        Err(_) => return notes.push("/logs could not be copied in time".to_owned()),
    }
    if secrets {
        let redactor = Arc::clone(&trial.redactor);
        match blocking(move || redactor.move_tree(&target, &logs)).await {
            Ok(0) => {}
            Ok(left_out) => notes.push(format!(
                "{left_out} entries of /logs had secrets in their names, or could not be read, and were left out"
            )),
            Err(error) => notes.push(format!("/logs could not be redacted, so it was not kept: {error}")),
        }
    }
}
