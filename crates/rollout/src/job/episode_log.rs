//! The eval log of a job while it runs: a record of each trial as it ends.

use tokio::sync::mpsc;

use super::{Plan, recorder::Recorded, rollouts::Finished};
use rollout_core::text::chain;
use rollout_record::{
    export::{ExportError, eval_log::LiveLog},
    layout::JobDir,
    saved::SavedTrial,
};

/// Writes records after the results that they are made of. A job goes on without them: they can be made again.
pub(super) struct EpisodeLog {
    log: LiveLog,
    is_told: bool,
}

impl EpisodeLog {
    /// Starts the log of a job that asks for one.
    pub(super) fn start(plan: &Plan, dir: &JobDir, done: &mpsc::UnboundedSender<Recorded>) -> Option<Self> {
        if !plan.config().eval_log {
            return None;
        }
        match LiveLog::open(dir.path()) {
            Ok(log) => Some(Self { log, is_told: false }),
            Err(error) => {
                tell(&error, done);
                None
            }
        }
    }

    /// Writes the records of trials that are on the disk, each with its row if it has one.
    pub(super) fn write(
        &mut self,
        plan: &Plan,
        trials: &[Finished],
        rows: &[Option<Vec<u8>>],
        done: &mpsc::UnboundedSender<Recorded>,
    ) {
        for (trial, row) in trials.iter().zip(rows) {
            let saved = SavedTrial {
                index: trial.index,
                id: plan.trial(trial.index),
                task: plan.place(trial.index).1,
                run: 0,
                result: (*trial.result).clone(),
            };
            if let Err(error) = self.log.trial(&saved, row.as_deref()) {
                tracing::warn!(trial = %saved.id, error = %chain(&error), "the eval log has no record of a trial");
                if !self.is_told {
                    self.is_told = true;
                    tell(&error, done);
                }
            }
        }
    }
}

fn tell(error: &ExportError, done: &mpsc::UnboundedSender<Recorded>) {
    let message =
        format!("the eval log is not complete: {}; `rollout export eval-log` makes it again", chain(error));
    let _ = done.send(Recorded::Warning(message));
}
