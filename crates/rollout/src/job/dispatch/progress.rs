//! Reports of running trials, as events and as costs.

use super::Dispatcher;
use crate::trial::Progress;
use rollout_core::{
    event::{Event, ModelProgress},
    name::TrialIndex,
};

impl Dispatcher {
    pub(super) fn on_progress(&mut self, index: TrialIndex, progress: Progress) {
        match progress {
            Progress::Model(ModelProgress { cost: Some(cost), .. }) => self.spending.used(index, cost),
            Progress::EnvironmentCost(cost) => self.spending.rented(index, cost),
            Progress::Retry { .. } | Progress::StepEnded => self.spending.tried(index),
            Progress::Model(_) | Progress::Phase(_) | Progress::Waiting(_) => {}
        }
        let event = match progress {
            Progress::EnvironmentCost(_) | Progress::StepEnded => return,
            Progress::Phase(phase) => Event::PhaseStarted { index, phase },
            Progress::Waiting(what) => {
                let what = self.plan.redactor().text(&what).into_owned();
                tracing::info!(trial = %self.plan.trial(index), "waiting for {what}");
                Event::TrialWaiting { index, what }
            }
            Progress::Model(used) => Event::ModelUsed { index, used },
            Progress::Retry { failed_try, mut error, delay } => {
                error.message = self.plan.redactor().text(&error.message).into_owned();
                tracing::warn!(trial = %self.plan.trial(index), failed_try, error = %error.message, "retrying trial");
                Event::TrialRetried { index, failed_try, error, delay_ms: delay.as_millis() as u64 }
            }
        };
        self.tell(event);
    }
}
