//! How a conversation goes: the hooks between two turns of a model.

mod counts;
mod group;
mod multi_turn;
mod sandboxed;
mod single_turn;
mod stops;
mod tool_use;
mod user;

use std::{borrow::Cow, fmt, sync::Arc};

use async_trait::async_trait;
use futures_util::future::BoxFuture;

use super::{Error, RolloutInput, State, TrajectoryStep};
use rollout_core::{
    message::{Message, Messages, ToolDef},
    response::Response,
};

pub(super) use counts::calls;
pub use counts::{num_turns, tool_calls, total_tool_calls};
pub use group::InteractionGroup;
pub use multi_turn::MultiTurn;
pub use sandboxed::Sandboxed;
pub use single_turn::SingleTurn;
pub use stops::InvalidPattern;
pub use tool_use::{DuplicateTool, StopError, ToolUse};
pub use user::SimulatedUser;

/// How a model is led through an example.
///
/// Every hook has a default; a conversation of more than one turn needs [`env_response`](Self::env_response) only.
/// An error of a hook ends the rollout and is kept in its state.
///
/// ```
/// use std::sync::Arc;
///
/// use async_trait::async_trait;
/// use rollout::model::{Cleanup, Error, Interaction, Message, Messages, State, Stop};
///
/// struct Game;
///
/// #[async_trait]
/// impl Interaction for Game {
///     fn stops(&self) -> Vec<Stop> {
///         vec![
///             Stop::new("game_won", |state| state.flag("won")).priority(10),
///             Stop::new("game_lost", |state| state.get("lives") == Some(0.into())),
///         ]
///     }
///
///     fn cleanups(&self) -> Vec<Cleanup> {
///         vec![Cleanup::new("save_game_log", |state| {
///             Box::pin(async move {
///                 println!("{} turns", state.trajectory.len());
///                 Ok(())
///             })
///         })]
///     }
///
///     async fn setup_state(&self, state: &mut State) -> Result<(), Error> {
///         state.set("lives", 3)?;
///         Ok(())
///     }
///
///     async fn env_response(&self, messages: &[Arc<Message>], state: &mut State) -> Result<Messages, Error> {
///         let right = messages.last().map(|last| last.text().into_owned()) == state.input.answer;
///         state.set("won", right)?;
///         Ok(vec![Arc::new(Message::user(if right { "right" } else { "try again" }))])
///     }
/// }
/// ```
#[async_trait]
pub trait Interaction: Send + Sync {
    /// Who leads the rollouts of this example, if it is somebody else: the member of a group.
    fn route(&self, _input: &RolloutInput) -> Option<&dyn Interaction> {
        None
    }

    /// The tools that the model is told of.
    fn tool_defs(&self) -> Vec<ToolDef> {
        Vec::new()
    }

    /// The most turns that a rollout takes; none or 0 for no limit of its own.
    fn max_turns(&self) -> Option<u32> {
        None
    }

    /// Conditions that end a rollout, beside those that every rollout has.
    fn stops(&self) -> Vec<Stop> {
        Vec::new()
    }

    /// What is done when a rollout is over, however it ended.
    fn cleanups(&self) -> Vec<Cleanup> {
        Vec::new()
    }

    /// Prepares one rollout, before its first turn.
    async fn setup_state(&self, _state: &mut State) -> Result<(), Error> {
        Ok(())
    }

    /// What the model is shown next.
    async fn get_prompt_messages(&self, state: &mut State) -> Result<Messages, Error> {
        next_prompt(self, state).await
    }

    /// What the surroundings say to the conversation so far.
    async fn env_response(&self, _messages: &[Arc<Message>], _state: &mut State) -> Result<Messages, Error> {
        Ok(Messages::new())
    }

    /// Asks the model. What the response used is added to [`State::usage`] by the rollout; an interaction that asks
    /// more than once adds what the other responses used by [`Usage::add`](super::Usage::add).
    async fn get_model_response(
        &self,
        state: &mut State,
        prompt: &[Arc<Message>],
    ) -> Result<Response, Error> {
        let model = Arc::clone(&state.model);
        let history = state.token_history(prompt);
        model.client.respond_after(&model, prompt, &state.tool_defs, &state.trajectory_id, history).await
    }

