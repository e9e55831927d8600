//! The replies of a scripted model, and the faults of its server.

use std::time::Duration;

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::Hold;

/// One reply of a [`ModelServer`](super::ModelServer). It is independent of dialect and streaming: the request
/// decides how it is rendered.
#[derive(Debug, Clone)]
pub struct ModelReply {
    pub(super) form: Form,
    pub(super) headers: Vec<(String, String)>,
    pub(super) content_type: Option<String>,
    pub(super) delay: Option<Duration>,
    pub(super) hold: Option<Hold>,
    pub(super) hold_midway: Option<Hold>,
    pub(super) cut: Option<Cut>,
    pub(super) failure: Option<String>,
    pub(super) split: Split,
    pub(super) line_end: &'static str,
    pub(super) comments: bool,
}

#[derive(Debug, Clone)]
pub(super) enum Form {
    Message(Box<ScriptedMessage>),
    /// An error in the shape of the dialect.
    Error {
        status: u16,
        code: Option<String>,
        message: String,
    },
    Raw {
        status: u16,
        body: Bytes,
    },
}

#[derive(Debug, Clone, Default)]
pub(super) struct ScriptedMessage {
    pub(super) text: Option<String>,
    pub(super) parts: Option<Vec<Value>>,
    pub(super) reasoning: Option<(Reasoning, String)>,
    pub(super) refusal: Option<String>,
    pub(super) calls: Vec<Call>,
    pub(super) finish_reason: Option<Value>,
    pub(super) usage: Usage,
    pub(super) tokens: Option<Tokens>,
    pub(super) token_fields: TokenFields,
    pub(super) routed_experts: Option<Value>,
    pub(super) choices: usize,
    pub(super) message_fields: Map<String, Value>,
    pub(super) fields: Map<String, Value>,
}

#[derive(Debug, Clone)]
pub(super) struct Call {
    pub(super) id: Option<String>,
    pub(super) name: String,
    pub(super) arguments: String,
}

#[derive(Debug, Clone, Default)]
pub(super) enum Usage {
    /// Counted from the tokens.
    #[default]
    Counted,
    Given(TokenCounts),
    /// As written, in the format of some server.
    Raw(Value),
    Absent,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Tokens {
    pub(super) prompt: Vec<u32>,
    pub(super) completion: Vec<u32>,
    pub(super) logprobs: Vec<f64>,
}

/// The numbers of tokens of a reply, by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TokenCounts {
    /// All tokens of the prompt, including those below.
    pub prompt: u64,
    /// The tokens of the prompt that were read from a cache.
    pub cached: u64,
    /// The tokens of the prompt that were written to a cache. Only reported in Anthropic's dialect.
    pub cache_write: u64,
    /// All tokens of the completion, including thoughts.
    pub completion: u64,
    /// The tokens of thoughts in the completion. Only reported in OpenAI's dialect.
    pub reasoning: u64,
    /// The price in USD, as OpenRouter reports it.
    pub cost: Option<f64>,
}

/// The field of a model's thoughts in OpenAI's dialect. Anthropic's has only one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reasoning {
    /// `message.reasoning`.
    Reasoning,
    /// `message.reasoning_content`.
    ReasoningContent,
    /// `message.reasoning_details`, a list.
    ReasoningDetails,
}

/// The fields of token ids.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TokenFields {
    /// `prompt_token_ids` at the top and `token_ids` in the choice, as vLLM does.
    #[default]
    Vllm,
    /// Both in the choice, as in vLLM's plain completions.
    Choice,
    /// `output_ids` in the choice.
    OutputIds,
    /// `prompt_token_ids` and `completion_token_ids` in the message.
    Message,
}

/// The point at which a connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// After the request was read.
    BeforeHeaders,
    /// After the headers, before the body.
    AfterHeaders,
    /// In the middle of the body.
    Midway,
}

/// How a streamed body is split into packets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Split {
    /// One packet per event.
    #[default]
    Events,
    /// All in one packet.
    Whole,
    /// Packets of this many bytes: small ones also split lines and characters.
    Bytes(usize),
}

