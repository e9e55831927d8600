//! An interaction that answers by itself, so that no server is needed.

use std::{
    collections::HashMap,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use async_trait::async_trait;
use rollout::model::{
    Cleanup, Client, Error, ErrorKind, Interaction, Message, MessageList, Model, Response, RolloutInput,
    Rollouts, Rubric, State, TokenUsage, client::ClientConfig,
};
use serde_json::Value;

/// What the model answers to the n-th call of an example, from 0.
pub(crate) type Script = dyn Fn(&State, usize) -> Result<String, Error> + Send + Sync;

/// Answers in the place of the model.
pub(crate) struct Scripted {
    script: Box<Script>,
    calls: Mutex<HashMap<u64, usize>>,
    pub(crate) total: AtomicUsize,
    pub(crate) running: AtomicUsize,
    pub(crate) most_running: AtomicUsize,
}

impl Scripted {
    pub(crate) fn new(
        script: impl Fn(&State, usize) -> Result<String, Error> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            script: Box::new(script),
            calls: Mutex::default(),
            total: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            most_running: AtomicUsize::new(0),
        })
    }

    /// How often the model was asked.
    pub(crate) fn calls(&self) -> usize {
        self.total.load(SeqCst)
    }
}

/// A shared [`Scripted`], because the test wants to look at it afterwards.
pub(crate) struct Shared(pub(crate) Arc<Scripted>);

#[async_trait]
impl Interaction for Shared {
    fn max_turns(&self) -> Option<u32> {
        Some(1)
    }

    async fn get_model_response(&self, state: &mut State, _prompt: &MessageList) -> Result<Response, Error> {
        let scripted = &self.0;
        let running = scripted.running.fetch_add(1, SeqCst) + 1;
        scripted.most_running.fetch_max(running, SeqCst);
        // Others get their turn meanwhile.
        tokio::task::yield_now().await;
        let call = {
            let mut calls = scripted.calls.lock().unwrap();
            let count = calls.entry(state.input.example_id).or_default();
            *count += 1;
            *count - 1
        };
        scripted.total.fetch_add(1, SeqCst);
        let answer = (scripted.script)(state, call);
        scripted.running.fetch_sub(1, SeqCst);
        answer.map(|answer| response(&answer))
    }
}

/// A [`Scripted`] whose cleanup fails.
pub(crate) struct Untidy(pub(crate) Shared);

/// The note about this cleanup.
pub(crate) const UNTIDY: &str = "the cleanup `sweep` failed: lost the broom";

#[async_trait]
impl Interaction for Untidy {
    fn base(&self) -> Option<&dyn Interaction> {
        Some(&self.0)
    }

    fn cleanups(&self) -> Vec<Cleanup> {
        vec![Cleanup::new("sweep", async |_| Err(Error::new(ErrorKind::Sandbox, "lost the broom")))]
    }
}

pub(crate) fn response(answer: &str) -> Response {
    Response {
        id: "r".to_owned(),
        created: 0,
        model: "scripted".to_owned(),
        usage: Some(TokenUsage {
            prompt_tokens: 10,
            completion_tokens: answer.len() as u64,
            cost: Some(0.25),
            ..TokenUsage::default()
        }),
        message: Message::assistant(answer),
        finish_reason: None,
        tokens: None,
        extra: serde_json::Map::new(),
    }
}

/// A model that is never asked.
pub(crate) fn model() -> Model {
    named("org/scripted-1")
}

pub(crate) fn named(name: &str) -> Model {
    Model {
        client: Client::new(ClientConfig::new("http://127.0.0.1:9/v1")).unwrap(),
        name: name.to_owned(),
        sampling: serde_json::Map::new(),
        max_seq_len: None,
    }
}

/// Examples whose right answer is their number.
pub(crate) fn examples(count: u64) -> Vec<RolloutInput> {
    (0..count)
        .map(|example_id| RolloutInput {
            prompt: Message::user(format!("say {example_id}")).into(),
            example_id,
            task: "say".to_owned(),
            answer: Some(example_id.to_string()),
            ..RolloutInput::default()
        })
        .collect()
}

/// 1 for the right answer.
pub(crate) fn rubric() -> Rubric {
    Rubric::new()
        .reward("right", 1.0, |scene| scene.parsed() == scene.answer)
        .metric("length", |scene| scene.parsed().len() as f64)
}

/// Rollouts over examples, with an interaction that the test can look at.
pub(crate) fn rollouts(scripted: &Arc<Scripted>, count: u64) -> Rollouts {
    Rollouts::new(Shared(Arc::clone(scripted)), rubric()).dataset(examples(count)).env_id("say")
}

/// Right in all calls of an example but the first.
pub(crate) fn right_but_first() -> Arc<Scripted> {
    Scripted::new(|state, call| {
        Ok(if call == 0 { "wrong".to_owned() } else { state.input.answer.clone().unwrap_or_default() })
    })
}

/// Always right.
pub(crate) fn right() -> Arc<Scripted> {
    Scripted::new(|state, _| Ok(state.input.answer.clone().unwrap_or_default()))
}

/// The lines of a file as JSON.
pub(crate) fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A JSON file.
pub(crate) fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// The last entry of each trial in the journal of a run, in the order of the plan.
pub(crate) fn journaled(dir: &Path) -> Vec<Value> {
    let mut trials = std::collections::BTreeMap::new();
    for mut entry in lines(&dir.join("journal.jsonl")) {
        if entry["entry"] == "trial" {
            trials.insert(entry["index"].as_u64(), entry["result"].take());
        }
    }
    trials.into_values().collect()
}