    /// Makes a turn of what the model said, and adds it.
    async fn add_model_response(
        &self,
        state: &mut State,
        prompt: Messages,
        response: Response,
    ) -> Result<(), Error> {
        let step = TrajectoryStep::new(state, prompt, response);
        self.add_trajectory_step(state, step).await
    }

    /// Adds a turn. Here is the place for rewards and extras of its own.
    async fn add_trajectory_step(&self, state: &mut State, step: TrajectoryStep) -> Result<(), Error> {
        state.trajectory.push(step);
        Ok(())
    }

    /// Sets [`State::completion`] when the rollout is over.
    async fn render_completion(&self, state: &mut State) -> Result<(), Error> {
        state.completion = Some(state.conversation_after_prompt());
        Ok(())
    }
}

/// The prompt of the next turn: the example's prompt at first, then all that was said and what
/// [`Interaction::env_response`] answers to it. For interactions that only sometimes go another way.
pub async fn next_prompt<I: Interaction + ?Sized>(
    interaction: &I,
    state: &mut State,
) -> Result<Messages, Error> {
    let Some(last) = state.trajectory.last() else { return Ok(state.input.prompt.clone()) };
    let mut messages: Messages = last.prompt.iter().chain(&last.completion).cloned().collect();
    let answer = interaction.env_response(&messages, state).await?;
    messages.extend(answer);
    Ok(messages)
}

type Met = dyn for<'a> Fn(&'a State) -> BoxFuture<'a, Result<bool, Error>> + Send + Sync;
type Run = dyn for<'a> Fn(&'a mut State) -> BoxFuture<'a, Result<(), Error>> + Send + Sync;

/// A condition that ends a rollout. Those of a higher priority are asked first, then by name.
#[derive(Clone)]
pub struct Stop {
    /// Goes into [`State::stop_condition`].
    pub name: Cow<'static, str>,
    /// 0 unless set.
    pub priority: i32,
    pub(super) met: Arc<Met>,
}

impl Stop {
    /// A condition that is seen at once.
    pub fn new(
        name: impl Into<Cow<'static, str>>,
        met: impl Fn(&State) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self::later(name, move |state| {
            let met = met(state);
            Box::pin(std::future::ready(Ok(met)))
        })
    }

    /// A condition that takes time to find out, or may fail.
    pub fn later(
        name: impl Into<Cow<'static, str>>,
        met: impl for<'a> Fn(&'a State) -> BoxFuture<'a, Result<bool, Error>> + Send + Sync + 'static,
    ) -> Self {
        Self { name: name.into(), priority: 0, met: Arc::new(met) }
    }

    /// The same condition with another priority.
    #[must_use]
    pub fn priority(self, priority: i32) -> Self {
        Self { priority, ..self }
    }
}

impl fmt::Debug for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stop({}, {})", self.name, self.priority)
    }
}

/// Something to do when a rollout is over. Those of a higher priority go first, then in the order given; each one is
/// run though another failed.
#[derive(Clone)]
pub struct Cleanup {
    /// For messages about its failure.
    pub name: Cow<'static, str>,
    /// 0 unless set.
    pub priority: i32,
    pub(super) run: Arc<Run>,
}

impl Cleanup {
    /// Something to do.
    pub fn new(
        name: impl Into<Cow<'static, str>>,
        run: impl for<'a> Fn(&'a mut State) -> BoxFuture<'a, Result<(), Error>> + Send + Sync + 'static,
    ) -> Self {
        Self { name: name.into(), priority: 0, run: Arc::new(run) }
    }

    /// The same with another priority.
    #[must_use]
    pub fn priority(self, priority: i32) -> Self {
        Self { priority, ..self }
    }
}

impl fmt::Debug for Cleanup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cleanup({}, {})", self.name, self.priority)
    }
}
