//! Prompts as tokens: sampled tokens are sent back as they are, not as text that the server tokenizes again.
//!
//! The tokens of a prompt are those of the previous turn, followed by those of the new messages (the bridge). The
//! server tokenizes the new messages after a placeholder for the model's message, so that its chat template adds what
//! belongs between messages.

use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering::Relaxed},
};

use bytes::Bytes;
use reqwest::{Method, Request, header::HeaderMap};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Inner, Model, chat, endpoint::Endpoint, exchange};
use rollout_core::{
    message::{Content, Message, Role, ToolDef},
    response::{FinishReason, ResponseTokens},
};

/// The tokens of the first messages of a conversation, up to and including the model's last message.
#[derive(Debug, Clone, Copy)]
pub struct TokenHistory<'a> {
    /// What the server reported for the last turn.
    pub tokens: &'a ResponseTokens,
    /// How many messages of the next prompt these tokens cover.
    pub messages: usize,
}

impl<'a> TokenHistory<'a> {
    /// The tokens before a prompt, if the prompt starts with the last turn and adds only text messages of tools or the
    /// user. A turn that was cut off cannot be continued.
    pub fn of(
        shown: &[Arc<Message>],
        said: &[Arc<Message>],
        finish_reason: Option<&FinishReason>,
        tokens: &'a ResponseTokens,
        prompt: &[Arc<Message>],
    ) -> Option<Self> {
        let messages = shown.len() + said.len();
        let (before, new) = prompt.split_at_checked(messages)?;
        let is_same = |(one, other): (&Arc<Message>, &Arc<Message>)| Arc::ptr_eq(one, other) || one == other;
        let goes_on = shown.iter().chain(said).zip(before).all(is_same);
        let tools = new.iter().take_while(|message| message.role == Role::Tool).count();
        let is_answer = |message: &Arc<Message>| matches!(message.role, Role::Tool | Role::User);
        let is_plain =
            new.iter().all(|message| is_answer(message) && matches!(message.content, Some(Content::Text(_))));
        let tools_first = new[tools..].iter().all(|message| message.role == Role::User);
        let is_whole = finish_reason != Some(&FinishReason::Length) && !tokens.completion_ids.is_empty();
        (goes_on && !new.is_empty() && is_plain && tools_first && is_whole)
            .then_some(Self { tokens, messages })
    }
}

/// The placeholder for the model's message while new messages are tokenized.
const STAND_IN: &str = "ok";

#[derive(Deserialize)]
struct Tokenized {
    tokens: Vec<u32>,
}

impl Inner {
    /// The tokens of a prompt. None if the server cannot tokenize, or its template does not show where a message ends.
    /// The prompt is then sent as messages.
    pub(super) async fn token_prompt(
        &self,
        endpoint: &Endpoint,
        model: &Model,
        messages: &[Arc<Message>],
        tools: &[ToolDef],
        history: TokenHistory<'_>,
    ) -> Option<Vec<u32>> {
        let new = messages.get(history.messages..)?;
        let stand_in = Arc::new(Message::assistant(STAND_IN));
        let alone = self.tokenized(endpoint, model, std::slice::from_ref(&stand_in), tools, false).await?;
        let with_new: Vec<_> = [stand_in].into_iter().chain(new.iter().cloned()).collect();
        let all = self.tokenized(endpoint, model, &with_new, tools, true).await?;
        let sampled = &history.tokens.completion_ids;
        // The model ended its message with this token. What the template writes after it belongs to the bridge.
        let end = alone.iter().rposition(|id| Some(id) == sampled.last())?;
        if !all.starts_with(&alone) {
            return None;
        }
        let mut tokens = history.tokens.prompt_ids.clone();
        tokens.extend_from_slice(sampled);
        tokens.extend_from_slice(&all[end + 1..]);
        Some(tokens)
    }

    async fn tokenized(
        &self,
        endpoint: &Endpoint,
        model: &Model,
        messages: &[Arc<Message>],
        tools: &[ToolDef],
        add_generation_prompt: bool,
    ) -> Option<Vec<u32>> {
        let mut body = json!({
            "model": model.name,
            "messages": chat::messages_value(messages, self.habits()),
            "add_generation_prompt": add_generation_prompt,
        });
        if !tools.is_empty() {
            body["tools"] = chat::tools_value(tools);
        }
        // Settings of the conversation's template apply here too.
        let own = model.sampling.get("extra_body").and_then(|extra| extra.get("chat_template_kwargs"));
        if let Some(kwargs) = own.or_else(|| self.extra_body.get("chat_template_kwargs")) {
            body["chat_template_kwargs"] = kwargs.clone();
        }
        let mut request = Request::new(Method::POST, endpoint.tokenize.clone());
        *request.headers_mut() = HeaderMap::clone(&self.headers);
        *request.body_mut() = Some(body.to_string().into());
        let mut answer = self.http.execute(request).await.ok()?;
        let status = answer.status();
        if !status.is_success() {
            tracing::debug!(url = %endpoint.tokenize, %status, "the server has no tokenizer endpoint");
            return None;
        }
        let body = exchange::whole_body(&mut answer).await?;
        let Tokenized { tokens } = serde_json::from_slice(&body).ok()?;
        Some(tokens)
    }
}

