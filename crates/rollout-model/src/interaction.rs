//! How a conversation is run: the hooks between two turns of a model.

mod counts;
mod group;
mod multi_turn;
mod sandboxed;
mod single_turn;
mod stops;
mod tool_use;
mod user;

use std::{borrow::Cow, fmt, future::ready, sync::Arc};

use async_trait::async_trait;
use futures_util::future::BoxFuture;

use super::{AsyncHook, Error, RolloutInput, State, TrajectoryStep};
use rollout_core::{
    message::{MessageList, Messages, ToolDef},
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

/// How a model is run on an example.
///
/// Every hook has a default; a conversation of more than one turn needs [`env_response`](Self::env_response) only.
/// An error of a hook ends the rollout and is recorded in its state.
///
/// ```
/// use async_trait::async_trait;
/// use rollout::model::{Cleanup, Error, Interaction, Message, MessageList, Messages, State, Stop};
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
///         vec![Cleanup::new("save_game_log", async |state| {
///             println!("{} turns", state.trajectory.len());
///             Ok(())
///         })]
///     }
///
///     async fn setup_state(&self, state: &mut State) -> Result<(), Error> {
///         state.set("lives", 3)?;
///         Ok(())
///     }
///
///     async fn env_response(&self, messages: &MessageList, state: &mut State) -> Result<Messages, Error> {
///         let right = messages.last().map(|last| last.text().into_owned()) == state.input.answer;
///         state.set("won", right)?;
///         Ok(Message::user(if right { "right" } else { "try again" }).into())
///     }
/// }
/// ```
///
/// # Extending another interaction
///
/// An interaction that names its [`base`](Self::base) overrides only what differs. Setups and cleanups nest like
/// constructors and destructors: the base is set up first and cleaned up last. Stop conditions of the base apply too,
/// unless the extension has one of the same name. Every other hook of the base is the default of the extension's hook,
/// which may call it.
///
/// ```
/// use async_trait::async_trait;
/// use rollout::model::{Error, Interaction, Message, MessageList, Messages, State, ToolUse};
///
/// /// Tool use that reports the number of turns.
/// struct Counted {
///     tools: ToolUse<'static>,
/// }
///
/// #[async_trait]
/// impl Interaction for Counted {
///     fn base(&self) -> Option<&dyn Interaction> {
///         Some(&self.tools)
///     }
///
///     async fn env_response(&self, messages: &MessageList, state: &mut State) -> Result<Messages, Error> {
///         let mut answers = self.tools.env_response(messages, state).await?;
///         answers.push(Message::user(format!("{} turns taken", state.trajectory.len())).into());
///         Ok(answers)
///     }
/// }
/// ```
#[async_trait]
pub trait Interaction: Send + Sync {
    /// The interaction that this one extends.
    fn base(&self) -> Option<&dyn Interaction> {
        None
    }

    /// The interaction for the rollouts of this example, if it is another one: the member of a group.
    fn route(&self, _input: &RolloutInput) -> Option<&dyn Interaction> {
        None
    }

    /// The tools that the model may call.
    fn tool_defs(&self) -> Vec<ToolDef> {
        self.base().map(Interaction::tool_defs).unwrap_or_default()
    }

    /// The maximum number of turns; none or 0 for no limit of its own.
    fn max_turns(&self) -> Option<u32> {
        self.base().and_then(Interaction::max_turns)
    }

    /// Conditions that end a rollout, in addition to those of the base and of every rollout.
    fn stops(&self) -> Vec<Stop> {
        Vec::new()
    }

    /// Actions at the end of a rollout, however it ended. They run before the cleanups of the base.
    fn cleanups(&self) -> Vec<Cleanup> {
        Vec::new()
    }

    /// Prepares one rollout, before its first turn and after the setup of the base.
    async fn setup_state(&self, _state: &mut State) -> Result<(), Error> {
        Ok(())
    }

    /// The prompt of the next turn. `leader` is the outermost interaction: this one, or one that extends it. For the
    /// usual prompt, call [`next_prompt`] with the leader.
    async fn get_prompt_messages(
        &self,
        leader: &dyn Interaction,
        state: &mut State,
    ) -> Result<Messages, Error> {
        match self.base() {
            Some(base) => base.get_prompt_messages(leader, state).await,
            None => next_prompt(leader, state).await,
        }
    }

    /// The reply of the environment to the conversation so far.
    async fn env_response(&self, messages: &MessageList, state: &mut State) -> Result<Messages, Error> {
        match self.base() {
            Some(base) => base.env_response(messages, state).await,
            None => Ok(Messages::new()),
        }
    }

    /// Requests a response of the model. The rollout adds its usage to [`State::usage`]; an interaction that makes more
    /// requests adds their usage with [`Usage::add`](super::Usage::add).
    async fn get_model_response(&self, state: &mut State, prompt: &MessageList) -> Result<Response, Error> {
        if let Some(base) = self.base() {
            return base.get_model_response(state, prompt).await;
        }
        let model = Arc::clone(&state.model);
        let history = state.token_history(prompt);
        model.client.respond_after(&model, prompt, &state.tool_defs, &state.trajectory_id, history).await
    }

    /// Adds a turn. Override it to set rewards and extras of single turns.
    async fn add_trajectory_step(&self, state: &mut State, step: TrajectoryStep) -> Result<(), Error> {
        match self.base() {
            Some(base) => base.add_trajectory_step(state, step).await,
            None => {
                state.trajectory.push(step);
                Ok(())
            }
        }
    }

    /// Sets [`State::completion`] at the end of the rollout.
    async fn render_completion(&self, state: &mut State) -> Result<(), Error> {
        match self.base() {
            Some(base) => base.render_completion(state).await,
            None => {
                state.completion = Some(state.conversation_after_prompt());
                Ok(())
            }
        }
    }
}

/// The usual prompt of the next turn: the example's prompt at first, then all messages so far and the reply of
/// [`Interaction::env_response`]. For interactions that differ only sometimes.
pub async fn next_prompt(leader: &dyn Interaction, state: &mut State) -> Result<Messages, Error> {
    let Some(last) = state.trajectory.last() else { return Ok(state.input.prompt.clone()) };
    let mut messages: Messages = last.prompt.iter().chain(&last.completion).cloned().collect();
    let answer = leader.env_response(&messages, state).await?;
    messages.extend(answer);
    Ok(messages)
}

/// An interaction, the one that it extends, and so on.
pub(super) fn lineage(interaction: &dyn Interaction) -> impl Iterator<Item = &dyn Interaction> {
    std::iter::successors(Some(interaction), |interaction| interaction.base())
}

type Met = dyn for<'a> Fn(&'a State) -> BoxFuture<'a, Result<bool, Error>> + Send + Sync;
type Run = dyn for<'a> Fn(&'a mut State) -> BoxFuture<'a, Result<(), Error>> + Send + Sync;

