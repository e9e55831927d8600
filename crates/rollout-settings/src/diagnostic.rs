//! Problems of a configuration: what, where, and how to fix them.

use std::{fmt, ops::Range, sync::Arc};

use annotate_snippets::{AnnotationKind, Level, Origin, Renderer, Snippet};
use serde::Serialize;

use super::tree::{SourceFiles, Span, printable};

/// The severity of a [`Diagnostic`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The file cannot be used.
    Error,
    /// The file can be used, though perhaps not as its author intended.
    Warning,
}

/// The kind of a [`Diagnostic`], for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// A file is missing, too large or not text.
    Unreadable,
    /// A file is not YAML, JSON or TOML.
    Syntax,
    /// A key is unknown.
    UnknownKey,
    /// A key appears twice in one mapping.
    DuplicateKey,
    /// A value has the wrong type.
    WrongType,
    /// A value has the right type but is invalid.
    InvalidValue,
    /// A required key is absent.
    Missing,
    /// A name cannot be a directory name, or is already used.
    InvalidName,
    /// Two keys cannot both be set.
    Conflict,
    /// A `${VAR}` cannot be expanded.
    Variable,
    /// A number without a unit was read as mebibytes.
    BareQuantity,
    /// A setting is not supported, so the task may behave differently.
    Unsupported,
}

/// One problem, with its position in a file.
#[derive(Debug, Clone, Serialize)]
pub struct Diagnostic {
    /// Its severity.
    pub severity: Severity,
    /// Its kind.
    pub code: Code,
    /// What is wrong.
    pub message: String,
    /// The file, as it was named; `--set` for an override.
    pub file: String,
    /// The line, from 1; absent if the problem concerns the whole file.
    pub line: Option<usize>,
    /// The column in characters, from 1.
    pub column: Option<usize>,
    /// The bytes of the file that are underlined.
    pub span: Option<Range<usize>>,
    /// How to fix it.
    pub hint: Option<String>,
    /// A second position that belongs to the problem, with a label.
    #[serde(skip)]
    related: Option<(Range<usize>, &'static str)>,
    /// The source text, for sorting.
    #[serde(skip)]
    source: usize,
    #[serde(skip)]
    text: Arc<str>,
}

impl Diagnostic {
    /// Creates an error at a position.
    pub fn error(sources: &SourceFiles, span: Span, code: Code, message: impl Into<String>) -> Self {
        Self::new(Severity::Error, sources, span, code, message.into())
    }

    /// Creates a warning at a position.
    pub fn warning(sources: &SourceFiles, span: Span, code: Code, message: impl Into<String>) -> Self {
        Self::new(Severity::Warning, sources, span, code, message.into())
    }

    fn new(severity: Severity, sources: &SourceFiles, span: Span, code: Code, message: String) -> Self {
        let source = sources.get(span.source);
        let before = source.text.get(..span.start).unwrap_or_default();
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        Self {
            severity,
            code,
            message,
            file: source.name.clone(),
            line: Some(before.matches('\n').count() + 1),
            column: Some(before[line_start..].chars().count() + 1),
            span: Some(first_line(&source.text, span.range())),
            hint: None,
            related: None,
            source: span.source,
            text: source.text.clone(),
        }
    }

    /// Creates an error about a whole file.
    pub fn about_file(file: impl Into<String>, code: Code, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            code,
            message: message.into(),
            file: printable(&file.into()),
            line: None,
            column: None,
            span: None,
            hint: None,
            related: None,
            source: 0,
            text: "".into(),
        }
    }

    /// Adds a hint.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds a second position, if it is in the same file.
    pub fn related(mut self, sources: &SourceFiles, span: Span, label: &'static str) -> Self {
        let source = sources.get(span.source);
        if Arc::ptr_eq(&source.text, &self.text) {
            self.related = Some((first_line(&source.text, span.range()), label));
        }
        self
    }

