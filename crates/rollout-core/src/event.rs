//! What happened in a job, as data.
//!
//! Events carry no secrets and no bulk: output goes to files. The journal, the terminal and
//! `--output json` all read the same stream, so a reporter can be replayed from a record.

use std::{path::PathBuf, sync::Arc};

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use crate::{
    name::{AgentName, TrialId, TrialIndex},
    result::{JobMetric, JobResult, Totals, TrialError, TrialResult},
    summary::RolloutSummary,
};

/// What the trials of a job are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobKind {
    /// What the agents and datasets of a job file ask for.
    #[default]
    Job,
    /// The questions of a benchmark.
    Benchmark,
}

/// The phases of a trial, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The image is built, pulled or waited for.
    Image,
    /// The environment starts.
    Start,
    /// The install script runs.
    Install,
    /// The execute script runs.
    Execute,
    /// The tests run.
    Verify,
    /// Logs come out of the environment.
    Collect,
    /// The environment goes away.
    Teardown,
}

impl Phase {
    /// The word for it in output.
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

/// Something that happened in a job.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The plan is made and the directory is there.
    JobStarted {
        /// The job's name.
        job: String,
        /// What its trials are.
        #[serde(default)]
        kind: JobKind,
        /// Its directory; empty if nothing is kept.
        directory: PathBuf,
        /// The provider of its environments, with the choices that were made.
        provider: String,
        /// Trials in the plan.
        total_trials: u64,
        /// Of these, finished in an earlier run.
        resumed_trials: u64,
        /// How many run at the same time.
        concurrency: u32,
        /// What is computed while it runs.
        metrics: Vec<JobMetric>,
        /// What trials of an earlier run came to, by agent.
        earlier: IndexMap<AgentName, Totals>,
    },
    /// Something the reader should know once.
    Warning {
        /// In a sentence.
        message: String,
    },
    /// A trial left the queue.
    TrialStarted {
        /// Its place in the plan.
        index: TrialIndex,
        /// Which one.
        trial: TrialId,
    },
    /// A trial entered a phase.
    PhaseStarted {
        /// Its place in the plan.
        index: TrialIndex,
        /// The phase.
        phase: Phase,
    },
    /// The infrastructure failed a trial, which is tried again.
    TrialRetried {
        /// Its place in the plan.
        index: TrialIndex,
        /// The try that failed, from 1.
        failed_try: u32,
        /// What went wrong.
        error: TrialError,
        /// How long Rollout waits before the next try.
        delay_ms: u64,
    },
    /// A trial ended and its result is on disk.
    TrialFinished {
        /// Its place in the plan.
        index: TrialIndex,
        /// The result.
        result: Arc<TrialResult>,
    },
    /// A running trial was cut off by a cancel.
    TrialSkipped {
        /// Its place in the plan.
        index: TrialIndex,
    },
    /// The job was asked to stop.
    Cancelling,
    /// The job is over and result.json is there.
    JobFinished {
        /// The aggregate.
        result: Arc<JobResult>,
    },
    /// The files of a benchmark are there. Nothing comes after it.
    BenchmarkFinished {
        /// What it came to.
        summary: Arc<RolloutSummary>,
    },
}
