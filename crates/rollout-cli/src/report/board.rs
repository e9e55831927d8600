//! The state of a job, computed from its events: counts, running trials and metrics.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use rollout::{
    config::{EnvironmentKind, JobMetric},
    event::{Event, JobKind, ModelProgress, Phase},
    name::{AgentName, TrialId, TrialIndex},
    record::{
        causes::{self, CauseGroups, TrialCause},
        layout::JobDir,
    },
    result::{Standing, Totals, TrialResult},
};

/// The state of a job.
#[derive(Debug, Default)]
pub(crate) struct Board {
    /// Whether the trials are those of a job or questions of a benchmark.
    pub kind: JobKind,
    /// The job's directory; empty if results are not saved.
    pub directory: PathBuf,
    /// Trials in the plan.
    pub total: u64,
    /// Trials of the plan that finished in an earlier run.
    pub resumed: u64,
    /// Trials that finished in this run with a reward, or without an error if verification is disabled.
    pub completed: u64,
    /// Trials that failed in this run.
    pub failed: u64,
    /// Trials that were interrupted by a cancellation.
    pub skipped: u64,
    /// Trials that run now, in the order of the plan.
    pub running: BTreeMap<TrialIndex, Running>,
    /// The metrics to compute while the job runs.
    pub metrics: Vec<JobMetric>,
    /// The totals of finished trials by agent, including earlier runs.
    pub agents: BTreeMap<AgentName, Totals>,
    /// The causes of failures.
    pub failed_causes: CauseGroups,
    /// Why trials are unsolved.
    pub unsolved_causes: CauseGroups,
    /// The first trial whose environment was preserved.
    pub preserved: Option<Preserved>,
}

/// A preserved environment.
#[derive(Debug)]
pub(crate) struct Preserved {
    /// The trial of the environment.
    pub trial: TrialId,
    /// The container's name, if a Docker engine is used.
    pub container: Option<String>,
}

/// A trial that runs now.
#[derive(Debug)]
pub(crate) struct Running {
    /// The trial.
    pub trial: TrialId,
    /// Its current phase.
    pub phase: Option<Phase>,
    /// When it left the queue, relative to the start of the reporter.
    pub since: Duration,
    /// The last output line of a running build or pull, or what its environment waits for.
    pub step: Option<String>,
    /// What its agent used of a model so far.
    pub used: Option<ModelProgress>,
}

impl Board {
    /// Updates the state with an event. `now` counts from the start of the reporter.
    pub(crate) fn apply(&mut self, event: &Event, now: Duration) {
        match event {
            Event::JobStarted { kind, directory, total_trials, resumed_trials, metrics, earlier, .. } => {
                self.kind = *kind;
                self.directory.clone_from(directory);
                self.total = *total_trials;
                self.resumed = *resumed_trials;
                self.metrics.clone_from(metrics);
                self.agents = earlier.iter().map(|(agent, totals)| (agent.clone(), totals.clone())).collect();
            }
            Event::TrialStarted { index, trial } => {
                let trial = trial.clone();
                let running = Running { trial, phase: None, since: now, step: None, used: None };
                self.running.insert(*index, running);
            }
            Event::PhaseStarted { index, phase } => {
                if let Some(running) = self.running.get_mut(index) {
                    running.phase = Some(*phase);
                    running.step = None;
                }
            }
            Event::TrialWaiting { index, what } => {
                if let Some(running) = self.running.get_mut(index) {
                    running.step = Some(format!("waiting for {what}"));
                }
            }
            Event::ModelUsed { index, used } => {
                if let Some(running) = self.running.get_mut(index) {
                    running.used = Some(*used);
                }
            }
            Event::TrialFinished { index, result, evidence } => {
                self.running.remove(index);
                self.finish(*index, result, evidence.as_deref());
            }
            Event::TrialSkipped { index } => {
                self.running.remove(index);
                self.skipped += 1;
            }
            Event::Warning { .. }
            | Event::TrialRetried { .. }
            | Event::Cancelling
            | Event::JobFinished { .. }
            | Event::BenchmarkFinished { .. } => {}
        }
    }

