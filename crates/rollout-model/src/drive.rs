//! The turns of one rollout, from its input to its completion.

use std::{
    any::Any,
    borrow::Cow,
    cmp::Reverse,
    future::Future,
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::{FutureExt as _, future::BoxFuture};
use serde::Deserialize as _;
use serde_json::Value;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    Cause, Cleanup, Error, ErrorKind, Interaction, Limits, Model, RolloutInput, State, Stop, TrajectoryStep,
    Usage, interaction::lineage,
};
use rollout_core::{message::ToolDef, response::TokenUsage, row::STOPPED_BY_TIMEOUT as TIMEOUT_REACHED};

const HAS_ERROR: &str = "has_error";
const PROMPT_TOO_LONG: &str = "prompt_too_long";

/// Why a rollout has no state.
#[derive(Debug, Clone, PartialEq)]
pub enum Halt {
    /// The server rejects the key, or does not support the settings of the model. Every other rollout would fail too.
    Unauthorized(Error),
    /// The rollout was cancelled. Its cleanups ran.
    Cancelled,
}

/// Runs a model on an example until a stop condition is met. Errors are recorded in the state.
///
/// Whatever ends the rollout (a stop condition, an error, a panic of a hook, the time limit or a cancellation), its
/// completion is rendered and its cleanups run.
///
/// ```
/// # use std::sync::Arc;
/// # use rollout_testkit::ModelServer;
/// use rollout::model::{
///     Client, Halt, Limits, Message, Model, RolloutInput, SingleTurn, client::ClientConfig, rollout,
/// };
/// use tokio_util::sync::CancellationToken;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = ModelServer::arithmetic();
/// # let base_url = server.url();
/// let model = Model::new(Client::new(ClientConfig::new(base_url))?, "gpt-4.1-mini");
/// let input = RolloutInput {
///     prompt: Message::user("What is 2+2?").into(),
///     answer: Some("4".to_owned()),
///     ..RolloutInput::default()
/// };
/// let never = CancellationToken::new();
/// match rollout(&SingleTurn, &Limits::default(), input, Arc::new(model), &never).await {
///     Ok(state) => assert_eq!(state.trajectory[0].completion[0].text(), "4"),
///     Err(Halt::Unauthorized(error)) => return Err(error.into()),
///     Err(Halt::Cancelled) => unreachable!("the token is never cancelled"),
/// }
/// # Ok(())
/// # }
/// ```
pub fn rollout<'a>(
    interaction: &'a dyn Interaction,
    limits: &'a Limits,
    input: RolloutInput,
    model: Arc<Model>,
    cancel: &'a CancellationToken,
) -> BoxFuture<'a, Result<State, Halt>> {
    Box::pin(drive(interaction, limits, input, model, cancel, &|_| ()))
}

/// Runs a model on an example as [`rollout`] does, and calls `after_turn` with the state after each turn.
pub fn rollout_observed<'a>(
    interaction: &'a dyn Interaction,
    limits: &'a Limits,
    input: RolloutInput,
    model: Arc<Model>,
    cancel: &'a CancellationToken,
    after_turn: &'a (dyn Fn(&State) + Send + Sync),
) -> BoxFuture<'a, Result<State, Halt>> {
    Box::pin(drive(interaction, limits, input, model, cancel, after_turn))
}

async fn drive(
    interaction: &dyn Interaction,
    limits: &Limits,
    input: RolloutInput,
    model: Arc<Model>,
    cancel: &CancellationToken,
    after_turn: &(dyn Fn(&State) + Send + Sync),
) -> Result<State, Halt> {
    let started = Instant::now();
    let interaction = routed(interaction, &input);
    let (tool_defs, unreadable) = match tool_defs(interaction, &input) {
        Ok(defs) => (defs, None),
        Err(error) => (Vec::new(), Some(error)),
    };
    let mut state = State::new(input, model, tool_defs.into());
    state.error = unreadable;
    let conditions = Conditions::new(interaction, limits, started);
    let is_set_up = AtomicBool::new(false);
    let generation = generate(interaction, &conditions, &mut state, &is_set_up, after_turn);
    let generation = AssertUnwindSafe(generation).catch_unwind();
    let end = tokio::select! {
        biased;
        () = cancel.cancelled() => End::Cancelled,
        result = generation => match result {
            Ok(Ok(())) => End::Stopped,
            Ok(Err(refused)) => End::Unauthorized(refused),
            Err(panic) => End::Panicked(panicked("a hook", &*panic)),
        },
        () = time_up(limits.timeout, started) => End::TimeUp,
    };
    let halt = match end {
        End::Stopped => None,
        // A slow image download is not the fault of the model.
        End::TimeUp if !is_set_up.into_inner() => {
            let text = "the rollout timed out during its setup";
            state.error.get_or_insert_with(|| Error::new(ErrorKind::Infra, text));
            complete(&mut state, HAS_ERROR.into(), started);
            None
        }
        End::TimeUp => {
            complete(&mut state, TIMEOUT_REACHED.into(), started);
            None
        }
        End::Panicked(error) => {
            state.error = Some(error);
            complete(&mut state, HAS_ERROR.into(), started);
            None
        }
        End::Unauthorized(error) => Some(Halt::Unauthorized(error)),
        End::Cancelled => Some(Halt::Cancelled),
    };
    finish(interaction, &mut state).await;
    match halt {
        Some(halt) => Err(halt),
        None => Ok(state),
    }
}

