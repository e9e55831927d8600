//! The state of one rollout, from its input to its reward.

mod trajectory;

use std::{
    any::{Any, TypeId},
    collections::HashMap,
    fmt,
    sync::Arc,
    time::Duration,
};

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use rollout_core::{
    message::{Message, Messages, ToolDef},
    response::TokenUsage,
    row::Timing,
    sample::{self, Sample, SampleError, SampleTokens, SampleTurn, SampledRollout},
};

use crate::{
    client::{Model, TokenHistory},
    error::{Cause, Error, ErrorKind},
};

pub use trajectory::{StepTokens, TrajectoryStep};

/// Limits that end a rollout, independent of its interaction. Checked before each turn.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Limits {
    /// Turns of the model. None leaves the limit to the interaction.
    pub max_turns: Option<u32>,
    /// Tokens of completions, over all turns.
    pub max_completion_tokens: Option<u64>,
    /// Tokens of prompts and completions, over all turns.
    pub max_total_tokens: Option<u64>,
    /// US dollars, where the cost is known.
    pub max_cost: Option<f64>,
    /// Time since the start of the rollout. This limit also interrupts a turn.
    pub timeout: Option<Duration>,
}

/// Names of the fields of [`State`] itself, which are changed there.
const RESERVED: [&str; 19] = [
    "model",
    "sampling_args",
    "tool_defs",
    "trajectory_id",
    "is_completed",
    "is_truncated",
    "stop_condition",
    "trajectory",
    "completion",
    "reward",
    "advantage",
    "metrics",
    "error",
    "final_env_response",
    "prompt_too_long",
    "timed_out",
    "timing",
    "usage",
    "training_samples",
];

/// Why a field of a state cannot be set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    /// The name is a field of every rollout.
    #[error("`{name}` is a reserved field; change `state.{name}`, or choose another name")]
    Reserved {
        /// The name.
        name: String,
    },
    /// The value has the wrong type for a field of the input.
    #[error("invalid value for `{name}`: it must be {expected}; change the value, or choose another name")]
    Value {
        /// The name.
        name: &'static str,
        /// The expected type.
        expected: &'static str,
    },
}

impl From<FieldError> for Error {
    fn from(error: FieldError) -> Self {
        Self::new(ErrorKind::Any, "cannot set a field of the state")
            .because(Cause::new("ValueError", error.to_string()))
    }
}

/// The input of a rollout: one row of a dataset.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RolloutInput {
    /// The first messages.
    pub prompt: Messages,
    /// The number of the example; rollouts of one example form a group.
    pub example_id: u64,
    /// The kind of task.
    pub task: String,
    /// The correct answer, if there is one.
    pub answer: Option<String>,
    /// Further data of the example.
    pub info: Option<Map<String, Value>>,
    /// Other columns of the dataset.
    pub extra: Map<String, Value>,
}

/// The usage of a rollout, over all calls of the model.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens of prompts.
    pub input_tokens: f64,
    /// Tokens of completions.
    pub output_tokens: f64,
    /// Prompt tokens that were read from a cache.
    #[serde(skip)]
    pub cached_tokens: f64,
    /// Completion tokens that were reasoning.
    #[serde(skip)]
    pub reasoning_tokens: f64,
    /// US dollars, if known.
    #[serde(skip)]
    pub cost: Option<f64>,
    /// The number of responses that reported usage. If it is 0, the usage is unknown.
    #[serde(skip)]
    pub responses: u32,
}

/// The usage of a model beside that of the rollout, as a field of its state, with that of one more response.
pub(crate) fn added_usage(before: Option<&Value>, usage: &TokenUsage) -> Value {
    let before = |key: &str| before.and_then(|before| before.get(key));
    let sum = |key: &str, more: u64| before(key).and_then(Value::as_u64).unwrap_or(0) + more;
    let mut sums = json!({
        "input_tokens": sum("input_tokens", usage.input_tokens()),
        "output_tokens": sum("output_tokens", usage.completion_tokens),
    });
    let costs = [before("cost").and_then(Value::as_f64), usage.cost];
    if let Some(cost) = costs.into_iter().flatten().reduce(|a, b| a + b) {
        sums["cost"] = json!(cost);
    }
    sums
}

