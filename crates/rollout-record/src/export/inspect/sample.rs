//! One trial as a sample of an Inspect log.

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{
    events::{Transcript, error, last_output, no_output, time},
    messages::messages,
};
use crate::{
    export::ExportError,
    notes::TrialNotes,
    saved::{Conversation, SavedJob, SavedTrial},
    tasks::TaskRecord,
};
use rollout_core::{
    result::{AgentUsage, Standing},
    row::RolloutOutput,
    text::cut,
};

/// The name of the score with the trial's reward.
pub(super) const REWARD: &str = "reward";

/// The maximum length of a text in a summary.
const SUMMARY_CHARS: usize = 1_000;

/// A trial with its conversation.
pub(super) struct Trial<'a> {
    pub(super) saved: &'a SavedTrial,
    conversation: Option<Conversation>,
    about: Option<TaskRecord>,
    commit: Option<&'a str>,
    content_hash: Option<&'a str>,
    model: &'a str,
    /// The unique id of the sample over all logs.
    uuid: String,
    notes: Option<&'a TrialNotes>,
}

/// A sample in its own file.
#[derive(Serialize)]
struct Sample<'a> {
    #[serde(flatten)]
    common: Common<'a>,
    input: Value,
    metadata: Value,
    messages: &'a [Value],
    output: Value,
    store: Map<String, Value>,
    events: Vec<Value>,
    error: Option<Value>,
    attachments: Map<String, Value>,
    events_data: Pool<'a>,
}

/// The messages that the transcript refers to.
#[derive(Serialize)]
struct Pool<'a> {
    messages: &'a [Value],
    calls: [(); 0],
}

/// A sample in lists of samples.
#[derive(Serialize)]
struct Summary<'a> {
    #[serde(flatten)]
    common: Common<'a>,
    input: String,
    metadata: Value,
    error: Option<String>,
    completed: bool,
    retries: u32,
    message_count: usize,
}

/// Fields of both forms.
#[derive(Serialize)]
struct Common<'a> {
    id: &'a str,
    epoch: u32,
    target: String,
    description: Option<&'a str>,
    scores: Map<String, Value>,
    model_usage: Map<String, Value>,
    role_usage: Map<String, Value>,
    started_at: String,
    completed_at: String,
    total_time: f64,
    working_time: f64,
    uuid: &'a str,
    turn_count: usize,
}

impl<'a> Trial<'a> {
    /// Reads the data of a trial.
    pub(super) fn read(
        job: &'a SavedJob,
        saved: &'a SavedTrial,
        model: &'a str,
        uuid: String,
        notes: Option<&'a TrialNotes>,
    ) -> Result<Self, ExportError> {
        let task = job.task(saved);
        Ok(Self {
            saved,
            conversation: job.conversation(saved)?,
            about: job.about(saved.task)?,
            commit: task.git_commit_id.as_deref(),
            content_hash: task.content_hash.as_deref(),
            model,
            uuid,
            notes,
        })
    }

    /// Returns the scores of the trial by name: its reward and its other rewards. Inspect does not support a score
    /// together with an error, so a failed trial has no scores.
    pub(super) fn scores(&self) -> impl Iterator<Item = (&str, f64)> {
        let result = &self.saved.result;
        let is_failed = self.is_failed();
        let beside = result.rewards.iter().map(|(name, value)| (name.as_str(), *value));
        let reward = result.reward.map(|reward| (REWARD, reward));
        reward
            .into_iter()
            .chain(beside.filter(|(name, _)| *name != REWARD))
            .filter(move |(_, value)| value.is_finite() && !is_failed)
    }

    /// Whether an error prevented a reward.
    pub(super) fn is_failed(&self) -> bool {
        self.saved.result.standing() == Standing::Failed
    }

