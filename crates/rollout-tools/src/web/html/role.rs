//! The effect of HTML elements on the text.

use html5ever::tokenizer::Tag;

use super::attribute;

/// The effect of an element on its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// The content is hidden.
    Hidden,
    /// No effect.
    Other,
    /// The content is a separate block.
    Block,
    Heading(usize),
    Quote,
    List,
    Item,
    Pre,
    Table,
    Row,
    Cell,
    /// The content is marked within its line.
    Inline,
}

impl Role {
    pub(super) fn is_block(self) -> bool {
        !matches!(self, Self::Hidden | Self::Other | Self::Inline)
    }
}

pub(super) fn of(name: &str) -> Role {
    match name {
        // Programs, navigation, and interactive elements.
        "script" | "style" | "noscript" | "template" | "svg" | "math" | "iframe" | "object" | "audio"
        | "video" | "canvas" | "map" | "noframes" | "noembed" | "nav" | "footer" | "select" | "button"
        | "textarea" | "datalist" => Role::Hidden,
        "h1" => Role::Heading(1),
        "h2" => Role::Heading(2),
        "h3" => Role::Heading(3),
        "h4" => Role::Heading(4),
        "h5" => Role::Heading(5),
        "h6" => Role::Heading(6),
        "blockquote" => Role::Quote,
        "ul" | "ol" | "menu" | "dir" => Role::List,
        "li" => Role::Item,
        "pre" | "xmp" | "listing" | "plaintext" => Role::Pre,
        "table" => Role::Table,
        "tr" => Role::Row,
        "td" | "th" => Role::Cell,
        "address" | "article" | "aside" | "body" | "caption" | "center" | "dd" | "details" | "dialog"
        | "div" | "dl" | "dt" | "fieldset" | "figcaption" | "figure" | "form" | "header" | "hgroup"
        | "html" | "legend" | "main" | "p" | "search" | "section" | "summary" => Role::Block,
        "a" | "b" | "strong" | "i" | "em" | "cite" | "dfn" | "code" | "kbd" | "samp" | "tt" => Role::Inline,
        _ => Role::Other,
    }
}

pub(super) fn is_row_group(name: &str) -> bool {
    matches!(name, "thead" | "tbody" | "tfoot")
}

/// Elements whose content is not HTML.
pub(super) fn is_foreign(name: &str) -> bool {
    matches!(name, "svg" | "math")
}

/// Elements without an end tag.
pub(super) fn is_void(name: &str) -> bool {
    matches!(
        name,
        "area"
            | "base"
            | "basefont"
            | "bgsound"
            | "br"
            | "col"
            | "embed"
            | "frame"
            | "hr"
            | "img"
            | "input"
            | "keygen"
            | "link"
            | "meta"
            | "param"
            | "source"
            | "track"
            | "wbr"
    )
}

/// Whether the element is invisible to a reader, or only navigation.
pub(super) fn is_hidden(tag: &Tag) -> bool {
    let style = || {
        let style: String =
            attribute(tag, "style")?.chars().filter(|c| !c.is_whitespace()).take(1000).collect();
        Some(style.to_ascii_lowercase())
    };
    attribute(tag, "hidden").is_some()
        || attribute(tag, "aria-hidden").is_some_and(|value| value.eq_ignore_ascii_case("true"))
        || attribute(tag, "role").is_some_and(|value| value.eq_ignore_ascii_case("navigation"))
        || style().is_some_and(|style| style.contains("display:none") || style.contains("visibility:hidden"))
}
