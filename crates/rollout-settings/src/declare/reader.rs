//! Reads a tree: provides variables and the directory of the file, and collects problems and secrets.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    io::Read as _,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value as Json};

use crate::{
    declare::Settings,
    diagnostic::{Code, Diagnostic, Severity, nearest, quoted, sort},
    section::Section,
    tree::{Entry, Node, SourceFiles, Span, Value},
    yaml,
};
use rollout_core::redact::MASK;

/// Returns the values of variables.
pub type Vars<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// Collects the problems and secrets found in a tree.
pub struct Reader<'a> {
    /// The texts that the tree was read from.
    pub sources: &'a SourceFiles,
    /// The directory of relative paths.
    pub dir: PathBuf,
    pub(crate) vars: &'a Vars<'a>,
    secrets: RefCell<BTreeSet<String>>,
    found: RefCell<Vec<Diagnostic>>,
    failed: Cell<bool>,
    left_out: Cell<usize>,
}

/// The largest file or script that is read.
const MAX_BYTES: u64 = 16 << 20;

/// More problems are not useful; a hostile file could have millions.
const MAX_DIAGNOSTICS: usize = 100;

impl<'a> Reader<'a> {
    /// Creates a reader. Relative paths are resolved in `dir`, and the values of `${VAR}` come from `vars`.
    pub fn new(sources: &'a SourceFiles, dir: impl Into<PathBuf>, vars: &'a Vars<'a>) -> Self {
        Self {
            sources,
            dir: dir.into(),
            vars,
            secrets: RefCell::default(),
            found: RefCell::default(),
            failed: Cell::new(false),
            left_out: Cell::new(0),
        }
    }

    /// Adds values that must not appear in any output.
    pub fn hide(&self, secrets: impl IntoIterator<Item = String>) {
        self.secrets.borrow_mut().extend(secrets);
    }

    /// Whether this value must not appear in any output.
    pub fn hides(&self, value: &str) -> bool {
        self.secrets.borrow().contains(value)
    }

    /// Returns all values that must not appear in any output.
    pub fn take_secrets(&self) -> BTreeSet<String> {
        self.secrets.take()
    }

    /// Whether a problem was reported at this place.
    pub fn reported(&self, span: Span) -> bool {
        self.found.borrow().iter().any(|found| found.is_at(span))
    }

    /// The number of reported problems.
    pub fn count(&self) -> usize {
        self.found.borrow().len() + self.left_out.get()
    }

    /// Reports a problem.
    pub fn report(&self, diagnostic: Diagnostic) {
        if diagnostic.severity == Severity::Error {
            self.failed.set(true);
        }
        let mut found = self.found.borrow_mut();
        if found.len() < MAX_DIAGNOSTICS {
            found.push(diagnostic);
        } else {
            self.left_out.set(self.left_out.get() + 1);
        }
    }

    /// Reports an error.
    pub fn error(&self, span: Span, code: Code, message: impl Into<String>) {
        self.report(Diagnostic::error(self.sources, span, code, message));
    }

    /// Reports an error with a hint.
    pub fn error_with_hint(
        &self,
        span: Span,
        code: Code,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.report(Diagnostic::error(self.sources, span, code, message).hint(hint));
    }

    /// All problems, in the order of the file, and whether there is an error.
    pub fn finish(self) -> (Vec<Diagnostic>, bool) {
        let mut found = self.found.into_inner();
        sort(&mut found);
        if self.left_out.get() > 0 {
            let message = format!("{} more problems are not shown", self.left_out.get());
            found.push(Diagnostic::about_file(
                self.sources.get(0).name.as_str(),
                Code::InvalidValue,
                message,
            ));
        }
        (found, self.failed.get())
    }

    /// Reports every key that appears twice in one mapping, at any depth.
    pub fn check_duplicates(&self, node: &Node) {
        match &node.value {
            Value::List(items) => items.iter().for_each(|item| self.check_duplicates(item)),
            Value::Map(entries) => {
                let mut seen = std::collections::HashMap::new();
                for entry in entries {
                    if let Some(first) = seen.insert(entry.key.as_str(), entry.key_span) {
                        let message = format!("the key {} is written twice", quoted(&entry.key));
                        self.report(
                            Diagnostic::error(self.sources, entry.key_span, Code::DuplicateKey, message)
                                .related(self.sources, first, "first written here")
                                .hint("keep one of them"),
                        );
                    }
                    self.check_duplicates(&entry.node);
                }
            }
            _ => {}
        }
    }

    /// Reports every masked value of a record, because its original is unknown.
    pub fn check_masks(&self, node: &Node) {
        match &node.value {
            Value::String(text) if text.contains(MASK) => {
                let message = "a secret was masked here when the job was recorded";
                let hint = "load the job file instead, and write secrets as `${VAR}`";
                self.error_with_hint(node.span, Code::InvalidValue, message, hint);
            }
            Value::List(items) => items.iter().for_each(|item| self.check_masks(item)),
            Value::Map(entries) => entries.iter().for_each(|entry| self.check_masks(&entry.node)),
            _ => {}
        }
    }

