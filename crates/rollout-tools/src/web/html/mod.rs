//! Converts HTML to Markdown that a model can read: text, headings, lists, tables and links, without navigation
//! and scripts.
//!
//! It processes the tokens of a page and builds no tree. Time and memory grow only with the length of a page,
//! however deep its elements are nested or however wide its tables are, because pages may be hostile.

mod role;
mod writer;

use std::cell::RefCell;

use html5ever::{
    tendril::StrTendril,
    tokenizer::{
        BufferQueue, Tag, TagKind, Token, TokenSink, TokenSinkResult, Tokenizer, TokenizerOpts,
        states::RawKind,
    },
};
use url::Url;

use self::{
    role::Role,
    writer::{Mark, Writer},
};

/// The number of bytes read between two checks whether to continue.
const CHUNK_BYTES: usize = 16 << 10;

/// The most open elements. Deeper ones only contribute their text.
const MAX_OPEN: usize = 512;

/// Longer addresses are not shown.
const MAX_LINK_BYTES: usize = 1000;

/// Longer titles are cut.
const MAX_TITLE_CHARS: usize = 300;

/// A page as shown to a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Page {
    /// Its title.
    pub(crate) title: Option<String>,
    /// Its text.
    pub(crate) markdown: String,
    /// Whether the page continues after the limit.
    pub(crate) is_cut: bool,
}

/// Converts a page. Links are made absolute with the address of the page. Stops early when `go_on` returns
/// `false`.
pub(crate) fn to_markdown(html: &str, base: Option<&Url>, go_on: impl Fn() -> bool) -> Page {
    let tokenizer = Tokenizer::new(Sink(RefCell::new(Reader::new(base))), TokenizerOpts::default());
    let input = BufferQueue::default();
    let mut rest = html;
    while !rest.is_empty() && go_on() && !tokenizer.sink.0.borrow().writer.is_full() {
        let (chunk, later) = rest.split_at(chunk_end(rest));
        input.push_back(StrTendril::from(chunk));
        // The sink never pauses, so all of the input is consumed.
        let _ = tokenizer.feed(&input);
        rest = later;
    }
    let is_cut = !rest.is_empty();
    if !is_cut {
        tokenizer.end();
    }
    let reader = tokenizer.sink.0.into_inner();
    let title = reader.title.split_whitespace().collect::<Vec<_>>().join(" ");
    let title = title.chars().take(MAX_TITLE_CHARS).collect::<String>();
    Page { title: Some(title).filter(|title| !title.is_empty()), markdown: reader.writer.finish(), is_cut }
}

/// The end of the next chunk, on a character boundary.
fn chunk_end(rest: &str) -> usize {
    (CHUNK_BYTES..rest.len()).find(|at| rest.is_char_boundary(*at)).unwrap_or(rest.len())
}

struct Sink(RefCell<Reader>);

impl TokenSink for Sink {
    type Handle = ();

    fn process_token(&self, token: Token, _line: u64) -> TokenSinkResult<()> {
        let mut reader = self.0.borrow_mut();
        match token {
            Token::TagToken(tag) if tag.kind == TagKind::StartTag => return reader.start(&tag),
            Token::TagToken(tag) => reader.end(&tag.name),
            Token::CharacterTokens(text) => reader.text(&text),
            Token::NullCharacterToken
            | Token::CommentToken(_)
            | Token::DoctypeToken(_)
            | Token::EOFToken
            | Token::ParseError(_) => {}
        }
        TokenSinkResult::Continue
    }
}

/// Tracks the open elements, and passes events to the writer.
struct Reader {
    base: Option<Url>,
    /// The name and role of each open element.
    open: Vec<(String, Role)>,
    /// The number of open elements that hide their content.
    hidden: usize,
    /// The number of open elements of SVG or MathML, whose children are not HTML.
    foreign: usize,
    title: String,
    in_title: bool,
    writer: Writer,
}

impl Reader {
    fn new(base: Option<&Url>) -> Self {
        Self {
            base: base.cloned(),
            open: Vec::new(),
            hidden: 0,
            foreign: 0,
            title: String::new(),
            in_title: false,
            writer: Writer::default(),
        }
    }

