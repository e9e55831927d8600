//! Settings from the command line that override a job file.

use std::str::FromStr;

use super::{
    diagnostic::{Code, Diagnostic, quoted},
    tree::{Entry, Node, SourceFiles, Span, Value},
    yaml,
};

/// One `key=value` that overrides a value of the job file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Override {
    /// The path of the value, its parts joined by dots: `environment.force_build`, `agents.0.env.MODEL`.
    pub key: String,
    /// The new value, as YAML: `true`, `4`, `some text`, `[{type: mean}]`.
    pub value: String,
}

impl Override {
    /// Sets the value in the tree of the file.
    pub fn apply(&self, tree: &mut Node, sources: &mut SourceFiles) -> Result<(), Box<Diagnostic>> {
        apply(tree, self, sources)
    }
}

/// The error for a text that is not an [`Override`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not of the form key=value")]
pub struct OverrideError(String);

impl FromStr for Override {
    type Err = OverrideError;

    fn from_str(text: &str) -> Result<Self, OverrideError> {
        match text.split_once('=') {
            Some((key, value)) if !key.trim().is_empty() => {
                Ok(Self { key: key.trim().to_owned(), value: value.to_owned() })
            }
            _ => Err(OverrideError(text.to_owned())),
        }
    }
}

fn apply(tree: &mut Node, over: &Override, sources: &mut SourceFiles) -> Result<(), Box<Diagnostic>> {
    let prefix = over.key.len() + 1;
    let source = sources.add("--set", &format!("{}={}", over.key, over.value));
    let whole = |start, end| Span { source, start, end };
    let mut value = yaml::parse(&over.value, source).map_err(|error| {
        let span =
            error.span.map_or(whole(prefix, prefix), |span| whole(prefix + span.start, prefix + span.end));
        let message = format!("the value is not YAML: {}", error.message);
        Box::new(Diagnostic::error(sources, span, Code::Syntax, message))
    })?;
    shift(&mut value, prefix);

    if over.key.split('.').any(str::is_empty) {
        let span = whole(0, over.key.len());
        return Err(Diagnostic::error(sources, span, Code::InvalidValue, "a part of the key is empty").into());
    }
    let mut node = tree;
    let mut start = 0;
    for part in over.key.split('.') {
        let span = whole(start, start + part.len());
        start += part.len() + 1;
        if node.is_null() {
            node.value = Value::Map(Vec::new());
        }
        let kind = node.kind();
        node = match &mut node.value {
            Value::Map(entries) => {
                let at = entries.iter().position(|entry| entry.key == part).unwrap_or_else(|| {
                    let node = Node { value: Value::Null, span };
                    entries.push(Entry { key: part.to_owned(), key_span: span, node });
                    entries.len() - 1
                });
                &mut entries[at].node
            }
            Value::List(items) => {
                let count = items.len();
                match part.parse::<usize>().ok().and_then(|index| items.get_mut(index)) {
                    Some(item) => item,
                    None => {
                        let message = format!("{} is not an entry of this list", quoted(part));
                        let hint = match count {
                            0 => "the list is empty".to_owned(),
                            1 => "the only entry has the number 0".to_owned(),
                            count => format!("entries are numbered from 0 to {}", count - 1),
                        };
                        return Err(Diagnostic::error(sources, span, Code::InvalidValue, message)
                            .hint(hint)
                            .into());
                    }
                }
            }
            _ => {
                let message = format!("{} cannot be set inside {}", quoted(part), kind);
                return Err(Diagnostic::error(sources, span, Code::InvalidValue, message).into());
            }
        };
    }
    *node = value;
    Ok(())
}

fn shift(node: &mut Node, by: usize) {
    node.span.start += by;
    node.span.end += by;
    match &mut node.value {
        Value::List(items) => items.iter_mut().for_each(|item| shift(item, by)),
        Value::Map(entries) => {
            for entry in entries {
                entry.key_span.start += by;
                entry.key_span.end += by;
                shift(&mut entry.node, by);
            }
        }
        _ => {}
    }
}
