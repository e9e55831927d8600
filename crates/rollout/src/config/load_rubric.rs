//! Reads the `rubric` of an interaction, and parsers.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use super::{
    ParserConfig, RubricEntry, ScoreConfig,
    diagnostic::{Code, Diagnostic, nearest, quoted},
    load_job::Loader,
    load_model,
    reader::{MAX_TIMEOUT_SEC, Section, above_zero},
    tree::{Node, Value},
};
use rollout_model::rubric::{Command, Match};

pub(super) const KEYS: [&str; 8] =
    ["name", "weight", "match", "judge", "command", "group", "timeout_sec", "parser"];
pub(super) const JUDGE_KEYS: [&str; 2] = ["model", "prompt"];
pub(super) const XML_KEYS: [&str; 2] = ["xml", "answer_field"];
pub(super) const MATCHES: [(&str, Match); 4] = [
    ("exact", Match::Exact),
    ("contains", Match::Contains),
    ("numeric", Match::Numeric),
    ("math", Match::Math),
];
pub(super) const PARSERS: [&str; 4] = ["plain", "think", "maybe_think", "boxed"];

/// Columns that every row of the results has. A metric of the same name would hide one.
const COLUMNS: [&str; 24] = [
    "example_id",
    "task",
    "prompt",
    "completion",
    "answer",
    "info",
    "reward",
    "advantage",
    "error",
    "error_chain",
    "long_error_chain",
    "timing",
    "is_completed",
    "is_truncated",
    "stop_condition",
    "metrics",
    "tool_defs",
    "token_usage",
    "trajectory",
    "trajectory_id",
    "attempt",
    "cost",
    "usage",
    "model",
];

const EXAMPLE: &str = "such as `- match: exact`, which compares the answer with that of the example";