impl ModelReply {
    fn with(form: Form) -> Self {
        Self {
            form,
            headers: Vec::new(),
            content_type: None,
            delay: None,
            hold: None,
            hold_midway: None,
            cut: None,
            failure: None,
            split: Split::default(),
            line_end: "\n",
            comments: false,
        }
    }

    /// A text message.
    pub fn text(text: impl Into<String>) -> Self {
        Self::empty().said(|said| said.text = Some(text.into()))
    }

    /// An empty message.
    pub fn empty() -> Self {
        Self::with(Form::Message(Box::new(ScriptedMessage { choices: 1, ..ScriptedMessage::default() })))
    }

    /// A message whose content is a list of parts.
    pub fn parts(parts: impl IntoIterator<Item = Value>) -> Self {
        Self::empty().said(|said| said.parts = Some(parts.into_iter().collect()))
    }

    /// A message with one tool call. More calls are added by [`call`](Self::call).
    pub fn tool_call(name: &str, arguments: &Value) -> Self {
        Self::empty().call(name, arguments)
    }

    /// An error in the shape of the dialect.
    pub fn error(status: u16, message: impl Into<String>) -> Self {
        Self::with(Form::Error { status, code: None, message: message.into() })
    }

    /// An error for an invalid key.
    pub fn unauthorized() -> Self {
        Self::error(401, "Incorrect API key provided").code("invalid_api_key")
    }

    /// An error for too many requests, with the seconds to wait if given.
    pub fn rate_limited(retry_after: Option<&str>) -> Self {
        let reply = Self::error(429, "Rate limit reached for requests").code("rate_limit_exceeded");
        match retry_after {
            Some(seconds) => reply.header("retry-after", seconds),
            None => reply,
        }
    }

    /// An error because the prompt is too long for the model.
    pub fn overlong() -> Self {
        Self::error(
            400,
            "This model's maximum context length is 8192 tokens, however you requested 9000 tokens",
        )
        .code("context_length_exceeded")
    }

    /// Any status with any body.
    pub fn raw(status: u16, body: impl Into<Bytes>) -> Self {
        Self::with(Form::Raw { status, body: body.into() })
    }