/// The state of one rollout.
///
/// Fields of every rollout are fields of the struct. An interaction adds data to [`fields`](Self::fields), which can be
/// saved by naming them in `state_columns`, and live objects to [`resources`](Self::resources).
pub struct State {
    /// The input of the rollout.
    pub input: RolloutInput,
    /// The model.
    pub model: Arc<Model>,
    /// The tools that the model may call.
    pub tool_defs: Arc<[ToolDef]>,
    /// The id of the rollout: 32 hexadecimal digits.
    pub trajectory_id: Arc<str>,
    /// Whether a stop condition was met.
    pub is_completed: bool,
    /// Whether any response was cut off, or the conversation became too long.
    pub is_truncated: bool,
    /// The stop condition that was met.
    pub stop_condition: Option<String>,
    /// The turns so far.
    pub trajectory: Vec<TrajectoryStep>,
    /// The messages after the prompt. Set when the rollout ends.
    pub completion: Option<Messages>,
    /// The score.
    pub reward: Option<f64>,
    /// The reward compared with the group of the rollout. None without a group, and for an excluded rollout.
    pub advantage: Option<f64>,
    /// Whether the rollout is excluded from the baseline of its group and gives no samples. Scoring excludes rollouts
    /// that failed or timed out, unless the rubric includes them.
    pub is_excluded: bool,
    /// The value of each function of the rubric.
    pub metrics: Option<IndexMap<String, f64>>,
    /// The error that ended the rollout.
    pub error: Option<Error>,
    /// Functions of the rubric that failed; each counts as 0.
    pub scoring_errors: Vec<Error>,
    /// Cleanups that failed. They do not change the result.
    pub cleanup_errors: Vec<Error>,
    /// The last reply of the environment. Setting it ends the rollout without another turn.
    pub final_env_response: Option<Messages>,
    /// Whether the conversation became longer than the model's context.
    pub prompt_too_long: bool,
    /// Whether the rollout timed out.
    pub timed_out: bool,
    /// Its durations.
    pub timing: Timing,
    /// Its usage.
    pub usage: Usage,
    /// Data that the interaction adds.
    pub fields: Map<String, Value>,
    /// Live objects that the interaction adds, such as an environment.
    pub resources: Resources,
}

impl State {
    /// The state of a rollout before its start.
    pub fn new(input: RolloutInput, model: Arc<Model>, tool_defs: Arc<[ToolDef]>) -> Self {
        Self {
            input,
            model,
            tool_defs,
            trajectory_id: new_trajectory_id(),
            is_completed: false,
            is_truncated: false,
            stop_condition: None,
            trajectory: Vec::new(),
            completion: None,
            reward: None,
            advantage: None,
            is_excluded: false,
            metrics: None,
            error: None,
            scoring_errors: Vec::new(),
            cleanup_errors: Vec::new(),
            final_env_response: None,
            prompt_too_long: false,
            timed_out: false,
            timing: Timing::start(),
            usage: Usage::default(),
            fields: Map::new(),
            resources: Resources::default(),
        }
    }

