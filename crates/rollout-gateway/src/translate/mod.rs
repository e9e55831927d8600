//! Translation between the four dialects, without input or output.
//!
//! A body is read into a neutral form ([`neutral`]) and written from it, so there are four readers and four writers
//! instead of twelve translations. Streams go the same way, event by event: a reader makes pieces of the upstream's
//! events, [`sequence`] puts them in order, and a writer makes the client's events of them.
//!
//! What the upstream cannot express is left out and noted where that does no harm; otherwise the request is refused
//! with the field's name. Bodies are hostile: their depth is bounded by the JSON parser, their size by the caller.

mod chat;
mod error;
mod families;
mod fields;
mod gemini;
pub(crate) mod listing;
mod messages;
mod names;
mod neutral;
pub(crate) mod provider_tools;
mod recorded;
mod responses;
mod sequence;
mod settle;
mod signature;
mod sse;
mod tools;

use std::collections::BTreeMap;

use serde_json::Value;

pub use recorded::ChatForm;

pub(crate) use error::{ErrorKind, error, error_event, error_in, read_error, status_in};

use crate::Dialect;
use fields::{Notes, Object};
use neutral::{Answer, ToolOrigin};
use sequence::{Piece, Sequencer};

/// Why a body cannot be translated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TranslationError {
    /// The body breaks the rules of its own dialect.
    #[error("invalid body: `{field}` {problem}")]
    Invalid {
        /// The path of the field.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The body asks for something that the other dialect cannot express.
    #[error("`{field}` cannot be translated for this model server: {reason}. {hint}")]
    Unsupported {
        /// The path of the field.
        field: String,
        /// Why not.
        reason: String,
        /// What to do instead.
        hint: String,
    },
    /// The model server reported an error in a response that has the status of success.
    #[error("the model server failed: {message}")]
    Failed {
        /// What kind of error.
        kind: ErrorKind,
        /// The server's words.
        message: String,
    },
    /// The stream ended before the answer was complete.
    #[error("the model server's stream ended before the answer was complete")]
    CutStream,
}

impl TranslationError {
    fn invalid(field: &str, problem: &str) -> Self {
        let field = if field.is_empty() { "body" } else { field };
        Self::Invalid { field: field.to_owned(), problem: problem.to_owned() }
    }

    fn unsupported(field: &str, reason: &str, hint: &str) -> Self {
        Self::Unsupported { field: field.to_owned(), reason: reason.to_owned(), hint: hint.to_owned() }
    }
}

/// Where a translated request goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target<'a> {
    /// The model that the upstream is asked for.
    pub(crate) model: &'a str,
    /// The model that the client asked for. Answers bear this name.
    pub(crate) asked: &'a str,
    /// Whether the client asked for a stream. Gemini's clients say so in the path; for the others, their body decides.
    pub(crate) stream: bool,
    /// The time, in seconds since 1970. Answers of OpenAI's dialects contain it.
    pub(crate) now: i64,
}

/// A request in the upstream's dialect.
#[derive(Debug, Clone)]
pub(crate) struct Translated {
    /// The body to send. For Gemini, the model goes into the path.
    pub(crate) body: Value,
    /// Whether the client wants a stream. The upstream is asked for the same.
    #[cfg_attr(not(test), expect(dead_code, reason = "the server knows it from the request"))]
    pub(crate) stream: bool,
    /// What was left out or changed, for the record.
    pub(crate) notes: Vec<String>,
    /// What is needed to translate the answer.
    pub(crate) context: AnswerContext,
}

/// What the answer's translation must know about the request.
#[derive(Debug, Clone)]
pub(crate) struct AnswerContext {
    client: Dialect,
    upstream: Dialect,
    model: String,
    /// The client's tools by the name that the upstream sees.
    tools: BTreeMap<String, ToolOrigin>,
    /// The calls and the turns so far: what ids are made of where the upstream gives none.
    calls: usize,
    turns: usize,
    wants_usage: bool,
    now: i64,
}

