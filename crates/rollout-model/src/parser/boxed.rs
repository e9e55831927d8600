//! Answers in a LaTeX `\boxed{…}`.

use super::{MaybeThink, Parser};

const OPEN: &str = r"\boxed{";

/// The content of the last `\boxed{…}` of a text. None without one, or if its braces do not balance.
///
/// ```
/// use rollout::model::parser::boxed;
///
/// assert_eq!(boxed(r"\boxed{1}, no: \boxed{\frac{1}{2}}."), Some(r"\frac{1}{2}"));
/// assert_eq!(boxed(r"\boxed{1"), None);
/// ```
pub fn boxed(text: &str) -> Option<&str> {
    let inner = &text[text.rfind(OPEN)? + OPEN.len()..];
    let mut depth = 1_usize;
    for (at, byte) in inner.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(&inner[..at]);
        }
    }
    None
}

/// The content of the last `\boxed{…}` of a text, or the whole text.
pub(crate) fn boxed_or_all(text: &str) -> &str {
    boxed(text).unwrap_or(text)
}

/// Takes the content of the last `\boxed{…}` after the model's reasoning; empty without one.
#[derive(Debug, Clone, Copy, Default)]
pub struct Boxed;

impl Parser for Boxed {
    fn parse(&self, text: &str) -> String {
        boxed(MaybeThink::after_thoughts(text)).unwrap_or_default().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_last_box_is_used() {
        for (text, strict, lenient) in [
            (r"\boxed{4}", "4", "4"),
            (r"\boxed{1} then \boxed{2}", "2", "2"),
            (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}", r"\frac{1}{2}"),
            (r"\boxed{}", "", ""),
            ("4", "", "4"),
            (r"\boxed{4", "", r"\boxed{4"),
            (r"\boxed{1} \boxed{2", "", r"\boxed{1} \boxed{2"),
            ("", "", ""),
        ] {
            assert_eq!((boxed(text).unwrap_or_default(), boxed_or_all(text)), (strict, lenient), "{text}");
        }
    }

    #[test]
    fn a_box_in_the_reasoning_is_ignored() {
        assert_eq!(Boxed.parse(r"<think>\boxed{1}</think> I do not know"), "");
        assert_eq!(Boxed.parse(r"<think>\boxed{1}</think> \boxed{2}"), "2");
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in r"([a-z{}é]|\\boxed\{){0,40}") {
            if let Some(inner) = boxed(&text) {
                let whole = format!("{OPEN}{inner}}}");
                prop_assert!(text.contains(&whole));
            }
        }

        #[test]
        fn the_content_of_a_box_is_found(inner in "[a-z0-9+é ]{0,20}") {
            let text = format!("so {OPEN}{{{inner}}}}}.");
            let expected = format!("{{{inner}}}");
            prop_assert_eq!(boxed(&text), Some(expected.as_str()));
        }
    }
}
