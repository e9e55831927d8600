//! One trial: an agent's attempt at a task, from the image to the reward.
//!
//! A trial has one or more tries: what the infrastructure fails is tried again. [`run`] drives the tries, `run_once`
//! takes one through its phases, each in a file of its own:
//!
//! ```text
//! start ─▶ setup ─▶ install ─▶ execute ─▶ verify ─▶ collect ─▶ teardown
//! ```
//!
//! All of them read the trial's context. None sees the record of the try: it is put together from what they return.
//! A trial prints nothing and knows no other trial: it reports phases and retries, and returns a result.

mod calls;
mod clock;
mod collect;
mod context;
mod converse;
mod execute;
mod failure;
mod install;
mod install_cache;
mod retry;
mod reward;
mod run_once;
mod script;
mod separate;
mod setup;
mod start;
mod tampering;
mod teardown;
mod timeouts;
mod try_record;
mod verify;

pub(crate) use self::retry::error_text;
pub use self::{
    context::{Progress, Trial},
    install_cache::Installs,
    reward::{Reward, RewardError},
    timeouts::Timeouts,
};

use self::{
    clock::Clock,
    context::TrialContext,
    failure::Failure,
    retry::{keep_failed_try, next_try},
    run_once::{TryEnd, run_once},
    try_record::TryRecord,
};
use crate::{
    agent,
    task::{Task, TaskProblem},
};
use rollout_core::result::{ErrorType, TrialResult};
use rollout_env::blocking::blocking;
use rollout_model as model;
use rollout_model::{Share, State};

/// How a trial came to its end.
#[derive(Debug)]
pub enum TrialEnd {
    /// With a result.
    Finished {
        /// The result.
        result: Box<TrialResult>,
        /// The conversation of a model, if there was one and the trial keeps it.
        state: Option<Box<State>>,
    },
    /// By a cancel. It has no result, and its environment is gone.
    Cancelled,
    /// As by a cancel, because the server of the model refuses the key: no other trial of it can do better.
    Unauthorized(model::Error),
}

/// Runs a trial to its end.
pub async fn run(trial: Trial) -> TrialEnd {
    let place = tokio::select! {
        biased;
        () = trial.cancel.cancelled() => return TrialEnd::Cancelled,
        place = Share::place_in(trial.share.as_ref()) => place,
    };
    let end = run_in_place(trial).await;
    // Not before its environment is gone.
    drop(place);
    end
}

async fn run_in_place(trial: Trial) -> TrialEnd {
    let clock = Clock::start();
    let dir = trial.dir.clone();
    if let Err(error) = blocking(move || dir.make()).await {
        let message = format!("cannot prepare the trial's directory {}: {error}", trial.dir.path().display());
        return without_try(&trial, clock, Failure::new(ErrorType::InternalError, message));
    }
    let context = match attemptable(&trial) {
        Ok(task) => TrialContext::new(&trial, task),
        Err(failure) => return without_try(&trial, clock, failure),
    };
    let (mut number, mut agent_starts) = (1, 0);
    loop {
        let mut record = match run_once(&context).await {
            TryEnd::Finished(record) => record,
            TryEnd::Cancelled => return cancelled(&trial).await,
            TryEnd::Unauthorized(error) => {
                cancelled(&trial).await;
                return TrialEnd::Unauthorized(error);
            }
        };
        agent_starts += u32::from(record.execution.is_some());
        let delay = next_try(&trial.config.retry, number, record.failure.as_ref());
        let state = record.state.take();
        let result = record.into_result(&trial, clock);
        let (Some(delay), Some(error)) = (delay, &result.error) else {
            let result = Box::new(TrialResult { tries: number, agent_starts, ..result });
            return TrialEnd::Finished { result, state };
        };
        (trial.progress)(Progress::Retry { failed_try: number, error: error.clone(), delay });
        let (dir, error) = (trial.dir.clone(), error.clone());
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

/// The task, if this agent can attempt it.
fn attemptable(trial: &Trial) -> Result<&Task, Failure> {
    let task = trial.task.as_ref().map_err(|problem| {
        let kind = match problem {
            TaskProblem::Invalid(_) => ErrorType::TaskInvalid,
            TaskProblem::NotFound(_) => ErrorType::TaskNotFound,
        };
        Failure::new(kind, problem.to_string())
    })?;
    match agent::objection(&trial.agent.kind, task) {
        Some(message) => Err(Failure::new(ErrorType::TaskInvalid, message)),
        None => Ok(task),
    }
}

/// Ends a trial of which nothing could be tried.
fn without_try(trial: &Trial, clock: Clock, failure: Failure) -> TrialEnd {
    let record = TryRecord { failure: Some(failure), ..TryRecord::default() };
    TrialEnd::Finished { result: Box::new(record.into_result(trial, clock)), state: None }
}

/// Ends a trial without a result. One that it had from an earlier run stays.
async fn cancelled(trial: &Trial) -> TrialEnd {
    let dir = trial.dir.clone();
    if let Err(error) = blocking(move || dir.put_back()).await {
        tracing::warn!(trial = %trial.id, %error, "the earlier result could not be brought back; resume does");
    }
    TrialEnd::Cancelled
}
