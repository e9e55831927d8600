//! The results of the oracle and nop on each task.

use std::{collections::BTreeMap, path::PathBuf};

use rollout::{
    name::TrialId,
    record::{
        journal::PlannedTask,
        layout::JobDir,
        saved::{SavedError, SavedJob},
    },
    result::{ErrorType, TrialResult},
};

use super::AGENTS;

/// How many trials of a task are kept as evidence.
const EVIDENCE: usize = 3;

/// The planned tasks of the oracle and nop, by dataset and name.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) tasks: BTreeMap<(String, String), Task>,
    /// Trials of both agents that have no result.
    pub(crate) unfinished: u64,
}

/// The results of a task.
#[derive(Debug, Default)]
pub(crate) struct Task {
    pub(crate) oracle: Attempts,
    pub(crate) nop: Attempts,
    /// The task has no solution for the oracle.
    pub(crate) no_solution: bool,
    /// At least one trial had an environment.
    pub(crate) ran: bool,
}

/// The attempts of one agent.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    pub(crate) passes: u64,
    pub(crate) attempts: u64,
    pub(crate) errors: BTreeMap<ErrorType, u64>,
    /// The first trials with an unexpected outcome.
    pub(crate) evidence: Vec<Evidence>,
}

/// A trial with an unexpected outcome.
#[derive(Debug)]
pub(crate) struct Evidence {
    pub(crate) trial: TrialId,
    pub(crate) reward: Option<f64>,
    pub(crate) error: Option<(ErrorType, String)>,
    /// The directory with the output of the tests that decided the outcome.
    pub(crate) tests: PathBuf,
}

impl Tally {
    /// Reads the trials of a job. Returns None if the oracle and nop have no finished trial.
    pub(crate) fn read(job: &SavedJob) -> Result<Option<Self>, SavedError> {
        let planned_tasks = &job.header().tasks;
        let key = |task: &PlannedTask| (task.dataset.clone(), task.name.clone());
        let tasks = planned_tasks.iter().map(|task| (key(task), Task::default())).collect();
        let mut tally = Self { tasks, unfinished: 0 };
        let dir = JobDir::new(job.path());
        let mut finished = 0;
        for trial in job.trials()? {
            let trial = trial?;
            if !AGENTS.contains(&trial.id.agent.as_str()) {
                continue;
            }
            finished += 1;
            let key = (trial.id.dataset.to_string(), trial.id.task.to_string());
            tally.tasks.entry(key).or_default().add(&dir, trial.id, &trial.result);
        }
        for (number, task) in planned_tasks.iter().enumerate() {
            let has_solution = job.about(number)?.and_then(|about| about.has_solution);
            if let Some(task) = tally.tasks.get_mut(&key(task)).filter(|_| has_solution == Some(false)) {
                // A rejected trial of the oracle is not an attempt.
                (task.no_solution, task.oracle) = (true, Attempts::default());
            }
        }
        let agents =
            job.header().agents.iter().filter(|agent| AGENTS.contains(&agent.as_str())).count() as u64;
        let planned = agents * planned_tasks.len() as u64 * u64::from(job.header().attempts);
        tally.unfinished = planned.saturating_sub(finished);
        Ok((finished > 0).then_some(tally))
    }
}

impl Task {
    fn add(&mut self, dir: &JobDir, trial: TrialId, result: &TrialResult) {
        let passed = result.is_solved() == Some(true);
        let error = result.error.as_ref();
        self.ran |= result.environment.is_some();
        let is_oracle = trial.agent.as_str() == "oracle";
        let (attempts, odd) = if is_oracle { (&mut self.oracle, !passed) } else { (&mut self.nop, passed) };
        attempts.attempts += 1;
        attempts.passes += u64::from(passed);
        if odd {
            if let Some(error) = error {
                *attempts.errors.entry(error.kind).or_default() += 1;
            }
            if attempts.evidence.len() < EVIDENCE {
                let error = error.map(|error| (error.kind, error.message.clone()));
                let tests = dir.trial(&trial).deciding_step(result).verifier();
                attempts.evidence.push(Evidence { trial, reward: result.reward, error, tests });
            }
        }
    }
}
