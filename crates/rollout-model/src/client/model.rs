//! A model behind a client.

use serde_json::{Map, Value};

use super::Client;

/// How a model is to be sampled: `temperature`, `max_tokens`, and whatever else its server takes.
pub type SamplingArgs = Map<String, Value>;

/// Who attempts: a model behind a client, with the way it is sampled.
#[derive(Debug, Clone)]
pub struct Model {
    /// How the model is reached.
    pub client: Client,
    /// Its name for the server.
    pub name: String,
    /// How it is sampled.
    pub sampling: SamplingArgs,
    /// The longest sequence that training takes, in tokens. Longer ones are cut.
    pub max_seq_len: Option<usize>,
}
