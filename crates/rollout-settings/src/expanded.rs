//! Reads values of a section in which `${VAR}` is expanded, and values that are kept as written.

use indexmap::IndexMap;
use serde_json::{Map, Value as Json};

use super::{
    diagnostic::{Code, quoted},
    expand::{Env, EnvValue, ExpandError, Expanded, expand, has_password, is_secret_header, names_a_secret},
    section::{Section, scalar_text},
    tree::{Entry, Node, Span, Value},
};

impl<'r> Section<'r> {
    /// Expands a text, or reports at its position why that is not possible.
    pub fn expand(&self, written: &str, node: &Node) -> Expanded {
        let nothing = || Expanded { text: String::new(), variables: Vec::new() };
        self.try_expand(written, node).unwrap_or_else(nothing)
    }

    /// The same; `None` if it is not possible.
    pub fn try_expand(&self, written: &str, node: &Node) -> Option<Expanded> {
        let note = |error: ExpandError| {
            let needle = match &error {
                ExpandError::Missing(name) => format!("${{{name}"),
                ExpandError::Form(inner) => format!("${{{inner}"),
                ExpandError::Unclosed => "${".to_owned(),
            };
            let at = self.reader.sources.slice(node.span).find(&needle);
            let span = at.map_or(node.span, |at| {
                let start = node.span.start + at;
                Span {
                    start,
                    end: start + needle.len() + usize::from(error != ExpandError::Unclosed),
                    ..node.span
                }
            });
            self.reader.error_with_hint(span, Code::Variable, error.to_string(), error.hint());
        };
        expand(written, self.reader.vars).map_err(note).ok()
    }

    /// The expanded text of another setting. None if that is not possible, which is noted where that setting is read.
    pub fn peek_expanded(&self, written: &str) -> Option<String> {
        expand(written, self.reader.vars).ok().map(|expanded| expanded.text)
    }

    /// Variables by name, as written.
    pub fn variables(&self, key: &str) -> Vec<(&'r Entry, String)> {
        let mut variables = Vec::new();
        let Some(env) = self.mapping(key) else { return variables };
        for entry in env.entries {
            let path = env.at(&entry.key);
            if entry.key.is_empty() || entry.key.contains(['=', '\0']) {
                let message = format!("{} cannot be the name of a variable", quoted(&entry.key));
                self.reader.error(entry.key_span, Code::InvalidValue, message);
                continue;
            }
            match scalar_text(self.reader.sources, &entry.node) {
                Some(text) if text.contains('\0') => {
                    let message = format!("{} contains a NUL character", quoted(&path));
                    self.reader.error(entry.node.span, Code::InvalidValue, message);
                }
                Some(text) => variables.push((entry, text)),
                None => self.reader.wrong_type(&entry.node, &path, "a string, a number or a boolean"),
            }
        }
        variables
    }

    /// Variables by name, expanded.
    pub fn env(&self, key: &str) -> Env {
        let mut env = Env::new();
        for (entry, written) in self.variables(key) {
            let expanded = self.expand(&written, &entry.node);
            let secret = expanded.is_secret(&entry.key);
            if secret {
                self.reader.hide(expanded.secrets());
            }
            env.insert(entry.key.clone(), EnvValue { value: expanded.text, secret });
        }
        env
    }

    /// Headers of requests by name, expanded.
    pub fn headers(&self, key: &str) -> IndexMap<String, EnvValue> {
        let mut headers = IndexMap::new();
        let Some(written) = self.mapping(key) else { return headers };
        for entry in written.entries {
            let path = written.at(&entry.key);
            let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
            if entry.key.is_empty() || !entry.key.bytes().all(token) {
                let message = format!("{} cannot be the name of a header", quoted(&entry.key));
                self.reader.error(entry.key_span, Code::InvalidValue, message);
                continue;
            }
            let Value::String(text) = &entry.node.value else {
                self.reader.wrong_type(&entry.node, &path, "a string");
                continue;
            };
            let expanded = self.expand(text, &entry.node);
            if expanded.text.contains(char::is_control) {
                let message = format!("{} contains a control character", quoted(&path));
                self.reader.error(entry.node.span, Code::InvalidValue, message);
            }
            let secret = is_secret_header(&entry.key) || expanded.is_secret(&entry.key);
            if secret {
                self.reader.hide(expanded.secrets());
            }
            headers.insert(entry.key.clone(), EnvValue { value: expanded.text, secret });
        }
        headers
    }

