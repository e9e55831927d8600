//! One trial: an agent's attempt at a task, from the image to the reward.
//!
//! [`run`] drives the tries of a trial, [`attempt`](self) one try through its phases. A trial
//! prints nothing and knows no other trial: it reports phases and retries, and returns a result.

mod attempt;
mod failure;
mod installs;
mod model;
mod reward;
mod setup;
mod timeouts;
mod verify;

use std::{fs, io, sync::Arc, time::Duration};

use jiff::{Timestamp, Unit};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use installs::Installs;
pub use reward::{Reward, RewardError};
pub use timeouts::Timeouts;

use self::attempt::{Attempt, AttemptEnd};
use crate::{
    config::{AgentConfig, Env, JobConfig, RetryConfig},
    task::{Task, TaskProblem},
};
use rollout_core::{
    event::Phase,
    name::TrialId,
    redact::Redactor,
    result::{ErrorType, TrialError, TrialResult},
};
use rollout_env::{Provider, blocking::blocking};
use rollout_model as models;
use rollout_model::Model;
use rollout_record::layout::TrialDir;

/// Everything one trial needs. What it shares with other trials is all here.
pub struct Trial {
    /// Which trial.
    pub id: TrialId,
    /// Its job's name, for the agent.
    pub job_name: Arc<str>,
    /// The whole job's configuration.
    pub config: Arc<JobConfig>,
    /// Who attempts.
    pub agent: Arc<AgentConfig>,
    /// The model that the agent is, if it is one.
    pub model: Option<Arc<Model>>,
    /// What is attempted, or why it cannot be.
    pub task: Result<Arc<Task>, TaskProblem>,
    /// Variables for test.sh: the task's and the job's.
    pub verifier_env: Arc<Env>,
    /// Where the environment comes from.
    pub provider: Arc<dyn Provider>,
    /// Whose turn it is to install, among the trials of the job.
    pub installs: Arc<Installs>,
    /// Where the evidence goes.
    pub dir: TrialDir,
    /// What must not be written.
    pub redactor: Arc<Redactor>,
    /// Tells of phases and retries.
    pub progress: Box<dyn Fn(Progress) + Send + Sync>,
    /// Cuts the trial off.
    pub cancel: CancellationToken,
}

/// What a trial tells while it runs.
#[derive(Debug, Clone)]
pub enum Progress {
    /// It entered a phase.
    Phase(Phase),
    /// The infrastructure failed a try; the next one follows after the delay.
    Retry {
        /// The try that failed, from 1.
        failed_try: u32,
        /// What went wrong.
        error: TrialError,
        /// The wait before the next try.
        delay: Duration,
    },
}

/// How a trial came to its end.
#[derive(Debug)]
pub enum TrialEnd {
    /// With a result.
    Finished(Box<TrialResult>),
    /// By a cancel. It has no result, and its environment is gone.
    Cancelled,
    /// As by a cancel, because the server of the model refuses the key: no other trial of it can do better.
    Unauthorized(models::Error),
}

/// Runs a trial to its end.
pub async fn run(trial: Trial) -> TrialEnd {
    let clock = Clock::start();
    let dir = trial.dir.clone();
    if let Err(error) = blocking(move || dir.make()).await {
        let message = format!("cannot prepare the trial's directory {}: {error}", trial.dir.path().display());
        return clock.without_environment(&trial, ErrorType::InternalError, message);
    }
    let task = match &trial.task {
        Ok(task) => Arc::clone(task),
        Err(problem) => {
            let kind = match problem {
                TaskProblem::Invalid(_) => ErrorType::TaskInvalid,
                TaskProblem::NotFound(_) => ErrorType::TaskNotFound,
            };
            return clock.without_environment(&trial, kind, problem.to_string());
        }
    };
    if let Some(message) = crate::agent::objection(&trial.agent.kind, &task) {
        return clock.without_environment(&trial, ErrorType::TaskInvalid, message);
    }

    let mut number = 1;
    loop {
        let (result, transient) = match Attempt::new(&trial, &task, clock).run().await {
            AttemptEnd::Finished { result, transient } => (result, transient),
            AttemptEnd::Cancelled => return cancelled(&trial).await,
            AttemptEnd::Unauthorized(error) => {
                cancelled(&trial).await;
                return TrialEnd::Unauthorized(error);
            }
        };
        let delay = match (&result.error, transient) {
            (Some(error), true) => {
                retry_delay(&trial.config.retry, number).map(|delay| (error.clone(), delay))
            }
            _ => None,
        };
        let Some((error, delay)) = delay else {
            return TrialEnd::Finished(Box::new(TrialResult { tries: number, ..*result }));
        };
        (trial.progress)(Progress::Retry { failed_try: number, error: error.clone(), delay });
        let dir = trial.dir.clone();
        let kept = blocking(move || keep_failed_try(&dir, number, &error)).await;
        if let Err(error) = kept {
            tracing::warn!(trial = %trial.id, %error, "the evidence of a failed try could not be kept");
        }
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            () = trial.cancel.cancelled() => return cancelled(&trial).await,
        }
        number += 1;
    }
}

