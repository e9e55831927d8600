//! Answers after a model's reasoning.

use std::sync::Arc;

use super::{Message, Parser, mean_over_messages};

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

type Extract = fn(&str) -> String;

/// Takes the text after the last `</think>`; empty if there is none.
///
/// ```
/// use rollout::model::parser::{Parser, Think, boxed};
///
/// assert_eq!(Think::new().parse("<think>hm</think>\n4\n"), "4");
/// assert_eq!(Think::new().parse("4"), "");
/// let answer = Think::then(|text| boxed(text).unwrap_or_default().to_owned());
/// assert_eq!(answer.parse("<think>hm</think> \\boxed{4}"), "4");
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Think(Extract);

impl Think {
    /// Takes the whole text after the reasoning.
    pub fn new() -> Self {
        Self(str::to_owned)
    }

    /// Applies a function to the text after the reasoning.
    pub fn then(extract: fn(&str) -> String) -> Self {
        Self(extract)
    }
}

impl Default for Think {
    fn default() -> Self {
        Self::new()
    }
}

impl Parser for Think {
    fn parse(&self, text: &str) -> String {
        text.rsplit_once(CLOSE).map(|(_, answer)| (self.0)(answer.trim())).unwrap_or_default()
    }

    /// The share of the model's messages that start with one block of reasoning, followed by an answer.
    fn format_reward(&self, completion: &[Arc<Message>]) -> f64 {
        mean_over_messages(completion, |text| {
            let once = text.matches(OPEN).count() == 1 && text.matches(CLOSE).count() == 1;
            let answered = text.rsplit_once(CLOSE).is_some_and(|(_, answer)| !answer.is_empty());
            f64::from(text.trim_start().starts_with(OPEN) && once && answered)
        })
    }
}

/// Takes the text after the last `</think>`, or the whole text if there is none.
#[derive(Debug, Clone, Copy)]
pub struct MaybeThink(Extract);

impl MaybeThink {
    /// Takes the whole text after the reasoning, if there is any.
    pub fn new() -> Self {
        Self(str::to_owned)
    }

    /// Applies a function to the text after the reasoning.
    pub fn then(extract: fn(&str) -> String) -> Self {
        Self(extract)
    }

    /// The text after the reasoning.
    pub(crate) fn after_thoughts(text: &str) -> &str {
        text.rsplit_once(CLOSE).map_or(text, |(_, answer)| answer).trim()
    }
}

impl Default for MaybeThink {
    fn default() -> Self {
        Self::new()
    }
}

impl Parser for MaybeThink {
    fn parse(&self, text: &str) -> String {
        (self.0)(Self::after_thoughts(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_follows_the_last_reasoning() {
        for (text, think, maybe) in [
            ("<think>a</think> b ", "b", "b"),
            ("<think>a</think> b <think>c</think>\nd", "d", "d"),
            ("a</think>b", "b", "b"),
            (" no thoughts ", "", "no thoughts"),
            ("<think>endless", "", "<think>endless"),
            ("<think>a</think>", "", ""),
            ("", "", ""),
        ] {
            assert_eq!(
                (Think::new().parse(text), MaybeThink::new().parse(text)),
                (think.into(), maybe.into())
            );
        }
    }

    #[test]
    fn the_format_is_one_block_of_reasoning_and_then_an_answer() {
        for (text, kept) in [
            ("<think>a</think>b", 1.0),
            (" \n<think>a</think>b", 1.0),
            ("<think>a</think>", 0.0),
            ("b<think>a</think>b", 0.0),
            ("<think>a</think>b<think>c</think>d", 0.0),
            ("b", 0.0),
        ] {
            assert_eq!(Think::new().format_reward(&[Arc::new(Message::assistant(text))]), kept, "{text}");
        }
        let half = [Message::assistant("<think>a</think>b"), Message::user("?"), Message::assistant("b")];
        assert_eq!(Think::new().format_reward(&half.map(Arc::new)), 0.5);
        assert_eq!(Think::new().format_reward(&[]), 0.0);
    }
}