/// Translates a request.
pub(crate) fn request(
    client: Dialect,
    upstream: Dialect,
    body: Value,
    target: &Target<'_>,
) -> Result<Translated, TranslationError> {
    let mut notes = Notes::default();
    let body = Object::new(body, "")?;
    let mut conversation = match client {
        Dialect::Chat => chat::read_request(body, &mut notes)?,
        Dialect::Responses => responses::read_request(body, &mut notes)?,
        Dialect::Messages => messages::read_request(body, &mut notes)?,
        Dialect::Gemini => gemini::read_request(body, &mut notes)?,
    };
    if client == Dialect::Gemini {
        conversation.stream = target.stream;
    }
    conversation.model = target.model.to_owned();
    let tools = names::fit(&mut conversation);
    settle::settle(&mut conversation, upstream, &mut notes);
    let context = AnswerContext {
        client,
        upstream,
        model: target.asked.to_owned(),
        tools,
        calls: conversation.next_call(),
        turns: conversation.turns.len(),
        wants_usage: conversation.wants_usage,
        now: target.now,
    };
    let stream = conversation.stream;
    let body = match upstream {
        Dialect::Chat => chat::write_request(conversation, &mut notes)?,
        Dialect::Responses => responses::write_request(conversation, &mut notes)?,
        Dialect::Messages => messages::write_request(conversation, &mut notes)?,
        Dialect::Gemini => gemini::write_request(conversation, &mut notes)?,
    };
    Ok(Translated { body, stream, notes: notes.into_list(), context })
}

impl AnswerContext {
    /// Translates a whole answer.
    pub(crate) fn response(&self, body: Value) -> Result<Value, TranslationError> {
        let body = Object::new(body, "")?;
        let mut answer = match self.upstream {
            Dialect::Chat => chat::read_answer(body)?,
            Dialect::Responses => responses::read_answer(body)?,
            Dialect::Messages => messages::read_answer(body)?,
            Dialect::Gemini => gemini::read_answer(body)?,
        };
        self.name_calls(&mut answer);
        Ok(match self.client {
            Dialect::Chat => chat::write_answer(answer, self),
            Dialect::Responses => responses::write_answer(answer, self),
            Dialect::Messages => messages::write_answer(answer, self),
            Dialect::Gemini => gemini::write_answer(answer, self),
        })
    }

    /// Translates a stream.
    pub(crate) fn stream(&self) -> StreamTranslator {
        StreamTranslator {
            reader: match self.upstream {
                Dialect::Chat => EventReader::Chat(chat::EventReader::default()),
                Dialect::Responses => EventReader::Responses(responses::EventReader::default()),
                Dialect::Messages => EventReader::Messages(messages::EventReader::default()),
                Dialect::Gemini => EventReader::Gemini(gemini::EventReader::default()),
            },
            sequencer: Sequencer::new(self.calls),
            writer: match self.client {
                Dialect::Chat => EventWriter::Chat(chat::EventWriter::new(self.clone())),
                Dialect::Responses => EventWriter::Responses(responses::EventWriter::new(self.clone())),
                Dialect::Messages => EventWriter::Messages(messages::EventWriter::new(self.clone())),
                Dialect::Gemini => EventWriter::Gemini(gemini::EventWriter::new(self.clone())),
            },
            client: self.client,
            failure: None,
        }
    }

    /// How the client declared the tool that the upstream calls.
    fn origin(&self, name: &str) -> ToolOrigin {
        self.tools.get(name).cloned().unwrap_or_else(|| ToolOrigin::function(name))
    }

    /// Gives ids to calls that have none.
    fn name_calls(&self, answer: &mut Answer) {
        let calls = answer.parts.iter_mut().filter_map(|part| match part {
            neutral::Part::Call(call) => Some(call),
            _ => None,
        });
        for (at, call) in calls.enumerate() {
            if call.id.is_empty() {
                call.id = sequence::call_id(self.calls.saturating_add(at));
            }
        }
    }

