//! What a model and its tools said in a trial, kept turn by turn so that it is there however the trial ends.

use std::{
    io,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use tokio::time::Instant;

use super::own_log::OwnLog;
use rollout_core::{
    event::ModelProgress,
    message::{Messages, ToolDef},
    redact::Redactor,
    response::Response,
    result,
    row::OutputError,
    text::seconds,
};
use rollout_model::{Error, State, Usage};
use rollout_record::atomic::{self, WriteError};

/// What the turns of one file may take. A conversation that a model can read is far below.
const MAX_TURN_BYTES: usize = 32 << 20;

/// Takes note of a conversation while it goes on.
#[derive(Debug, Default)]
pub(crate) struct TurnLog(Mutex<Option<Trajectory>>);

impl TurnLog {
    /// A conversation starts.
    pub(super) fn begin(&self, state: &State) {
        let now = Instant::now();
        *self.lock() = Some(Trajectory {
            model: state.model.name.clone(),
            id: Arc::clone(&state.trajectory_id),
            started_at: Timestamp::now(),
            started: now,
            ended: None,
            stop_condition: None,
            is_truncated: false,
            error: None,
            usage: Usage::default(),
            tools: Arc::clone(&state.tool_defs),
            prompt: state.input.prompt.clone(),
            turns: Vec::new(),
            asked: now,
            executed: false,
            origin: None,
            others: OtherThreads::default(),
            own_log: None,
        });
    }

    /// The model is asked.
    pub(super) fn ask(&self) {
        self.change(|trajectory| trajectory.asked = Instant::now());
    }

    /// It responds.
    pub(super) fn respond(&self, response: &Arc<Response>) {
        self.change(|trajectory| {
            if let Some(usage) = &response.usage {
                trajectory.usage.add(usage);
            }
            trajectory.turns.push(Turn {
                response: Arc::clone(response),
                model_time: trajectory.asked.elapsed(),
                answers: Messages::new(),
                tools_time: None,
            });
        });
    }

    /// Its tools are called.
    pub(super) fn execute(&self) {
        self.change(|trajectory| trajectory.executed = true);
    }

    /// They answer.
    pub(super) fn answer(&self, answers: &Messages, time: Duration) {
        self.change(|trajectory| {
            if let Some(turn) = trajectory.turns.last_mut() {
                turn.answers.clone_from(answers);
                turn.tools_time = Some(time);
            }
        });
    }

    /// A stop condition is met.
    pub(super) fn stop(&self, state: &State) {
        self.change(|trajectory| {
            trajectory.ended = Some(Instant::now());
            trajectory.stop_condition.clone_from(&state.stop_condition);
            trajectory.is_truncated = state.is_truncated;
            trajectory.error.clone_from(&state.error);
        });
    }

    /// The model's server refuses the key.
    pub(super) fn refuse(&self, error: &Error) {
        self.change(|trajectory| trajectory.error = Some(error.clone()));
    }

    /// What was used so far.
    pub(crate) fn used(&self) -> ModelProgress {
        let log = self.lock();
        log.as_ref().map_or_else(ModelProgress::default, |trajectory| ModelProgress {
            turns: trajectory.turns.len() as u64,
            input_tokens: trajectory.usage.input_tokens as u64,
            output_tokens: trajectory.usage.output_tokens as u64,
            cost: trajectory.usage.cost,
        })
    }

    /// The messages after the first `known` ones. Those of the model have what they used.
    pub(crate) fn messages_after(&self, known: usize) -> Messages {
        let log = self.lock();
        let Some(trajectory) = log.as_ref() else { return Messages::new() };
        let turns = trajectory.turns.iter().flat_map(|turn| {
            let mut message = turn.response.message.clone();
            if let Some(Ok(usage)) = turn.response.usage.map(serde_json::to_value) {
                message.extra.insert("usage".to_owned(), usage);
            }
            std::iter::once(Arc::new(message)).chain(turn.answers.iter().cloned())
        });
        trajectory.prompt.iter().cloned().chain(turns).skip(known).collect()
    }

    /// Whether a tool was called, and so the environment may be another than it was.
    pub(crate) fn has_executed(&self) -> bool {
        self.lock().as_ref().is_some_and(|trajectory| trajectory.executed)
    }

    /// Takes a conversation that was recorded elsewhere.
    pub(crate) fn put(&self, trajectory: Trajectory) {
        *self.lock() = Some(trajectory);
    }

    /// Whether there is no conversation.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_none()
    }

    /// Gives away what there is.
    pub(crate) fn take(&self) -> Option<Trajectory> {
        self.lock().take()
    }

    fn change(&self, change: impl FnOnce(&mut Trajectory)) {
        if let Some(trajectory) = self.lock().as_mut() {
            change(trajectory);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Trajectory>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A conversation as far as it got.
#[derive(Debug)]
pub(crate) struct Trajectory {
    model: String,
    id: Arc<str>,
    started_at: Timestamp,
    started: Instant,
    /// When it ended by itself, or by an error or a limit.
    ended: Option<Instant>,
    stop_condition: Option<String>,
    is_truncated: bool,
    error: Option<Error>,
    usage: Usage,
    tools: Arc<[ToolDef]>,
    prompt: Messages,
    turns: Vec<Turn>,
    asked: Instant,
    executed: bool,
    origin: Option<ConversationOrigin>,
    others: OtherThreads,
    own_log: Option<OwnLogRecord>,
}

/// Where the conversation of an agent that others made comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ConversationOrigin {
    /// The gateway's record of calls.
    Gateway,
    /// The agent's own log.
    AgentLog,
}

/// Calls of the model that are not part of the conversation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct OtherThreads {
    pub(super) threads: usize,
    pub(super) turns: usize,
}

/// A response, and what the tools answered to it.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) response: Arc<Response>,
    pub(super) model_time: Duration,
    pub(super) answers: Messages,
    /// None: they had not all answered when the conversation was cut off.
    pub(super) tools_time: Option<Duration>,
}

