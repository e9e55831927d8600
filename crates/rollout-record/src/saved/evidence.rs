//! Why a finished trial failed or is not solved, from the files of its job.

use super::{SavedJob, SavedTrial, TrialStatus};
use crate::causes::{RolloutEnding, TrialCause};
use rollout_core::redact::Redactor;

impl SavedJob {
    /// The last line of evidence of a trial: its error, the last line of its tests, its answer, or the end of its last
    /// message. None for a solved trial, and if nothing is recorded.
    pub fn evidence(&self, trial: &SavedTrial) -> Option<TrialCause> {
        let result = &trial.result;
        let is_unsolved = match TrialStatus::of(result) {
            TrialStatus::Failed => false,
            TrialStatus::Unsolved => true,
            _ => return None,
        };
        let is_example = self.task(trial).example_id.is_some();
        match &result.error {
            Some(error) if !is_unsolved || is_example => {
                Some(TrialCause::of_error(error.kind, &error.message))
            }
            _ if is_example => self.ending(trial),
            // The tests usually end with what they found missing.
            _ => {
                let dir = self.dir.trial(&trial.id).of_last_result();
                TrialCause::of_tests(self.path(), &dir.deciding_step(result))
            }
        }
    }

    fn ending(&self, trial: &SavedTrial) -> Option<TrialCause> {
        let pages = self.conversation_pages(trial).ok()??;
        let steps = pages.len().checked_sub(1).and_then(|last| pages.read(last).ok()).unwrap_or_default();
        let mut messages = steps.iter().rev().map(|step| &*step.message);
        let ending = RolloutEnding {
            answer: pages.predicted_answer.as_deref(),
            expected: pages.answer.as_deref(),
            last: messages.find(|message| !message.text().trim().is_empty()),
            stop_condition: pages.stop_condition.as_deref(),
        };
        // Rows have no secrets.
        Some(TrialCause::of_ending(&ending, &Redactor::default()))
    }
}
