//! The execute phase of an agent that is a model.

use std::{io, sync::Arc, time::Duration};

use super::{
    calls::required,
    context::TrialContext,
    failure::{Failure, in_seconds},
    instruction, script,
};
use crate::{
    agent::{
        conversation::Conversation,
        trajectory::{self, TurnLog},
    },
    config::ModelAgentConfig,
};
use rollout_core::{
    event::Phase,
    result::{AgentUsage, ErrorType},
};
use rollout_env::Environment;
use rollout_model as model;
use rollout_model::{Model, State};
use rollout_record::atomic::WriteError;

/// The result of a conversation.
pub(super) struct Conversed {
    pub(super) usage: Option<AgentUsage>,
    /// The conversation itself, if there was one.
    pub(super) state: Option<Box<State>>,
    pub(super) result: Result<(), Failure>,
}

/// Lets the model work on the task. Returns an error if its server rejects the key.
pub(super) async fn converse(
    context: &TrialContext<'_>,
    environment: &dyn Environment,
    config: &ModelAgentConfig,
    turns: &TurnLog,
    notes: &mut Vec<String>,
) -> Result<Conversed, model::Error> {
    let (model, instruction) = match subject(context).await {
        Ok(subject) => subject,
        Err(failure) => return Ok(Conversed { usage: None, state: None, result: Err(failure) }),
    };
    let time = context.timeouts.execute;
    let conversation = Conversation {
        model,
        config,
        instruction,
        environment,
        env: &context.agent_variables(),
        time,
        log: turns,
    };
    let state = conversation.lead().await?;
    let usage = trajectory::used(&state.usage);
    // Processes of the last call would otherwise keep running during the tests.
    let stopped = match state.timed_out && !context.task.is_harbor {
        true => required(Phase::Execute, environment.kill_all()).await,
        false => Ok(()),
    };
    let result =
        stopped.and_then(|()| match failure(&state, config.limits.timeout, time, turns.has_executed()) {
            Some(failure) => Err(failure),
            None => {
                notes.extend(cut_short(&state));
                Ok(())
            }
        });
    Ok(Conversed { usage, state: Some(Box::new(state)), result })
}

/// The model and its instruction.
async fn subject(context: &TrialContext<'_>) -> Result<(Arc<Model>, String), Failure> {
    let trial = context.trial;
    let Some(model) = &trial.model else {
        let message = format!("the model of agent {} was not passed to Plan::with_models", trial.id.agent);
        return Err(Failure::new(ErrorType::InternalError, message));
    };
    let instruction = instruction::read(context).await?;
    Ok((Arc::clone(model), String::from_utf8_lossy(&instruction).into_owned()))
}

/// Saves the conversation so far. The error is a note.
pub(super) async fn save_trajectory(context: &TrialContext<'_>, turns: &TurnLog) -> Result<(), String> {
    let Some(trajectory) = turns.take() else { return Ok(()) };
    let (path, live) = (context.step.dir.trajectory(), context.step.dir.live_conversation());
    let redactor = Arc::clone(&context.trial.redactor);
    let write = move || {
        trajectory.write(&path, &redactor)?;
        match std::fs::remove_file(&live) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(WriteError { path: live, source }),
            _ => Ok(()),
        }
    };
    let failed = match tokio::task::spawn_blocking(write).await {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) => error.source.to_string(),
        Err(error) => error.to_string(),
    };
    Err(format!("cannot write trajectory.json: {failed}"))
}

/// The failure of a conversation, if there is one. A model that reaches the agent's own time limit is graded; one that
/// reaches the task's is not.
fn failure(
    state: &State,
    own_limit: Option<Duration>,
    time: Duration,
    has_executed: bool,
) -> Option<Failure> {
    if state.timed_out && own_limit.is_none_or(|own| own >= time) {
        return Some(timeout(time));
    }
    state.error.as_ref().map(|error| Failure::model(error, has_executed))
}

fn timeout(limit: Duration) -> Failure {
    Failure::new(
        ErrorType::AgentExecutionTimeout,
        format!(
            "the agent's timeout of {} was exceeded; the model and all its processes were stopped; \
             trajectory.json has the conversation until then. To allow more time, raise {}, or timeout_multiplier in the job",
            in_seconds(limit),
            script::EXECUTE.setting
        ),
    )
}

/// A note for users about a model that did not end by itself.
fn cut_short(state: &State) -> Option<String> {
    let what = match state.stop_condition.as_deref() {
        None | Some("no_tools_called") => {
            let last = state.trajectory.last().is_some_and(|turn| turn.is_truncated);
            return last.then(|| {
                "the model's last message was cut off at its token limit; its work until then is graded"
                    .to_owned()
            });
        }
        Some("prompt_too_long") => "the conversation became longer than the context of the model".to_owned(),
        Some(limit) => format!("the limit of the agent was reached: {limit}"),
    };
    Some(format!("{what}; its work until then is graded"))
}
