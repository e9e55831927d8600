//! Reasons to stop a job before all its trials ran.

use super::{Dispatcher, End};
use crate::job::{JobError, rollouts::Finished};
use rollout_core::{
    event::Event,
    name::TrialIndex,
    result::{EarlyStop, TrialResult},
};
use rollout_model as model;

impl Dispatcher {
    /// Removes the members of a group that will not be started. If the others have ended, they are scored.
    pub(super) fn abandon_group(&mut self) {
        let Some((group, left)) = self.group.take() else { return };
        if let Some(scoring) = group.abandon(left) {
            self.running.spawn(async { End::Rollout(scoring.await) });
        }
    }

    /// Ends the job: every other trial of the model would fail too.
    pub(super) fn unauthorized(&mut self, index: TrialIndex, error: model::Error) {
        let agent = self.plan.parts(index).0;
        let of_agent = agent.config.as_ref().and_then(|config| config.model());
        let who = match (&agent.model, of_agent) {
            (Some(model), _) => format!("model {}", model.name),
            (None, Some(model)) => format!("agent {} (model {})", agent.name, model.name),
            (None, None) => format!("agent {}", agent.name),
        };
        self.tell(Event::TrialSkipped { index });
        self.refused(who, error);
    }

    /// Stops the job: every other trial with this key would fail too.
    pub(super) fn refused(&mut self, who: String, error: model::Error) {
        self.failure.get_or_insert(match error.kind {
            model::ErrorKind::Unsupported => JobError::Unsupported { who, source: error },
            _ => JobError::Unauthorized { who, source: error },
        });
        self.stop.cancel();
    }

    /// Stops a job whose next trial would pass the budget. Called when nothing runs that could still cost less than
    /// expected.
    pub(super) fn stop_at_budget(&mut self) {
        if self.stop.is_cancelled() || self.spending.may_start() {
            return;
        }
        if let Some((budget_usd, spent_usd)) = self.spending.of_budget() {
            self.stopped.get_or_insert(EarlyStop::Budget { budget_usd, spent_usd });
        }
    }

    /// Counts the cost of a trial that ended, and reports once if it is not known.
    pub(super) fn spend(&mut self, index: TrialIndex, result: &TrialResult) {
        self.spending.ended(index, result.cost);
        let is_unknown = result.usage.is_some() && result.model_cost.is_none();
        if is_unknown && !self.reported_unknown_cost && self.spending.of_budget().is_some() {
            self.reported_unknown_cost = true;
            let agent = &result.agent_name;
            let message = format!(
                "the budget does not limit agent {agent}: its model has no known price; set `prices` of the model"
            );
            self.tell(Event::Warning { message });
        }
    }

    /// Stops a job whose trials fail one after another with the same cause. A job without saved results continues,
    /// because it could not be resumed.
    pub(super) fn stop_early(&mut self, Finished { index, result, unscored, .. }: &Finished) {
        if self.plan.regrade.is_some() {
            // Trials in a row fail because nothing of them was kept; others may be graded.
            return;
        }
        let (_, task, _) = self.plan.place(*index);
        let stop = self.streak.add(result, unscored.as_ref(), task, self.plan.tasks().len());
        if self.dir.is_some() && self.stopped.is_none() && !self.stop.is_cancelled() {
            self.stopped = stop;
            if self.stopped.is_some() {
                self.stop.cancel();
            }
        }
    }
}