    /// Returns the token usage in Inspect's form, where input tokens exclude cached tokens.
    pub(super) fn usage(&self) -> Option<ModelUsage> {
        let AgentUsage { input_tokens, output_tokens, cached_tokens, cost_usd } = self.saved.result.usage?;
        let (input, output) = (input_tokens.unwrap_or_default(), output_tokens.unwrap_or_default());
        let cached = cached_tokens.unwrap_or_default().min(input);
        Some(ModelUsage {
            input_tokens: input - cached,
            output_tokens: output,
            total_tokens: input.saturating_add(output),
            input_tokens_cache_read: cached,
            total_cost: cost_usd,
        })
    }

    /// Writes the sample.
    pub(super) fn write(&self, into: impl std::io::Write) -> serde_json::Result<()> {
        let said = self.conversation.as_ref();
        let messages = said.map(|said| messages(said, &self.uuid, self.model)).unwrap_or_default();
        let sample = Sample {
            common: self.common(),
            input: self.input(&messages),
            metadata: self.metadata(),
            output: said.map_or_else(
                || no_output(self.model),
                |conversation| last_output(conversation, &messages, self.model),
            ),
            store: Map::new(),
            events: self.events(&messages),
            error: self.error().filter(|_| self.is_failed()),
            attachments: Map::new(),
            events_data: Pool { messages: &messages, calls: [] },
            messages: &messages,
        };
        serde_json::to_writer(into, &sample)
    }

    /// Writes the summary of the sample.
    pub(super) fn write_summary(&self, into: impl std::io::Write) -> serde_json::Result<()> {
        let result = &self.saved.result;
        let error = result.error.as_ref().filter(|_| self.is_failed());
        let summary = Summary {
            common: self.common(),
            input: cut(&self.question(), SUMMARY_CHARS),
            metadata: json!({"tags": self.about.as_ref().map(|about| &about.tags)}),
            error: error.map(|error| cut(&format!("{}: {}", error.kind, error.message), SUMMARY_CHARS)),
            completed: true,
            retries: result.tries.saturating_sub(1),
            message_count: self.conversation.as_ref().map_or(0, |said| said.messages().count()),
        };
        serde_json::to_writer(into, &summary)
    }

