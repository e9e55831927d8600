//! The collect phase: copies logs out of the environment.

use std::time::Duration;

use super::{calls::bounded, context::TrialContext};
use rollout_core::event::Phase;
use rollout_env::{CopyOut, Environment};

/// Copying logs out of a broken environment must not block the job.
const COLLECT_TIMEOUT: Duration = Duration::from_secs(300);

/// Copies `/logs` out, even if the agent failed. The verifier's logs come first: they are the evidence, and other files
/// of the agent must not prevent their copy. Returns whether everything was copied.
pub(super) async fn collect(
    context: &TrialContext<'_>,
    environment: &dyn Environment,
    notes: &mut Vec<String>,
) -> LogCopy {
    context.enter(Phase::Collect);
    let trial = context.trial;
    let logs = context.step.dir.logs();
    if context.step.is_separate {
        // The tests wrote their logs elsewhere: whatever is here is from the agent.
        if let Err(error) = bounded(environment.make_dirs(&["/logs/verifier"], true)).await {
            notes.push(format!("cannot copy /logs: {error}"));
            return LogCopy::Incomplete;
        }
    }
    let copy = CopyOut { source: "/logs", target: &logs, first: Some("verifier"), redactor: &trial.redactor };
    let missing = match tokio::time::timeout(COLLECT_TIMEOUT, environment.copy_from(copy)).await {
        Ok(Ok(report)) => {
            report.skipped.into_iter().map(|what| format!("not copied from /logs: {what}")).collect()
        }
        Ok(Err(error)) => vec![format!("cannot copy /logs: {error}")],
        Err(_) => vec!["copying /logs timed out".to_owned()],
    };
    LogCopy::with(missing, notes)
}

/// Whether a copy of logs is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum LogCopy {
    /// Everything was copied.
    #[default]
    Complete,
    /// Something was cut or left out. The notes name it.
    Incomplete,
}

impl LogCopy {
    /// A copy with these notes about what is missing.
    pub(super) fn with(missing: Vec<String>, notes: &mut Vec<String>) -> Self {
        let copy = if missing.is_empty() { Self::Complete } else { Self::Incomplete };
        notes.extend(missing);
        copy
    }

    /// Both copies together.
    pub(super) fn and(self, other: Self) -> Self {
        if self == Self::Complete { other } else { self }
    }
}