/// Ends a trial without a result. One that it had from an earlier run stays.
async fn cancelled(trial: &Trial) -> TrialEnd {
    let dir = trial.dir.clone();
    if let Err(error) = blocking(move || dir.put_back()).await {
        tracing::warn!(trial = %trial.id, %error, "the earlier result could not be brought back; resume does");
    }
    TrialEnd::Cancelled
}

/// How long to wait after a failed try; none when it was the last one.
pub(crate) fn retry_delay(retry: &RetryConfig, failed_try: u32) -> Option<Duration> {
    if failed_try >= retry.max_attempts.get() {
        return None;
    }
    let factor = retry.multiplier.powi(failed_try as i32 - 1);
    let millis = (retry.initial_delay_ms as f64 * factor).min(retry.max_delay_ms as f64);
    Some(Duration::from_millis(millis as u64))
}

/// Moves what a failed try left behind out of the way of the next one.
fn keep_failed_try(dir: &TrialDir, number: u32, error: &TrialError) -> io::Result<()> {
    let kept = dir.failed_try(number);
    fs::create_dir_all(&kept)?;
    for entry in fs::read_dir(dir.path())? {
        let entry = entry?;
        if entry.file_name() != "tries" && entry.file_name() != "earlier" {
            fs::rename(entry.path(), kept.join(entry.file_name()))?;
        }
    }
    fs::write(kept.join("error.txt"), error_text(error))
}

/// What `error.txt` says.
pub(crate) fn error_text(error: &TrialError) -> String {
    format!("{}\n\n{}\n", error.kind, error.message.trim_end())
}

/// Takes times that are comparable with each other, whatever the wall clock does meanwhile.
#[derive(Debug, Clone, Copy)]
struct Clock {
    started_at: Timestamp,
    started: Instant,
}

impl Clock {
    fn start() -> Self {
        let now = Timestamp::now();
        Self { started_at: now.round(Unit::Microsecond).unwrap_or(now), started: Instant::now() }
    }

    fn at(&self, moment: Instant) -> Timestamp {
        let elapsed = moment.duration_since(self.started);
        let exact = self.started_at.checked_add(elapsed).unwrap_or(Timestamp::MAX);
        exact.round(Unit::Microsecond).unwrap_or(exact)
    }

    fn without_environment(self, trial: &Trial, kind: ErrorType, message: String) -> TrialEnd {
        let ended = Instant::now();
        let result = TrialResult {
            error: Some(TrialError { kind, message: trial.redactor.text(&message).into_owned() }),
            ..self.empty_result(trial, ended)
        };
        TrialEnd::Finished(Box::new(result))
    }

    fn empty_result(self, trial: &Trial, ended: Instant) -> TrialResult {
        let mut result = TrialResult::empty(&trial.id, self.started_at);
        result.task_git_commit_id = trial.task.as_ref().ok().and_then(|task| task.git_commit_id.clone());
        result.durations.total_sec = seconds(ended.duration_since(self.started));
        result.timestamps.ended_at = self.at(ended);
        result
    }
}

/// Seconds to the microsecond: finer digits are noise.
pub(crate) fn seconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e6
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    #[test]
    fn waits_grow_to_the_limit_and_the_last_try_is_followed_by_none() {
        let retry = RetryConfig {
            max_attempts: NonZeroU32::new(5).unwrap(),
            initial_delay_ms: 1000,
            max_delay_ms: 3000,
            multiplier: 2.0,
        };
        let delays: Vec<_> = (1..=5).map(|failed| retry_delay(&retry, failed)).collect();
        let millis = |ms| Some(Duration::from_millis(ms));
        assert_eq!(delays, [millis(1000), millis(2000), millis(3000), millis(3000), None]);
    }
}
