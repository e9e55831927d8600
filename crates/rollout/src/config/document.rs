//! Configurations of others: plain JSON for those who read it, with positions for what is wrong with it.

use std::path::Path;

use serde_json::Value as Json;

use super::{
    diagnostic::{Code, Diagnostic, Problems, nearest, sort},
    expand::expand,
    load_job::read_text,
    reader::Reader,
    tree::{Node, Sources, Span, Value},
    yaml,
};

/// A file, YAML or JSON, that is not a job's or a task's.
pub struct Document {
    sources: Sources,
    root: Node,
    value: Json,
    secrets: Vec<String>,
}

impl Document {
    /// Reads a file and expands each `${VAR}` in it.
    pub fn load(path: &Path, vars: &dyn Fn(&str) -> Option<String>) -> Result<Self, Problems> {
        Self::parse(path, &text(path)?, Some(vars))
    }

    /// Reads a file as it is written.
    pub fn load_literal(path: &Path) -> Result<Self, Problems> {
        Self::parse(path, &text(path)?, None)
    }

    /// Reads a text as if it were the content of the file at `path`, and expands each `${VAR}` in it if there are
    /// variables.
    pub fn parse(
        path: &Path,
        text: &str,
        vars: Option<&dyn Fn(&str) -> Option<String>>,
    ) -> Result<Self, Problems> {
        let mut sources = Sources::default();
        let source = sources.add(&path.display().to_string(), text);
        let root = yaml::parse(text, source).map_err(|error| {
            let span = error.span.unwrap_or(Span { source, start: 0, end: 0 });
            let json = path.extension().is_some_and(|extension| extension == "json");
            let message = format!("this is not {}: {}", if json { "JSON" } else { "YAML" }, error.message);
            Problems::new(vec![Diagnostic::error(&sources, span, Code::Syntax, message)])
        })?;
        let reader = Reader::new(&sources);
        reader.check_duplicates(&root);
        let mut secrets = Vec::new();
        let value = root.to_json("", &mut |key, text, node| {
            let Some(vars) = vars else { return text.into() };
            match expand(text, vars) {
                Ok(expanded) => {
                    if expanded.is_secret(key) {
                        secrets.extend(expanded.secrets());
                    }
                    expanded.text.into()
                }
                Err(error) => {
                    reader.error_with_hint(node.span, Code::Variable, error.to_string(), error.hint());
                    Json::Null
                }
            }
        });
        let (found, failed) = reader.finish();
        if failed {
            return Err(Problems::new(found));
        }
        Ok(Self { sources, root, value, secrets })
    }

    /// What it says.
    pub fn value(&self) -> &Json {
        &self.value
    }

    /// What it says, without the positions.
    pub fn into_value(self) -> Json {
        self.value
    }

    /// Values that must not appear in any output.
    pub fn secrets(&self) -> &[String] {
        &self.secrets
    }

    /// A problem with the value at a path of keys, or with the nearest thing around it that is there.
    pub fn problem(
        &self,
        at: &[&str],
        code: Code,
        message: impl Into<String>,
        hint: Option<String>,
    ) -> Diagnostic {
        let mut span = self.root.span;
        let mut node = &self.root;
        for key in at {
            let Value::Map(entries) = &node.value else { break };
            let Some(entry) = entries.iter().find(|entry| entry.key == *key) else { break };
            span = if code == Code::UnknownKey { entry.key_span } else { entry.node.span };
            node = &entry.node;
        }
        let problem = Diagnostic::error(&self.sources, span, code, message);
        match hint {
            Some(hint) => problem.hint(hint),
            None => problem,
        }
    }

    /// A key that means nothing, with the one that was likely meant.
    pub fn unknown_key(&self, at: &[&str], known: &[&str]) -> Diagnostic {
        let (key, around) = at.split_last().unwrap_or((&"", &[]));
        let place = if around.is_empty() { String::new() } else { format!(" in `{}`", around.join(".")) };
        let list = known.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ");
        let hint = match nearest(key, known) {
            Some(meant) => format!("did you mean `{meant}`? known keys{place}: {list}"),
            None => format!("known keys{place}: {list}"),
        };
        let message = format!("unknown key {}{place}", super::diagnostic::quoted(key));
        self.problem(at, Code::UnknownKey, message, Some(hint))
    }
}

impl Problems {
    /// All that was found wrong with a [`Document`], in the order of its file; none if that is nothing.
    pub fn of(mut found: Vec<Diagnostic>) -> Option<Self> {
        sort(&mut found);
        (!found.is_empty()).then(|| Self::new(found))
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

    fn read(text: &str) -> Result<Document, String> {
        let vars = |name: &str| (name == "API_KEY").then(|| "sk-very-secret".to_owned());
        Document::parse("tools.yaml".as_ref(), text, Some(&vars)).map_err(|problems| problems.to_string())
    }

    #[test]
    fn variables_are_expanded_and_those_that_are_secret_are_known() {
        let document = read("web:\n  key: ${API_KEY}\n  engine: ${ENGINE:-brave}\n").unwrap();
        assert_eq!(document.value(), &json!({"web": {"key": "sk-very-secret", "engine": "brave"}}));
        assert!(document.secrets().contains(&"sk-very-secret".to_owned()));
        let literal = Document::parse("a.json".as_ref(), r#"{"a": "${X}"}"#, None).unwrap();
        assert_eq!(literal.into_value(), json!({"a": "${X}"}));
    }

    #[test]
    fn problems_are_told_with_their_place() {
        insta::assert_snapshot!(read("a: ${NO}\nb: {c: ${NEITHER}}\n").err().unwrap(), @"
        error: the variable `NO` is not set
         --> tools.yaml:1:4
          |
        1 | a: ${NO}
          |    ^^^^^
          |
          = help: set it, or write `${NO:-default}`

        error: the variable `NEITHER` is not set
         --> tools.yaml:2:8
          |
        2 | b: {c: ${NEITHER}}
          |        ^^^^^^^^^^
          |
          = help: set it, or write `${NEITHER:-default}`
        ");
        let document = read("server:\n  session_ttl: 3\n").unwrap();
        let unknown = document.unknown_key(&["server", "session_ttl"], &["session_ttl_sec", "max_sessions"]);
        insta::assert_snapshot!(Problems::of(vec![unknown]).unwrap(), @"
        error: unknown key `session_ttl` in `server`
         --> tools.yaml:2:3
          |
        2 |   session_ttl: 3
          |   ^^^^^^^^^^^
          |
          = help: did you mean `session_ttl_sec`? known keys in `server`: `session_ttl_sec`, `max_sessions`
        ");
    }
}
