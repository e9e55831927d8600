//! One trial: an agent's attempt at a task, from the image to the reward.
//!
//! A trial has one or more tries: infrastructure failures are retried. [`run`] runs the tries, `run_once` runs the
//! phases of one:
//!
//! ```text
//! setup (image, environment, files, install) ─▶ execute ─▶ verify ─▶ teardown (logs, removal)
//! ```
//!
//! A task with steps repeats the phases from execute to verify, once for each step.
//!
//! All phases read the trial's context. None sees the record of the try, which is built from their results. A trial
//! prints nothing and does not know other trials: it reports phases and retries, and returns a result.

mod artifacts;
mod calls;
mod clock;
mod collectors;
mod context;
mod converse;
mod earlier;
mod execute;
mod failure;
mod gateway;
mod healthcheck;
mod install_cache;
mod instruction;
mod live;
mod network;
mod oracle;
mod own_log;
mod preset;
mod regrade;
mod rented;
mod retry;
mod reward;
mod run_once;
mod script;
mod separate;
mod services;
mod setup;
mod startup;
mod step;
mod step_rewards;
mod tampering;
mod teardown;
mod test_files;
mod timeouts;
mod verify;

pub(crate) use self::regrade::survey;
pub use self::{
    context::{Progress, StepEnv, TaskEnv, Trial},
    earlier::Regrade,
    install_cache::Installs,
    rented::TrialCosts,
    reward::{Reward, RewardError},
    timeouts::Timeouts,
};

use self::{
    clock::Clock,
    context::TrialContext,
    failure::Failure,
    network::Egress,
    retry::{keep_failed_try, next_try},
    run_once::{TryEnd, TryRecord, run_once},
};
use crate::{
    agent,
    config::AgentKind,
    task::{Task, TaskProblem, unsupported},
};
use rollout_core::result::{ErrorType, TrialResult};
use rollout_env::blocking::blocking;
use rollout_model as model;
use rollout_model::{Share, State};

/// How a trial ended.
#[derive(Debug)]
pub enum TrialEnd {
    /// With a result.
    Finished {
        /// The result.
        result: Box<TrialResult>,
        /// The conversation of a model, if there was one and the trial keeps it.
        state: Option<Box<State>>,
    },
    /// It was cancelled. It has no result, and its environment is removed.
    Cancelled,
    /// Stopped because the server of the model rejects the key: every other trial of it would fail too.
    Unauthorized(model::Error),
}

/// Runs a trial to its end.
pub async fn run(trial: Trial) -> TrialEnd {
    let permit = tokio::select! {
        biased;
        () = trial.cancel.cancelled() => return TrialEnd::Cancelled,
        permit = Share::acquire_from(trial.share.as_ref()) => permit,
    };
    let end = run_in_place(trial).await;
    // After its environment is removed.
    drop(permit);
    end
}

async fn run_in_place(trial: Trial) -> TrialEnd {
    let clock = Clock::start();
    let dir = trial.dir.clone();
    if let Err(error) = blocking(move || dir.make()).await {
        let message = format!("cannot prepare the trial's directory {}: {error}", trial.dir.path().display());
        return without_try(&trial, clock, Failure::new(ErrorType::InternalError, message));
    }
    if let Some(how) = &trial.regrade {
        return regrade::regrade(&trial, how, clock).await;
    }
    let (task, unsupported) = match attemptable(&trial) {
        Ok(attemptable) => attemptable,
        Err(failure) => return without_try(&trial, clock, failure),
    };
    let steps = step::steps(&trial.config, &trial.env, &trial.dir, task);
    let egress = match Egress::of_task(task, trial.env.compose.as_deref()).await {
        Ok(egress) => egress,
        Err(failure) => return without_try(&trial, clock, failure),
    };
    let context = TrialContext::new(&trial, task, &steps[0], &unsupported, egress.as_ref());
    let (mut number, mut agent_starts) = (1, 0);
    loop {
        let mut record = match run_once(&context, &steps).await {
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
        let models = record.usage.and_then(|usage| usage.cost_usd);
        let result = record.into_result(&trial, clock);
        let (Some(delay), Some(error)) = (delay, &result.error) else {
            let result = Box::new(TrialResult { tries: number, agent_starts, ..result });
            return TrialEnd::Finished { result, state };
        };
        trial.costs.add_failed_try(models);
        (trial.progress)(Progress::Retry { failed_try: number, error: error.clone(), delay });
        let (dir, error) = (trial.dir.clone(), error.clone());
        let kept = blocking(move || keep_failed_try(&dir, number, &error)).await;
        if let Err(error) = kept {
            tracing::warn!(trial = %trial.id, %error, "cannot keep the files of a failed try");
        }
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            () = trial.cancel.cancelled() => return cancelled(&trial).await,
        }
        number += 1;
    }
}

/// The task, if this agent can attempt it, and the settings of it that are ignored because the job allows it.
fn attemptable(trial: &Trial) -> Result<(&Task, Vec<String>), Failure> {
    let task = trial.task.as_ref().map_err(|problem| {
        let kind = match problem {
            TaskProblem::Invalid(_) => ErrorType::TaskInvalid,
            TaskProblem::NotFound(_) => ErrorType::TaskNotFound,
        };
        Failure::new(kind, problem.to_string())
    })?;
    let invalid = |message: String| Failure::new(ErrorType::TaskInvalid, message);
    if let Some(message) = agent::objection(&trial.agent.kind, task) {
        return Err(invalid(message));
    }
    if let (AgentKind::Oracle, Some(problem)) = (&trial.agent.kind, &trial.env.solution_problem) {
        return Err(invalid(problem.clone()));
    }
    let unsupported = unsupported(task, &trial.config, Some(&*trial.provider));
    let unsupported: Vec<String> = unsupported.iter().map(ToString::to_string).collect();
    if unsupported.is_empty() || trial.config.allow_unsupported {
        return Ok((task, unsupported));
    }
    let hint = "`--allow-unsupported` runs the task without the unsupported settings";
    Err(invalid(format!("{}. {hint}", unsupported.join("; "))))
}

/// Ends a trial without a try.
fn without_try(trial: &Trial, clock: Clock, failure: Failure) -> TrialEnd {
    let record = TryRecord { failure: Some(failure), ..TryRecord::default() };
    TrialEnd::Finished { result: Box::new(record.into_result(trial, clock)), state: None }
}

/// Ends a trial without a result. A result of an earlier run is kept.
async fn cancelled(trial: &Trial) -> TrialEnd {
    let dir = trial.dir.clone();
    if let Err(error) = blocking(move || dir.put_back()).await {
        tracing::warn!(trial = %trial.id, %error, "cannot restore the earlier result; a resume restores it");
    }
    TrialEnd::Cancelled
}