    /// A field by its name: of the input, of every rollout, or added by the interaction.
    ///
    /// `training_samples` are computed from the turns on each call; null if the turns have no tokens.
    pub fn get(&self, name: &str) -> Option<Value> {
        let value = match name {
            "prompt" => json!(self.input.prompt),
            "example_id" => json!(self.input.example_id),
            "task" => json!(self.input.task),
            "answer" => return self.input.answer.as_ref().map(|answer| json!(answer)),
            "info" => json!(self.input.info.clone().unwrap_or_default()),
            "model" => json!(self.model.name),
            "sampling_args" => json!(self.model.sampling),
            "tool_defs" => json!(self.tool_defs),
            "trajectory_id" => json!(self.trajectory_id),
            "is_completed" => json!(self.is_completed),
            "is_truncated" => json!(self.is_truncated),
            "stop_condition" => json!(self.stop_condition),
            "trajectory" => json!(self.trajectory),
            "completion" => json!(self.completion),
            "reward" => json!(self.reward),
            "advantage" => json!(self.advantage),
            "metrics" => json!(self.metrics),
            "error" => json!(self.error.as_ref().map(Error::chain)),
            "final_env_response" => json!(self.final_env_response),
            "prompt_too_long" => json!(self.prompt_too_long),
            "timed_out" => json!(self.timed_out),
            "timing" => json!(self.timing),
            "usage" => json!(self.usage),
            "training_samples" => json!(self.samples().ok()),
            other => return self.fields.get(other).or_else(|| self.input.extra.get(other)).cloned(),
        };
        Some(value)
    }

    /// The value at a path such as `info.database`: the name of a field, optionally followed by keys.
    pub fn find(&self, path: &str) -> Option<Value> {
        let mut keys = path.split('.');
        let mut value = self.get(keys.next()?)?;
        for key in keys {
            value = value.get_mut(key)?.take();
        }
        Some(value)
    }

    /// Adds a field, or changes one that was added. Fields of the input are changed there.
    ///
    /// Fails and changes nothing if the name is reserved (change `state.reward` itself), or if the value has the wrong
    /// type for a field of the input.
    pub fn set(&mut self, name: &str, value: impl Into<Value>) -> Result<(), FieldError> {
        fn put<T: serde::de::DeserializeOwned>(
            place: &mut T,
            name: &'static str,
            expected: &'static str,
            value: Value,
        ) -> Result<(), FieldError> {
            *place = serde_json::from_value(value).map_err(|_| FieldError::Value { name, expected })?;
            Ok(())
        }
        let value = value.into();
        let input = &mut self.input;
        match name {
            "prompt" => put(&mut input.prompt, "prompt", "a list of messages", value),
            "example_id" => put(&mut input.example_id, "example_id", "a whole number", value),
            "task" => put(&mut input.task, "task", "text", value),
            "answer" => put(&mut input.answer, "answer", "text or null", value),
            "info" => put(&mut input.info, "info", "an object or null", value),
            name if RESERVED.contains(&name) => Err(FieldError::Reserved { name: name.to_owned() }),
            other => {
                match input.extra.get_mut(other) {
                    Some(column) => *column = value,
                    None => _ = self.fields.insert(other.to_owned(), value),
                }
                Ok(())
            }
        }
    }

    /// The training samples of a scored rollout. Rollouts without turns and [excluded](Self::is_excluded) rollouts have
    /// none.
    pub fn samples(&self) -> Result<Vec<Sample>, SampleError> {
        if self.is_excluded { Ok(Vec::new()) } else { self.all_samples() }
    }

    /// The training samples of a scored rollout, even if it is excluded.
    pub fn all_samples(&self) -> Result<Vec<Sample>, SampleError> {
        let rollout = SampledRollout {
            example_id: self.input.example_id,
            task: self.input.task.as_str().into(),
            reward: self.reward.unwrap_or(0.0),
            advantage: self.advantage,
            error: self.failure().map(|error| error.chain().into()),
            stop_condition: self.stop_condition.as_deref().map(Into::into),
        };
        let turns = self.trajectory.iter().map(|step| SampleTurn {
            tokens: step.tokens.as_ref().map(|tokens| SampleTokens {
                prompt_ids: &tokens.prompt_ids,
                completion_ids: &tokens.completion_ids,
                completion_mask: Some(&tokens.completion_mask),
                completion_logprobs: &tokens.completion_logprobs,
                routed_experts: tokens.routed_experts.as_ref(),
            }),
            reward: step.reward,
            advantage: step.advantage,
            policy_version: step.response.policy_version().map(Into::into),
            is_truncated: step.is_truncated,
            trajectory_id: &step.trajectory_id,
        });
        sample::samples(&rollout, turns)
    }

