//! What a job file says about a model: how it is reached, how it is sampled, what it costs.

use std::time::Duration;

use indexmap::IndexMap;

use super::EnvValue;
use rollout_model::{
    Limits, SamplingArgs,
    client::{Dialect, Price, RateLimit},
};

/// An agent that is a model. On tasks with containers it works through tools; of an interaction it is the other side.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelAgentConfig {
    /// The model.
    pub model: ModelConfig,
    /// Takes the place of the instructions that the model gets on tasks with containers.
    pub system_prompt: Option<String>,
    /// When an attempt at a task with a container has to end.
    pub limits: Limits,
}

/// A model and how it is reached.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// The server's name for it.
    pub name: String,
    /// Where servers answer that are all the same; never empty. Each is an `http` or `https` URL.
    pub base_urls: Vec<String>,
    /// What the server knows its clients by.
    pub api_key: Option<EnvValue>,
    /// What the server understands.
    pub dialect: Dialect,
    /// How the model is sampled.
    pub sampling: SamplingArgs,
    /// Goes into the body of each request as it is.
    pub extra_body: serde_json::Map<String, serde_json::Value>,
    /// Headers of each request, in the order they were written.
    pub headers: IndexMap<String, EnvValue>,
    /// Whether responses come piece by piece.
    pub stream: bool,
    /// Whether the server is asked for the ids and the probabilities of tokens.
    pub token_ids: bool,
    /// The longest sequence that training takes, in tokens.
    pub max_seq_len: Option<usize>,
    /// How long a response may take.
    pub timeout: Duration,
    /// How long a connection may take.
    pub connect_timeout: Duration,
    /// How often a request is repeated that a server failed to answer.
    pub max_retries: u32,
    /// How much the server takes in a minute.
    pub rate_limit: RateLimit,
    /// What tokens cost.
    pub price: Option<Price>,
}
