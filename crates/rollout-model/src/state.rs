//! Everything that is known of one rollout, from its input to its reward.

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
    row::Timing,
    sample::{self, Sample, SampleError, SampleTokens, SampleTurn, SampledRollout},
};

use crate::{
    client::{Model, TokenHistory},
    error::{Cause, Error, ErrorKind},
};

pub use trajectory::{StepTokens, TrajectoryStep};

/// When a rollout has to end, whatever its interaction thinks. Checked before each turn.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Limits {
    /// Turns of the model. None leaves it to the interaction.
    pub max_turns: Option<u32>,
    /// Tokens that the model wrote, over all turns.
    pub max_completion_tokens: Option<u64>,
    /// Tokens that the model read and wrote, over all turns.
    pub max_total_tokens: Option<u64>,
    /// US dollars, where the cost is known.
    pub max_cost: Option<f64>,
    /// From the start of the rollout. This one also ends a turn that is under way.
    pub timeout: Option<Duration>,
}

/// Fields that every rollout has. They are fields of [`State`], which are changed there.
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
    /// Every rollout has a field of this name.
    #[error("`{name}` is a field of every rollout; change `state.{name}`, or choose another name")]
    Reserved {
        /// The name.
        name: String,
    },
    /// The field of the input has another type.
    #[error("`{name}` of an example is {expected}; set a value of that type, or choose another name")]
    Value {
        /// The name.
        name: &'static str,
        /// What the field can have.
        expected: &'static str,
    },
}

impl From<FieldError> for Error {
    fn from(error: FieldError) -> Self {
        Self::new(ErrorKind::Any, "cannot set a field of the state")
            .because(Cause::new("ValueError", error.to_string()))
    }
}

/// What a rollout starts from: one row of a dataset.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RolloutInput {
    /// The first messages.
    pub prompt: Messages,
    /// Which example it is; rollouts of one example make a group.
    pub example_id: u64,
    /// What kind of task it is.
    pub task: String,
    /// The right answer, where there is one.
    pub answer: Option<String>,
    /// What else is known of the example.
    pub info: Option<Map<String, Value>>,
    /// Further columns of the dataset.
    pub extra: Map<String, Value>,
}

/// What a rollout used, over all calls of the model.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens that the model read.
    pub input_tokens: f64,
    /// Tokens that the model wrote.
    pub output_tokens: f64,
    /// Of the tokens read, those that came from a cache.
    #[serde(skip)]
    pub cached_tokens: f64,
    /// Of the tokens written, the reasoning.
    #[serde(skip)]
    pub reasoning_tokens: f64,
    /// US dollars, where known.
    #[serde(skip)]
    pub cost: Option<f64>,
    /// Responses that told what they used. With none of them, nothing is known.
    #[serde(skip)]
    pub responses: u32,
}

/// The state of one rollout.
///
/// What every rollout has are fields of the struct. What one kind of interaction adds is in [`fields`](Self::fields)
/// if it is data, which can be saved by naming it in `state_columns`, and in [`resources`](Self::resources) if it
/// is alive.
pub struct State {
    /// What the rollout started from.
    pub input: RolloutInput,
    /// Who attempts.
    pub model: Arc<Model>,
    /// The tools that the model is told of.
    pub tool_defs: Arc<[ToolDef]>,
    /// Names the rollout: 32 hexadecimal digits.
    pub trajectory_id: Arc<str>,
    /// Whether a stop condition was met.
    pub is_completed: bool,
    /// Whether the model was cut off in any turn, or the conversation became too long.
    pub is_truncated: bool,
    /// The stop condition that was met.
    pub stop_condition: Option<String>,
    /// The turns so far.
    pub trajectory: Vec<TrajectoryStep>,
    /// What was said after the prompt. Set when the rollout is over.
    pub completion: Option<Messages>,
    /// The score.
    pub reward: Option<f64>,
    /// How much better than its group the rollout is. None without a group, and for a rollout that is excluded.
    pub advantage: Option<f64>,
    /// Whether the rollout is out of the baseline of its group and gives no samples: scoring sets it for one that
    /// failed or timed out, unless the rubric includes those.
    pub is_excluded: bool,
    /// What each function of the rubric gave.
    pub metrics: Option<IndexMap<String, f64>>,
    /// What went wrong.
    pub error: Option<Error>,
    /// Functions of the rubric that failed, so that they count as 0.
    pub scoring_errors: Vec<Error>,
    /// Cleanups that failed. What the rollout came to stands.
    pub cleanup_errors: Vec<Error>,
    /// The last word of the surroundings. Setting it ends the rollout without another turn.
    pub final_env_response: Option<Messages>,
    /// Whether the conversation became longer than the model reads.
    pub prompt_too_long: bool,
    /// Whether the time was up.
    pub timed_out: bool,
    /// How long it took.
    pub timing: Timing,
    /// What it used.
    pub usage: Usage,
    /// Data that the interaction adds.
    pub fields: Map<String, Value>,
    /// Live things that the interaction adds, such as an environment.
    pub resources: Resources,
}

