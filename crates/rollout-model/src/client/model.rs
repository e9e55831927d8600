//! A model behind a client.

use std::{sync::Arc, time::Duration};

use rollout_core::{message::Message, response::Response};
use serde_json::{Map, Value};

use super::Client;
use crate::error::{Error, ErrorKind};

const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The sampling arguments: `temperature`, `max_tokens`, and any others that the server supports.
pub type SamplingArgs = Map<String, Value>;

/// A model: its client, its name and its sampling arguments.
#[derive(Debug, Clone)]
pub struct Model {
    /// The client of its server.
    pub client: Client,
    /// Its name on the server.
    pub name: String,
    /// Its sampling arguments.
    pub sampling: SamplingArgs,
    /// The longest sequence for training, in tokens. Longer ones are cut.
    pub max_seq_len: Option<usize>,
}

impl Model {
    /// A model with the sampling defaults of its server.
    pub fn new(client: Client, name: impl Into<String>) -> Self {
        Self { client, name: name.into(), sampling: SamplingArgs::new(), max_seq_len: None }
    }

    /// The response of the model to a prompt, without tools. A malformed response is retried this often.
    pub(crate) async fn ask(&self, prompt: &str, session: &str, max_retries: u32) -> Result<Response, Error> {
        let messages = [Arc::new(Message::user(prompt))];
        let mut tries = 0;
        loop {
            match self.client.respond(self, &messages, &[], session).await {
                Ok(response) => return Ok(response),
                Err(error) if error.is(ErrorKind::InvalidModelResponse) && tries < max_retries => {
                    tracing::debug!(%error, tries, "retrying the model request");
                    let pause = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(tries));
                    tokio::time::sleep(pause.min(LONGEST_PAUSE)).await;
                    tries += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }
}
