//! The failures of a trial: type, message, and whether a retry can help.

use std::time::Duration;

use rollout_core::{
    event::Phase,
    result::{ErrorType, FailureCause, TrialError},
};
use rollout_env::EnvironmentError;
use rollout_model::{Error, ErrorKind};

/// A trial's error, and whether the infrastructure caused it.
#[derive(Debug, Clone)]
pub(super) struct Failure {
    pub(super) error: TrialError,
    /// A retry may succeed.
    pub(super) transient: bool,
}

impl Failure {
    pub(super) fn new(kind: ErrorType, message: String) -> Self {
        Self { error: TrialError { kind, message }, transient: false }
    }

    /// The failure for an error of an environment in a phase.
    pub(super) fn environment(phase: Phase, error: &EnvironmentError) -> Self {
        let (kind, transient) = classify(phase, error);
        let message = match error {
            EnvironmentError::Ended(reason) => format!("{}: {reason}", ended_by(phase)),
            error => error.to_string(),
        };
        Self { error: TrialError { kind, message }, transient }
    }

    /// The failure for an error in a model's conversation. A temporary error is retried only if no tool was called:
    /// after that, the conversation counts as the attempt.
    pub(super) fn model(error: &Error, has_executed: bool) -> Self {
        let lost = error.is(ErrorKind::Infra);
        let kind = if lost {
            ErrorType::InternalError
        } else if error.kind.fault() != FailureCause::Infrastructure {
            ErrorType::AgentExecutionFailed
        } else if error.is(ErrorKind::Model) {
            ErrorType::ModelFailed
        } else {
            ErrorType::InteractionFailed
        };
        let message = format!("{}: {error}. trajectory.json has the conversation so far", error.chain());
        let transient = lost || error.kind.is_retried() && !has_executed;
        Self { error: TrialError { kind, message }, transient }
    }

    /// The same failure, with what it is about before its message.
    pub(super) fn about(self, what: &str) -> Self {
        let TrialError { kind, message } = self.error;
        Self { error: TrialError { kind, message: format!("{what}: {message}") }, ..self }
    }

    /// The same failure, with more output after its message.
    pub(super) fn quoting(self, output: &str) -> Self {
        let TrialError { kind, message } = self.error;
        Self { error: TrialError { kind, message: message + output }, ..self }
    }

    pub(super) fn build_timeout(limit: Duration) -> Self {
        Self::new(
            ErrorType::EnvironmentBuildTimeout,
            format!(
                "the image was not ready after {}; see environment/build.txt. \
                 Raise environment.build_timeout_sec in task.toml or timeout_multiplier in the job",
                in_seconds(limit)
            ),
        )
    }
}

/// The type of an environment's failure in a phase, and whether it is transient.
fn classify(phase: Phase, error: &EnvironmentError) -> (ErrorType, bool) {
    match error {
        EnvironmentError::Build(_) => (ErrorType::EnvironmentBuildFailed, false),
        EnvironmentError::BuildNetwork(_) => (ErrorType::EnvironmentBuildFailed, true),
        EnvironmentError::Pull(_) => (ErrorType::EnvironmentImagePullFailed, true),
        EnvironmentError::NoImage(_) => (ErrorType::EnvironmentImagePullFailed, false),
        EnvironmentError::Start(_) => (ErrorType::EnvironmentStartFailed, true),
        EnvironmentError::Refused(_) => (ErrorType::EnvironmentStartFailed, false),
        EnvironmentError::Resources(_) => (ErrorType::EnvironmentResourceAllocationFailed, false),
        EnvironmentError::Teardown(_) => (ErrorType::EnvironmentTeardownFailed, false),
        // A running agent may have filled the disk itself, and must not get a retry for that.
        EnvironmentError::DiskFull(_) if matches!(phase, Phase::Image | Phase::Start) => {
            (ErrorType::EnvironmentStartFailed, true)
        }
        EnvironmentError::DiskFull(_) | EnvironmentError::Command(_) | EnvironmentError::Ended(_) => {
            match phase {
                Phase::Image => (ErrorType::EnvironmentBuildFailed, false),
                Phase::Start => (ErrorType::EnvironmentStartFailed, false),
                Phase::Install => (ErrorType::AgentInstallFailed, false),
                Phase::Execute => (ErrorType::AgentExecutionFailed, false),
                Phase::Verify => (ErrorType::VerifierFailed, false),
                Phase::Collect | Phase::Teardown => (ErrorType::InternalError, false),
            }
        }
        // A retry would need as much time again.
        EnvironmentError::TimeOver(_) => match phase {
            Phase::Image | Phase::Start => (ErrorType::EnvironmentStartFailed, false),
            _ => (ErrorType::InternalError, false),
        },
        EnvironmentError::Lost(_) => match phase {
            Phase::Image | Phase::Start => (ErrorType::EnvironmentStartFailed, true),
            _ => (ErrorType::InternalError, true),
        },
    }
}

