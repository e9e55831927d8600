//! The line of one trial.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::{SCHEMA, evaluated::text};
use crate::{
    export::chat::arguments,
    journal::PlannedTask,
    saved::{Conversation, SavedTrial},
    tasks::TaskRecord,
};
use rollout_core::message::{Message, Role, ToolCall};

/// A trial and its ids.
pub(super) struct Sample<'a> {
    pub(super) evaluation_id: &'a str,
    pub(super) result_id: &'a str,
    pub(super) model_id: &'a str,
    pub(super) trial: &'a SavedTrial,
    pub(super) task: &'a PlannedTask,
    pub(super) about: Option<&'a TaskRecord>,
    pub(super) conversation: Option<&'a Conversation>,
    pub(super) score: f64,
}

/// The type of interaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    SingleTurn,
    MultiTurn,
    Agentic,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Self::SingleTurn => "single_turn",
            Self::MultiTurn => "multi_turn",
            Self::Agentic => "agentic",
        }
    }
}

impl Sample<'_> {
    pub(super) fn line(&self) -> Value {
        let kind = self.kind();
        let (raw, reference) = (self.question(), self.reference());
        let hash = Sha256::new().chain_update(&raw).chain_update(reference.concat()).finalize();
        let mut line = json!({
            "schema_version": SCHEMA,
            "evaluation_id": self.evaluation_id,
            "model_id": self.model_id,
            "evaluation_name": self.task.dataset,
            "evaluation_result_id": self.result_id,
            "sample_id": self.task.name,
            "sample_hash": rollout_core::text::hex(&hash),
            "interaction_type": kind.as_str(),
            "input": {"raw": raw, "reference": reference},
        });
        match kind {
            Kind::SingleTurn => line["output"] = self.output(),
            Kind::MultiTurn | Kind::Agentic => line["messages"] = self.messages(&raw),
        }
        line["answer_attribution"] = self.attribution(kind);
        line["evaluation"] = json!({
            "score": self.score,
            "is_correct": self.trial.result.is_solved().unwrap_or(false),
            "num_turns": self.conversation.map(Conversation::responses).filter(|turns| *turns > 0),
            "tool_calls_count": self.conversation.map(|_| self.calls().count()),
        });
        for (key, value) in [
            ("token_usage", self.usage()),
            ("performance", self.performance()),
            ("error", self.error().map(Value::from)),
            ("metadata", Some(self.metadata())),
        ] {
            if let Some(value) = value {
                line[key] = value;
            }
        }
        line
    }

    fn completion(&self) -> &[Arc<Message>] {
        self.conversation.map(|conversation| conversation.completion.as_slice()).unwrap_or_default()
    }

    fn responses(&self) -> impl Iterator<Item = &Arc<Message>> {
        self.completion().iter().filter(|message| message.role == Role::Assistant)
    }

    fn calls(&self) -> impl Iterator<Item = &ToolCall> {
        self.responses().flat_map(|message| &message.tool_calls)
    }

    fn kind(&self) -> Kind {
        let has_tools = self.conversation.is_some_and(|conversation| !conversation.tools.is_empty());
        if self.task.example_id.is_none() || has_tools || self.calls().next().is_some() {
            Kind::Agentic
        } else if self.responses().count() > 1 {
            Kind::MultiTurn
        } else {
            Kind::SingleTurn
        }
    }

    /// Returns the question: the instruction of a task, or the last message before the first response.
    fn question(&self) -> String {
        if let Some(about) = self.about.filter(|about| !about.instruction.is_empty()) {
            return about.instruction.clone();
        }
        let prompt = self.conversation.map(|conversation| conversation.prompt.as_slice()).unwrap_or_default();
        let asked = prompt.iter().rfind(|message| message.role == Role::User).or(prompt.last());
        asked.map(|message| message.text().into_owned()).unwrap_or_default()
    }

    fn reference(&self) -> Vec<&str> {
        let row = self.conversation.and_then(|conversation| conversation.row.as_deref());
        row.and_then(|row| row.answer.as_deref()).into_iter().collect()
    }

    /// Returns the answer that a benchmark extracted.
    fn predicted(&self) -> Option<&str> {
        let row = self.conversation?.row.as_deref()?;
        row.columns.get("predicted_answer")?.as_str().filter(|answer| !answer.is_empty())
    }

    fn output(&self) -> Value {
        let mut said: Vec<_> = self.responses().map(|message| message.text()).collect();
        if said.is_empty() {
            // Benchmarks can record answers without conversations.
            said.extend(self.predicted().map(Into::into));
        }
        let thought: Vec<&str> =
            self.responses().filter_map(|message| message.reasoning_content.as_deref()).collect();
        let mut output = json!({"raw": said});
        if !thought.is_empty() {
            output["reasoning_trace"] = json!(thought);
        }
        output
    }

    /// Returns all messages. For an agent that is not a model, only the instruction is recorded.
    fn messages(&self, instruction: &str) -> Value {
        let Some(conversation) = self.conversation else {
            return json!([{"turn_idx": 0, "role": "user", "content": instruction}]);
        };
        conversation.messages().enumerate().map(|(place, said)| message(place, said)).collect()
    }

    /// Returns where the scored answer was found. In a container, the result of the agent's actions is scored, not a
    /// message.
    fn attribution(&self, kind: Kind) -> Value {
        if self.task.example_id.is_none() {
            return json!([]);
        }
        let said = self.conversation.map(|conversation| conversation.messages().enumerate());
        let last = said.and_then(|said| said.filter(|(_, message)| message.role == Role::Assistant).last());
        let value = self.predicted().map(Into::into).or_else(|| last.map(|(_, message)| message.text()));
        let Some(value) = value else { return json!([]) };
        let (turn, source) = match kind {
            Kind::SingleTurn => (0, "output.raw"),
            Kind::MultiTurn | Kind::Agentic => {
                (last.map_or(0, |(turn, _)| turn), "messages[turn_idx].content")
            }
        };
        let row = self.conversation.and_then(|conversation| conversation.row.as_deref());
        let method = row.and_then(|row| row.metrics.keys().next()).map_or("custom", String::as_str);
        json!([{
            "turn_idx": turn, "source": source, "extracted_value": value, "extraction_method": method,
            "is_terminal": true,
        }])
    }

    fn usage(&self) -> Option<Value> {
        let row = self.conversation.and_then(|conversation| conversation.row.as_deref());
        let whole = |tokens: f64| tokens.max(0.0).round() as u64;
        let (input, output, cached, reasoning) = match row.and_then(|row| row.token_usage) {
            Some(usage) => (
                whole(usage.input_tokens),
                whole(usage.output_tokens),
                Some(whole(usage.cached_tokens)),
                Some(whole(usage.reasoning_tokens)),
            ),
            None => {
                let usage = self.trial.result.usage.as_ref()?;
                (usage.input_tokens?, usage.output_tokens?, usage.cached_tokens, None)
            }
        };
        Some(json!({
            "input_tokens": input, "output_tokens": output, "total_tokens": input.saturating_add(output),
            "input_tokens_cache_read": cached, "reasoning_tokens": reasoning,
        }))
    }

    fn performance(&self) -> Option<Value> {
        let row = self.conversation.and_then(|conversation| conversation.row.as_deref());
        let durations = &self.trial.result.durations;
        let (latency, generation) = match row {
            Some(row) => (row.timing.total_ms, Some(row.timing.generation_ms)),
            None => {
                let turns = self.conversation.map(|conversation| conversation.turns.iter());
                let generation = turns.map(|turns| turns.map(|turn| turn.model_sec * 1e3).sum());
                (durations.agent_execution_sec? * 1e3, generation)
            }
        };
        let generation = generation.map(|time: f64| time.max(0.0));
        Some(json!({
            "latency_ms": latency.max(0.0), "generation_time_ms": generation,
            "additional_details": {"trial_sec": durations.total_sec.to_string()},
        }))
    }

    fn error(&self) -> Option<String> {
        if let Some(error) = &self.trial.result.error {
            return Some(format!("{}: {}", error.kind, error.message));
        }
        let error = self.conversation?.error.as_ref()?;
        let message = if error.message.is_empty() { &error.error_chain_repr } else { &error.message };
        Some(format!("{}: {message}", error.error))
    }

    fn metadata(&self) -> Value {
        let Self { trial, task, about, conversation, .. } = self;
        let mut metadata = Map::new();
        let mut add = |key: &str, value: Option<String>| {
            if let Some(value) = value.filter(|value| !value.is_empty()) {
                metadata.insert(key.to_owned(), value.into());
            }
        };
        add("trial", Some(trial.id.to_string()));
        add("attempt", Some(trial.id.attempt.to_string()));
        add("category", about.and_then(|about| about.category.clone()));
        add("difficulty", about.and_then(|about| about.difficulty.clone()));
        add("tags", about.map(|about| about.tags.join(", ")));
        add("task_source", about.and_then(|about| about.source.clone()));
        let written = about.map(|about| &about.metadata).filter(|written| !written.is_empty());
        add("task_metadata", written.map(|written| text(&Value::Object(written.clone()))));
        add("task_content_hash", task.content_hash.clone());
        add("git_commit_id", task.git_commit_id.clone());
        add("stop_condition", conversation.and_then(|conversation| conversation.stop_condition.clone()));
        add("is_truncated", conversation.filter(|said| said.is_truncated).map(|_| "true".to_owned()));
        add("model_cost_usd", trial.result.model_cost.map(|cost| cost.to_string()));
        let calls = trial.result.model_calls.as_ref().and_then(|calls| serde_json::to_string(calls).ok());
        add("model_calls", calls);
        let reported =
            trial.result.reported_usage.as_ref().and_then(|usage| serde_json::to_string(usage).ok());
        add("reported_usage", reported);
        add("pass_threshold", Some(trial.result.pass_threshold.to_string()));
        Value::Object(metadata)
    }
}

