//! The turns of a rollout: their order, their end, and what is left of them.

mod ends;
mod extending;
mod hooks;
mod interactions;
mod limits;
mod state;
mod stops;
mod token_prompts;
mod tool_use;

use std::sync::{Arc, Mutex};

use rollout::model::{
    Client, Error, Halt, Interaction, Limits, Message, MessageList, Model, RolloutInput, SamplingArgs, State,
    client::ClientConfig, rollout,
};
use rollout_testkit::ModelServer;
use tokio_util::sync::CancellationToken;

/// A model behind a server, which is asked once.
fn model(server: &ModelServer) -> Arc<Model> {
    let config = ClientConfig { max_retries: 0, ..ClientConfig::new(server.url()) };
    Arc::new(Model {
        client: Client::new(config).unwrap(),
        name: "test".to_owned(),
        sampling: SamplingArgs::new(),
        max_seq_len: None,
    })
}

fn input(question: &str) -> RolloutInput {
    RolloutInput {
        prompt: Message::user(question).into(),
        task: "test".to_owned(),
        answer: Some("4".to_owned()),
        ..RolloutInput::default()
    }
}

async fn try_run(
    interaction: &dyn Interaction,
    limits: &Limits,
    server: &ModelServer,
) -> Result<State, Halt> {
    rollout(interaction, limits, input("What is 2+2?"), model(server), &CancellationToken::new()).await
}

/// Runs a rollout that has no limits but those of its interaction.
async fn run(interaction: &dyn Interaction, server: &ModelServer) -> State {
    try_run(interaction, &Limits::default(), server).await.unwrap()
}

/// Who said what, as `user: hello`.
fn said(messages: &MessageList) -> Vec<String> {
    messages.iter().map(|message| format!("{}: {}", message.role.as_str(), message.text())).collect()
}

fn stop_condition(state: &State) -> &str {
    state.stop_condition.as_deref().unwrap_or_default()
}

fn chain(error: &Option<Error>) -> String {
    error.as_ref().map(Error::chain).unwrap_or_default()
}

/// What happened, in order.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<String>>>);

impl Notes {
    fn add(&self, note: impl Into<String>) {
        self.0.lock().unwrap().push(note.into());
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}
