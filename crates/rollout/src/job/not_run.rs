//! Results of trials that could not run to their end.

use jiff::Timestamp;

use super::Plan;
use rollout_core::{
    name::TrialIndex,
    result::{ErrorType, TrialError, TrialResult},
};

/// The result of an example whose agent is not a model.
pub(super) fn no_model(plan: &Plan, index: TrialIndex) -> TrialResult {
    let trial = plan.trial(index);
    let message = format!(
        "agent {} is not a model, so it cannot attempt the examples of dataset {}",
        trial.agent, trial.dataset
    );
    failed(plan, index, ErrorType::TaskInvalid, message)
}

/// The result of a trial whose code panicked.
pub(super) fn crashed(plan: &Plan, index: TrialIndex) -> TrialResult {
    let message = "Rollout itself failed in this trial: this is a bug; see rollout.log".to_owned();
    failed(plan, index, ErrorType::InternalError, message)
}

/// The result of a trial whose example cannot be read.
pub(super) fn unreadable(plan: &Plan, index: TrialIndex, error: &std::io::Error) -> TrialResult {
    let message = format!("cannot read the example from its temporary file: {error}");
    failed(plan, index, ErrorType::InternalError, message)
}

fn failed(plan: &Plan, index: TrialIndex, kind: ErrorType, message: String) -> TrialResult {
    let error = TrialError { kind, message };
    TrialResult { error: Some(error), ..TrialResult::empty(&plan.trial(index), Timestamp::now()) }
}
