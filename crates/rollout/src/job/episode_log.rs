//! Writes the eval log of a running job: a record of each trial when it ends.

use tokio::sync::mpsc;

use super::{Plan, recorder::Recorded, rollouts::Finished};
use rollout_core::text::chain;
use rollout_record::{
    export::{ExportError, eval_log::LiveLog},
    layout::JobDir,
    saved::SavedTrial,
};

/// Writes records after the results. If writing fails, the job continues, because they can be created again.
pub(super) struct EpisodeLog {
    log: LiveLog,
    is_reported: bool,
}

impl EpisodeLog {
    /// Starts the log of a job that has one.
    pub(super) fn start(plan: &Plan, dir: &JobDir, done: &mpsc::UnboundedSender<Recorded>) -> Option<Self> {
        if !plan.config().eval_log {
            return None;
        }
        match LiveLog::open(dir.path()) {
            Ok(log) => Some(Self { log, is_reported: false }),
            Err(error) => {
                tell(&error, done);
                None
            }
        }
    }

    /// Writes the records of saved trials, each with its row if it has one.
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
                tracing::warn!(trial = %saved.id, error = %chain(&error), "cannot write the record of a trial to the eval log");
                if !self.is_reported {
                    self.is_reported = true;
                    tell(&error, done);
                }
            }
        }
    }
}

fn tell(error: &ExportError, done: &mpsc::UnboundedSender<Recorded>) {
    let message = format!(
        "the eval log is incomplete: {}; create it again with `rollout export eval-log`",
        chain(error)
    );
    let _ = done.send(Recorded::Warning(message));
}