/// Why the turns ended.
enum End {
    Stopped,
    TimeUp,
    Panicked(Error),
    Unauthorized(Error),
    Cancelled,
}

/// The member of a group of interactions, possibly nested, that handles the example.
fn routed<'a>(mut interaction: &'a dyn Interaction, input: &RolloutInput) -> &'a dyn Interaction {
    while let Some(member) = interaction.route(input) {
        interaction = member;
    }
    interaction
}

fn tool_defs(interaction: &dyn Interaction, input: &RolloutInput) -> Result<Vec<ToolDef>, Error> {
    match input.info.as_ref().and_then(|info| info.get("tool_defs")) {
        None | Some(Value::Null) => Ok(interaction.tool_defs()),
        Some(defs) => Vec::<ToolDef>::deserialize(defs).map_err(|error| {
            let text = "`info.tool_defs` is not a list of {name, description, parameters}";
            Error::new(ErrorKind::Any, text).because(Cause::of("ValueError", &error))
        }),
    }
}

async fn time_up(timeout: Option<Duration>, started: Instant) {
    match timeout {
        Some(timeout) => tokio::time::sleep(timeout.saturating_sub(started.elapsed())).await,
        None => std::future::pending().await,
    }
}

/// Sets up and takes turns until a condition is met. Returns only errors that affect all rollouts.
async fn generate(
    interaction: &dyn Interaction,
    conditions: &Conditions,
    state: &mut State,
    is_set_up: &AtomicBool,
    after_turn: &(dyn Fn(&State) + Send + Sync),
) -> Result<(), Error> {
    let lineage: Vec<_> = lineage(interaction).collect();
    for interaction in lineage.into_iter().rev() {
        if state.error.is_some() || state.prompt_too_long {
            break;
        }
        if let Err(error) = interaction.setup_state(state).await {
            keep(state, error)?;
        }
    }
    is_set_up.store(true, Ordering::Relaxed);
    loop {
        match conditions.met(state).await {
            Ok(Some(name)) => {
                complete(state, name, conditions.started);
                return Ok(());
            }
            Ok(None) => {}
            // A condition of the highest priority that always fails would otherwise be checked forever.
            Err(error) => {
                let name = if error.is(ErrorKind::OverlongPrompt) { PROMPT_TOO_LONG } else { HAS_ERROR };
                keep(state, error)?;
                complete(state, name.into(), conditions.started);
                return Ok(());
            }
        }
        match turn(interaction, state).await {
            Ok(()) => after_turn(state),
            Err(error) => keep(state, error)?,
        }
    }
}

async fn turn(interaction: &dyn Interaction, state: &mut State) -> Result<(), Error> {
    let prompt = interaction.get_prompt_messages(interaction, state).await?;
    if state.final_env_response.is_some() {
        return Ok(());
    }
    let response = interaction.get_model_response(state, &prompt).await?;
    if let Some(usage) = &response.usage {
        state.usage.add(usage);
    }
    let step = TrajectoryStep::new(state, prompt, response);
    interaction.add_trajectory_step(state, step).await
}

/// Records an error in the state. Returns an error that ends more than this rollout.
fn keep(state: &mut State, error: Error) -> Result<(), Error> {
    match error.kind {
        ErrorKind::Unauthorized | ErrorKind::Unsupported => return Err(error),
        ErrorKind::OverlongPrompt => {
            state.prompt_too_long = true;
            state.is_truncated = true;
        }
        _ => state.error = Some(error),
    }
    Ok(())
}

fn complete(state: &mut State, name: Cow<'static, str>, started: Instant) {
    state.is_completed = true;
    state.is_truncated |= state.trajectory.iter().any(|step| step.is_truncated);
    state.timed_out |= name == TIMEOUT_REACHED;
    state.stop_condition = Some(name.into_owned());
    state.timing.generation_ms = started.elapsed().as_secs_f64() * 1000.0;
    state.timing.total_ms = state.timing.generation_ms;
}

/// Renders the completion and cleans up. A failed cleanup is recorded; the result of the rollout stays.
async fn finish(interaction: &dyn Interaction, state: &mut State) {
    if let Err(error) = guarded("render_completion", interaction.render_completion(state)).await {
        tracing::warn!(rollout = %state.trajectory_id, "render_completion failed: {error}");
        state.error.get_or_insert(error);
        state.completion.get_or_insert_default();
    }
    let mut cleanups: Vec<Cleanup> = lineage(interaction).flat_map(Interaction::cleanups).collect();
    cleanups.sort_by_key(|cleanup| Reverse(cleanup.priority));
    for cleanup in cleanups {
        if let Err(error) = guarded(&cleanup.name, (cleanup.run)(state)).await {
            tracing::warn!(rollout = %state.trajectory_id, "{} failed: {error}", cleanup.name);
            let text = format!("the cleanup `{}` failed", cleanup.name);
            state.cleanup_errors.push(Error::new(error.kind.clone(), text).because(error.into()));
        }
    }
}