    /// Reports a value of the wrong type.
    pub fn wrong_type(&self, node: &Node, path: &str, expected: &str) {
        let subject = if path.is_empty() { "the file".to_owned() } else { quoted(path) };
        let found = match (&node.value, expected) {
            (Value::Float(number), "a whole number") => number.to_string(),
            _ => node.kind().to_owned(),
        };
        let message = format!("{subject} must be {expected}, not {found}");
        let diagnostic = Diagnostic::error(self.sources, node.span, Code::WrongType, message);
        self.report(match self.right_form(node, expected) {
            Some(form) => diagnostic.hint(format!("write {form}")),
            None => diagnostic,
        });
    }

    /// The likely intended form of a value of the wrong type.
    fn right_form(&self, node: &Node, expected: &str) -> Option<String> {
        match (&node.value, expected) {
            (Value::String(text), "true or false") => match text.to_lowercase().as_str() {
                "true" | "yes" | "on" => Some("true".to_owned()),
                "false" | "no" | "off" => Some("false".to_owned()),
                _ => None,
            },
            (Value::String(text), "a number" | "a whole number") => {
                text.parse::<f64>().is_ok().then(|| format!("{text} without quotes"))
            }
            (Value::Bool(_) | Value::Int(_) | Value::Float(_), "a string") => {
                Some(format!("\"{}\" with quotes", self.sources.slice(node.span)))
            }
            _ => None,
        }
    }

    /// A mapping with only declared keys.
    pub fn section<'r, S: Settings>(&'r self, node: &'r Node, path: &str) -> Option<Section<'r>> {
        let section = self.mapping(node, path)?;
        let keys: Vec<&str> = S::keys().iter().map(|key| key.name).collect();
        for entry in section.entries {
            if !keys.contains(&entry.key.as_str()) {
                self.unknown_key(entry, path, &keys);
            }
        }
        Some(section)
    }

    /// A mapping with keys of any name.
    pub fn mapping<'r>(&'r self, node: &'r Node, path: &str) -> Option<Section<'r>> {
        let entries = match &node.value {
            Value::Map(entries) => entries.as_slice(),
            Value::Null => &[],
            _ => {
                self.wrong_type(node, path, "a mapping of keys to values");
                return None;
            }
        };
        Some(Section { reader: self, path: path.to_owned(), span: node.span, entries })
    }

    fn unknown_key(&self, entry: &Entry, path: &str, keys: &[&str]) {
        let place = if path.is_empty() { String::new() } else { format!(" in `{path}`") };
        let list = keys.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ");
        let hint = match nearest(&entry.key, keys) {
            Some(key) => format!("did you mean `{key}`? known keys{place}: {list}"),
            None => format!("known keys{place}: {list}"),
        };
        let message = format!("unknown key {}{place}", quoted(&entry.key));
        self.error_with_hint(entry.key_span, Code::UnknownKey, message, hint);
    }
}

/// The text of a regular file of limited size, or the reason why it cannot be read.
pub fn read_text(path: &Path) -> Result<String, String> {
    let cannot = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => "this file does not exist".to_owned(),
        _ => format!("cannot read this file: {error}"),
    };
    let file = std::fs::File::open(path).map_err(cannot)?;
    if file.metadata().map_err(cannot)?.is_dir() {
        return Err("this is a directory, not a file".to_owned());
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(cannot)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(format!("this file is larger than {} MiB", MAX_BYTES >> 20));
    }
    String::from_utf8(bytes).map_err(|error| {
        format!("this file is not UTF-8: invalid byte at offset {}", error.utf8_error().valid_up_to())
    })
}

/// Reads settings from JSON, such as those of a provider; `path` is their position in the file. An error has
/// one line per problem.
pub fn read_json<S: Settings>(path: &str, settings: &Map<String, Json>) -> Result<S::Value, String> {
    let text = Json::Object(settings.clone()).to_string();
    let mut sources = SourceFiles::default();
    let source = sources.add(path, &text);
    let tree = yaml::parse(&text, source).map_err(|error| error.message)?;
    let reader = Reader::new(&sources, "", &|_| None);
    let read = reader.section::<S>(&tree, path).and_then(|section| S::read(&section));
    let (found, failed) = reader.finish();
    // The values are expanded and may be secret, so only the messages are shown.
    let line = |found: &Diagnostic| match &found.hint {
        Some(hint) => format!("{}; {hint}", found.message),
        None => found.message.clone(),
    };
    let lines: Vec<String> = found.iter().map(line).collect();
    match (read, &lines[..]) {
        (Some(value), _) if !failed => Ok(value),
        (_, [only]) => Err(only.clone()),
        (_, several) => Err(format!("{} settings are invalid\n  {}", several.len(), several.join("\n  "))),
    }
}