/// The file.
#[derive(Serialize)]
struct File {
    model: Value,
    trajectory_id: Arc<str>,
    started_at: Timestamp,
    duration_sec: f64,
    stop_condition: Option<String>,
    is_truncated: bool,
    error: Value,
    usage: Option<result::AgentUsage>,
    tools: Arc<[ToolDef]>,
    prompt: Value,
    turns: Vec<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    turns_left_out: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    origin: Option<ConversationOrigin>,
    #[serde(skip_serializing_if = "Option::is_none")]
    other_threads: Option<OtherThreads>,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent_log: Option<OwnLogRecord>,
}

/// What the agent's own log had.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct OwnLogRecord {
    turns: usize,
    tool_calls: usize,
    usage: Option<result::AgentUsage>,
    /// Whether the last answers of tools come from it.
    gave_last_answers: bool,
}

#[derive(Serialize)]
struct TurnRecord<'a> {
    response: &'a Response,
    model_sec: f64,
    answers: &'a Messages,
    tools_sec: Option<f64>,
}

/// A conversation that an agent led itself.
pub(super) struct OwnConversation {
    pub(super) model: String,
    pub(super) started_at: Timestamp,
    pub(super) time: Duration,
    pub(super) tools: Vec<ToolDef>,
    pub(super) prompt: Messages,
    pub(super) turns: Vec<Turn>,
}

impl From<OwnConversation> for Trajectory {
    fn from(own: OwnConversation) -> Self {
        let mut usage = Usage::default();
        own.turns.iter().filter_map(|turn| turn.response.usage.as_ref()).for_each(|used| usage.add(used));
        let now = Instant::now();
        Self {
            model: own.model,
            id: format!("{:032x}", fastrand::u128(..)).into(),
            started_at: own.started_at,
            started: now,
            ended: Some(now + own.time),
            stop_condition: None,
            is_truncated: own.turns.last().is_some_and(|turn| turn.response.is_truncated()),
            error: None,
            usage,
            tools: own.tools.into(),
            prompt: own.prompt,
            executed: own.turns.len() > 1,
            turns: own.turns,
            asked: now,
            origin: Some(ConversationOrigin::Gateway),
            others: OtherThreads::default(),
            own_log: None,
        }
    }
}

impl Trajectory {
    /// Adds how many further threads of calls there were.
    pub(super) fn beside(self, others: OtherThreads) -> Self {
        Self { others, ..self }
    }

    /// The conversation in an agent's own log, where the gateway has none.
    pub(crate) fn of_log(log: OwnLog, started_at: Timestamp, time: Duration) -> Self {
        let record = OwnLogRecord::new(&log);
        let OwnLog { model, prompt, turns, .. } = log;
        let own = OwnConversation { model, started_at, time, tools: Vec::new(), prompt, turns };
        Self { origin: Some(ConversationOrigin::AgentLog), own_log: Some(record), ..own.into() }
    }

    /// Adds what only the agent's own log has: the answers of tools that the model never received.
    pub(crate) fn complete(&mut self, log: &OwnLog) {
        let mut record = OwnLogRecord::new(log);
        let calls = self.turns.iter().map(|turn| turn.response.message.tool_calls.len()).sum::<usize>();
        if let Some(last) = self.turns.last_mut().filter(|turn| turn.answers.is_empty()) {
            last.answers = log.answers_to(&last.response.message.tool_calls, calls);
            record.gave_last_answers = !last.answers.is_empty();
        }
        self.own_log = Some(record);
    }

    /// Writes the file, without secrets.
    pub(crate) fn write(&self, path: &Path, redactor: &Redactor) -> Result<(), WriteError> {
        let file = self
            .file(redactor)
            .map_err(|error| WriteError { path: path.to_owned(), source: io::Error::other(error) })?;
        atomic::write_json(path, &file)
    }