/// Whether a status means that the server has no such endpoint.
pub(super) fn is_unknown_endpoint(status: reqwest::StatusCode) -> bool {
    matches!(status.as_u16(), 404 | 405 | 501)
}

/// How a server accepts prompts of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenEndpoint {
    /// In addition to the messages, which the server's parsers need: `/chat/completions/tokens`.
    Chat,
    /// Instead of messages: `/completions`, as in vLLM. It parses neither tool calls nor reasoning.
    Completions,
}

/// The token endpoints of a server that may exist.
#[derive(Debug)]
pub(super) struct TokenEndpoints(AtomicU8);

impl TokenEndpoints {
    pub(super) fn new(is_wanted: bool) -> Self {
        Self(AtomicU8::new(if is_wanted { 0 } else { 2 }))
    }

    /// The endpoint to use, if there is one for such a conversation.
    pub(super) fn next(&self, messages: &[Arc<Message>], tools: &[ToolDef]) -> Option<TokenEndpoint> {
        let is_parsed = |message: &Arc<Message>| {
            message.reasoning_content.is_some()
                || message.role == Role::Tool
                || !message.tool_calls.is_empty()
        };
        match self.0.load(Relaxed) {
            0 => Some(TokenEndpoint::Chat),
            1 if tools.is_empty() && !messages.iter().any(is_parsed) => Some(TokenEndpoint::Completions),
            _ => None,
        }
    }

    /// Records that the server has no such endpoint.
    pub(super) fn lacks(&self, endpoint: TokenEndpoint) {
        self.0.fetch_max(if endpoint == TokenEndpoint::Chat { 1 } else { 2 }, Relaxed);
    }
}

/// Converts a chat request to a request for `/completions`.
pub(super) fn completions_body(chat: &[u8], tokens: &[u32]) -> Option<Bytes> {
    let mut body: Map<String, Value> = serde_json::from_slice(chat).ok()?;
    for key in ["messages", "tokens", "tools", "tool_choice", "stream", "stream_options"] {
        body.remove(key);
    }
    if let Some(limit) = body.remove("max_completion_tokens") {
        body.insert("max_tokens".to_owned(), limit);
    }
    body.insert("prompt".to_owned(), json!(tokens));
    // The probability of the sampled token alone.
    body.insert("logprobs".to_owned(), json!(1));
    serde_json::to_vec(&body).ok().map(Bytes::from)
}

/// Converts an answer of `/completions` to that of a chat.
pub(super) fn as_chat(mut answer: Value) -> Value {
    for choice in answer.get_mut("choices").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(choice) = choice.as_object_mut() else { continue };
        let text = choice.remove("text").unwrap_or_default();
        choice.insert("message".to_owned(), json!({"role": "assistant", "content": text}));
        let entry = |logprob: &Value| json!({"logprob": logprob});
        let logprobs = choice.get("logprobs").and_then(|logprobs| logprobs.get("token_logprobs")?.as_array());
        if let Some(logprobs) = logprobs.map(|logprobs| logprobs.iter().map(entry).collect::<Vec<_>>()) {
            choice.insert("logprobs".to_owned(), json!({"content": logprobs}));
        }
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chat_requests_and_answers_convert_to_completions_and_back() {
        let chat = json!({
            "model": "m", "messages": [], "temperature": 0.5, "max_completion_tokens": 7, "stream": true,
            "return_token_ids": true, "logprobs": true,
        });
        let body = completions_body(chat.to_string().as_bytes(), &[1, 2]).unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap();
        let expected = json!({
            "model": "m", "temperature": 0.5, "max_tokens": 7, "return_token_ids": true, "prompt": [1, 2],
            "logprobs": 1,
        });
        assert_eq!(body, expected);
        let answer = json!({"id": "c", "choices": [{
            "text": "4", "finish_reason": "stop", "token_ids": [3], "prompt_token_ids": [1, 2],
            "logprobs": {"tokens": ["4"], "token_logprobs": [-0.5]},
        }]});
        let choice = &as_chat(answer)["choices"][0];
        assert_eq!(choice["message"], json!({"role": "assistant", "content": "4"}));
        assert_eq!(choice["logprobs"], json!({"content": [{"logprob": -0.5}]}));
        assert_eq!(choice["token_ids"], json!([3]));
    }

    #[test]
    fn plain_completions_are_used_only_for_plain_conversations() {
        let endpoints = TokenEndpoints::new(true);
        let plain = [Arc::new(Message::user("a")), Arc::new(Message::assistant("b"))];
        assert_eq!(endpoints.next(&plain, &[]), Some(TokenEndpoint::Chat));
        endpoints.lacks(TokenEndpoint::Chat);
        assert_eq!(endpoints.next(&plain, &[]), Some(TokenEndpoint::Completions));
        let mut thought = Message::assistant("b");
        thought.reasoning_content = Some("hm".to_owned());
        assert_eq!(endpoints.next(&[Arc::new(thought)], &[]), None);
        endpoints.lacks(TokenEndpoint::Completions);
        assert_eq!(endpoints.next(&plain, &[]), None);
        assert_eq!(TokenEndpoints::new(false).next(&plain, &[]), None);
    }
}
