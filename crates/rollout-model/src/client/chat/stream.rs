//! Assembles a streamed response into the form of a whole one.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    Completion,
    response::{Choice, Said, Usage},
};
use crate::client::{exchange::Pieces, lenient::Number, tokens::Logprobs};
use rollout_core::{
    message::{Content, ToolCall},
    response::FinishReason,
};

/// The part of the response that has arrived.
#[derive(Debug, Default)]
pub(in crate::client) struct Assembly {
    completion: Completion,
    /// More than one choice arrived. There should be only one.
    others: bool,
    choice: Option<Choice>,
    said: Said,
    text: Option<String>,
    reasoning: Option<String>,
    reasoning_content: Option<String>,
    calls: Vec<(Option<u64>, ToolCall)>,
    is_done: bool,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Chunk {
    id: Option<String>,
    created: Number,
    model: Option<String>,
    choices: Option<Vec<Piece>>,
    usage: Option<Usage>,
    prompt_token_ids: Option<Vec<Number>>,
    error: Option<Value>,
    #[serde(flatten)]
    extra: Map<String, Value>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Piece {
    index: Number,
    delta: Option<Delta>,
    finish_reason: Option<FinishReason>,
    logprobs: Option<Logprobs>,
    prompt_token_ids: Option<Vec<Number>>,
    #[serde(alias = "output_ids")]
    token_ids: Option<Vec<Number>>,
    routed_experts: Option<Value>,
    #[serde(flatten)]
    extra: Map<String, Value>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Delta {
    content: Option<Content>,
    reasoning: Option<String>,
    reasoning_content: Option<String>,
    tool_calls: Option<Vec<CallDelta>>,
    prompt_token_ids: Option<Vec<Number>>,
    completion_token_ids: Option<Vec<Number>>,
    #[serde(flatten)]
    extra: Map<String, Value>,
}

#[derive(Deserialize)]
struct CallDelta {
    index: Option<u64>,
    #[serde(flatten)]
    call: ToolCall,
}

impl Pieces for Assembly {
    type Whole = Completion;

    fn add(&mut self, data: &[u8]) -> Result<(), serde_json::Error> {
        if data.trim_ascii() == b"[DONE]" {
            self.is_done = true;
            return Ok(());
        }
        let chunk: Chunk = serde_json::from_slice(data)?;
        let whole = &mut self.completion;
        whole.id = whole.id.take().or(chunk.id);
        whole.model = whole.model.take().or(chunk.model);
        if whole.created.0.is_none() {
            whole.created = chunk.created;
        }
        whole.usage = chunk.usage.or(whole.usage.take());
        whole.prompt_token_ids = whole.prompt_token_ids.take().or(chunk.prompt_token_ids);
        whole.error = whole.error.take().or(chunk.error);
        add_fields(&mut whole.extra, chunk.extra);
        for piece in chunk.choices.unwrap_or_default() {
            match piece.index.count() {
                0 => self.add_piece(piece),
                _ => self.others = true,
            }
        }
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.is_done
            || self.completion.error.is_some()
            || self.choice.as_ref().is_some_and(|choice| choice.finish_reason.is_some())
    }

    fn finish(self) -> Completion {
        let mut choices = Vec::new();
        if let Some(mut choice) = self.choice {
            let mut said = self.said;
            // Streams start with an empty text, whatever follows.
            said.content = self.text.filter(|text| !text.is_empty()).map(Content::Text).or(said.content);
            said.reasoning = self.reasoning.map(Value::String);
            said.reasoning_content = self.reasoning_content.map(Value::String);
            said.tool_calls = Some(self.calls.into_iter().map(|(_, call)| call).collect());
            choice.message = Some(said);
            choices.push(choice);
        }
        if self.others {
            choices.push(Choice::default());
        }
        Completion { choices: Some(choices), ..self.completion }
    }
}

impl Assembly {
    fn add_piece(&mut self, piece: Piece) {
        let choice = self.choice.get_or_insert_default();
        let ended = piece.finish_reason.filter(|reason| !reason.as_str().is_empty());
        choice.finish_reason = ended.or(choice.finish_reason.take());
        choice.prompt_token_ids = choice.prompt_token_ids.take().or(piece.prompt_token_ids);
        choice.routed_experts =
            piece.routed_experts.filter(|experts| !experts.is_null()).or(choice.routed_experts.take());
        extend(&mut choice.token_ids, piece.token_ids);
        if let Some(more) = piece.logprobs {
            extend(&mut choice.logprobs.get_or_insert_default().content, more.content);
        }
        add_fields(&mut choice.extra, piece.extra);

        let Some(delta) = piece.delta else { return };
        match delta.content {
            None => {}
            Some(Content::Text(more)) => self.text.get_or_insert_default().push_str(&more),
            Some(Content::Parts(more)) => match &mut self.said.content {
                Some(Content::Parts(parts)) => parts.extend(more),
                content => *content = Some(Content::Parts(more)),
            },
        }
        for (whole, more) in
            [(&mut self.reasoning, delta.reasoning), (&mut self.reasoning_content, delta.reasoning_content)]
        {
            if let Some(more) = more {
                whole.get_or_insert_default().push_str(&more);
            }
        }
        self.said.prompt_token_ids = self.said.prompt_token_ids.take().or(delta.prompt_token_ids);
        extend(&mut self.said.completion_token_ids, delta.completion_token_ids);
        add_fields(&mut self.said.extra, delta.extra);
        for CallDelta { index, call } in delta.tool_calls.unwrap_or_default() {
            self.add_call(index, call);
        }
    }

    /// Adds a piece of a tool call. Servers identify the calls by an index, by an id, or by both; some give every
    /// call the index 0.
    fn add_call(&mut self, index: Option<u64>, piece: ToolCall) {
        let found = match index {
            Some(_) => self.calls.iter_mut().rev().find(|(place, _)| *place == index),
            None => self.calls.last_mut(),
        };
        match found {
            Some((_, call)) if piece.id.is_empty() || call.id.is_empty() || piece.id == call.id => {
                if call.id.is_empty() {
                    call.id = piece.id;
                }
                if call.name.is_empty() {
                    call.name = piece.name;
                }
                call.arguments.push_str(&piece.arguments);
                call.extra.extend(piece.extra);
            }
            _ => self.calls.push((index, piece)),
        }
    }
}

fn extend<T>(whole: &mut Option<Vec<T>>, more: Option<Vec<T>>) {
    if let Some(more) = more {
        whole.get_or_insert_default().extend(more);
    }
}

/// Adds unknown fields. Texts of the same name are concatenated, and so are lists.
fn add_fields(whole: &mut Map<String, Value>, more: Map<String, Value>) {
    for (key, value) in more {
        match (whole.get_mut(&key), value) {
            (_, Value::Null) => {}
            (Some(Value::String(text)), Value::String(more)) if key == "refusal" => text.push_str(&more),
            (Some(Value::Array(list)), Value::Array(more)) => add_items(list, more),
            (_, value) => {
                whole.insert(key, value);
            }
        }
    }
}

/// Adds to a list. Reasoning items with the same index and type are pieces of one item.
fn add_items(list: &mut Vec<Value>, more: Vec<Value>) {
    for item in more {
        match (list.last_mut(), item) {
            (Some(Value::Object(thought)), Value::Object(piece)) if is_piece_of(thought, &piece) => {
                for (key, value) in piece {
                    match (thought.get_mut(&key), value) {
                        (_, Value::Null) => {}
                        (Some(Value::String(text)), Value::String(more))
                            if ["text", "summary"].contains(&&*key) =>
                        {
                            text.push_str(&more);
                        }
                        (_, value) => {
                            thought.insert(key, value);
                        }
                    }
                }
            }
            (_, item) => list.push(item),
        }
    }
}

fn is_piece_of(thought: &Map<String, Value>, piece: &Map<String, Value>) -> bool {
    ["index", "type"].iter().all(|key| thought.contains_key(*key) && thought.get(*key) == piece.get(*key))
}
