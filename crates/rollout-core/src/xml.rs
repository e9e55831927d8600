//! Escaping of text for XML.

/// Escapes text for attributes and between tags. Characters that XML does not allow are replaced.
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&apos;"),
            '\n' | '\t' => safe.push(c),
            // An unescaped carriage return would be read as a newline.
            '\r' => safe.push_str("&#13;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_ends_no_attribute_and_no_element() {
        assert_eq!(escape("<a b=\"c\" d='e'>&"), "&lt;a b=&quot;c&quot; d=&apos;e&apos;&gt;&amp;");
        assert_eq!(escape("\0\u{1b}\u{9b}\u{fffe}|\r\n\té"), "\u{fffd}\u{fffd}\u{fffd}\u{fffd}|&#13;\n\té");
    }
}
