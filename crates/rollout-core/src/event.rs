//! The events of a job.
//!
//! Events contain no secrets and no large data; output goes to files. The journal, the terminal and `--output json` use
//! the same stream of events, so a reporter can be replayed from a record.

use std::{path::PathBuf, sync::Arc};

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use crate::{
    name::{AgentName, TrialId, TrialIndex},
    result::{JobMetric, JobResult, Totals, TrialError, TrialResult},
    summary::RolloutSummary,
};

/// The kind of trials in a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobKind {
    /// Trials of the agents and datasets of a job file.
    #[default]
    Job,
    /// The questions of a benchmark.
    Benchmark,
}

/// The phases of a trial, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The image is built or pulled, or the trial waits for it.
    Image,
    /// The environment starts.
    Start,
    /// The install script runs.
    Install,
    /// The execute script runs.
    Execute,
    /// The tests run.
    Verify,
    /// Logs are copied from the environment.
    Collect,
    /// The environment is removed.
    Teardown,
}

impl Phase {
    /// The name in output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Start => "start",
            Self::Install => "install",
            Self::Execute => "execute",
            Self::Verify => "verify",
            Self::Collect => "collect",
            Self::Teardown => "teardown",
        }
    }
}

/// What an agent used of its model so far.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct ModelProgress {
    /// Answers of the model.
    pub turns: u64,
    /// Tokens that the model read.
    pub input_tokens: u64,
    /// Tokens that the model wrote.
    pub output_tokens: u64,
    /// The cost in US dollars, if it is known.
    pub cost: Option<f64>,
}

/// An event of a job.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The plan and the job's directory are ready.
    JobStarted {
        /// The job's name.
        job: String,
        /// The kind of its trials.
        #[serde(default)]
        kind: JobKind,
        /// The job's directory; empty if nothing is saved.
        directory: PathBuf,
        /// The provider of the environments, with its settings.
        provider: String,
        /// Trials in the plan.
        total_trials: u64,
        /// Trials of the plan that finished in an earlier run.
        resumed_trials: u64,
        /// The number of trials that run at the same time.
        concurrency: u32,
        /// The metrics to compute while the job runs.
        metrics: Vec<JobMetric>,
        /// The totals of trials of an earlier run, by agent.
        earlier: IndexMap<AgentName, Totals>,
    },
    /// A warning, reported once.
    Warning {
        /// The message.
        message: String,
    },
    /// A trial left the queue.
    TrialStarted {
        /// Its index in the plan.
        index: TrialIndex,
        /// The trial.
        trial: TrialId,
    },
    /// A trial entered a phase.
    PhaseStarted {
        /// Its index in the plan.
        index: TrialIndex,
        /// The phase.
        phase: Phase,
    },
    /// The environment of a trial waits for something before it can start.
    TrialWaiting {
        /// Its index in the plan.
        index: TrialIndex,
        /// What it waits for, such as a free node of a cluster.
        what: String,
    },
    /// A running trial used its model. Reported at most once per second.
    ModelUsed {
        /// Its index in the plan.
        index: TrialIndex,
        /// What it used so far in this try.
        used: ModelProgress,
    },
    /// A try failed because of the infrastructure, and the trial is retried.
    TrialRetried {
        /// Its index in the plan.
        index: TrialIndex,
        /// The try that failed, from 1.
        failed_try: u32,
        /// The error.
        error: TrialError,
        /// The delay before the next try.
        delay_ms: u64,
    },
    /// A trial ended and its result is on disk.
    TrialFinished {
        /// Its index in the plan.
        index: TrialIndex,
        /// The result.
        result: Arc<TrialResult>,
        /// What a rollout or a question that is not solved ended with, on one line.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        evidence: Option<String>,
    },
    /// A running trial was interrupted by a cancellation.
    TrialSkipped {
        /// Its index in the plan.
        index: TrialIndex,
    },
    /// The job was cancelled, and is stopping.
    Cancelling,
    /// The job has ended, and result.json is written.
    JobFinished {
        /// The aggregate.
        result: Arc<JobResult>,
    },
    /// The files of a benchmark are written. This is the last event.
    BenchmarkFinished {
        /// The summary.
        summary: Arc<RolloutSummary>,
    },
}
