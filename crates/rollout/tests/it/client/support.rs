//! A model behind a scripted server.

use std::sync::Arc;

use rollout::model::{
    Error, Message, Model, Response, ToolDef,
    client::{Client, ClientConfig, ClientDialect},
};
use rollout_testkit::{ModelRequest, ModelServer};
use serde_json::{Value, json};

/// A model with these settings of its client.
pub(crate) fn model_with(server: &ModelServer, change: impl FnOnce(&mut ClientConfig)) -> Model {
    let mut config = ClientConfig { max_retries: 1, ..ClientConfig::new(server.url()) };
    change(&mut config);
    let client = Client::new(config).expect("the settings are sound");
    Model { client, name: "m".to_owned(), sampling: sampling(json!({})), max_seq_len: None }
}

/// A model as it comes.
pub(crate) fn model(server: &ModelServer) -> Model {
    model_with(server, |_| {})
}

/// A model that is sampled so.
pub(crate) fn sampled(server: &ModelServer, args: Value) -> Model {
    Model { sampling: sampling(args), ..model(server) }
}

pub(crate) fn sampling(args: Value) -> serde_json::Map<String, Value> {
    args.as_object().expect("sampling arguments are an object").clone()
}

/// Asks one question.
pub(crate) async fn ask(model: &Model) -> Result<Response, Error> {
    converse(model, &[Message::user("hi")]).await
}

/// Goes on with a conversation.
pub(crate) async fn converse(model: &Model, messages: &[Message]) -> Result<Response, Error> {
    converse_with(model, messages, &[]).await
}

/// Goes on with a conversation in which there are tools.
pub(crate) async fn converse_with(
    model: &Model,
    messages: &[Message],
    tools: &[ToolDef],
) -> Result<Response, Error> {
    let messages: Vec<_> = messages.iter().cloned().map(Arc::new).collect();
    model.client.respond(model, &messages, tools, "s1").await
}

/// A tool that adds numbers.
pub(crate) fn add() -> ToolDef {
    ToolDef {
        name: "add".to_owned(),
        description: "Adds two numbers.".to_owned(),
        parameters: json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}),
        strict: None,
    }
}

/// The last request that came.
pub(crate) fn last(server: &ModelServer) -> Arc<ModelRequest> {
    server.requests().last().expect("the server was asked").clone()
}

/// Settings of a client that speaks Anthropic's dialect.
pub(crate) fn messages_dialect(config: &mut ClientConfig) {
    config.dialect = ClientDialect::Messages;
}
