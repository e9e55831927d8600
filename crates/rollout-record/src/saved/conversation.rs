//! What a model and its tools said in a trial, from whichever file of the job has it.

use std::{io, io::BufReader, path::Path, sync::Arc};

use jiff::Timestamp;
use serde::Deserialize;

use super::SavedError;
use crate::layout::open_below;
use rollout_core::{
    message::{Messages, Role, ToolDef},
    response::{Response, ResponseTokens, TokenUsage},
    row::{OutputError, RolloutOutput, TOTAL_TURNS},
};

/// The conversation of one trial.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Conversation {
    /// The server's name for the model, where the record has it.
    pub model: Option<String>,
    /// When it began, where the record has it.
    pub started_at: Option<Timestamp>,
    /// The first messages.
    pub prompt: Messages,
    /// What was said after them: responses of the model, and the answers of tools and users.
    pub completion: Messages,
    /// The tools that the model was told of, where the record has them.
    pub tools: Arc<[ToolDef]>,
    /// What is known of each response, in order; empty if nothing is.
    pub turns: Vec<Turn>,
    /// What ended it; none if it was cut off.
    pub stop_condition: Option<String>,
    /// Whether the model was cut off in some turn, or the conversation became too long.
    pub is_truncated: bool,
    /// What went wrong in it.
    pub error: Option<OutputError>,
    /// The row that it was read from, of a rollout or a benchmark; its prompt and completion are those above.
    pub row: Option<Box<RolloutOutput>>,
}

/// What is known of one response of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    /// Its place among the messages of the completion.
    pub message: usize,
    /// The model that the server says it used.
    pub model: String,
    /// When it was made, in seconds since 1970.
    pub created: i64,
    /// What it took, where the server said.
    pub usage: Option<TokenUsage>,
    /// Why the model stopped, where the server said.
    pub finish_reason: Option<String>,
    /// The tokens of it, where the server gave them.
    pub tokens: Option<ResponseTokens>,
    /// How long it took.
    pub model_sec: f64,
    /// How long the tools took that it called.
    pub tools_sec: Option<f64>,
}

/// A `trajectory.json`.
#[derive(Deserialize)]
struct TrajectoryFile {
    model: String,
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

/// Reads the conversation of a trial in a container. None if there was no model.
pub(super) fn of_container(job: &Path, path: &Path) -> Result<Option<Conversation>, SavedError> {
    let file = match open_below(job, path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(SavedError::Read { path: path.to_owned(), source }),
    };
    let file: TrajectoryFile = serde_json::from_reader(BufReader::new(file))
        .map_err(|source| SavedError::Damaged { path: path.to_owned(), source })?;
    Ok(Some(file.into()))
}

impl From<TrajectoryFile> for Conversation {
    fn from(file: TrajectoryFile) -> Self {
        let mut completion = Messages::new();
        let mut turns = Vec::with_capacity(file.turns.len());
        for turn in file.turns {
            let Response { created, model, usage, message, finish_reason, tokens, .. } = turn.response;
            turns.push(Turn {
                message: completion.len(),
                model,
                created,
                usage,
                finish_reason: finish_reason.map(|reason| reason.as_str().to_owned()),
                tokens,
                model_sec: turn.model_sec,
                tools_sec: turn.tools_sec,
            });
            completion.push(Arc::new(message));
            completion.extend(turn.answers);
        }
        Self {
            model: Some(file.model),
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
    /// All messages, from the first.
    pub fn messages(&self) -> impl Iterator<Item = &Arc<rollout_core::message::Message>> {
        self.prompt.iter().chain(&self.completion)
    }

    /// How many responses the model gave that were kept.
    pub fn responses(&self) -> usize {
        self.completion.iter().filter(|message| message.role == Role::Assistant).count()
    }

    /// How often the model was asked. Where no conversation was kept, its row has the number alone.
    pub fn model_calls(&self) -> usize {
        match self.responses() {
            0 => {
                self.row.as_ref().and_then(|row| row.columns.get(TOTAL_TURNS)?.as_u64()).unwrap_or(0) as usize
            }
            responses => responses,
        }
    }
}
