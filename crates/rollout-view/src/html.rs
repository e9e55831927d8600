//! Markup that is safe to put into a page as it is.

use std::fmt;

use rollout_core::{text::is_invisible, xml::escape};

/// Markup in which all foreign text is escaped. Templates insert it unchanged; they escape everything else.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Html(String);

impl Html {
    /// Escapes a text. Characters that are invisible or change the direction of text become visible.
    pub(crate) fn text(text: &str) -> Self {
        let mut html = Self::default();
        html.push_text(text);
        html
    }

    /// Appends a text, escaped.
    pub(crate) fn push_text(&mut self, text: &str) {
        if text.chars().any(is_invisible) {
            let mut shown = String::with_capacity(text.len());
            for c in text.chars() {
                if is_invisible(c) { shown.extend(c.escape_unicode()) } else { shown.push(c) }
            }
            self.0.push_str(&escape(&shown));
        } else {
            self.0.push_str(&escape(text));
        }
    }

    /// Appends markup of the program itself.
    pub(crate) fn push_markup(&mut self, markup: &str) {
        self.0.push_str(markup);
    }

    /// Appends markup of the program with values. All texts among the values must be escaped.
    pub(crate) fn push_format(&mut self, markup: fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = fmt::Write::write_fmt(&mut self.0, markup);
    }

    /// Appends other markup.
    pub(crate) fn push(&mut self, other: &Self) {
        self.0.push_str(&other.0);
    }
}

impl fmt::Display for Html {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl askama::filters::HtmlSafe for Html {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_ends_no_element_and_hides_nothing() {
        assert_eq!(Html::text("<b a='1'>&").to_string(), "&lt;b a=&apos;1&apos;&gt;&amp;");
        assert_eq!(Html::text("a\u{202e}b").to_string(), "a\\u{202e}b");
    }
}