    fn text(&mut self, text: &str) {
        if self.in_title {
            if self.title.len() < 4 * MAX_TITLE_CHARS {
                self.title.push_str(text);
            }
        } else if self.hidden == 0 {
            self.writer.text(text);
        }
    }

    fn start(&mut self, tag: &Tag) -> TokenSinkResult<()> {
        let name = &*tag.name;
        if self.foreign > 0 && tag.self_closing {
            return TokenSinkResult::Continue;
        }
        if name == "title" && self.foreign == 0 {
            self.in_title = self.title.is_empty();
            // A second title is not part of the text either.
            if !self.in_title {
                self.push("title", Role::Hidden);
            }
            return TokenSinkResult::RawData(RawKind::Rcdata);
        }
        if role::is_void(name) {
            if self.hidden == 0 && !role::is_hidden(tag) {
                self.void(tag);
            }
            return TokenSinkResult::Continue;
        }
        self.close_implied(name);
        let role =
            if self.hidden > 0 && role::of(name) != Role::Hidden { Role::Other } else { role::of(name) };
        let role = if role::is_hidden(tag) { Role::Hidden } else { role };
        if self.open.len() < MAX_OPEN {
            let role = self.enter(tag, role);
            self.push(name, role);
        } else if role.is_block() {
            self.writer.end_block();
        }
        match name {
            "script" => TokenSinkResult::RawData(RawKind::ScriptData),
            "style" | "xmp" | "iframe" | "noembed" | "noframes" => TokenSinkResult::RawData(RawKind::Rawtext),
            "textarea" => TokenSinkResult::RawData(RawKind::Rcdata),
            "plaintext" => TokenSinkResult::Plaintext,
            _ => TokenSinkResult::Continue,
        }
    }

    fn push(&mut self, name: &str, role: Role) {
        self.hidden += usize::from(role == Role::Hidden);
        self.foreign += usize::from(role::is_foreign(name));
        self.open.push((name.to_owned(), role));
    }

    /// Passes an element to the writer, and returns the role to undo at its end.
    fn enter(&mut self, tag: &Tag, role: Role) -> Role {
        let writer = &mut self.writer;
        match role {
            Role::Hidden | Role::Other => {}
            Role::Block => writer.end_block(),
            Role::Heading(level) => writer.open_heading(level),
            Role::Quote => writer.open_quote(),
            Role::List => {
                let first = attribute(tag, "start").and_then(|start| start.trim().parse().ok());
                writer.open_list((&*tag.name == "ol").then_some(first.unwrap_or(1)));
            }
            Role::Item => writer.open_item(),
            Role::Pre => writer.open_pre(language(tag)),
            Role::Table => writer.open_table(),
            Role::Row => writer.open_row(),
            Role::Cell => writer.open_cell(),
            Role::Inline => {
                let mark = match &*tag.name {
                    "a" => attribute(tag, "href").and_then(|href| self.link(href)).map(Mark::Link),
                    "code" | "kbd" | "samp" | "tt" => {
                        if let Some(language) = language(tag) {
                            writer.name_language(language);
                        }
                        Some(Mark::Code)
                    }
                    "b" | "strong" => Some(Mark::Strong),
                    _ => Some(Mark::Emphasis),
                };
                let marked = mark.is_some_and(|mark| self.writer.open_mark(mark));
                return if marked { Role::Inline } else { Role::Other };
            }
        }
        role
    }

    fn end(&mut self, name: &str) {
        if name == "title" && self.in_title {
            self.in_title = false;
            return;
        }
        // Elements around a table cannot be closed from inside it.
        let of_table =
            matches!(role::of(name), Role::Table | Role::Row | Role::Cell) || role::is_row_group(name);
        let inside =
            self.open.iter().rposition(|(_, role)| !of_table && matches!(role, Role::Table | Role::Cell));
        let scope = inside.map_or(0, |at| at + 1);
        match self.open[scope..].iter().rposition(|(open, _)| open == name) {
            Some(at) => self.close_to(scope + at),
            None if self.hidden == 0 && role::of(name).is_block() => self.writer.end_block(),
            None => {}
        }
    }

