//! The timeouts of phases.

use std::time::Duration;

use crate::config::{JobConfig, TaskConfig};

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
    /// Computes the timeouts of a task in a job.
    pub fn new(job: &JobConfig, task: &TaskConfig) -> Self {
        let scaled = |seconds: f64| seconds * job.timeout_multiplier;
        let verify = scaled(job.verifier.override_timeout_sec.unwrap_or(task.verifier_timeout_sec));
        let ceiling = job.verifier.max_timeout_sec.map_or(f64::INFINITY, scaled);
        Self {
            build: duration(scaled(task.build_timeout_sec)),
            install: duration(scaled(task.agent_install_timeout_sec)),
            execute: duration(scaled(task.agent_timeout_sec)),
            verify: duration(verify.min(ceiling)),
        }
    }
}

/// A century stands for an unlimited time, because larger values would overflow a timer.
fn duration(seconds: f64) -> Duration {
    const CENTURY_SEC: f64 = 3.2e9;
    Duration::from_secs_f64(seconds.clamp(0.001, CENTURY_SEC))
}