    /// The tokens before a prompt, if it continues the last turn.
    pub(crate) fn token_history(&self, prompt: &[Arc<Message>]) -> Option<TokenHistory<'_>> {
        let last = self.trajectory.last()?;
        let tokens = last.response.tokens.as_ref()?;
        TokenHistory::of(&last.prompt, &last.completion, last.response.finish_reason.as_ref(), tokens, prompt)
    }

    /// Whether the rollout or its scoring failed, or it timed out, so that its reward says little about the model. False
    /// for an error that [counts](ErrorKind::is_counted).
    pub(crate) fn is_cut_short(&self) -> bool {
        self.timed_out || self.failure().is_some_and(|error| !error.kind.is_counted())
    }

    /// The error of the rollout, or else of the infrastructure that should have scored it.
    pub fn failure(&self) -> Option<&Error> {
        self.error.as_ref().or_else(|| self.scoring_failure())
    }

    /// The first error of the infrastructure that scores: the server of a judge, an environment, or the Python process.
    /// Errors of the functions themselves are not among them.
    pub fn scoring_failure(&self) -> Option<&Error> {
        self.scoring_errors.iter().find(|error| error.kind != ErrorKind::Any)
    }

    /// The messages after the prompt: of the model and the environment, with the final reply.
    pub fn conversation_after_prompt(&self) -> Messages {
        let Some(last) = self.trajectory.last() else { return Messages::new() };
        let last_word = self.final_env_response.iter().flatten();
        let all = last.prompt.iter().chain(&last.completion).chain(last_word);
        all.skip(self.input.prompt.len()).cloned().collect()
    }

    /// The error of a rubric function whose model server rejected the key: it would fail for every rollout.
    pub fn refused_key(&self) -> Option<&Error> {
        self.scoring_errors.iter().find(|error| error.kind == ErrorKind::Unauthorized)
    }

    /// Whether an added field is `true`.
    pub fn flag(&self, name: &str) -> bool {
        self.fields.get(name).and_then(Value::as_bool).unwrap_or(false)
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("trajectory_id", &self.trajectory_id)
            .field("input", &self.input)
            .field("turns", &self.trajectory.len())
            .field("stop_condition", &self.stop_condition)
            .field("reward", &self.reward)
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}

fn new_trajectory_id() -> Arc<str> {
    // The version and variant bits of a random UUID.
    let id = fastrand::u128(..) & !(0xf << 76) & !(0x3 << 62) | (0x4 << 76) | (0x2 << 62);
    format!("{id:032x}").into()
}

/// Live objects of one rollout, by type.
#[derive(Default)]
pub struct Resources(HashMap<TypeId, Box<dyn Any + Send + Sync>>);

impl Resources {
    /// Stores an object, and replaces one of the same type.
    pub fn insert<T: Any + Send + Sync>(&mut self, thing: T) {
        self.0.insert(TypeId::of::<T>(), Box::new(thing));
    }

    /// Finds an object by its type.
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.0.get(&TypeId::of::<T>())?.downcast_ref()
    }

    /// Finds an object by its type, to change it.
    pub fn get_mut<T: Any>(&mut self) -> Option<&mut T> {
        self.0.get_mut(&TypeId::of::<T>())?.downcast_mut()
    }

    /// Removes an object.
    pub fn remove<T: Any>(&mut self) -> Option<T> {
        self.0.remove(&TypeId::of::<T>())?.downcast().ok().map(|thing| *thing)
    }
}

impl fmt::Debug for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Resources({})", self.0.len())
    }
}
