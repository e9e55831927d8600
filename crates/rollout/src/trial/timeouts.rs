//! The timeouts of phases.

use std::time::Duration;

use crate::{
    config::{JobConfig, StepConfig},
    task::Task,
};

/// The timeouts of a trial's phases, with the job's overrides, maximum and multiplier applied.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timeouts {
    /// Building or fetching the image.
    pub build: Duration,
    /// The install script.
    pub install: Duration,
    /// The execute script.
    pub execute: Duration,
    /// test.sh.
    pub verify: Duration,
}

impl Timeouts {
    /// Stands for an unlimited time: larger values would overflow a timer.
    pub const UNLIMITED: Duration = Duration::from_secs(CENTURY_SEC);

    /// Computes the timeouts of a task in a job.
    pub fn new(job: &JobConfig, task: &Task) -> Self {
        let scaled = |seconds: f64| seconds * job.timeout_multiplier;
        let (config, bounds) = (&task.config, task.bounds());
        Self {
            build: duration(scaled(config.build_timeout_sec)),
            install: duration(scaled(bounds.install_timeout_sec)),
            execute: duration(scaled(bounds.agent_timeout_sec.unwrap_or(f64::INFINITY))),
            verify: Self::verify(job, config.verifier_timeout_sec),
        }
    }

    /// The longest time that a trial of the task may need its environment, with all steps; `None` if that is not
    /// limited. Copies and health checks are not included.
    pub fn of_trial(job: &JobConfig, task: &Task) -> Option<Duration> {
        let whole = Self::new(job, task);
        let rounds: Vec<Self> = match task.config.steps.as_slice() {
            [] => vec![whole],
            steps => steps.iter().map(|step| whole.of_step(job, step)).collect(),
        };
        let tests = |round: &Self| if job.verifier.disable { Duration::ZERO } else { round.verify };
        let times = rounds.iter().flat_map(|round| [round.execute, tests(round)]);
        sum([whole.install].into_iter().chain(times))
    }

    /// The longest time that all environments of a trial of the task may be needed, each added; `None` if that is not
    /// limited.
    pub fn of_environments(job: &JobConfig, task: &Task) -> Option<Duration> {
        let whole = Self::new(job, task);
        let is_separate = |step: &&StepConfig| task.config.is_step_separate_in(step, &job.verifier);
        let separate: Vec<Duration> = match task.config.steps.as_slice() {
            _ if job.verifier.disable => Vec::new(),
            [] => task.config.is_separate_in(&job.verifier).then_some(whole.verify).into_iter().collect(),
            steps => {
                let apart = steps.iter().filter(|step| is_separate(step));
                apart.map(|step| whole.of_step(job, step).verify).collect()
            }
        };
        sum([Self::of_trial(job, task)?].into_iter().chain(separate))
    }

    /// The longest time that the tests of a step may need a separate environment.
    pub(super) fn of_tests(self) -> Option<Duration> {
        sum([self.verify].into_iter())
    }

    /// The timeouts of a step of the task.
    pub(super) fn of_step(self, job: &JobConfig, step: &StepConfig) -> Self {
        let own = step.agent_timeout_sec.map(|seconds| duration(seconds * job.timeout_multiplier));
        Self {
            execute: own.unwrap_or(self.execute),
            verify: Self::verify(job, step.verifier_timeout_sec),
            ..self
        }
    }

    fn verify(job: &JobConfig, seconds: f64) -> Duration {
        let scaled = |seconds: f64| seconds * job.timeout_multiplier;
        let ceiling = job.verifier.max_timeout_sec.map_or(f64::INFINITY, scaled);
        duration(scaled(job.verifier.override_timeout_sec.unwrap_or(seconds)).min(ceiling))
    }
}

/// The sum of timeouts, if each is limited.
fn sum(mut times: impl Iterator<Item = Duration>) -> Option<Duration> {
    times.try_fold(Duration::ZERO, |sum, time| (time < Timeouts::UNLIMITED).then(|| sum + time))
}

const CENTURY_SEC: u64 = 3_200_000_000;

fn duration(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds.clamp(0.001, CENTURY_SEC as f64))
}
