//! Other configuration files: plain JSON for their readers, with positions for problems.

use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use super::{
    declare::Settings,
    diagnostic::{Code, Diagnostic, Problems},
    expand::expand,
    overrides::Override,
    reader::{Reader, Vars, read_text},
    tree::{Node, SourceFiles, Span, Value},
    yaml,
};

/// A YAML or JSON file that is not a job or a task.
pub struct Document {
    /// Its folder, at which relative paths in it start.
    dir: PathBuf,
    sources: SourceFiles,
    root: Node,
    secrets: Vec<String>,
}

impl Document {
    /// Reads a file and expands each `${VAR}` in it.
    pub fn load(path: &Path, vars: &dyn Fn(&str) -> Option<String>) -> Result<Self, Problems> {
        Self::parse(path, &text(path)?, Some(vars))
    }

    /// Reads a file without expanding variables.
    pub fn load_literal(path: &Path) -> Result<Self, Problems> {
        Self::parse(path, &text(path)?, None)
    }

    /// Reads a text as if it were the content of the file at `path`, and expands each `${VAR}` in it if there
    /// are variables.
    pub fn parse(path: &Path, text: &str, vars: Option<&Vars<'_>>) -> Result<Self, Problems> {
        let mut sources = SourceFiles::default();
        let mut root = yaml::parse_file(&mut sources, &path.display().to_string(), path, text)?;
        let reader = Reader::new(&sources, "", &|_| None);
        reader.check_duplicates(&root);
        let mut secrets = Vec::new();
        if let Some(vars) = vars {
            expand_texts(&mut root, "", &mut |key, text, span| match expand(text, vars) {
                Ok(expanded) => {
                    if expanded.is_secret(key) {
                        secrets.extend(expanded.secrets());
                    }
                    expanded.text
                }
                Err(error) => {
                    reader.error_with_hint(span, Code::Variable, error.to_string(), error.hint());
                    String::new()
                }
            });
        }
        let (found, failed) = reader.finish();
        if failed {
            return Err(Problems::new(found));
        }
        let dir = path.parent().unwrap_or(Path::new("")).to_owned();
        Ok(Self { dir, sources, root, secrets })
    }

    /// Reads declared settings from it.
    pub fn read<S: Settings>(&self) -> Result<S::Value, Problems> {
        let reader = Reader::new(&self.sources, &self.dir, &|_| None);
        let read = reader.section::<S>(&self.root, "").and_then(|section| S::read(&section));
        let (found, failed) = reader.finish();
        read.filter(|_| !failed).ok_or_else(|| Problems::new(found))
    }

    /// Sets a value in it.
    pub fn set(&mut self, over: &Override) -> Result<(), Problems> {
        over.apply(&mut self.root, &mut self.sources).map_err(|problem| Problems::new(vec![*problem]))
    }

    /// Its content, without the positions.
    pub fn into_value(self) -> Json {
        self.root.to_json("", &mut |_, text, _| text.into())
    }

    /// Values that must not appear in any output.
    pub fn secrets(&self) -> &[String] {
        &self.secrets
    }
}

fn expand_texts(node: &mut Node, key: &str, expand: &mut dyn FnMut(&str, &str, Span) -> String) {
    match &mut node.value {
        Value::String(text) => *text = expand(key, text, node.span),
        Value::List(items) => items.iter_mut().for_each(|item| expand_texts(item, key, expand)),
        Value::Map(entries) => {
            entries.iter_mut().for_each(|entry| expand_texts(&mut entry.node, &entry.key, expand));
        }
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) => {}
    }
}

fn text(path: &Path) -> Result<String, Problems> {
    read_text(path).map_err(|message| {
        Problems::new(vec![Diagnostic::about_file(path.display().to_string(), Code::Unreadable, message)])
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    crate::settings! {
        /// A server.
        struct Server {
            /// How long.
            _session_ttl_sec as "session_ttl_sec": u32 = crate::forms::count(3),
        }
    }

    fn read(text: &str) -> Result<Document, String> {
        let vars = |name: &str| (name == "API_KEY").then(|| "sk-very-secret".to_owned());
        Document::parse("tools.yaml".as_ref(), text, Some(&vars)).map_err(|problems| problems.to_string())
    }

    #[test]
    fn variables_are_expanded_and_secret_ones_are_collected() {
        let document = read("web:\n  key: ${API_KEY}\n  engine: ${ENGINE:-brave}\n").unwrap();
        assert!(document.secrets().contains(&"sk-very-secret".to_owned()));
        assert_eq!(document.into_value(), json!({"web": {"key": "sk-very-secret", "engine": "brave"}}));
        let literal = Document::parse("a.json".as_ref(), r#"{"a": "${X}"}"#, None).unwrap();
        assert_eq!(literal.into_value(), json!({"a": "${X}"}));
    }

    #[test]
    fn problems_are_reported_with_their_position() {
        insta::assert_snapshot!(read("a: ${NO}\nb:\n  c: ${NEITHER}\n").err().unwrap(), @"
        error: the variable `NO` is not set
         --> tools.yaml:1:4
          |
        1 | a: ${NO}
          |    ^^^^^
          |
          = help: set it in your environment, or write a default value: `${NO:-default}`

        error: the variable `NEITHER` is not set
         --> tools.yaml:3:6
          |
        3 |   c: ${NEITHER}
          |      ^^^^^^^^^^
          |
          = help: set it in your environment, or write a default value: `${NEITHER:-default}`
        ");
        let document = read("session_ttl: 3\n").unwrap();
        insta::assert_snapshot!(document.read::<Server>().err().unwrap(), @"
        error: unknown key `session_ttl`
         --> tools.yaml:1:1
          |
        1 | session_ttl: 3
          | ^^^^^^^^^^^
          |
          = help: did you mean `session_ttl_sec`? known keys: `session_ttl_sec`
        ");
    }
}