impl Loader<'_> {
    pub(super) fn rubric(&self, section: &Section<'_>, independent: bool) -> Option<Vec<RubricEntry>> {
        let Some(nodes) = section.list("rubric") else {
            if section.node("rubric").is_none() {
                section.missing("rubric", EXAMPLE);
            }
            return None;
        };
        if nodes.is_empty() {
            section.invalid_with_hint("rubric", format!("`{}` is empty", section.at("rubric")), EXAMPLE);
        }
        let mut entries = Vec::new();
        let mut seen = HashMap::new();
        for (index, node) in nodes.iter().enumerate() {
            let path = format!("{}.{index}", section.at("rubric"));
            let Some(entry) = self.reader.section(node, &path, &KEYS) else { continue };
            let weight = entry.finite("weight").unwrap_or(1.0);
            let Some((default, score)) = self.score(&entry, independent) else { continue };
            let name = entry.filled_string("name").unwrap_or(default);
            if COLUMNS.contains(&name) {
                let message = format!("{} cannot be the name of a metric", quoted(name));
                let hint = "results have a column of that name";
                self.reader.error_with_hint(entry.value_span("name"), Code::InvalidName, message, hint);
            }
            let span = entry.value_span("name");
            if let Some(first) = seen.insert(name.to_owned(), span) {
                let sources = self.reader.sources;
                let message = format!("two entries of the rubric are named {}", quoted(name));
                self.reader.report(
                    Diagnostic::error(sources, span, Code::InvalidName, message)
                        .related(sources, first, "the first one")
                        .hint("give one of them another `name:`; metrics are found by it"),
                );
            }
            entries.push(RubricEntry { name: name.to_owned(), weight, score });
        }
        Some(entries)
    }

    /// How an entry scores, and what it is named unless it says so.
    fn score(&self, entry: &Section<'_>, independent: bool) -> Option<(&'static str, ScoreConfig)> {
        let kinds = ["match", "judge", "command"];
        let given: Vec<&str> = kinds.into_iter().filter(|key| entry.entry(key).is_some()).collect();
        for pair in given.windows(2) {
            self.exclude(entry, pair[0], pair[1]);
        }
        let [kind] = given[..] else {
            if given.is_empty() {
                entry.missing("match", "an entry has a `match:`, a `judge:` or a `command:`");
            }
            return None;
        };
        let foreign: &[&str] = if kind == "command" { &["parser"] } else { &["group", "timeout_sec"] };
        for key in foreign {
            if let Some(found) = entry.entry(key) {
                let message = format!("`{key}` has no meaning beside `{kind}`");
                self.reader.error_with_hint(
                    found.key_span,
                    Code::Conflict,
                    message,
                    format!("leave `{key}` out"),
                );
            }
        }
        match kind {
            "match" => {
                let parser = self.parser(entry);
                let how = entry.word("match", &MATCHES)?;
                let word = MATCHES.iter().find(|(_, known)| *known == how).map_or("match", |(word, _)| word);
                Some((word, ScoreConfig::Match { how, parser }))
            }
            "judge" => {
                let parser = self.parser(entry);
                let judge = entry.section("judge", &JUDGE_KEYS)?;
                let prompt = judge.filled_string("prompt").map(str::to_owned);
                if judge.entry("model").is_none() {
                    judge.missing("model", "write who judges, as the `model:` of an agent is written");
                }
                let model = self.model(&judge.section("model", &load_model::KEYS)?)?;
                Some(("judge", ScoreConfig::Judge { model: Box::new(model), prompt, parser }))
            }
            _ => {
                let group = entry.bool("group").unwrap_or_default();
                if group && independent {
                    let message = "a command over groups cannot score each rollout by itself";
                    let hint = "leave `independent_scoring` or `group` out";
                    entry.invalid_with_hint("group", message, hint);
                }
                let seconds = entry.number("timeout_sec", above_zero(MAX_TIMEOUT_SEC));
                let timeout = seconds.map_or(Command::TIMEOUT, Duration::from_secs_f64);
                Some(("command", ScoreConfig::Command { command: self.command(entry)?, group, timeout }))
            }
        }
    }

    /// The `parser` of a section.
    pub(super) fn parser(&self, section: &Section<'_>) -> Option<ParserConfig> {
        let node = section.node("parser")?;
        let choices = "it can be one of `plain`, `think`, `maybe_think`, `boxed`, or `{xml: [fields]}`";
        match &node.value {
            Value::String(word) => match word.as_str() {
                "plain" => Some(ParserConfig::Plain),
                "think" => Some(ParserConfig::Think),
                "maybe_think" => Some(ParserConfig::MaybeThink),
                "boxed" => Some(ParserConfig::Boxed),
                other => {
                    let hint = match nearest(other, &PARSERS) {
                        Some(name) => format!("did you mean `{name}`? {choices}"),
                        None => choices.to_owned(),
                    };
                    let message = format!("there is no parser {}", quoted(other));
                    section.invalid_with_hint("parser", message, hint);
                    None
                }
            },
            Value::Map(_) => self.xml(&section.section("parser", &XML_KEYS)?),
            _ => {
                let message =
                    format!("`{}` must be a word or a mapping, not {}", section.at("parser"), node.kind());
                self.reader.error_with_hint(node.span, Code::WrongType, message, choices);
                None
            }
        }
    }

    fn xml(&self, section: &Section<'_>) -> Option<ParserConfig> {
        let hint = "write the tags that are expected, such as `xml: [think, answer]`";
        let Some(nodes) = section.list("xml") else {
            if section.node("xml").is_none() {
                section.missing("xml", hint);
            }
            return None;
        };
        if nodes.is_empty() {
            section.invalid_with_hint("xml", format!("`{}` is empty", section.at("xml")), hint);
        }
        let mut fields: Vec<Vec<String>> = Vec::new();
        for node in nodes {
            let alternatives = match &node.value {
                Value::List(items) if !items.is_empty() => items.as_slice(),
                _ => std::slice::from_ref(node),
            };
            let names: Option<Vec<String>> = alternatives.iter().map(|node| self.tag(node)).collect();
            fields.extend(names);
        }
        if fields.is_empty() {
            return None;
        }
        let names = || fields.iter().flatten().map(String::as_str);
        let answer_field = section.filled_string("answer_field").unwrap_or("answer");
        if !names().any(|name| name == answer_field) {
            let listed: Vec<String> = names().map(quoted).collect();
            let message =
                format!("the answer is looked for in {}, which is not a field", quoted(answer_field));
            let hint = format!("write `answer_field:` with one of {}", listed.join(", "));
            let key = if section.node("answer_field").is_some() { "answer_field" } else { "xml" };
            section.invalid_with_hint(key, message, hint);
        }
        let mut seen = HashSet::new();
        if let Some(twice) = fields.iter().flatten().find(|name| !seen.insert(name.as_str())) {
            let message = format!("the tag {} is given twice", quoted(twice));
            section.invalid_with_hint("xml", message, "each name belongs to one field");
        }
        Some(ParserConfig::Xml { answer_field: answer_field.to_owned(), fields })
    }

    fn tag(&self, node: &Node) -> Option<String> {
        let fits = |char: char| char.is_alphanumeric() || matches!(char, '_' | '-');
        match &node.value {
            Value::String(name) if !name.is_empty() && name.chars().all(fits) => Some(name.clone()),
            Value::String(name) => {
                let message = format!("{} cannot be a tag", quoted(name));
                self.reader.error_with_hint(
                    node.span,
                    Code::InvalidValue,
                    message,
                    "write letters, digits, `_` and `-`, without brackets",
                );
                None
            }
            _ => {
                self.reader.wrong_type(node, "xml", "a list of tags");
                None
            }
        }
    }
}
