//! Signatures of thoughts on their way through a client of another dialect.
//!
//! Some upstreams sign their thoughts and want them back with the next request: Anthropic signs thinking blocks,
//! OpenAI encrypts reasoning items, Google signs function calls. Clients of other dialects have a field of the same
//! purpose, whose content they do not read. So the signature travels there in a wrapping that names the upstream's
//! dialect, and the upstream gets back only what it wrote itself.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rollout_core::lenient_base64;
use serde::{Deserialize, Serialize};

use super::neutral::Thought;
use crate::Dialect;

/// What a wrapped signature starts with, so that it differs from a native one.
const MARK: &str = "rollout:";

#[derive(Serialize, Deserialize)]
struct Wrapped {
    dialect: Dialect,
    signature: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    redacted: bool,
    /// The thought itself, for clients that keep only the signature.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    text: String,
}

/// Wraps the signature of an upstream. The result is base64, as Gemini's clients require.
pub(super) fn wrap(upstream: Dialect, signature: &str, is_redacted: bool, text: &str) -> String {
    let wrapped = Wrapped {
        dialect: upstream,
        signature: signature.to_owned(),
        redacted: is_redacted,
        text: text.to_owned(),
    };
    let json = serde_json::to_string(&wrapped).unwrap_or_default();
    STANDARD.encode(format!("{MARK}{json}"))
}

/// Restores the thought that a client sent back. Without a signature that the upstream wrote, only the text is left.
pub(super) fn unwrap(upstream: Dialect, thought: Thought) -> Thought {
    let Some(signature) = thought.signature else { return thought };
    let decoded = lenient_base64::decode(&signature).and_then(|bytes| String::from_utf8(bytes).ok());
    let wrapped: Option<Wrapped> = decoded
        .as_deref()
        .and_then(|text| text.strip_prefix(MARK))
        .and_then(|json| serde_json::from_str(json).ok());
    match wrapped {
        Some(wrapped) if wrapped.dialect == upstream => Thought {
            text: if wrapped.text.is_empty() { thought.text } else { wrapped.text },
            signature: Some(wrapped.signature),
            is_redacted: wrapped.redacted,
        },
        Some(wrapped) if thought.text.is_empty() => Thought { text: wrapped.text, ..Thought::default() },
        _ => Thought { text: thought.text, ..Thought::default() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_goes_back_only_to_the_upstream_that_wrote_it() {
        let carried = |signature: String| Thought {
            text: "Look.".to_owned(),
            signature: Some(signature),
            is_redacted: false,
        };
        let wrapped = wrap(Dialect::Messages, "EqQB", false, "");
        assert_eq!(
            unwrap(Dialect::Messages, carried(wrapped.clone())),
            Thought { text: "Look.".to_owned(), signature: Some("EqQB".to_owned()), is_redacted: false }
        );
        for (upstream, signature) in [
            (Dialect::Gemini, wrapped),
            (Dialect::Messages, "EqQB".to_owned()),
            (Dialect::Chat, String::new()),
        ] {
            assert_eq!(
                unwrap(upstream, carried(signature)),
                Thought { text: "Look.".to_owned(), ..Thought::default() }
            );
        }
    }

    #[test]
    fn a_client_that_keeps_only_the_signature_gives_back_the_thought() {
        let wrapped = wrap(Dialect::Messages, "EqQB", false, "Look.");
        let thought = unwrap(Dialect::Messages, Thought { signature: Some(wrapped), ..Thought::default() });
        assert_eq!((thought.text.as_str(), thought.signature.as_deref()), ("Look.", Some("EqQB")));
    }
}