/// What ended an environment from inside in a phase.
fn ended_by(phase: Phase) -> &'static str {
    match phase {
        Phase::Install => "the agent's install script ended its own environment",
        Phase::Execute => "the agent's command ended its own environment",
        Phase::Verify => "a process inside ended the environment during verification",
        Phase::Image | Phase::Start | Phase::Collect | Phase::Teardown => {
            "a process inside ended the environment"
        }
    }
}

/// A time limit, for error messages.
pub(super) fn in_seconds(limit: Duration) -> String {
    let seconds = limit.as_secs_f64();
    if seconds == 1.0 {
        "1 second".to_owned()
    } else {
        format!("{} seconds", (seconds * 1000.0).round() / 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_is_retried_if_the_environment_was_lost_or_no_tool_was_called() {
        use ErrorKind as K;
        for (error, has_executed, kind, transient) in [
            (K::Sandbox, true, ErrorType::InternalError, true),
            (K::Infra, false, ErrorType::InternalError, true),
            (K::EmptyModelResponse, false, ErrorType::AgentExecutionFailed, true),
            (K::EmptyModelResponse, true, ErrorType::AgentExecutionFailed, false),
            (K::InvalidModelResponse, false, ErrorType::ModelFailed, true),
            (K::InvalidModelResponse, true, ErrorType::ModelFailed, false),
            (K::Model, false, ErrorType::ModelFailed, false),
            (K::Any, false, ErrorType::InteractionFailed, false),
        ] {
            let failure = Failure::model(&Error::new(error.clone(), "it broke"), has_executed);
            assert_eq!((failure.error.kind, failure.transient), (kind, transient), "{error} {has_executed}");
        }
    }

    #[test]
    fn only_infrastructure_failures_are_retried() {
        use EnvironmentError as E;
        let text = String::new;
        for (phase, error, kind, transient) in [
            (Phase::Image, E::Build(text()), ErrorType::EnvironmentBuildFailed, false),
            (Phase::Image, E::BuildNetwork(text()), ErrorType::EnvironmentBuildFailed, true),
            (Phase::Image, E::Pull(text()), ErrorType::EnvironmentImagePullFailed, true),
            (Phase::Image, E::NoImage(text()), ErrorType::EnvironmentImagePullFailed, false),
            (Phase::Start, E::Start(text()), ErrorType::EnvironmentStartFailed, true),
            (Phase::Start, E::Refused(text()), ErrorType::EnvironmentStartFailed, false),
            (Phase::Start, E::Resources(text()), ErrorType::EnvironmentResourceAllocationFailed, false),
            (Phase::Start, E::Lost(text()), ErrorType::EnvironmentStartFailed, true),
            (Phase::Start, E::DiskFull(text()), ErrorType::EnvironmentStartFailed, true),
            (Phase::Execute, E::DiskFull(text()), ErrorType::AgentExecutionFailed, false),
            (Phase::Verify, E::DiskFull(text()), ErrorType::VerifierFailed, false),
            (Phase::Install, E::Command(text()), ErrorType::AgentInstallFailed, false),
            (Phase::Execute, E::Command(text()), ErrorType::AgentExecutionFailed, false),
            (Phase::Execute, E::Lost(text()), ErrorType::InternalError, true),
            (Phase::Execute, E::TimeOver(text()), ErrorType::InternalError, false),
            (Phase::Verify, E::Command(text()), ErrorType::VerifierFailed, false),
            (Phase::Verify, E::Lost(text()), ErrorType::InternalError, true),
            (Phase::Install, E::Ended(text()), ErrorType::AgentInstallFailed, false),
            (Phase::Execute, E::Ended(text()), ErrorType::AgentExecutionFailed, false),
            (Phase::Verify, E::Ended(text()), ErrorType::VerifierFailed, false),
            (Phase::Teardown, E::Teardown(text()), ErrorType::EnvironmentTeardownFailed, false),
        ] {
            assert_eq!(classify(phase, &error), (kind, transient), "{phase:?} {error:?}");
        }
    }
}