    /// Reads the build logs of the first running trials. Images can take minutes without an event.
    pub(crate) fn look_at_images(&mut self, trials: usize) {
        let directory = &self.directory;
        let first = self.running.values_mut().take(trials);
        for running in first.filter(|running| running.phase == Some(Phase::Image)) {
            let log = directory.join(running.trial.to_string()).join("environment/build.txt");
            running.step = causes::last_line(directory, &log);
        }
    }

    fn finish(&mut self, index: TrialIndex, result: &TrialResult, evidence: Option<&str>) {
        match result.standing() {
            Standing::Completed => self.completed += 1,
            Standing::Failed => self.failed += 1,
            Standing::Skipped => self.skipped += 1,
        }
        self.agents.entry(result.agent_name.clone()).or_default().add(result.into());
        let of_error = || {
            let error = result.error.as_ref()?;
            Some(TrialCause::of_error(error.kind, &error.message))
        };
        if result.standing() == Standing::Failed
            && let Some(cause) = of_error()
        {
            self.failed_causes.add(cause, index, trial_of(result));
        }
        if result.is_solved() == Some(false) {
            let trial = trial_of(result);
            let cause = match (evidence, &result.environment) {
                (Some(evidence), _) => TrialCause::of_evidence(evidence),
                (None, Some(_)) => {
                    let dir = JobDir::new(&self.directory).trial(&trial).deciding_step(result);
                    TrialCause::of_tests(&self.directory, &dir).unwrap_or_else(|| TrialCause::unknown(false))
                }
                (None, None) => of_error().unwrap_or_else(|| TrialCause::unknown(true)),
            };
            self.unsolved_causes.add(cause, index, trial);
        }
        if self.preserved.is_none()
            && let Some(environment) = &result.environment
            && let Some(place) = &environment.preserved
        {
            let docker = environment.provider == EnvironmentKind::Docker.as_str();
            self.preserved =
                Some(Preserved { trial: trial_of(result), container: docker.then(|| place.clone()) });
        }
    }

    /// The time until all trials have ended, if the rest takes as long as those of this run did; None before the first.
    pub(crate) fn remaining(&self, now: Duration) -> Option<Duration> {
        let done = self.completed + self.failed;
        let left = self.total.saturating_sub(self.finished() + self.skipped);
        (done > 0 && left > 0).then(|| now.mul_f64(left as f64 / done as f64))
    }

    /// The number of trials that need not run any more.
    pub(crate) fn finished(&self) -> u64 {
        self.resumed + self.completed + self.failed
    }

    /// The displayed name of a trial. All questions of a benchmark have the same model and one attempt.
    pub(crate) fn name(&self, trial: &TrialId) -> String {
        match self.kind {
            JobKind::Job => trial.to_string(),
            JobKind::Benchmark => trial.task.to_string(),
        }
    }

    /// The directory of a trial.
    pub(crate) fn trial_dir(&self, trial: &TrialId) -> PathBuf {
        shown(&self.directory).join(trial.to_string())
    }
}

/// The word for one trial.
pub(crate) fn unit(kind: JobKind) -> &'static str {
    match kind {
        JobKind::Job => "trial",
        JobKind::Benchmark => "question",
    }
}

/// Returns the trial of a result.
pub(crate) fn trial_of(result: &TrialResult) -> TrialId {
    TrialId {
        agent: result.agent_name.clone(),
        dataset: result.dataset_name.clone(),
        task: result.task_name.clone(),
        attempt: result.attempt,
    }
}

/// Returns a path relative to the working directory if it is inside it, else unchanged.
pub(crate) fn shown(path: &Path) -> PathBuf {
    let here = std::env::current_dir().unwrap_or_default();
    let relative = path.strip_prefix(&here).or_else(|_| path.strip_prefix("."));
    match relative {
        Ok(relative) if !relative.as_os_str().is_empty() => relative.to_owned(),
        _ => path.to_owned(),
    }
}