    /// A text in which a secret is recognized by the names of its variables, or as the password of a URL.
    pub fn expanded_text(&self, written: &str, node: &Node) -> Expanded {
        let expanded = self.expand(written, node);
        if expanded.names().any(names_a_secret) || has_password(&expanded.text) {
            self.reader.hide(expanded.secrets());
        }
        expanded
    }

    /// An `http` or `https` URL, expanded.
    pub fn url(&self, key: &str, node: &Node, hint: &str) -> Option<String> {
        let Value::String(written) = &node.value else {
            self.reader.wrong_type(node, &self.at(key), "a URL");
            return None;
        };
        let expanded = self.expanded_text(written, node);
        let url = expanded.text;
        if url.is_empty() && !written.is_empty() && expanded.variables.is_empty() {
            // A variable is missing, which has been reported.
            return None;
        }
        let rest = url.strip_prefix("https://").or(url.strip_prefix("http://"));
        let has_host = rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/'));
        if !has_host || url.contains(|char: char| char.is_whitespace() || char.is_control()) {
            // The expanded value may be secret, so only the written one is shown.
            let message = format!("`{}` must be an `http` or `https` URL", self.at(key));
            self.reader.error_with_hint(node.span, Code::InvalidValue, message, hint);
            return None;
        }
        Some(url)
    }

    /// A mapping as JSON, with its texts expanded.
    pub(crate) fn expanded_map(&self, key: &str) -> Map<String, Json> {
        let Some(settings) = self.mapping(key) else { return Map::new() };
        let mut text = |key: &str, written: &str, node: &Node| {
            let expanded = self.expand(written, node);
            if std::iter::once(key).chain(expanded.names()).any(names_a_secret) {
                self.reader.hide(expanded.secrets());
            }
            Json::String(expanded.text)
        };
        let json = |entry: &Entry| (entry.key.clone(), entry.node.to_json(&entry.key, &mut text));
        settings.entries.iter().map(json).collect()
    }

    /// This mapping as JSON, as written.
    pub fn json_map(&self) -> Map<String, Json> {
        let entries = self.entries.iter();
        entries.map(|entry| (entry.key.clone(), self.json(&entry.node, &self.at(&entry.key)))).collect()
    }

    /// A value as JSON, as written.
    pub fn json(&self, node: &Node, path: &str) -> Json {
        if !is_finite(node) {
            let message = format!("`{path}` contains a number that JSON cannot represent");
            self.reader.error(node.span, Code::InvalidValue, message);
        }
        node.to_json("", &mut |_, text, _| Json::String(text.to_owned()))
    }

    /// A list of strings that are not blank.
    pub fn strings(&self, key: &str) -> Option<Vec<String>> {
        let mut strings = Vec::new();
        for (index, node) in self.list(key)?.iter().enumerate() {
            let path = format!("{}.{index}", self.at(key));
            match &node.value {
                Value::String(text) if text.is_empty() || text.contains('\0') => {
                    let message = format!("`{path}` must not be empty or contain a NUL character");
                    self.reader.error(node.span, Code::InvalidValue, message);
                }
                Value::String(text) => strings.push(text.clone()),
                _ => self.reader.wrong_type(node, &path, "a string"),
            }
        }
        Some(strings)
    }

    /// The program and the arguments of a command.
    pub fn command(&self, key: &str) -> Option<Vec<String>> {
        let hint = "write the program and its arguments as a list, such as `[python3, tool.py]`";
        if let Some(node @ Node { value: Value::String(_), .. }) = self.node(key) {
            let message = format!("`{}` must be a list, not a string", self.at(key));
            self.reader.error_with_hint(node.span, Code::WrongType, message, hint);
            return None;
        }
        self.filled_list(key, hint)?;
        self.strings(key).filter(|command| !command.is_empty())
    }
}

fn is_finite(node: &Node) -> bool {
    match &node.value {
        Value::Float(value) => value.is_finite(),
        Value::List(items) => items.iter().all(is_finite),
        Value::Map(entries) => entries.iter().all(|entry| is_finite(&entry.node)),
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::String(_) => true,
    }
}
