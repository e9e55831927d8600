//! The state of a job, computed from its events: counts, running trials and metrics.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
    time::Duration,
};

use rollout::{
    config::{EnvironmentKind, JobMetric},
    event::{Event, JobKind, Phase},
    name::{AgentName, TrialId, TrialIndex},
    result::{ErrorType, Standing, Totals, TrialError, TrialResult},
};

use super::text::first_line;

/// How many failed trials the summary lists.
const POINTED_FAILURES: usize = 3;

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
    /// The first failed trials that have their own files.
    pub failures: Vec<(TrialId, ErrorType)>,
    /// The number of failed trials that have their own files.
    pub failed_with_files: u64,
    /// The causes of failures, in order of their first occurrence.
    pub causes: Vec<FailedCause>,
    /// The first trial whose environment was preserved.
    pub preserved: Option<Preserved>,
}

/// The cause of failed trials.
#[derive(Debug)]
pub(crate) struct FailedCause {
    /// The error.
    pub error: TrialError,
    /// The number of trials that failed with it.
    pub trials: u64,
    /// Whether the trials have their own files with details. Model rollouts have none.
    pub has_files: bool,
}

/// How many causes are counted. Failures with further causes are shown one by one.
const KNOWN_CAUSES: usize = 100;

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
    /// The last output line of a running build or pull.
    pub step: Option<String>,
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
                self.running
                    .insert(*index, Running { trial: trial.clone(), phase: None, since: now, step: None });
            }
            Event::PhaseStarted { index, phase } => {
                if let Some(running) = self.running.get_mut(index) {
                    running.phase = Some(*phase);
                    running.step = None;
                }
            }
            Event::TrialFinished { index, result } => {
                self.running.remove(index);
                self.finish(result);
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
            running.step = last_line(&log);
        }
    }

    fn finish(&mut self, result: &TrialResult) {
        match result.standing() {
            Standing::Completed => self.completed += 1,
            Standing::Failed => self.failed += 1,
            Standing::Skipped => self.skipped += 1,
        }
        self.agents.entry(result.agent_name.clone()).or_default().add(result.into());
        if let Some(error) = &result.error
            && result.standing() == Standing::Failed
        {
            let has_files = self.kind == JobKind::Benchmark || !is_rollout(result, error.kind);
            self.failed_with_files += u64::from(has_files);
            if has_files && self.failures.len() < POINTED_FAILURES {
                self.failures.push((trial_of(result), error.kind));
            }
            if let Some(cause) = self.causes.iter_mut().find(|cause| cause.error == *error) {
                cause.trials += 1;
            } else if self.causes.len() < KNOWN_CAUSES {
                self.causes.push(FailedCause { error: error.clone(), trials: 1, has_files });
            }
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

    /// Whether an earlier trial failed with the same error.
    pub(crate) fn knows(&self, error: &TrialError) -> bool {
        self.causes.iter().any(|cause| cause.error == *error)
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

/// Returns the last line of a log that is not empty.
fn last_line(path: &Path) -> Option<String> {
    const LONGEST_LINE: u64 = 4096;
    let mut file = File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LONGEST_LINE))).ok()?;
    let mut end = Vec::new();
    file.take(LONGEST_LINE).read_to_end(&mut end).ok()?;
    let end = String::from_utf8_lossy(&end);
    end.lines().rev().map(first_line).find(|line| !line.is_empty())
}

/// Whether a failed trial is a model rollout, which has a row but no directory.
fn is_rollout(result: &TrialResult, error: ErrorType) -> bool {
    let of_rollouts = matches!(error, ErrorType::ModelFailed | ErrorType::InteractionFailed);
    result.environment.is_none() && (result.reward.is_some() || of_rollouts)
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
