//! Foreign text, made fit to be quoted.

/// The start of a text, short enough for a sentence.
pub(crate) fn excerpt(text: &str) -> String {
    const MAX_CHARS: usize = 60;
    let mut short: String = text.chars().take(MAX_CHARS).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}
