//! Rubrics, as those who write environments use them.

mod command;
mod judge;
mod python;
mod scoring;

use std::sync::Arc;

use rollout::model::{
    Client, FinishReason, Message, Model, Response, RolloutInput, State, ToolCall, ToolDef, TrajectoryStep,
    client::ClientConfig,
};
use serde_json::{Map, json};

/// A model that is never asked.
fn model() -> Arc<Model> {
    model_at("http://127.0.0.1:9/v1", "attempting")
}

fn model_at(url: &str, name: &str) -> Arc<Model> {
    let client = Client::new(ClientConfig { max_retries: 0, ..ClientConfig::new(url) }).unwrap();
    Arc::new(Model { client, name: name.to_owned(), sampling: Map::new(), max_seq_len: None })
}

/// A rollout of one turn in which the model answered `said` to "What is 2+2?", which is "4".
pub(crate) fn said(said: &str) -> State {
    turns(&[], vec![Message::assistant(said)])
}

/// A rollout in which the model said these messages, a turn each, and has these tools.
fn turns(tools: &[&str], messages: Vec<Message>) -> State {
    let input = RolloutInput {
        prompt: vec![Arc::new(Message::system("Be brief.")), Arc::new(Message::user("What is 2+2?"))],
        example_id: 3,
        task: "sums".to_owned(),
        answer: Some("4".to_owned()),
        info: Some(Map::from_iter([("level".to_owned(), json!(1))])),
        extra: Map::from_iter([("source".to_owned(), json!("book"))]),
    };
    let tools = tools.iter().map(|name| ToolDef {
        name: (*name).to_owned(),
        description: String::new(),
        parameters: json!({}),
        strict: None,
    });
    let mut state = State::new(input, model(), tools.collect());
    for message in messages {
        let response = Response {
            id: "r".to_owned(),
            created: 0,
            model: "attempting".to_owned(),
            usage: None,
            message,
            finish_reason: Some(FinishReason::Stop),
            tokens: None,
            extra: Map::new(),
        };
        let mut prompt = state.input.prompt.clone();
        prompt.extend(state.conversation_after_prompt());
        let step = TrajectoryStep::new(&state, prompt, response);
        state.trajectory.push(step);
    }
    state.completion = Some(state.conversation_after_prompt());
    state.is_completed = true;
    state.timing.generation_ms = 5.0;
    state
}

fn calls(names: &[&str]) -> Message {
    let mut message = Message::assistant("");
    message.tool_calls = names
        .iter()
        .map(|name| ToolCall {
            id: "1".to_owned(),
            name: (*name).to_owned(),
            arguments: "{}".to_owned(),
            extra: Default::default(),
        })
        .collect();
    message
}

/// The metrics of a state without the counts of its turns.
fn metrics(state: &State) -> Vec<(&str, f64)> {
    let metrics = state.metrics.as_ref().unwrap().iter();
    metrics.map(|(name, score)| (name.as_str(), *score)).filter(|(name, _)| *name != "num_turns").collect()
}