fn message(place: usize, message: &Message) -> Value {
    let mut said = json!({
        "turn_idx": place,
        "role": message.role.as_str(),
        "content": message.content.as_ref().map(|content| content.text()),
    });
    if let Some(thought) = &message.reasoning_content {
        said["reasoning_trace"] = json!(thought);
    }
    if !message.tool_calls.is_empty() {
        said["tool_calls"] = message.tool_calls.iter().map(call).collect();
    }
    if let Some(call) = &message.tool_call_id {
        said["tool_call_id"] = json!([call]);
    }
    said
}

/// Converts a tool call. Arguments must be text, so other values become JSON text.
fn call(call: &ToolCall) -> Value {
    let arguments = match arguments(call) {
        Some(arguments) => arguments.into_iter().map(|(key, value)| (key, text(&value).into())).collect(),
        None => Map::from_iter([("arguments".to_owned(), call.arguments.as_str().into())]),
    };
    json!({"id": call.id, "name": call.name, "arguments": arguments})
}

#[cfg(test)]
mod tests {
    use proptest::prop_assert;

    use super::*;

    #[test]
    fn arguments_are_texts_whatever_the_model_wrote() {
        let arguments = |text: &str| call(&ToolCall::new("1", "tool", text))["arguments"].clone();
        assert_eq!(arguments(r#"{"a": "b", "c": [1, null]}"#), json!({"a": "b", "c": "[1,null]"}));
        assert_eq!(arguments("not json"), json!({"arguments": "not json"}));
        assert_eq!(arguments(""), json!({}));
    }

    proptest::proptest! {
        #[test]
        fn arguments_are_always_an_object_of_texts(text: String) {
            let call = call(&ToolCall::new("1", "tool", text));
            prop_assert!(call["arguments"].as_object().unwrap().values().all(Value::is_string));
        }
    }
}
