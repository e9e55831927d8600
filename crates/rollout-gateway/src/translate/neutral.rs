//! The form between the dialects: every request and response is read into it and written from it.

use rollout_core::response::TokenUsage;
use serde_json::Value;

/// A request for one answer of a model.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Conversation {
    /// The model that the client asked for. Empty for Gemini, which has it in the path.
    pub(crate) model: String,
    pub(crate) stream: bool,
    pub(crate) turns: Vec<Turn>,
    pub(crate) tools: Vec<ToolSpec>,
    pub(crate) choice: Option<ToolChoice>,
    /// Whether the model may make several calls at once.
    pub(crate) parallel: Option<bool>,
    pub(crate) format: Option<Format>,
    pub(crate) reasoning: Option<Reasoning>,
    pub(crate) sampling: Sampling,
    pub(crate) max_tokens: Option<u64>,
    pub(crate) stop: Vec<String>,
    /// Whether the client sends the signatures of thoughts back, so that an upstream that requires them gets them.
    pub(crate) keeps_signatures: bool,
    /// Whether a streaming client wants the usage (Chat Completions only sends it on request).
    pub(crate) wants_usage: bool,
}

/// The author of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Author {
    /// The system or the developer.
    System,
    User,
    Assistant,
}

/// One message.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Turn {
    pub(crate) author: Author,
    pub(crate) parts: Vec<Part>,
}

/// A part of a message.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Part {
    Text(String),
    Image(Media),
    /// A file that the model reads, such as a PDF.
    Document(Media),
    Thought(Thought),
    Call(ToolUse),
    Result(ToolResult),
    /// The model's words when it declines.
    Refusal(String),
}

/// An image or a document.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Media {
    pub(crate) source: MediaSource,
    /// The file's name.
    pub(crate) name: Option<String>,
    /// How closely the model looks at an image: `low`, `high`, `auto`.
    pub(crate) detail: Option<String>,
}

/// Where the bytes of a medium are.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum MediaSource {
    Base64 { media_type: String, data: String },
    Url(String),
}

/// A piece of the model's reasoning.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Thought {
    pub(crate) text: String,
    /// The upstream's proof of the thought, as the upstream wrote it or as the client carried it.
    pub(crate) signature: Option<String>,
    /// Whether the text is hidden, and the signature is all there is.
    pub(crate) is_redacted: bool,
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct ToolUse {
    pub(crate) id: String,
    pub(crate) name: String,
    /// The arguments as JSON text. A cut answer may leave them incomplete.
    pub(crate) arguments: String,
}

/// What a tool returned.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct ToolResult {
    pub(crate) id: String,
    /// The name of the tool. Gemini needs it; the other dialects leave it out.
    pub(crate) name: Option<String>,
    /// Texts, images and documents.
    pub(crate) parts: Vec<Part>,
    pub(crate) is_error: bool,
}

/// A tool that the client runs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ToolSpec {
    /// The name that the upstream sees.
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    /// JSON schema of the arguments.
    pub(crate) schema: Value,
    pub(crate) strict: Option<bool>,
    pub(crate) origin: ToolOrigin,
}

/// How the client declared a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ToolOrigin {
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
    pub(crate) kind: ToolKind,
}

/// The form in which the client expects calls of a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ToolKind {
    Function,
    /// Takes free text. The upstream sees a function with one argument, `input`.
    Custom,
    /// Responses: the client finds further tools.
    ToolSearch,
    /// Responses: the client runs a command.
    LocalShell,
}

/// Which tools the model may or must call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ToolChoice {
    pub(crate) mode: ChoiceMode,
    /// Only these. Empty for all.
    pub(crate) only: Vec<String>,
}

/// Whether the model calls tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChoiceMode {
    Auto,
    Never,
    Required,
}

/// The form of the answer's text.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Format {
    /// Any JSON object.
    Json,
    Schema {
        name: Option<String>,
        description: Option<String>,
        schema: Value,
        strict: Option<bool>,
    },
}

/// How much the model thinks.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Reasoning {
    /// `none`, `minimal`, `low`, `medium`, `high` or a newer word.
    pub(crate) effort: Option<String>,
    /// At most so many tokens.
    pub(crate) budget: Option<u64>,
    /// Whether the client wants to see the thoughts.
    pub(crate) is_shown: bool,
}

/// How tokens are drawn.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Sampling {
    pub(crate) temperature: Option<f64>,
    pub(crate) top_p: Option<f64>,
    pub(crate) top_k: Option<u64>,
    pub(crate) presence_penalty: Option<f64>,
    pub(crate) frequency_penalty: Option<f64>,
    pub(crate) seed: Option<i64>,
}

/// A whole answer.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Answer {
    pub(crate) id: Option<String>,
    pub(crate) model: Option<String>,
    pub(crate) parts: Vec<Part>,
    pub(crate) ending: Ending,
    pub(crate) usage: Option<TokenUsage>,
}

/// Why the model stopped.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) enum Ending {
    /// It was done. Calls, if there are any, are to be run.
    #[default]
    Done,
    /// It came to a stop sequence.
    StopSequence(Option<String>),
    /// The limit of tokens was reached.
    Length,
    /// The provider's filter stopped it, or the model declined.
    Filtered,
}

/// A piece of a streamed answer. Pieces of one item follow each other without another item between.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Step {
    /// The answer begins. Usage as far as it is known.
    Start { id: Option<String>, model: Option<String>, usage: Option<TokenUsage> },
    /// An item begins.
    Open(Item),
    /// More of the open item's text, thought, refusal or arguments.
    More(String),
    /// The signature of the open thought.
    Signature(String),
    /// The open item is complete.
    Close,
    /// The answer is complete.
    End { ending: Ending, usage: Option<TokenUsage> },
}

/// An item of a streamed answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Item {
    Text,
    Thought {
        /// Whether the text is hidden, and the signature is all there is.
        is_redacted: bool,
    },
    Refusal,
    Call {
        id: String,
        name: String,
    },
}

impl Part {
    /// A part of plain text.
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }
}

impl ToolOrigin {
    /// A plain function.
    pub(crate) fn function(name: &str) -> Self {
        Self { namespace: None, name: name.to_owned(), kind: ToolKind::Function }
    }
}

impl Conversation {
    /// Adds a part to the last turn if it is of the same author, else as a new turn.
    pub(crate) fn push(&mut self, author: Author, part: Part) {
        match self.turns.last_mut() {
            Some(turn) if turn.author == author => turn.parts.push(part),
            _ => self.turns.push(Turn { author, parts: vec![part] }),
        }
    }

    /// A number that no call has in its id yet: the number of calls, or more if the client left some out since.
    pub(crate) fn next_call(&self) -> usize {
        let parts = self.turns.iter().flat_map(|turn| &turn.parts);
        let mut next = 0;
        let mut calls = 0;
        for part in parts {
            if let Part::Call(call) = part {
                calls += 1;
                let number = call.id.strip_prefix(CALL_ID).and_then(|number| number.parse::<usize>().ok());
                next = next.max(number.map_or(0, |number| number.saturating_add(1)));
            }
        }
        next.max(calls)
    }
}

/// What the ids of calls start with that this gateway made.
pub(crate) const CALL_ID: &str = "call_";

/// All text of some parts, joined by line breaks.
pub(crate) fn joined_text(parts: &[Part]) -> String {
    let texts = parts.iter().filter_map(|part| match part {
        Part::Text(text) | Part::Refusal(text) => Some(text.as_str()),
        _ => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}
