//! Parsers that find the answer in a model's messages.
//!
//! ```
//! use rollout::model::parser::{Boxed, MaybeThink, Parser, Think};
//!
//! let text = "<think>2 and 2…</think> It is \\boxed{4}.";
//! assert_eq!(Think::new().parse(text), "It is \\boxed{4}.");
//! assert_eq!(Boxed.parse(text), "4");
//! assert_eq!(MaybeThink::new().parse("no thoughts"), "no thoughts");
//! ```

mod boxed;
mod code;
mod think;
mod xml;

use std::{fmt, sync::Arc};

pub(crate) use boxed::boxed_or_all;
pub use boxed::{Boxed, boxed};
pub use code::CodeBlock;
pub use think::{MaybeThink, Think};
pub use xml::{Xml, XmlError, XmlField};

use rollout_core::message::{Message, Role};

/// Finds the answer in a model's messages.
pub trait Parser: Send + Sync + fmt::Debug {
    /// The answer in one text; empty if there is none.
    fn parse(&self, text: &str) -> String;

    /// The answer in a conversation: by default, that of the model's last message.
    fn parse_answer(&self, completion: &[Arc<Message>]) -> Option<String> {
        said_by_model(completion).next_back().map(|message| self.parse(&message.text()))
    }

    /// How well the model followed the format, from 0 to 1. 1 if there is no format.
    fn format_reward(&self, _completion: &[Arc<Message>]) -> f64 {
        1.0
    }
}

/// The messages of the model in a conversation.
fn said_by_model(messages: &[Arc<Message>]) -> impl DoubleEndedIterator<Item = &Message> {
    messages.iter().map(Arc::as_ref).filter(|message| message.role == Role::Assistant)
}

/// The mean over the model's messages; 0 without messages.
fn mean_over_messages(completion: &[Arc<Message>], score: impl Fn(&str) -> f64) -> f64 {
    let scores: Vec<f64> = said_by_model(completion).map(|message| score(&message.text())).collect();
    if scores.is_empty() { 0.0 } else { scores.iter().sum::<f64>() / scores.len() as f64 }
}

/// Takes the whole text.
///
/// ```
/// use rollout::model::{Message, parser::{Parser, Plain}};
///
/// let completion = [Message::assistant("5?"), Message::user("sure?"), Message::assistant("4")].map(Into::into);
/// assert_eq!(Plain.parse_answer(&completion).unwrap(), "4");
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct Plain;

impl Parser for Plain {
    fn parse(&self, text: &str) -> String {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use rollout_core::message::Content;

    #[test]
    fn the_plain_answer_is_the_models_last_message_with_its_parts_joined() {
        let parts =
            Content::Parts(vec![json!({"type": "text", "text": "a"}), json!({"type": "text", "text": "b"})]);
        let mut said = Message::assistant("");
        said.content = Some(parts);
        let completion = [Message::assistant("first"), said, Message::tool("1", "later")].map(Arc::new);
        assert_eq!(Plain.parse_answer(&completion).as_deref(), Some("a b"));
    }

    #[test]
    fn a_conversation_without_model_messages_has_no_answer() {
        assert_eq!(Plain.parse_answer(&[]), None);
        assert_eq!(Plain.parse_answer(&[Arc::new(Message::user("hello?"))]), None);
        assert_eq!(Plain.format_reward(&[]), 1.0);
    }
}