/// A condition that ends a rollout. Conditions are checked by priority, highest first, then by name.
#[derive(Clone)]
pub struct Stop {
    /// The value of [`State::stop_condition`] if the condition is met.
    pub name: Cow<'static, str>,
    /// 0 unless set.
    pub priority: i32,
    pub(super) met: Arc<Met>,
}

impl Stop {
    /// A condition that is checked synchronously.
    pub fn new(
        name: impl Into<Cow<'static, str>>,
        met: impl Fn(&State) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self { name: name.into(), priority: 0, met: Arc::new(move |state| Box::pin(ready(Ok(met(state))))) }
    }

    /// A condition that is checked asynchronously, or may fail.
    ///
    /// ```
    /// # use rollout::model::Stop;
    /// let closed = Stop::later("closed", async |_| Ok(tokio::fs::try_exists("closed").await?));
    /// ```
    pub fn later<F>(name: impl Into<Cow<'static, str>>, met: F) -> Self
    where
        F: AsyncFn(&State) -> Result<bool, Error> + for<'a> AsyncHook<'a, (&'a State,), Result<bool, Error>>,
    {
        Self { name: name.into(), priority: 0, met: Arc::new(move |state| met.run((state,))) }
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

/// An action at the end of a rollout. Actions run by priority, highest first, then in the order given. Each one runs,
/// even if another failed.
#[derive(Clone)]
pub struct Cleanup {
    /// Its name in messages about its failure.
    pub name: Cow<'static, str>,
    /// 0 unless set.
    pub priority: i32,
    pub(super) run: Arc<Run>,
}

impl Cleanup {
    /// An action.
    pub fn new<F>(name: impl Into<Cow<'static, str>>, run: F) -> Self
    where
        F: AsyncFn(&mut State) -> Result<(), Error>
            + for<'a> AsyncHook<'a, (&'a mut State,), Result<(), Error>>,
    {
        Self { name: name.into(), priority: 0, run: Arc::new(move |state| run.run((state,))) }
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
