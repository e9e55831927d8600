//! The conversation of a model and its tools in a trial, from any file of the job that contains it.

use std::{
    io,
    io::BufReader,
    path::{Path, PathBuf},
    sync::Arc,
};

use jiff::Timestamp;
use serde::Deserialize;

use super::SavedError;
use crate::layout::open_below;
use rollout_core::{
    message::{Message, Messages, Role, ToolDef},
    response::{Response, ResponseTokens, TokenUsage},
    row::{OutputError, RolloutOutput, TOTAL_TURNS},
};

/// The conversation of one trial.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Conversation {
    /// The model's name on the server, if recorded.
    pub model: Option<String>,
    /// The id of the conversation, if recorded.
    pub trajectory_id: Option<Arc<str>>,
    /// When the conversation began, if recorded.
    pub started_at: Option<Timestamp>,
    /// The first messages.
    pub prompt: Messages,
    /// The following messages: responses of the model, results of tools, and messages of users.
    pub completion: Messages,
    /// The tools available to the model, if recorded.
    pub tools: Arc<[ToolDef]>,
    /// Details of each response, in order; empty if nothing is recorded.
    pub turns: Vec<Turn>,
    /// The stop condition; None if the conversation was interrupted.
    pub stop_condition: Option<String>,
    /// Whether a response was truncated, or the conversation became too long.
    pub is_truncated: bool,
    /// The error of the conversation.
    pub error: Option<OutputError>,
    /// The row of a rollout or a benchmark that this was read from. Its prompt and completion are those above.
    pub row: Option<Box<RolloutOutput>>,
}

/// Details of one response of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    /// Its index in the messages of the completion.
    pub message: usize,
    /// The model that the server reported.
    pub model: String,
    /// When it was created, in seconds since 1970.
    pub created: i64,
    /// Token usage, if the server reported it.
    pub usage: Option<TokenUsage>,
    /// Why the model stopped, if the server reported it.
    pub finish_reason: Option<String>,
    /// The version of the policy, if the server reported it.
    pub policy_version: Option<Arc<str>>,
    /// Tokens, if the server returned them.
    pub tokens: Option<ResponseTokens>,
    /// Duration of the response.
    pub model_sec: f64,
    /// Duration of the tool calls of the response.
    pub tools_sec: Option<f64>,
}

/// A `trajectory.json`.
#[derive(Deserialize)]
struct TrajectoryFile {
    model: String,
    #[serde(default)]
    trajectory_id: Option<Arc<str>>,
    started_at: Timestamp,
    stop_condition: Option<String>,
    is_truncated: bool,
    error: Option<OutputError>,
    #[serde(default)]
    tools: Vec<ToolDef>,
    prompt: Messages,
    turns: Vec<TurnFile>,
}

#[derive(Deserialize)]
struct TurnFile {
    response: Response,
    model_sec: f64,
    answers: Messages,
    tools_sec: Option<f64>,
}

/// Reads the conversations in these files as one: the prompt of each later one follows what was said before. Missing
/// files are skipped. Returns None if all are missing.
pub(super) fn of_container(job: &Path, paths: &[PathBuf]) -> Result<Option<Conversation>, SavedError> {
    let mut joined: Option<Conversation> = None;
    for path in paths {
        let Some(next) = of_file(job, path)? else { continue };
        joined = Some(match joined {
            Some(first) => first.followed_by(next),
            None => next,
        });
    }
    Ok(joined)
}

fn of_file(job: &Path, path: &Path) -> Result<Option<Conversation>, SavedError> {
    let file = match open_below(job, path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(SavedError::Read { path: path.to_owned(), source }),
    };
    let file: TrajectoryFile = serde_json::from_reader(BufReader::new(file))
        .map_err(|source| SavedError::Damaged { path: path.to_owned(), source })?;
    Ok(Some(file.into()))
}

impl Conversation {
    /// This conversation, then another of the same trial. A system message that was there before is not repeated.
    fn followed_by(mut self, next: Self) -> Self {
        let is_new = |message: &Arc<Message>| message.role != Role::System || !self.prompt.contains(message);
        let prompt: Messages = next.prompt.iter().filter(|message| is_new(message)).cloned().collect();
        self.completion.extend(prompt);
        let start = self.completion.len();
        self.completion.extend(next.completion);
        self.turns.extend(next.turns.into_iter().map(|turn| Turn { message: start + turn.message, ..turn }));
        let known: Vec<&str> = self.tools.iter().map(|tool| tool.name.as_str()).collect();
        let added = next.tools.iter().filter(|tool| !known.contains(&tool.name.as_str())).cloned();
        let tools: Vec<ToolDef> = self.tools.iter().cloned().chain(added).collect();
        Self {
            tools: tools.into(),
            stop_condition: next.stop_condition,
            is_truncated: self.is_truncated || next.is_truncated,
            error: next.error.or(self.error),
            ..self
        }
    }
}

impl From<TrajectoryFile> for Conversation {
    fn from(file: TrajectoryFile) -> Self {
        let mut completion = Messages::new();
        let mut turns = Vec::with_capacity(file.turns.len());
        for turn in file.turns {
            let policy_version = turn.response.policy_version().map(Into::into);
            let Response { created, model, usage, message, finish_reason, tokens, .. } = turn.response;
            turns.push(Turn {
                message: completion.len(),
                model,
                created,
                usage,
                finish_reason: finish_reason.map(|reason| reason.as_str().to_owned()),
                policy_version,
                tokens,
                model_sec: turn.model_sec,
                tools_sec: turn.tools_sec,
            });
            completion.push(Arc::new(message));
            completion.extend(turn.answers);
        }
        Self {
            model: Some(file.model),
            trajectory_id: file.trajectory_id,
            started_at: Some(file.started_at),
            prompt: file.prompt,
            completion,
            tools: file.tools.into(),
            turns,
            stop_condition: file.stop_condition,
            is_truncated: file.is_truncated,
            error: file.error,
            row: None,
        }
    }
}

impl From<RolloutOutput> for Conversation {
    fn from(mut row: RolloutOutput) -> Self {
        Self {
            model: None,
            trajectory_id: None,
            started_at: None,
            prompt: row.prompt.take().unwrap_or_default(),
            completion: row.completion.take().unwrap_or_default(),
            tools: Arc::clone(&row.tool_defs),
            turns: Vec::new(),
            stop_condition: row.stop_condition.clone(),
            is_truncated: row.is_truncated,
            error: row.error.clone(),
            row: Some(Box::new(row)),
        }
    }
}

impl Conversation {
    /// Returns all messages.
    pub fn messages(&self) -> impl Iterator<Item = &Arc<rollout_core::message::Message>> {
        self.prompt.iter().chain(&self.completion)
    }

    /// Returns the number of recorded responses.
    pub fn responses(&self) -> usize {
        self.completion.iter().filter(|message| message.role == Role::Assistant).count()
    }

    /// Returns the number of requests to the model. If no conversation was recorded, it comes from the row.
    pub fn model_calls(&self) -> usize {
        match self.responses() {
            0 => {
                self.row.as_ref().and_then(|row| row.columns.get(TOTAL_TURNS)?.as_u64()).unwrap_or(0) as usize
            }
            responses => responses,
        }
    }
}