    /// Closes elements until only `depth` are open.
    fn close_to(&mut self, depth: usize) {
        while self.open.len() > depth {
            let Some((name, role)) = self.open.pop() else { return };
            self.foreign -= usize::from(role::is_foreign(&name));
            match role {
                Role::Hidden => self.hidden -= 1,
                Role::Other => {}
                Role::Block => self.writer.end_block(),
                Role::Heading(_) => self.writer.close_heading(),
                Role::Quote | Role::Item => self.writer.close_container(),
                Role::List => self.writer.close_list(),
                Role::Pre => self.writer.close_pre(),
                Role::Table => self.writer.close_table(),
                Role::Row => self.writer.close_row(),
                Role::Cell => self.writer.close_cell(),
                Role::Inline => self.writer.close_mark(),
            }
        }
    }

    /// Closes the elements that the start of this one ends implicitly: a paragraph ends where a list starts.
    fn close_implied(&mut self, name: &str) {
        let find = |ends: &dyn Fn(&str, Role) -> bool, stays: &dyn Fn(&str, Role) -> bool| {
            for (at, (open, role)) in self.open.iter().enumerate().rev() {
                if ends(open, *role) {
                    return Some(at);
                }
                if stays(open, *role) {
                    return None;
                }
            }
            None
        };
        let in_table = |_: &str, role: Role| matches!(role, Role::Table);
        let role = role::of(name);
        let found = match name {
            "li" => find(&|open, _| open == "li", &|_, role| {
                matches!(role, Role::List | Role::Table | Role::Cell)
            }),
            "dt" | "dd" => find(&|open, _| matches!(open, "dt" | "dd"), &|open, role| {
                open == "dl" || matches!(role, Role::Table | Role::Cell)
            }),
            "td" | "th" => find(&|_, role| role == Role::Cell, &in_table),
            "tr" => find(&|_, role| role == Role::Row, &in_table),
            _ if role::is_row_group(name) => find(&|open, _| role::is_row_group(open), &in_table),
            // A link cannot contain another.
            "a" => find(&|open, _| open == "a", &|_, role| role.is_block()),
            _ if role.is_block() => {
                let heading = matches!(role, Role::Heading(_));
                find(&|open, role| open == "p" || heading && matches!(role, Role::Heading(_)), &|_, role| {
                    role.is_block()
                })
            }
            _ => None,
        };
        if let Some(at) = found {
            self.close_to(at);
        }
    }

    fn void(&mut self, tag: &Tag) {
        match &*tag.name {
            "br" => self.writer.line_break(),
            "hr" => self.writer.rule(),
            "img" => {
                let alt = attribute(tag, "alt").unwrap_or_default();
                let source = attribute(tag, "src").and_then(|source| self.link(source));
                self.writer.image(alt, source.as_deref());
            }
            "base" => {
                let join = |href: &str| self.base.as_ref()?.join(href).ok();
                if let Some(base) = attribute(tag, "href").and_then(join) {
                    self.base = Some(base);
                }
            }
            _ => {}
        }
    }

    /// The target of a link, if it leads to another page.
    fn link(&self, href: &str) -> Option<String> {
        let href = href.trim();
        if href.is_empty() || href.starts_with('#') || href.len() > MAX_LINK_BYTES {
            return None;
        }
        let target = match &self.base {
            Some(base) => base.join(href).ok()?,
            None => match Url::parse(href) {
                Ok(url) => url,
                // Without the address of the page, relative links stay relative.
                Err(_) => {
                    return Some(href.to_owned()).filter(|href| !href.contains(|c: char| c.is_whitespace()));
                }
            },
        };
        let known = matches!(target.scheme(), "http" | "https" | "mailto");
        (known && target.as_str().len() <= MAX_LINK_BYTES).then(|| target.into())
    }
}

fn attribute<'t>(tag: &'t Tag, name: &str) -> Option<&'t str> {
    tag.attrs.iter().find(|attribute| &*attribute.name.local == name).map(|attribute| &*attribute.value)
}

/// The declared language of a code block: `class="language-rust"`.
fn language(tag: &Tag) -> Option<&str> {
    let language = attribute(tag, "class")?
        .split_ascii_whitespace()
        .find_map(|class| class.strip_prefix("language-").or_else(|| class.strip_prefix("lang-")))?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "+-#_.".contains(c);
    (language.len() <= 20 && language.chars().all(plain)).then_some(language)
}

#[cfg(test)]
mod tests;