    /// The id of the answer: the upstream's, or one that is unique in the conversation.
    fn answer_id(&self, id: Option<String>) -> String {
        id.filter(|id| !id.is_empty()).unwrap_or_else(|| format!("answer_{}", self.turns))
    }

    /// The model that the client believes it talks to.
    fn model(&self, upstream: Option<String>) -> String {
        match self.model.as_str() {
            "" => upstream.unwrap_or_default(),
            asked => asked.to_owned(),
        }
    }
}

/// Translates the events of a stream as they come.
#[derive(Debug)]
pub(crate) struct StreamTranslator {
    reader: EventReader,
    sequencer: Sequencer,
    writer: EventWriter,
    client: Dialect,
    failure: Option<(ErrorKind, String)>,
}

#[derive(Debug)]
enum EventReader {
    Chat(chat::EventReader),
    Responses(responses::EventReader),
    Messages(messages::EventReader),
    Gemini(gemini::EventReader),
}

#[derive(Debug)]
enum EventWriter {
    Chat(chat::EventWriter),
    Responses(responses::EventWriter),
    Messages(messages::EventWriter),
    Gemini(gemini::EventWriter),
}

impl StreamTranslator {
    /// Takes the data of one event of the upstream. Returns the client's events as bytes; often none.
    ///
    /// An error that the upstream reports in the stream becomes an error in the client's dialect, and ends the stream:
    /// see [`Self::failure`].
    pub(crate) fn feed(&mut self, data: &[u8]) -> Result<Vec<u8>, TranslationError> {
        if self.failure.is_some() || data.trim_ascii().is_empty() {
            return Ok(Vec::new());
        }
        let mut pieces = Vec::new();
        if data.trim_ascii() == b"[DONE]" {
            pieces.push(Piece::End);
        } else {
            let event: Value = serde_json::from_slice(data)
                .map_err(|error| TranslationError::invalid("event", &format!("is not JSON: {error}")))?;
            if let Some((kind, message)) = error_in(&event) {
                let bytes = error_event(self.client, kind, &message);
                self.failure = Some((kind, message));
                return Ok(bytes);
            }
            match &mut self.reader {
                EventReader::Chat(reader) => reader.read(event, &mut pieces),
                EventReader::Responses(reader) => reader.read(event, &mut pieces),
                EventReader::Messages(reader) => reader.read(event, &mut pieces),
                EventReader::Gemini(reader) => reader.read(event, &mut pieces),
            }
        }
        Ok(self.write(pieces))
    }

    /// Takes the end of the upstream's stream. An error means that it was cut: the client must not take what came for
    /// a whole answer.
    pub(crate) fn finish(&mut self) -> Result<Vec<u8>, TranslationError> {
        if self.failure.is_some() || self.sequencer.is_over() {
            return Ok(Vec::new());
        }
        if !self.sequencer.has_ending() {
            return Err(TranslationError::CutStream);
        }
        Ok(self.write(vec![Piece::End]))
    }

    /// The error that the upstream reported in the stream.
    #[cfg(test)]
    pub(crate) fn failure(&self) -> Option<&(ErrorKind, String)> {
        self.failure.as_ref()
    }

    fn write(&mut self, pieces: Vec<Piece>) -> Vec<u8> {
        let mut steps = Vec::new();
        for piece in pieces {
            self.sequencer.push(piece, &mut steps);
        }
        let mut bytes = Vec::new();
        for step in steps {
            match &mut self.writer {
                EventWriter::Chat(writer) => writer.write(step, &mut bytes),
                EventWriter::Responses(writer) => writer.write(step, &mut bytes),
                EventWriter::Messages(writer) => writer.write(step, &mut bytes),
                EventWriter::Gemini(writer) => writer.write(step, &mut bytes),
            }
        }
        bytes
    }
}

#[cfg(test)]
mod tests;