    pub(super) fn is_at(&self, span: Span) -> bool {
        let inside = |own: &Range<usize>| span.range().contains(&own.start);
        self.source == span.source && self.span.as_ref().is_some_and(inside)
    }

    /// The diagnostic with its source line underlined, in the style of a compiler.
    pub fn render(&self, color: bool) -> String {
        let renderer = if color { Renderer::styled() } else { Renderer::plain() };
        let level = match self.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        let title = level.primary_title(self.message.as_str());
        let lines;
        let mut group = match &self.span {
            Some(span) => {
                let others = self.related.iter().map(|(span, _)| span);
                let window = lines_around(
                    &self.text,
                    others
                        .fold(span.clone(), |all, other| all.start.min(other.start)..all.end.max(other.end)),
                );
                let inside = |span: &Range<usize>| span.start - window.start..span.end - window.start;
                // The renderer replaces other control characters itself. This replacement keeps the length, so
                // spans stay valid.
                lines = self.text[window.clone()].replace(|char| matches!(char, '\u{80}'..='\u{9f}'), "·");
                let mut snippet = Snippet::source(lines.as_str())
                    .path(self.file.as_str())
                    .line_start(self.text[..window.start].matches('\n').count() + 1)
                    .annotation(AnnotationKind::Primary.span(inside(span)));
                if let Some((span, label)) = &self.related {
                    snippet = snippet.annotation(AnnotationKind::Context.span(inside(span)).label(*label));
                }
                title.element(snippet)
            }
            None => title.element(Origin::path(self.file.as_str())),
        };
        if let Some(hint) = &self.hint {
            group = group.element(Level::HELP.message(hint.as_str()));
        }
        renderer.render(&[group])
    }
}

/// The part of a range on its first line: a script of a hundred lines is too long to show.
fn first_line(text: &str, range: Range<usize>) -> Range<usize> {
    let slice = text.get(range.clone()).unwrap_or_default();
    range.start..range.start + slice.find(['\n', '\r']).unwrap_or(slice.len())
}

/// The whole lines that contain a range.
fn lines_around(text: &str, range: Range<usize>) -> Range<usize> {
    let start = text[..range.start].rfind('\n').map_or(0, |at| at + 1);
    let end = text[range.end..].find('\n').map_or(text.len(), |at| range.end + at);
    start..end
}

/// Sorts diagnostics in the order of the file, those about other texts last.
pub fn sort(diagnostics: &mut [Diagnostic]) {
    diagnostics.sort_by_key(|diagnostic| (diagnostic.source, diagnostic.line, diagnostic.column));
}

/// All problems of a configuration; never empty.
#[derive(Debug, Clone, Serialize)]
#[serde(transparent)]
pub struct Problems(Vec<Diagnostic>);

impl Problems {
    /// Creates it from a list with at least one error.
    pub fn new(diagnostics: Vec<Diagnostic>) -> Self {
        debug_assert!(diagnostics.iter().any(|diagnostic| diagnostic.severity == Severity::Error));
        Self(diagnostics)
    }

    /// The errors, and the warnings that came with them, in the order of the file.
    pub fn diagnostics(&self) -> &[Diagnostic] {
        &self.0
    }

    /// All of them with their source lines underlined, one after the other.
    pub fn render(&self, color: bool) -> String {
        self.0.iter().map(|diagnostic| diagnostic.render(color)).collect::<Vec<_>>().join("\n\n")
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

impl std::error::Error for Problems {}

/// A text from a file for a message: in backquotes, shortened, printable.
pub fn quoted(text: &str) -> String {
    const MAX_CHARS: usize = 120;
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("`{}…`", printable(&text[..end])),
        None => format!("`{}`", printable(text)),
    }
}

/// The nearest of the words, if it is similar enough.
pub fn nearest<'w>(text: &str, words: &[&'w str]) -> Option<&'w str> {
    let text = text.to_lowercase();
    words
        .iter()
        .map(|word| (strsim::damerau_levenshtein(&text, &word.to_lowercase()), *word))
        .filter(|(distance, word)| *distance <= (word.len() / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}