    fn file(&self, redactor: &Redactor) -> serde_json::Result<File> {
        let clean = |value: Value| redactor.json(value);
        let mut turns = Vec::with_capacity(self.turns.len());
        let mut room = MAX_TURN_BYTES;
        for turn in &self.turns {
            let value = clean(serde_json::to_value(turn.record())?);
            match room.checked_sub(serde_json::to_string(&value)?.len()) {
                Some(rest) => room = rest,
                None => break,
            }
            turns.push(value);
        }
        let left_out = self.turns.len() - turns.len();
        let ended = self.ended.unwrap_or_else(Instant::now);
        Ok(File {
            model: clean(self.model.as_str().into()),
            trajectory_id: Arc::clone(&self.id),
            started_at: self.started_at,
            duration_sec: seconds(ended.duration_since(self.started)),
            stop_condition: self.stop_condition.clone(),
            is_truncated: self.is_truncated,
            error: clean(serde_json::to_value(self.error.as_ref().map(OutputError::from))?),
            usage: used(&self.usage),
            tools: Arc::clone(&self.tools),
            prompt: clean(serde_json::to_value(&self.prompt)?),
            turns,
            turns_left_out: (left_out > 0).then_some(left_out),
            origin: self.origin,
            other_threads: Some(self.others).filter(|others| others.threads > 0),
            agent_log: self.own_log,
        })
    }
}

impl OwnLogRecord {
    fn new(log: &OwnLog) -> Self {
        let tool_calls = log.calls().count();
        Self { turns: log.turns.len(), tool_calls, usage: log.usage, gave_last_answers: false }
    }
}

impl Turn {
    fn record(&self) -> TurnRecord<'_> {
        TurnRecord {
            response: &self.response,
            model_sec: seconds(self.model_time),
            answers: &self.answers,
            tools_sec: self.tools_time.map(seconds),
        }
    }
}

/// The usage of a model for results; none if no response reported it.
pub(crate) fn used(usage: &Usage) -> Option<result::AgentUsage> {
    (usage.responses > 0).then(|| result::AgentUsage {
        input_tokens: Some(usage.input_tokens as u64),
        output_tokens: Some(usage.output_tokens as u64),
        // Most servers report cached tokens only if there are some.
        cached_tokens: (usage.cached_tokens > 0.0).then_some(usage.cached_tokens as u64),
        cost_usd: usage.cost,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;
    use rollout_core::message::{Content, Message, ToolCall};

    fn said(message: Message) -> Arc<Response> {
        Arc::new(Response {
            id: "r".to_owned(),
            created: 1,
            model: "m".to_owned(),
            usage: None,
            message,
            finish_reason: None,
            tokens: None,
            extra: Map::new(),
        })
    }

    fn turn(response: Message, answers: impl IntoIterator<Item = Message>) -> Turn {
        Turn {
            response: said(response),
            model_time: Duration::ZERO,
            answers: answers.into_iter().map(Arc::new).collect(),
            tools_time: None,
        }
    }

    fn trajectory(turns: Vec<Turn>) -> Trajectory {
        let now = Instant::now();
        Trajectory {
            model: "m".to_owned(),
            id: "a3f9".into(),
            started_at: Timestamp::UNIX_EPOCH,
            started: now,
            ended: Some(now),
            stop_condition: None,
            is_truncated: false,
            error: None,
            usage: Usage::default(),
            tools: Arc::new([]),
            prompt: Messages::new(),
            turns,
            asked: now,
            executed: false,
            origin: None,
            others: OtherThreads::default(),
            own_log: None,
        }
    }

    #[test]
    fn the_first_turns_that_fit_are_kept_and_the_others_counted() {
        let large = |_| turn(Message::assistant("x".repeat(12 << 20)), []);
        let file = trajectory((0..4).map(large).collect()).file(&Redactor::default()).unwrap();
        assert_eq!((file.turns.len(), file.turns_left_out), (2, Some(2)));
        let small = trajectory(vec![turn(Message::assistant("x"), [])]).file(&Redactor::default()).unwrap();
        assert_eq!((small.turns.len(), small.turns_left_out), (1, None));
    }

    #[test]
    fn a_secret_is_masked_wherever_it_stands_and_the_file_stays_json() {
        let secret = "pass\"word\\with\nlines";
        let arguments = json!({"command": format!("login {secret}")}).to_string();
        let call = ToolCall::new("c", "bash", arguments);
        let mut response = Message::assistant(format!("I try {secret}"));
        response.tool_calls.push(call);
        response.extra.insert(secret.to_owned(), json!([{"deep": secret}]));
        let parts = Content::Parts(vec![json!({"type": "text", "text": secret})]);
        let mut answer = Message::tool("c", "");
        answer.content = Some(parts);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trajectory.json");
        trajectory(vec![turn(response, [answer])]).write(&path, &Redactor::new([secret])).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(!text.contains("word"), "{text}");
        let file: Value = serde_json::from_str(&text).unwrap();
        let message = &file["turns"][0]["response"]["message"];
        assert_eq!(message["content"], "I try [redacted]");
        assert_eq!(message["tool_calls"][0]["arguments"], r#"{"command":"login [redacted]"}"#);
        assert_eq!(message["[redacted]"], json!([{"deep": "[redacted]"}]));
        assert_eq!(file["turns"][0]["answers"][0]["content"][0]["text"], "[redacted]");
    }
}