    /// A success whose body is not JSON.
    pub fn malformed() -> Self {
        Self::raw(200, r#"{"id": "chatcmpl-1", "choices": [{"mess"#)
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets another content type than that of the body.
    #[must_use]
    pub fn content_type(mut self, content_type: &str) -> Self {
        self.content_type = Some(content_type.to_owned());
        self
    }

    /// Sets the code of an error.
    #[must_use]
    pub fn code(mut self, name: &str) -> Self {
        if let Form::Error { code, .. } = &mut self.form {
            *code = Some(name.to_owned());
        }
        self
    }

    /// Adds a tool call. A text is sent unchanged as arguments, so it need not be JSON.
    #[must_use]
    pub fn call(self, name: &str, arguments: &Value) -> Self {
        let arguments = arguments.as_str().map_or_else(|| arguments.to_string(), str::to_owned);
        self.said(|said| said.calls.push(Call { id: None, name: name.to_owned(), arguments }))
    }

    /// Sets the id of the last tool call; otherwise the server chooses one.
    #[must_use]
    pub fn call_id(self, id: &str) -> Self {
        self.said(|said| {
            if let Some(call) = said.calls.last_mut() {
                call.id = Some(id.to_owned());
            }
        })
    }

    /// Adds thoughts.
    #[must_use]
    pub fn reasoning(self, place: Reasoning, text: &str) -> Self {
        self.said(|said| said.reasoning = Some((place, text.to_owned())))
    }

    /// Adds a refusal.
    #[must_use]
    pub fn refusal(self, text: &str) -> Self {
        self.said(|said| said.refusal = Some(text.to_owned()))
    }

    /// Sets the finish reason, in OpenAI's words; otherwise it is `tool_calls` or `stop`.
    #[must_use]
    pub fn finish_reason(self, reason: impl Into<Value>) -> Self {
        self.said(|said| said.finish_reason = Some(reason.into()))
    }

    /// Sets the token counts; otherwise the tokens are counted.
    #[must_use]
    pub fn usage(self, counts: TokenCounts) -> Self {
        self.said(|said| said.usage = Usage::Given(counts))
    }

    /// Sets `usage` in the format of some server.
    #[must_use]
    pub fn raw_usage(self, usage: Value) -> Self {
        self.said(|said| said.usage = Usage::Raw(usage))
    }

    /// Omits the usage.
    #[must_use]
    pub fn no_usage(self) -> Self {
        self.said(|said| said.usage = Usage::Absent)
    }

    /// Sets the tokens of the prompt, and those of the completion with their log probabilities. They are sent
    /// to requests that ask for them; by default, words are tokens.
    #[must_use]
    pub fn tokens(self, prompt: &[u32], completion: &[(u32, f64)]) -> Self {
        let (ids, logprobs) = completion.iter().copied().unzip();
        self.said(|said| {
            said.tokens = Some(Tokens { prompt: prompt.to_vec(), completion: ids, logprobs });
        })
    }

    /// Sets the fields of token ids.
    #[must_use]
    pub fn token_fields(self, fields: TokenFields) -> Self {
        self.said(|said| said.token_fields = fields)
    }

    /// Adds the experts of each token.
    #[must_use]
    pub fn routed_experts(self, experts: Value) -> Self {
        self.said(|said| said.routed_experts = Some(experts))
    }

    /// Repeats the choice this many times; 0 gives an empty list.
    #[must_use]
    pub fn choices(self, number: usize) -> Self {
        self.said(|said| said.choices = number)
    }

    /// Adds a field to the message.
    #[must_use]
    pub fn message_field(self, name: &str, value: Value) -> Self {
        self.said(|said| {
            said.message_fields.insert(name.to_owned(), value);
        })
    }

    /// Adds a field next to the choices.
    #[must_use]
    pub fn field(self, name: &str, value: Value) -> Self {
        self.said(|said| {
            said.fields.insert(name.to_owned(), value);
        })
    }

    /// Delays the reply.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = Some(delay);
        self
    }

    /// Waits before its headers until the test lets it continue.
    #[must_use]
    pub fn held(mut self, hold: &Hold) -> Self {
        self.hold = Some(hold.clone());
        self
    }

    /// Waits in the middle of its body until the test lets it continue.
    #[must_use]
    pub fn held_midway(mut self, hold: &Hold) -> Self {
        self.hold_midway = Some(hold.clone());
        self
    }

    /// Ends with a closed connection.
    #[must_use]
    pub fn cut(mut self, cut: Cut) -> Self {
        self.cut = Some(cut);
        self
    }

    /// Reports an error in the middle of a stream, like a server that has already sent its status.
    #[must_use]
    pub fn fails_midway(mut self, message: &str) -> Self {
        self.failure = Some(message.to_owned());
        self
    }

    /// Sets how a stream is split into packets.
    #[must_use]
    pub fn split(mut self, split: Split) -> Self {
        self.split = split;
        self
    }

    /// Ends the lines of a stream with CRLF.
    #[must_use]
    pub fn carriage_returns(mut self) -> Self {
        self.line_end = "\r\n";
        self
    }

    /// Puts a comment before every event of a stream, as servers do to keep connections alive.
    #[must_use]
    pub fn comments(mut self) -> Self {
        self.comments = true;
        self
    }

    fn said(mut self, change: impl FnOnce(&mut ScriptedMessage)) -> Self {
        if let Form::Message(said) = &mut self.form {
            change(said);
        }
        self
    }
}

impl ScriptedMessage {
    /// The finish reason, in OpenAI's words.
    pub(super) fn finished(&self) -> Value {
        match &self.finish_reason {
            Some(reason) => reason.clone(),
            None if self.calls.is_empty() => json!("stop"),
            None => json!("tool_calls"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_with_calls_finishes_with_tool_calls_by_default() {
        let finished = |reply: ModelReply| match reply.form {
            Form::Message(said) => said.finished(),
            _ => Value::Null,
        };
        assert_eq!(finished(ModelReply::text("4")), "stop");
        assert_eq!(finished(ModelReply::tool_call("add", &json!({}))), "tool_calls");
        assert_eq!(finished(ModelReply::text("4").finish_reason("length")), "length");
        assert_eq!(finished(ModelReply::text("4").finish_reason(Value::Null)), Value::Null);
    }
}
