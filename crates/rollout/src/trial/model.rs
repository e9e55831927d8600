//! The execute phase of an agent that is a model.

use std::{fs::File, io::Read as _, sync::Arc};

use super::{
    attempt::{Attempt, bounded},
    failure::Failure,
};
use crate::{
    agent::{conversation::Conversation, trajectory},
    config::ModelAgentConfig,
};
use rollout_core::{event::Phase, result::ErrorType};
use rollout_env::{Environment, blocking::blocking};
use rollout_model::State;

/// More is nothing that a model could read.
const MAX_INSTRUCTION_BYTES: u64 = 1 << 20;

impl Attempt<'_> {
    /// Lets the model work on the task. That its server refuses the key is left in `self.refused`.
    pub(super) async fn converse(
        &mut self,
        environment: &dyn Environment,
        config: &ModelAgentConfig,
    ) -> Result<(), Failure> {
        let model = self.trial.model.as_ref().ok_or_else(|| {
            let message =
                format!("nobody made the model of agent {}; see Plan::with_models", self.trial.id.agent);
            Failure::new(ErrorType::InternalError, message)
        })?;
        let time = self.timeouts.execute;
        let conversation = Conversation {
            model: Arc::clone(model),
            config,
            instruction: self.instruction().await?,
            environment,
            env: &self.agent_env(),
            time,
            log: &self.turns,
        };
        let state = match conversation.lead().await {
            Ok(state) => state,
            Err(refused) => {
                self.refused = Some(refused);
                return Ok(());
            }
        };
        self.usage = trajectory::used(&state.usage);
        if state.timed_out {
            // What the last call started would go on behind the back of the tests.
            bounded(Phase::Execute, environment.kill_all()).await?;
            if config.limits.timeout.is_none_or(|own| own >= time) {
                return Err(Failure::model_timeout(time));
            }
        }
        if let Some(error) = &state.error {
            return Err(Failure::model(error, self.turns.has_executed()));
        }
        self.notes.extend(cut_short(&state));
        Ok(())
    }

    async fn instruction(&self) -> Result<String, Failure> {
        let invalid = |message: String| Failure::new(ErrorType::TaskInvalid, message);
        let path = self.task.dir.join("instruction.md");
        let read = blocking(move || {
            let mut bytes = Vec::new();
            File::open(path)?.take(MAX_INSTRUCTION_BYTES + 1).read_to_end(&mut bytes)?;
            Ok(bytes)
        });
        let bytes = read.await.map_err(|error| invalid(format!("instruction.md cannot be read: {error}")))?;
        if bytes.len() as u64 > MAX_INSTRUCTION_BYTES {
            return Err(invalid("instruction.md is larger than 1 MiB, which no model reads".to_owned()));
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Writes down what the model and its tools said, as far as they got.
    pub(super) async fn keep_trajectory(&mut self) {
        let Some(trajectory) = self.turns.take() else { return };
        let path = self.trial.dir.trajectory();
        let redactor = Arc::clone(&self.trial.redactor);
        let written = tokio::task::spawn_blocking(move || trajectory.write(&path, &redactor)).await;
        let failed = match written {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.source.to_string(),
            Err(error) => error.to_string(),
        };
        self.notes.push(format!("trajectory.json could not be written: {failed}"));
    }
}

/// What a reader should know of a model that did not end by itself.
fn cut_short(state: &State) -> Option<String> {
    let what = match state.stop_condition.as_deref() {
        None | Some("no_tools_called") => {
            let last = state.trajectory.last().is_some_and(|turn| turn.is_truncated);
            return last.then(|| {
                "the model's last message was cut off at its limit of tokens; graded is what it had done by then"
                    .to_owned()
            });
        }
        Some("prompt_too_long") => "the conversation became longer than the model reads".to_owned(),
        Some(limit) => format!("the limit of the agent was reached: {limit}"),
    };
    Some(format!("{what}; graded is what the model had done by then"))
}
