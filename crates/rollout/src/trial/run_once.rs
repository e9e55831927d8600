//! One try of a trial: its phases in order, and teardown in any case.

use std::future::Future;

use tokio::time::Instant;

use super::{
    clock::PhaseSpan,
    collect::collect,
    context::TrialContext,
    converse::save_trajectory,
    execute::execute,
    failure::Failure,
    install::install,
    install_cache::InstallPlan,
    setup,
    start::{Started, start},
    teardown::{abandon, is_preserved, tear_down},
    try_record::TryRecord,
    verify::{is_verified, verify},
};
use crate::agent::trajectory::TurnLog;
use rollout_core::result::ErrorType;
use rollout_env::{Environment, PreparedImage};
use rollout_model as model;

/// How a try ended.
pub(super) enum TryEnd {
    Finished(Box<TryRecord>),
    Cancelled,
    /// The server of the model rejects the key, which ends more than this trial.
    Unauthorized(model::Error),
}

/// Runs a trial's task once, in a new environment.
pub(super) async fn run_once(context: &TrialContext<'_>) -> TryEnd {
    let mut record = Box::<TryRecord>::default();
    let began = Instant::now();
    let started = match until_cancelled(context, start(context, &mut record.notes)).await {
        Err(Cut) => return TryEnd::Cancelled,
        Ok(Err(failure)) => {
            record.setup = Some(PhaseSpan::since(began));
            record.failure = Some(failure);
            return TryEnd::Finished(record);
        }
        Ok(Ok(started)) => started,
    };
    let Started { environment, image, plan, turn } = started;

    // The conversation is kept here, so that it is available even if the agent is stopped.
    let turns = TurnLog::default();
    // The environment of the tests is kept here too, so that it is removed even if they are stopped.
    let mut separate = None;
    let inside = async {
        let ready = make_ready(context, &*environment, &plan, began, &mut record).await;
        // Trials that wait for this install continue, whether it succeeded or not.
        drop(turn);
        match ready {
            Ok(()) => {
                execute_and_verify(context, &*environment, &image, &mut separate, &turns, &mut record).await
            }
            Err(failure) => {
                record.failure = Some(failure);
                Ok(())
            }
        }
    };
    match until_cancelled(context, inside).await {
        Ok(Ok(())) => {}
        Ok(Err(refused)) => {
            abandon(environment).await;
            return TryEnd::Unauthorized(refused);
        }
        Err(Cut) => {
            if let Some(separate) = separate {
                abandon(separate).await;
            }
            // The trial has no result that could note a failure here.
            let _ = save_trajectory(context, &turns).await;
            abandon(environment).await;
            return TryEnd::Cancelled;
        }
    }
    if until_cancelled(context, collect(context, &*environment, &mut record.notes)).await.is_err() {
        abandon(environment).await;
        return TryEnd::Cancelled;
    }

    let policy = context.trial.config.environment.preserve;
    let preserve = is_preserved(policy, record.failure.as_ref(), record.reward.as_ref());
    let torn_down = tear_down(context, environment, &image, &plan, preserve).await;
    record.environment = Some(torn_down.environment);
    record.environment_cost = torn_down.cost;
    if let Some(message) = torn_down.problem {
        match &record.failure {
            None => record.failure = Some(Failure::new(ErrorType::EnvironmentTeardownFailed, message)),
            Some(_) => record.notes.push(message),
        }
    }
    TryEnd::Finished(record)
}

/// Prepares everything that the agent needs.
async fn make_ready(
    context: &TrialContext<'_>,
    environment: &dyn Environment,
    plan: &InstallPlan,
    began: Instant,
    record: &mut TryRecord,
) -> Result<(), Failure> {
    let prepared = setup::before_install(context, environment, plan).await;
    record.setup = Some(PhaseSpan::since(began));
    prepared?;
    let installed = install(context, environment, plan, &mut record.notes).await;
    record.install = Some(installed.span);
    installed.result?;
    setup::after_install(context, environment, plan).await
}

/// Lets the agent attempt the task, then grades it. Returns an error if the server of the model rejects the key.
async fn execute_and_verify(
    context: &TrialContext<'_>,
    environment: &dyn Environment,
    image: &PreparedImage,
    separate: &mut Option<Box<dyn Environment>>,
    turns: &TurnLog,
    record: &mut TryRecord,
) -> Result<(), model::Error> {
    let executed = execute(context, environment, turns, &mut record.notes).await?;
    record.execution = Some(executed.span);
    record.usage = executed.usage;
    record.reported_usage = executed.reported_usage;
    record.model_calls = executed.model_calls;
    record.state = executed.state;
    record.failure = executed.result.err();
    if !is_verified(&context.trial.config.verifier, record.failure.as_ref()) {
        return Ok(());
    }
    let verified = verify(context, environment, image, separate, &mut record.notes).await;
    record.verification = Some(verified.span);
    record.survivors = verified.survivors;
    record.tampering = verified.tampering;
    match verified.reward {
        Ok(reward) => record.reward = Some(reward),
        // The agent's own error came first, and explains more than a failure of the tests.
        Err(failure) => _ = record.failure.get_or_insert(failure),
    }
    Ok(())
}

/// A phase was cancelled.
struct Cut;

async fn until_cancelled<T>(context: &TrialContext<'_>, work: impl Future<Output = T>) -> Result<T, Cut> {
    tokio::select! {
        biased;
        () = context.trial.cancel.cancelled() => Err(Cut),
        done = work => Ok(done),
    }
}
