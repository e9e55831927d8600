//! The requests of clients to a model server.

use serde_json::Value;

/// What a request for responses includes to get log-probabilities.
const LOGPROBS: &str = "message.output_text.logprobs";

/// The dialect of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RequestDialect {
    /// OpenAI's chat completions.
    Chat,
    /// Anthropic's messages.
    Messages,
    /// OpenAI's responses.
    Responses,
    /// Google's generateContent.
    Gemini,
}

impl RequestDialect {
    pub(super) fn of(path: &str) -> Option<Self> {
        match path {
            "/v1/chat/completions" | "/v1/chat/completions/tokens" => Some(Self::Chat),
            "/v1/messages" => Some(Self::Messages),
            "/v1/responses" | "/v1/responses/compact" => Some(Self::Responses),
            path if path.starts_with("/v1beta/models/") && path.ends_with("enerateContent") => {
                Some(Self::Gemini)
            }
            _ => None,
        }
    }
}

/// One request that a [`ModelServer`](super::ModelServer) received.
#[derive(Debug, Clone)]
pub struct ModelRequest {
    /// The number of requests before it.
    pub number: usize,
    /// Its dialect.
    pub dialect: RequestDialect,
    /// Its path.
    pub path: String,
    /// Its headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Its body; null if it was not JSON.
    pub body: Value,
}

impl ModelRequest {
    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The conversation.
    pub fn messages(&self) -> &[Value] {
        let field = match self.dialect {
            RequestDialect::Chat | RequestDialect::Messages => "messages",
            RequestDialect::Responses => "input",
            RequestDialect::Gemini => "contents",
        };
        self.body[field].as_array().map_or(&[], Vec::as_slice)
    }

    /// The number of previous turns of the model.
    pub fn turns(&self) -> usize {
        let of_model = |message: &&Value| {
            matches!(message["role"].as_str(), Some("assistant" | "model"))
                || message["type"] == "function_call"
        };
        self.messages().iter().filter(of_model).count()
    }

    /// The text of the last message.
    pub fn last_text(&self) -> String {
        if let Value::String(input) = &self.body["input"] {
            return input.clone();
        }
        let text = |message: &Value| {
            let content = ["content", "parts", "output"].iter().find_map(|field| message.get(*field));
            content.map(text_of)
        };
        self.messages().last().and_then(text).unwrap_or_default()
    }

    /// The model's name.
    pub fn model(&self) -> &str {
        let in_path = self.path.rsplit('/').next().and_then(|last| last.split(':').next());
        match self.dialect {
            RequestDialect::Gemini => in_path.unwrap_or_default(),
            _ => self.body["model"].as_str().unwrap_or_default(),
        }
    }

    pub(super) fn asked(&self) -> RequestFlags {
        let flag = |name: &str| self.body[name] == true;
        RequestFlags {
            dialect: self.dialect,
            stream: flag("stream") || self.path.ends_with(":streamGenerateContent"),
            include_usage: self.body["stream_options"]["include_usage"] == true,
            logprobs: flag("logprobs")
                || self.body["generationConfig"]["responseLogprobs"] == true
                || self.body["include"].as_array().is_some_and(|list| list.contains(&LOGPROBS.into())),
            token_ids: flag("return_token_ids"),
            tokens_as_ids: flag("return_tokens_as_token_ids"),
        }
    }
}

/// The text of a content: the text itself, or its text parts joined by a space.
pub(super) fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let texts = parts.iter().filter_map(|part| match part.get("content") {
                // The answer of a tool in Anthropic's dialect.
                Some(inner) => Some(text_of(inner)),
                None => Some(part.get("text")?.as_str()?.to_owned()),
            });
            texts.collect::<Vec<_>>().join(" ")
        }
        _ => String::new(),
    }
}

/// The parts of a request that decide how its reply is rendered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct RequestFlags {
    pub(super) dialect: RequestDialect,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    pub(super) logprobs: bool,
    pub(super) token_ids: bool,
    pub(super) tokens_as_ids: bool,
}

impl RequestFlags {
    /// Finds the flags and counts the model's turns, in one pass and without parsing the JSON. Quotes inside a
    /// text are escaped, so no text is mistaken for a key; the body must be written without spaces.
    pub(super) fn scan(dialect: RequestDialect, body: &[u8]) -> (Self, usize) {
        let mut asked = Self {
            dialect,
            stream: false,
            include_usage: false,
            logprobs: false,
            token_ids: false,
            tokens_as_ids: false,
        };
        let mut turns = 0;
        for (place, _) in body.iter().enumerate().filter(|(_, byte)| **byte == b'"') {
            let rest = &body[place + 1..];
            match rest.first() {
                Some(b'r') if rest.starts_with(b"role\":\"assistant\"") => turns += 1,
                Some(b'r') if rest.starts_with(b"return_token_ids\":true") => asked.token_ids = true,
                Some(b'r') if rest.starts_with(b"return_tokens_as_token_ids\":true") => {
                    asked.tokens_as_ids = true;
                }
                Some(b's') if rest.starts_with(b"stream\":true") => asked.stream = true,
                Some(b'i') if rest.starts_with(b"include_usage\":true") => asked.include_usage = true,
                Some(b'l') if rest.starts_with(b"logprobs\":true") => asked.logprobs = true,
                _ => (),
            }
        }
        (asked, turns)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_scan_finds_what_reading_finds() {
        let body = json!({
            "model": "m",
            "messages": [
                {"role": "user", "content": "say {\"role\":\"assistant\",\"stream\":true}"},
                {"role": "assistant", "content": "no"},
                {"role": "user", "content": "again"},
                {"role": "assistant", "content": "no"},
            ],
            "logprobs": true,
            "return_token_ids": true,
            "stream_options": {"include_usage": true},
        });
        let request = ModelRequest {
            number: 0,
            dialect: RequestDialect::Chat,
            path: String::new(),
            headers: Vec::new(),
            body: body.clone(),
        };
        let (asked, turns) = RequestFlags::scan(RequestDialect::Chat, body.to_string().as_bytes());
        assert_eq!(asked, request.asked());
        assert_eq!(turns, request.turns());
        assert_eq!(turns, 2);
        assert!(!asked.stream && asked.logprobs && asked.token_ids && asked.include_usage);
    }

    #[test]
    fn the_last_text_is_found_in_parts_and_in_results_of_tools() {
        let request = |content: Value| ModelRequest {
            number: 0,
            dialect: RequestDialect::Messages,
            path: String::new(),
            headers: Vec::new(),
            body: json!({"messages": [{"role": "user", "content": content}]}),
        };
        assert_eq!(request(json!("plain")).last_text(), "plain");
        assert_eq!(
            request(json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])).last_text(),
            "a b"
        );
        let result =
            json!([{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "9"}]}]);
        assert_eq!(request(result).last_text(), "9");
    }
}
