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

const CENTURY_SEC: u64 = 3_200_000_000;

fn duration(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds.clamp(0.001, CENTURY_SEC as f64))
}
