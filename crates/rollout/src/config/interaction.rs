//! What an interaction file says: examples, how a model is led through one, and how that is scored.

use std::{path::PathBuf, time::Duration};

use indexmap::IndexMap;
use serde_json::{Map, Value};

use super::{Env, EnvValue, ModelConfig};
use rollout_core::message::Messages;
use rollout_core::quantity::{Bytes, Cpus};
use rollout_model::tool::container::ContainerTool;
use rollout_model::{Limits, rubric::Match};

/// A validated interaction. Its paths are those of files that were there.
#[derive(Debug, Clone, PartialEq)]
pub struct InteractionConfig {
    /// Where commands run.
    pub directory: PathBuf,
    /// The examples.
    pub dataset: ExamplesConfig,
    /// How many of the examples are attempted; all when absent.
    pub num_examples: Option<usize>,
    /// Whether the examples are shuffled before they are counted off.
    pub shuffle: bool,
    /// What the order depends on.
    pub shuffle_seed: u64,
    /// The first message of every example that has none of its own.
    pub system_prompt: Option<String>,
    /// Messages between the system prompt and the question of an example.
    pub few_shot: Messages,
    /// How the conversation goes.
    pub kind: InteractionKind,
    /// What the model may call, in order.
    pub tools: Vec<ToolConfig>,
    /// Where the tools of a container work; there if one of the tools needs it.
    pub environment: Option<ContainerConfig>,
    /// What scores a rollout; never empty, and no two of one name.
    pub rubric: Vec<RubricEntry>,
    /// How the answer is found in what the model said.
    pub parser: Option<ParserConfig>,
    /// When a rollout has to end.
    pub limits: Limits,
    /// Fields of the state that are saved.
    pub state_columns: Vec<String>,
    /// Whether each rollout is scored by itself.
    pub independent_scoring: bool,
    /// The least reward that counts as passed.
    pub pass_threshold: f64,
}

/// Where examples come from.
#[derive(Debug, Clone, PartialEq)]
pub enum ExamplesConfig {
    /// From a file of JSON lines, or of one JSON list.
    File {
        /// The file.
        path: PathBuf,
        /// The hash of its content, with `sha256:` before it.
        sha256: String,
    },
    /// From the interaction itself.
    Inline(Vec<Map<String, Value>>),
}

/// How a conversation goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InteractionKind {
    /// The model speaks once.
    SingleTurn,
    /// The model speaks until a limit is reached.
    MultiTurn,
    /// The model calls tools until it has no more to call.
    ToolUse,
}

/// What a model may call.
#[derive(Debug, Clone, PartialEq)]
pub enum ToolConfig {
    /// A command of this machine.
    Command(CommandToolConfig),
    /// The tools of an MCP server.
    Mcp(McpConfig),
    /// Tools that work in a container; never empty, and no tool twice.
    Container(Vec<ContainerTool>),
}

/// A command that gets the arguments of a call as JSON, and whose output is the result.
#[derive(Debug, Clone, PartialEq)]
pub struct CommandToolConfig {
    /// The model's name for it.
    pub name: String,
    /// What it does, for the model.
    pub description: String,
    /// The JSON Schema of its arguments.
    pub parameters: Map<String, Value>,
    /// The program and its arguments; never empty.
    pub command: Vec<String>,
    /// How long a call may take.
    pub timeout: Duration,
}

/// How an MCP server is reached.
#[derive(Debug, Clone, PartialEq)]
pub enum McpConfig {
    /// A process that is started.
    Command {
        /// The program and its arguments; never empty.
        command: Vec<String>,
        /// Variables of the process.
        env: Env,
    },
    /// A server that is there.
    Url {
        /// Its `http` or `https` URL.
        url: EnvValue,
        /// Headers of each request.
        headers: IndexMap<String, EnvValue>,
    },
}

/// The container that each rollout gets.
#[derive(Debug, Clone, PartialEq)]
pub struct ContainerConfig {
    /// What it starts from.
    pub image: ContainerImage,
    /// Its CPUs.
    pub cpus: Cpus,
    /// Its memory.
    pub memory: Bytes,
}

/// What a container starts from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContainerImage {
    /// An image that is there.
    Name(String),
    /// A directory with a Dockerfile.
    Build(PathBuf),
}

/// One function of a rubric.
#[derive(Debug, Clone, PartialEq)]
pub struct RubricEntry {
    /// The name of its metric.
    pub name: String,
    /// How much its score counts; finite.
    pub weight: f64,
    /// How it scores.
    pub score: ScoreConfig,
}

/// How a function of a rubric scores.
#[derive(Debug, Clone, PartialEq)]
pub enum ScoreConfig {
    /// By comparing the answer of the model with that of the example.
    Match {
        /// What counts as the same.
        how: Match,
        /// Finds the model's answer; the interaction's parser when absent.
        parser: Option<ParserConfig>,
    },
    /// By asking a model.
    Judge {
        /// The judge.
        model: Box<ModelConfig>,
        /// What it is asked; the usual question when absent.
        prompt: Option<String>,
        /// Finds the model's answer; the interaction's parser when absent.
        parser: Option<ParserConfig>,
    },
    /// By a command of this machine.
    Command {
        /// The program and its arguments; never empty.
        command: Vec<String>,
        /// Whether it scores all rollouts of an example together.
        group: bool,
        /// How long it may take.
        timeout: Duration,
    },
}

/// How the answer is found in what a model said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ParserConfig {
    /// It is all of the last message.
    Plain,
    /// It is what comes after the thoughts.
    Think,
    /// It is what comes after the thoughts, if there are any.
    MaybeThink,
    /// It is in the last `\boxed{}`.
    Boxed,
    /// It is in a tag.
    Xml {
        /// The tags that are expected, in order, each with the names that it may have; never empty.
        fields: Vec<Vec<String>>,
        /// The tag with the answer; one of the fields.
        answer_field: String,
    },
}
