//! The ways in which a trial can fail, and their causes.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::text::printable;

/// The types of failures, by the phase of the trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorType {
    /// The Dockerfile could not be built.
    EnvironmentBuildFailed,
    /// The build took longer than `environment.build_timeout_sec`.
    EnvironmentBuildTimeout,
    /// The task's image could not be pulled.
    EnvironmentImagePullFailed,
    /// The environment did not start, although the image is available.
    EnvironmentStartFailed,
    /// The machine does not have the requested CPUs, memory or storage.
    EnvironmentResourceAllocationFailed,
    /// The install script exited non-zero.
    AgentInstallFailed,
    /// The install script took longer than `agent.install_timeout_sec`.
    AgentInstallTimeout,
    /// The execute script exited non-zero.
    AgentExecutionFailed,
    /// The execute script took longer than `agent.timeout_sec`.
    AgentExecutionTimeout,
    /// test.sh exited non-zero.
    VerifierFailed,
    /// test.sh took longer than its timeout.
    VerifierTimeout,
    /// test.sh wrote no reward.
    VerifierRewardMissing,
    /// test.sh wrote an invalid reward.
    VerifierRewardInvalid,
    /// The environment could not be stopped or removed.
    EnvironmentTeardownFailed,
    /// The task's files are missing or invalid.
    TaskInvalid,
    /// The task does not exist in its dataset.
    TaskNotFound,
    /// Nothing was kept that the tests could run on again.
    NotRegraded,
    /// The model's server returned no usable response.
    ModelFailed,
    /// A tool or a hook of the interaction failed.
    InteractionFailed,
    /// Rollout itself failed.
    InternalError,
}

impl ErrorType {
    /// All types, in the order of the phases.
    pub const ALL: [Self; 20] = [
        Self::EnvironmentBuildFailed,
        Self::EnvironmentBuildTimeout,
        Self::EnvironmentImagePullFailed,
        Self::EnvironmentStartFailed,
        Self::EnvironmentResourceAllocationFailed,
        Self::AgentInstallFailed,
        Self::AgentInstallTimeout,
        Self::AgentExecutionFailed,
        Self::AgentExecutionTimeout,
        Self::VerifierFailed,
        Self::VerifierTimeout,
        Self::VerifierRewardMissing,
        Self::VerifierRewardInvalid,
        Self::EnvironmentTeardownFailed,
        Self::TaskInvalid,
        Self::TaskNotFound,
        Self::NotRegraded,
        Self::ModelFailed,
        Self::InteractionFailed,
        Self::InternalError,
    ];

    /// The identifier in records and output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::EnvironmentBuildFailed => "environment_build_failed",
            Self::EnvironmentBuildTimeout => "environment_build_timeout",
            Self::EnvironmentImagePullFailed => "environment_image_pull_failed",
            Self::EnvironmentStartFailed => "environment_start_failed",
            Self::EnvironmentResourceAllocationFailed => "environment_resource_allocation_failed",
            Self::AgentInstallFailed => "agent_install_failed",
            Self::AgentInstallTimeout => "agent_install_timeout",
            Self::AgentExecutionFailed => "agent_execution_failed",
            Self::AgentExecutionTimeout => "agent_execution_timeout",
            Self::VerifierFailed => "verifier_failed",
            Self::VerifierTimeout => "verifier_timeout",
            Self::VerifierRewardMissing => "verifier_reward_missing",
            Self::VerifierRewardInvalid => "verifier_reward_invalid",
            Self::EnvironmentTeardownFailed => "environment_teardown_failed",
            Self::TaskInvalid => "task_invalid",
            Self::TaskNotFound => "task_not_found",
            Self::NotRegraded => "not_regraded",
            Self::ModelFailed => "model_failed",
            Self::InteractionFailed => "interaction_failed",
            Self::InternalError => "internal_error",
        }
    }
}

/// The cause of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailureCause {
    /// The agent: the trial counts as unsolved.
    Agent,
    /// The tests: the trial counts as unsolved, because an agent can make them fail.
    Verifier,
    /// The machine, the provider or Rollout itself: the trial says nothing about the agent.
    Infrastructure,
    /// The task's files: the trial says nothing about the agent.
    Task,
}

impl FailureCause {
    /// Whether a trial with this cause counts in the headline rate, as unsolved.
    pub fn is_counted(self) -> bool {
        matches!(self, Self::Agent | Self::Verifier)
    }
}

impl ErrorType {
    /// Returns the cause of this error.
    pub fn fault(self) -> FailureCause {
        match self {
            Self::AgentInstallFailed
            | Self::AgentInstallTimeout
            | Self::AgentExecutionFailed
            | Self::AgentExecutionTimeout => FailureCause::Agent,
            Self::VerifierFailed
            | Self::VerifierTimeout
            | Self::VerifierRewardMissing
            | Self::VerifierRewardInvalid => FailureCause::Verifier,
            Self::TaskInvalid | Self::TaskNotFound => FailureCause::Task,
            Self::EnvironmentBuildFailed
            | Self::EnvironmentBuildTimeout
            | Self::EnvironmentImagePullFailed
            | Self::EnvironmentStartFailed
            | Self::EnvironmentResourceAllocationFailed
            | Self::EnvironmentTeardownFailed
            | Self::NotRegraded
            | Self::ModelFailed
            | Self::InteractionFailed
            | Self::InternalError => FailureCause::Infrastructure,
        }
    }
}

impl ErrorType {
    /// Whether a trial with this error has failed even if it has a reward. A model rollout is always scored; a failure
    /// of its server, a tool or its environment says nothing about the model.
    pub(crate) fn fails_scored_trials(self) -> bool {
        matches!(self, Self::ModelFailed | Self::InteractionFailed | Self::EnvironmentStartFailed)
    }
}

impl fmt::Display for ErrorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The error of a trial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrialError {
    /// The type of the failure.
    #[serde(rename = "type")]
    pub kind: ErrorType,
    /// The message: what was attempted, what happened, and what to do next.
    pub message: String,
}

impl TrialError {
    /// The content of `error.txt`. Users read it in terminals, and the message quotes output of agents.
    pub fn file_content(&self) -> String {
        format!("{}\n\n{}\n", self.kind, printable(self.message.trim_end()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_an_error_cannot_move_the_cursor() {
        let message = "exit code 3:\n\u{1b}[2J\u{202e}gone\r\n".to_owned();
        let text = TrialError { kind: ErrorType::AgentExecutionFailed, message }.file_content();
        assert_eq!(text, "agent_execution_failed\n\nexit code 3:\n\\u{1b}[2J\\u{202e}gone\n");
    }
}