async fn guarded(name: &str, hook: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
    AssertUnwindSafe(hook).catch_unwind().await.unwrap_or_else(|panic| Err(panicked(name, &*panic)))
}

fn panicked(what: &str, panic: &(dyn Any + Send)) -> Error {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
    Error::new(ErrorKind::Any, format!("{what} panicked")).because(Cause::new("Panic", text))
}

/// The conditions that end a rollout, in the order of their checks.
struct Conditions {
    sorted: Vec<Condition>,
    started: Instant,
}

enum Condition {
    HasError,
    HasFinalEnvResponse,
    MaxCost(f64),
    MaxCompletionTokens(u64),
    MaxTotalTokens(u64),
    MaxTurns(usize),
    PromptTooLong,
    Timeout(Duration),
    Own(Stop),
}

impl Conditions {
    fn new(interaction: &dyn Interaction, limits: &Limits, started: Instant) -> Self {
        let max_turns = limits.max_turns.or_else(|| interaction.max_turns()).filter(|turns| *turns > 0);
        let limited = [
            limits.max_cost.map(Condition::MaxCost),
            limits.max_completion_tokens.map(Condition::MaxCompletionTokens),
            limits.max_total_tokens.map(Condition::MaxTotalTokens),
            max_turns.map(|turns| Condition::MaxTurns(turns as usize)),
            limits.timeout.map(Condition::Timeout),
        ];
        let mut sorted = vec![Condition::HasError, Condition::HasFinalEnvResponse, Condition::PromptTooLong];
        sorted.extend(limited.into_iter().flatten());
        let mut own: Vec<Stop> = interaction.stops();
        for base in lineage(interaction).skip(1) {
            let mut inherited = base.stops();
            inherited.retain(|stop| own.iter().all(|other| other.name != stop.name));
            own.extend(inherited);
        }
        sorted.extend(own.into_iter().map(Condition::Own));
        sorted.sort_by(|a, b| (Reverse(a.priority()), a.name()).cmp(&(Reverse(b.priority()), b.name())));
        Self { sorted, started }
    }

    async fn met(&self, state: &State) -> Result<Option<Cow<'static, str>>, Error> {
        for condition in &self.sorted {
            let met = match condition {
                Condition::HasError => state.error.is_some(),
                Condition::HasFinalEnvResponse => state.final_env_response.is_some(),
                Condition::MaxCost(cost) => state.usage.cost.is_some_and(|spent| spent >= *cost),
                Condition::MaxCompletionTokens(tokens) => state.usage.output_tokens >= *tokens as f64,
                Condition::MaxTotalTokens(tokens) => {
                    state.usage.input_tokens + state.usage.output_tokens >= *tokens as f64
                }
                Condition::MaxTurns(turns) => state.trajectory.len() >= *turns,
                Condition::PromptTooLong => state.prompt_too_long,
                Condition::Timeout(timeout) => self.started.elapsed() >= *timeout,
                Condition::Own(stop) => (stop.met)(state).await?,
            };
            if met {
                return Ok(Some(condition.name().clone()));
            }
        }
        Ok(None)
    }
}

impl Condition {
    fn name(&self) -> &Cow<'static, str> {
        match self {
            Self::HasError => &Cow::Borrowed(HAS_ERROR),
            Self::HasFinalEnvResponse => &Cow::Borrowed("has_final_env_response"),
            Self::MaxCost(_) => &Cow::Borrowed("max_cost_reached"),
            Self::MaxCompletionTokens(_) => &Cow::Borrowed("max_total_completion_tokens_reached"),
            Self::MaxTotalTokens(_) => &Cow::Borrowed("max_total_tokens_reached"),
            Self::MaxTurns(_) => &Cow::Borrowed("max_turns_reached"),
            Self::PromptTooLong => &Cow::Borrowed(PROMPT_TOO_LONG),
            Self::Timeout(_) => &Cow::Borrowed(TIMEOUT_REACHED),
            Self::Own(stop) => &stop.name,
        }
    }

    fn priority(&self) -> i32 {
        match self {
            Self::HasError => 100,
            Self::Own(stop) => stop.priority,
            _ => 0,
        }
    }
}

impl Usage {
    /// Adds the usage of one response. Every turn is added automatically; use this for other calls of an interaction.
    pub fn add(&mut self, response: &TokenUsage) {
        self.input_tokens += response.input_tokens() as f64;
        self.output_tokens += response.completion_tokens as f64;
        self.cached_tokens += response.cached_tokens as f64;
        self.reasoning_tokens += response.reasoning_tokens as f64;
        if let Some(cost) = response.cost {
            *self.cost.get_or_insert(0.0) += cost;
        }
        self.responses += 1;
    }
}