impl State {
    /// The state of a rollout that is about to start.
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

    /// A field by its name: one of the input, one that every rollout has, or one that the interaction added.
    ///
    /// `training_samples` are made of the turns when they are asked for; null if the turns have no tokens.
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

    /// What is at a place such as `info.database`: a field by its name, and perhaps keys inside of it.
    pub fn find(&self, place: &str) -> Option<Value> {
        let mut keys = place.split('.');
        let mut value = self.get(keys.next()?)?;
        for key in keys {
            value = value.get_mut(key)?.take();
        }
        Some(value)
    }

    /// Adds a field, or changes one that was added. What the input has is changed there.
    ///
    /// It is an error, and nothing changes, if the name is that of a field that every rollout has (change `state.reward`
    /// itself), or if a field of the input cannot have the value.
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

    /// The training samples of a scored rollout. A rollout without any turn has none, and so has one that is
    /// [excluded](Self::is_excluded).
    pub fn samples(&self) -> Result<Vec<Sample>, SampleError> {
        if self.is_excluded { Ok(Vec::new()) } else { self.all_samples() }
    }

    /// The training samples of a scored rollout, though it be excluded.
    pub fn all_samples(&self) -> Result<Vec<Sample>, SampleError> {
        let rollout = SampledRollout {
            example_id: self.input.example_id,
            task: self.input.task.as_str().into(),
            reward: self.reward.unwrap_or(0.0),
            advantage: self.advantage,
            error: self.error.as_ref().map(|error| error.chain().into()),
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

    /// The tokens of what was said before a prompt, if it goes on where the last turn ended.
    pub fn token_history(&self, prompt: &[Arc<Message>]) -> Option<TokenHistory<'_>> {
        let last = self.trajectory.last()?;
        let tokens = last.response.tokens.as_ref()?;
        TokenHistory::of(&last.prompt, &last.completion, last.response.finish_reason.as_ref(), tokens, prompt)
    }

    /// Whether the rollout failed or timed out, so that its reward says little about the model. An error that
    /// [counts](ErrorKind::is_counted) is no such failure.
    pub fn is_cut_short(&self) -> bool {
        self.timed_out || self.error.as_ref().is_some_and(|error| !error.kind.is_counted())
    }

    /// What was said after the prompt: by the model, by its surroundings, and their last word.
    pub fn conversation_after_prompt(&self) -> Messages {
        let Some(last) = self.trajectory.last() else { return Messages::new() };
        let last_word = self.final_env_response.iter().flatten();
        let all = last.prompt.iter().chain(&last.completion).chain(last_word);
        all.skip(self.input.prompt.len()).cloned().collect()
    }

    /// The failure of a function of the rubric whose model has the wrong key: no other rollout could do better.
    pub fn refused_key(&self) -> Option<&Error> {
        self.scoring_errors.iter().find(|error| error.kind == ErrorKind::Unauthorized)
    }

    /// Whether a field that was added holds `true`.
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

/// Live things that belong to one rollout, found by their type.
#[derive(Default)]
pub struct Resources(HashMap<TypeId, Box<dyn Any + Send + Sync>>);

impl Resources {
    /// Keeps a thing in the place of one of the same type.
    pub fn insert<T: Any + Send + Sync>(&mut self, thing: T) {
        self.0.insert(TypeId::of::<T>(), Box::new(thing));
    }

    /// Finds a thing by its type.
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.0.get(&TypeId::of::<T>())?.downcast_ref()
    }

    /// Finds a thing by its type, to change it.
    pub fn get_mut<T: Any>(&mut self) -> Option<&mut T> {
        self.0.get_mut(&TypeId::of::<T>())?.downcast_mut()
    }

    /// Takes a thing out.
    pub fn remove<T: Any>(&mut self) -> Option<T> {
        self.0.remove(&TypeId::of::<T>())?.downcast().ok().map(|thing| *thing)
    }
}

impl fmt::Debug for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Resources({})", self.0.len())
    }
}