    fn common(&self) -> Common<'_> {
        let result = &self.saved.result;
        let scores = self.scores().map(|(name, value)| (name.to_owned(), self.score(value)));
        let usage = self.usage().map(|usage| (self.model.to_owned(), json!(usage)));
        Common {
            id: self.saved.id.task.as_str(),
            epoch: self.saved.id.attempt,
            target: self.row().and_then(|row| row.answer.clone()).unwrap_or_default(),
            description: self.about.as_ref().and_then(|about| about.description.as_deref()),
            scores: scores.collect(),
            model_usage: usage.into_iter().collect(),
            role_usage: Map::new(),
            started_at: time(result.timestamps.started_at),
            completed_at: time(result.timestamps.ended_at),
            total_time: result.durations.total_sec,
            working_time: result.durations.agent_execution_sec.unwrap_or(result.durations.total_sec),
            uuid: &self.uuid,
            turn_count: self.conversation.as_ref().map_or(0, Conversation::responses),
        }
    }

    fn row(&self) -> Option<&RolloutOutput> {
        self.conversation.as_ref()?.row.as_deref()
    }

    fn score(&self, value: f64) -> Value {
        let answer = self.row().and_then(|row| row.columns.get("predicted_answer")?.as_str());
        json!({"value": value, "answer": answer})
    }

    /// Returns the question as text.
    fn question(&self) -> String {
        let asked = self.conversation.as_ref().and_then(|said| said.prompt.last());
        let about = || self.about.as_ref().map(|about| about.instruction.clone());
        let text = asked.map(|message| message.text().into_owned()).filter(|text| !text.is_empty());
        text.or_else(about).unwrap_or_else(|| self.saved.id.task.to_string())
    }

    /// Returns the input: as text if possible, otherwise as the messages before the first response.
    fn input(&self, messages: &[Value]) -> Value {
        let prompt = self.conversation.as_ref().map_or(0, |said| said.prompt.len());
        match &messages[..prompt] {
            [only] if only["role"] == "user" && only["content"].is_string() => only["content"].clone(),
            [] => self.question().into(),
            several => several.into(),
        }
    }

    fn metadata(&self) -> Value {
        let result = &self.saved.result;
        let said = self.conversation.as_ref();
        let (row, about) = (self.row(), self.about.as_ref());
        let all = json!({
            "category": about.and_then(|about| about.category.as_deref()),
            "difficulty": about.and_then(|about| about.difficulty.as_deref()),
            "tags": about.map(|about| &about.tags),
            "task_source": about.and_then(|about| about.source.as_deref()),
            "task_metadata": about.map(|about| &about.metadata).filter(|metadata| !metadata.is_empty()),
            "task_version_hash": about.and_then(|about| about.version_hash.as_deref()),
            "task_content_hash": self.content_hash,
            "task_git_commit_id": self.commit,
            "question_id": row.and_then(|row| row.columns.get("task_id")),
            "info": row.and_then(|row| row.info.as_ref()),
            "stop_condition": said.and_then(|said| said.stop_condition.as_deref()),
            "is_truncated": said.map(|said| said.is_truncated),
            "error": result.error,
            "model_error": said.and_then(|said| said.error.as_ref()),
            "environment": result.environment,
            "durations": result.durations,
            "timestamps": result.timestamps,
            "tries": result.tries,
            "cost": result.cost,
            "model_calls": result.model_calls,
            "reported_usage": result.reported_usage,
            "notes": result.notes,
            "note_tags": self.notes.map(|notes| &notes.tags),
            "note_comments": self.notes.map(|notes| &notes.comments),
        });
        match all {
            Value::Object(all) => all.into_iter().filter(|(_, value)| !value.is_null()).collect(),
            other => other,
        }
    }

    /// Returns the error, with its causes if known.
    fn error(&self) -> Option<Value> {
        let of_model = self.conversation.as_ref().and_then(|said| said.error.as_ref());
        let chain = of_model.map(|error| error.error_chain_repr.as_str());
        match &self.saved.result.error {
            Some(failed) => {
                let message = format!("{}: {}", failed.kind, failed.message);
                Some(error(&message, chain.unwrap_or(&message)))
            }
            None => of_model.map(|of_model| {
                error(&format!("{}: {}", of_model.error, of_model.message), &of_model.error_chain_repr)
            }),
        }
    }

    fn events(&self, messages: &[Value]) -> Vec<Value> {
        let times = &self.saved.result.timestamps;
        let common = self.common();
        let mut transcript = Transcript::new(&self.uuid, self.saved);
        let asked = json!({"id": common.id, "input": self.question(), "target": common.target});
        transcript.add("sample_init", json!({"sample": asked, "state": {}}), None);
        transcript.at(times.agent_execution_started_at);
        if let Some(said) = &self.conversation {
            transcript.at(said.started_at);
            transcript.conversation(said, messages, self.model);
        }
        if let Some(error) = self.error() {
            transcript.add("error", json!({"error": error}), None);
        }
        transcript.at(times.verifier_ended_at.or(Some(times.ended_at)));
        for (name, value) in self.scores() {
            let fields = json!({
                "score": self.score(value), "target": common.target, "intermediate": false, "scorer": name,
            });
            transcript.add("score", fields, None);
        }
        transcript.events()
    }
}

/// The token usage of a model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(super) struct ModelUsage {
    input_tokens: u64,
    output_tokens: u64,
    total_tokens: u64,
    input_tokens_cache_read: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    total_cost: Option<f64>,
}

impl ModelUsage {
    /// Returns the sum.
    pub(super) fn plus(self, other: Self) -> Self {
        let cost = self.total_cost.unwrap_or_default() + other.total_cost.unwrap_or_default();
        Self {
            input_tokens: self.input_tokens.saturating_add(other.input_tokens),
            output_tokens: self.output_tokens.saturating_add(other.output_tokens),
            total_tokens: self.total_tokens.saturating_add(other.total_tokens),
            input_tokens_cache_read: self
                .input_tokens_cache_read
                .saturating_add(other.input_tokens_cache_read),
            total_cost: self.total_cost.or(other.total_cost).map(|_| cost),
        }
    }
}
