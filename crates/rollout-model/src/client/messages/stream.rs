//! Assembles a streamed response into the form of a whole one.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Reply, response::Usage};
use crate::client::exchange::Pieces;

/// The part of the response that has arrived.
#[derive(Debug, Default)]
pub(in crate::client) struct Assembly {
    reply: Reply,
    blocks: Vec<Map<String, Value>>,
    /// The arguments of the current tool call.
    arguments: String,
    is_done: bool,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Event {
    MessageStart {
        message: Reply,
    },
    ContentBlockStart {
        content_block: Map<String, Value>,
    },
    ContentBlockDelta {
        delta: Delta,
    },
    ContentBlockStop {},
    MessageDelta {
        delta: Map<String, Value>,
        usage: Option<Usage>,
    },
    MessageStop {},
    Error {
        error: Value,
    },
    /// A ping, or an unknown event.
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
#[serde(tag = "type")]
enum Delta {
    #[serde(rename = "text_delta")]
    Text { text: String },
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: String },
    #[serde(rename = "signature_delta")]
    Signature { signature: String },
    #[serde(rename = "input_json_delta")]
    Input { partial_json: String },
    #[serde(rename = "citations_delta")]
    Citation { citation: Value },
    #[serde(other)]
    Other,
}

impl Pieces for Assembly {
    type Whole = Reply;

    fn add(&mut self, data: &[u8]) -> Result<(), serde_json::Error> {
        match serde_json::from_slice(data)? {
            Event::MessageStart { message } => self.reply = message,
            Event::ContentBlockStart { content_block } => {
                self.arguments.clear();
                self.blocks.push(content_block);
            }
            Event::ContentBlockDelta { delta } => self.add_delta(delta),
            Event::ContentBlockStop {} => self.end_block(),
            Event::MessageDelta { delta, usage } => {
                for (key, value) in delta {
                    match (key.as_str(), value) {
                        (_, Value::Null) => {}
                        ("stop_reason", Value::String(reason)) => self.reply.stop_reason = Some(reason),
                        (_, value) => {
                            self.reply.extra.insert(key, value);
                        }
                    }
                }
                if let Some(later) = usage {
                    self.reply.usage = Some(self.reply.usage.unwrap_or_default().updated(later));
                }
            }
            Event::MessageStop {} => self.is_done = true,
            Event::Error { error } => self.reply.error = Some(error),
            Event::Other => {}
        }
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.is_done || self.reply.error.is_some() || self.reply.stop_reason.is_some()
    }

    fn finish(self) -> Reply {
        Reply { content: Some(self.blocks), ..self.reply }
    }
}

impl Assembly {
    /// Blocks come one after the other, so a piece belongs to the last one.
    fn add_delta(&mut self, delta: Delta) {
        let Some(block) = self.blocks.last_mut() else { return };
        let (key, more) = match delta {
            Delta::Text { text } => ("text", text),
            Delta::Thinking { thinking } => ("thinking", thinking),
            Delta::Signature { signature } => ("signature", signature),
            Delta::Input { partial_json } => return self.arguments.push_str(&partial_json),
            Delta::Citation { citation } => {
                match block.get_mut("citations") {
                    Some(Value::Array(citations)) => citations.push(citation),
                    _ => {
                        block.insert("citations".to_owned(), Value::Array(vec![citation]));
                    }
                }
                return;
            }
            Delta::Other => return,
        };
        match block.get_mut(key) {
            Some(Value::String(text)) => text.push_str(&more),
            _ => {
                block.insert(key.to_owned(), Value::String(more));
            }
        }
    }

    fn end_block(&mut self) {
        let arguments = std::mem::take(&mut self.arguments);
        if arguments.is_empty() {
            return;
        }
        if let Some(block) = self.blocks.last_mut() {
            // Arguments that are cut off at the token limit are not JSON, and are kept as text.
            let input = serde_json::from_str(&arguments).unwrap_or(Value::String(arguments));
            block.insert("input".to_owned(), input);
        }
    }
}
