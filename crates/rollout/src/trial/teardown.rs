//! The last phases of a try: its logs are copied out, and the environment is removed or preserved.

use std::time::Duration;

use indexmap::IndexMap;

use super::{
    calls::bounded, context::TrialContext, failure::Failure, install_cache::InstallPlan,
    rented::RentedEnvironment, reward::Reward,
};
use crate::config::PreservePolicy;
use rollout_core::{event::Phase, result::EnvironmentRecord};
use rollout_env::{CopyOut, Environment, PreparedImage};

/// Copying logs out of a broken environment must not block the job.
const COLLECT_TIMEOUT: Duration = Duration::from_secs(300);

/// Removing a broken environment must not block the job.
const TEARDOWN_TIMEOUT: Duration = Duration::from_secs(60);

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

/// A removed or preserved environment.
pub(super) struct TornDown {
    pub(super) environment: EnvironmentRecord,
    /// Why it could not be removed.
    pub(super) problem: Option<String>,
}

/// Removes or preserves the environment of a try with a result.
pub(super) async fn tear_down(
    context: &TrialContext<'_>,
    environment: RentedEnvironment,
    image: &PreparedImage,
    plan: &InstallPlan,
    preserve: bool,
) -> TornDown {
    context.enter(Phase::Teardown);
    let facts = environment.facts();
    let id = environment.id().to_owned();
    let (preserved, problem) = match end(environment, preserve).await {
        Ok(preserved) => (preserved, None),
        Err(problem) => (None, Some(problem)),
    };
    let environment = EnvironmentRecord {
        provider: context.trial.provider.name().to_owned(),
        id,
        image: image.reference.clone(),
        agent_snapshot: match plan {
            InstallPlan::Restore { key, .. } => Some(key.clone()),
            InstallPlan::Own | InstallPlan::Share { .. } => None,
        },
        network: facts.network,
        enforced: facts.enforced,
        preserved,
        preserved_services: IndexMap::new(),
    };
    TornDown { environment, problem }
}

/// Removes the environment of a try without a result that could note a problem.
pub(super) async fn abandon(environment: RentedEnvironment) {
    let _ = end(environment, false).await;
}

/// Preserves an environment beside that of the agent, and returns its place.
pub(super) async fn preserve(environment: RentedEnvironment) -> Result<Option<String>, String> {
    end(environment, true).await
}

/// Removes an environment that is not needed for a result.
pub(super) async fn remove(environment: RentedEnvironment) -> Result<(), String> {
    end(environment, false).await.map(drop)
}

/// Removes or preserves an environment, with a timeout. Returns where it was preserved.
async fn end(environment: RentedEnvironment, preserve: bool) -> Result<Option<String>, String> {
    let environment = environment.give_up();
    let clean_command = environment.clean_command();
    let ended = tokio::time::timeout(TEARDOWN_TIMEOUT, async {
        if preserve {
            environment.preserve().await.map(Some)
        } else {
            environment.destroy().await.map(|()| None)
        }
    });
    let problem = match ended.await {
        Ok(Ok(place)) => return Ok(place),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("removing the environment timed out after {} seconds", TEARDOWN_TIMEOUT.as_secs()),
    };
    Err(format!("{problem}. `{clean_command}` removes it"))
}

/// Whether the environment of a try with this result is preserved.
pub(super) fn is_preserved(
    policy: PreservePolicy,
    failure: Option<&Failure>,
    reward: Option<&Reward>,
) -> bool {
    match policy {
        PreservePolicy::Never => false,
        PreservePolicy::Always => true,
        PreservePolicy::OnFailure => failure.is_some() || reward.is_some_and(|reward| reward.reward < 1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollout_core::result::ErrorType;

    #[test]
    fn on_failure_means_an_error_or_a_reward_below_1() {
        use PreservePolicy::{Always, Never, OnFailure};
        let reward = |reward| Some(Reward { reward, named: IndexMap::new(), is_mean: false });
        for (policy, failed, reward, preserved) in [
            (Never, true, reward(0.0), false),
            (Always, false, reward(1.0), true),
            (OnFailure, false, reward(1.0), false),
            (OnFailure, false, reward(0.99), true),
            (OnFailure, true, reward(1.0), true),
            (OnFailure, true, None, true),
            (OnFailure, false, None, false),
        ] {
            let failure = failed.then(|| Failure::new(ErrorType::VerifierFailed, String::new()));
            let found = is_preserved(policy, failure.as_ref(), reward.as_ref());
            assert_eq!(found, preserved, "{policy:?} {failed} {reward:?}");
        }
    }
}
