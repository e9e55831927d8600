//! The status of every planned trial, finished or not, and whether the job still runs.

use std::fs::{File, TryLockError};

use serde::Serialize;

use super::{JobDir, SavedJob};
use rollout_core::{
    name::{TrialId, TrialIndex},
    result::{Standing, TrialResult, TrialSummary},
};

/// The status of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TrialStatus {
    /// Its reward reaches the threshold of its dataset.
    Solved,
    /// Its reward is lower.
    Unsolved,
    /// It completed without a reward, because none was asked for.
    Unscored,
    /// An error prevented a reward.
    Failed,
    /// It runs now.
    Running,
    /// It has no result, and does not run.
    Missing,
}

impl TrialStatus {
    /// The status of a finished trial.
    pub fn of(result: &TrialResult) -> Self {
        Self::of_summary(&TrialSummary::from(result))
    }

    /// The status of a finished trial, of which only a few values are in memory.
    pub fn of_summary(trial: &TrialSummary) -> Self {
        match (trial.standing, trial.reward) {
            (Standing::Failed | Standing::Skipped, _) => Self::Failed,
            (Standing::Completed, Some(_)) if trial.is_solved() => Self::Solved,
            (Standing::Completed, Some(_)) => Self::Unsolved,
            (Standing::Completed, None) => Self::Unscored,
        }
    }

    /// All, in the order of the list.
    pub const ALL: [Self; 6] =
        [Self::Solved, Self::Unsolved, Self::Unscored, Self::Failed, Self::Running, Self::Missing];

    /// The name in output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Solved => "solved",
            Self::Unsolved => "unsolved",
            Self::Unscored => "unscored",
            Self::Failed => "failed",
            Self::Running => "running",
            Self::Missing => "missing",
        }
    }
}

impl JobDir {
    /// Whether a process runs the job now.
    ///
    /// It holds a lock on the journal, which is seen from every container and machine that has the file. The lock is
    /// tried for a moment only, and [`Journal::open`](crate::journal::Journal::open) waits for such readers.
    pub fn is_running(&self) -> bool {
        let Ok(journal) = File::open(self.journal()) else { return false };
        matches!(journal.try_lock_shared(), Err(TryLockError::WouldBlock))
    }
}

impl SavedJob {
    /// The number of planned trials.
    pub fn planned(&self) -> u64 {
        let attempts = self.header.tasks.iter().map(|task| u64::from(self.header.attempts_of(task)));
        self.header.agents.len() as u64 * attempts.sum::<u64>()
    }

    /// Whether a process runs the job now.
    pub fn is_running(&self) -> bool {
        self.dir.is_running()
    }

    /// The state of the job in lists.
    pub fn status_name(&self) -> &'static str {
        match self.runs.last() {
            _ if self.is_running() => "running",
            Some(run) if run.cancelled => "cancelled",
            _ if (self.len() as u64) < self.planned() => "incomplete",
            _ => "finished",
        }
    }

    /// The planned trials, in the order of the plan.
    pub fn ids(&self) -> impl Iterator<Item = (TrialIndex, TrialId)> + '_ {
        self.indexes().filter_map(|index| Some((index, self.id(index)?)))
    }

    fn indexes(&self) -> impl Iterator<Item = TrialIndex> + use<> {
        (0..self.planned()).map(TrialIndex)
    }

    /// The planned trials without a result, in the order of the plan. A trial runs if its directory exists in a running
    /// job; trials without directories, such as rollouts, are reported as missing until they end.
    pub fn unfinished(&self) -> impl Iterator<Item = (TrialIndex, TrialId, TrialStatus)> + '_ {
        let is_running = self.is_running();
        // Both are in the order of the plan.
        let mut finished = self.places.iter().map(|place| place.index).peekable();
        let missing = self.indexes().filter(move |index| {
            while finished.next_if(|known| known < index).is_some() {}
            finished.peek() != Some(index)
        });
        missing.filter_map(move |index| {
            let id = self.id(index)?;
            let runs = is_running && self.dir.trial(&id).path().is_dir();
            Some((index, id, if runs { TrialStatus::Running } else { TrialStatus::Missing }))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_runs_while_its_journal_is_locked() {
        let dir = tempfile::tempdir().unwrap();
        let job = JobDir::new(dir.path());
        assert!(!job.is_running(), "there is no journal");
        let journal = File::create(job.journal()).unwrap();
        assert!(!job.is_running());
        journal.lock().unwrap();
        assert!(job.is_running());
        drop(journal);
        assert!(!job.is_running());
    }
}
