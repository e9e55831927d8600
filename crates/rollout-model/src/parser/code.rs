//! Answers in a fenced code block.

use super::{MaybeThink, Parser};

/// Takes the content of the last fenced code block after the model's reasoning, or the whole text without one.
///
/// ```
/// use rollout::model::parser::{CodeBlock, Parser};
///
/// assert_eq!(CodeBlock.parse("Here:\n```python\nx = 1\n```\nDone."), "x = 1\n");
/// assert_eq!(CodeBlock.parse("x = 1"), "x = 1");
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct CodeBlock;

impl Parser for CodeBlock {
    fn parse(&self, text: &str) -> String {
        let text = MaybeThink::after_thoughts(text);
        let mut last = None;
        let mut open: Option<String> = None;
        for line in text.split_inclusive('\n') {
            let is_fence = line.trim_start().starts_with("```");
            match (&mut open, is_fence) {
                (None, true) => open = Some(String::new()),
                (None, false) => {}
                (Some(block), false) => block.push_str(line),
                (Some(_), true) => last = open.take(),
            }
        }
        // A block that is not closed was cut off by the limit of tokens.
        open.or(last).unwrap_or_else(|| text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_block_is_used() {
        for (text, code) in [
            ("```\na\n```", "a\n"),
            ("```py\na\n```\nthen\n```py\nb\n  c\n```\nend", "b\n  c\n"),
            ("<think>```\nx\n```</think>\n```\ny\n```", "y\n"),
            ("```\ncut off", "cut off"),
            ("plain", "plain"),
            ("", ""),
        ] {
            assert_eq!(CodeBlock.parse(text), code, "{text}");
        }
    }
}
