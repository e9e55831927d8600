//! The `rubric` of an interaction, and parsers.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use serde_json::{Value as Json, json};

use super::ModelConfig;
use rollout_model::{
    PythonFunction,
    metric::Metric,
    rubric::{Command, Match},
};
use rollout_settings::{
    Code, Form, Node, Section, Settings as _, Value, Written,
    declare::{entry, one_of},
    diagnostic::{nearest, quoted},
    forms::{command, filled, finite, flag, seconds, some_section, word},
};

/// One function of a rubric.
#[derive(Debug, Clone, PartialEq)]
pub struct RubricEntry {
    /// The name of its metric.
    pub name: String,
    /// The weight of its score; finite.
    pub weight: f64,
    /// How it scores.
    pub score: ScoreConfig,
}

/// How a function of a rubric scores.
#[derive(Debug, Clone, PartialEq)]
pub enum ScoreConfig {
    /// Compares the model's answer with that of the example.
    Match {
        /// The kind of comparison.
        how: Match,
        /// Finds the model's answer; the interaction's parser when absent.
        parser: Option<ParserConfig>,
    },
    /// Compares with a metric of benchmarks.
    Metric {
        /// The metric; never the one of a judge.
        metric: Metric,
        /// Finds the model's answer; the interaction's parser when absent.
        parser: Option<ParserConfig>,
    },
    /// Runs a program in the container of the interaction.
    Sandbox {
        /// The path of the file inside.
        file: String,
        /// Its content, with placeholders.
        content: String,
        /// The program and its arguments; never empty.
        command: Vec<String>,
        /// The timeout.
        timeout: Duration,
        /// Finds the model's answer; the interaction's parser when absent.
        parser: Option<ParserConfig>,
    },
    /// Asks a model.
    Judge {
        /// The judge.
        model: Box<ModelConfig>,
        /// The prompt; the default one when absent.
        prompt: Option<String>,
        /// Finds the model's answer; the interaction's parser when absent.
        parser: Option<ParserConfig>,
    },
    /// Runs a command on this machine.
    Command {
        /// The program and its arguments; never empty.
        command: Vec<String>,
        /// Whether it scores all rollouts of an example together.
        group: bool,
        /// The timeout.
        timeout: Duration,
    },
    /// Calls a Python function.
    Python {
        /// The function, in a file below the directory of the interaction.
        function: PythonFunction,
        /// Whether it scores all rollouts of an example together.
        group: bool,
        /// The timeout of a call.
        timeout: Duration,
    },
}

/// How the answer is found in a model's messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ParserConfig {
    /// The whole last message.
    Plain,
    /// The text after the reasoning.
    Think,
    /// The text after the reasoning, if there is any.
    MaybeThink,
    /// The last `\boxed{}`.
    Boxed,
    /// The last fenced code block.
    Code,
    /// A tag.
    Xml {
        /// The expected tags, in order, each with its possible names; never empty.
        fields: Vec<Vec<String>>,
        /// The tag with the answer; one of the fields.
        answer_field: String,
    },
}

rollout_settings::settings! {
    /// A function that scores rollouts.
    pub(super) struct RubricKeys {
        /// The name of its metric; the kind of the function when absent.
        name: Option<String> = filled().optional(),
        /// The weight of its score; with 0 it is only a metric.
        weight: f64 = finite().default(1.0),
        /// Compares the answer with the answer of the example.
        ///
        /// The score is 1 if the answer that the parser finds is correct, otherwise 0. `exact`: the same text.
        /// `contains`: the correct answer is part of it. `numeric`: the last numbers of both are equal. `math`: they
        /// are mathematically equal.
        how as "match": Option<Match> = word(&MATCHES).optional(),
        /// Compares the answer with the answer of the example, by one of the [metrics](scoring.md) of benchmarks.
        metric: Option<Metric> = word(&METRICS).optional(),
        /// A program that checks the answer in a new container, which `environment` describes.
        ///
        /// The score is 1 if the program exits with status 0, otherwise 0.
        sandbox: Option<SandboxKeys> = some_section::<SandboxKeys>().optional(),
        /// A model that decides whether the answer is correct.
        ///
        /// The score is 1 if the model replies yes, otherwise 0. It has a `model` as [above](#model), and optionally a
        /// `prompt`, in which `{question}`, `{answer}` and `{response}` are replaced, and `{fence}` by a line of
        /// backticks that none of these texts contains.
        judge: Option<JudgeKeys> = some_section::<JudgeKeys>().optional(),
        /// A program that scores, and its arguments.
        ///
        /// It gets the rollout as JSON on its standard input, and prints the score.
        command: Option<Vec<String>> = command().optional(),
        /// A Python function that scores, as `file.py:function`.
        ///
        /// It gets the arguments that its parameters name: `completion`, `response`, `answer`, `info`, columns of the
        /// dataset, and `state`, which contains all of them. All functions of a job are called in one long-running
        /// process. See [scoring](scoring.md#python-functions).
        python: Option<String> = function_name().optional(),
        /// Whether the command or function scores all rollouts of an example together.
        ///
        /// A command gets a list of all rollouts of the example and prints a list of numbers. A function gets lists,
        /// and returns one.
        group: bool = flag(false),
        /// The timeout of the command, of the program in a container, or of a call of the function, in seconds.
        timeout as "timeout_sec": Duration = seconds().default(Command::TIMEOUT),
        /// How the answer is found; the interaction's parser when absent.
        parser: Option<ParserConfig> = parser().optional(),
    }
}

rollout_settings::settings! {
    /// A model that decides whether the answer is correct.
    pub(super) struct JudgeKeys {
        /// A model and its server.
        model: ModelConfig = some_section::<ModelConfig>()
            .required("write the model of the judge, like the `model:` of an agent"),
        /// Its prompt. `{question}`, `{answer}`, `{response}` and `{fence}` are replaced.
        prompt: Option<String> = filled().optional(),
    }
}

rollout_settings::settings! {
    /// A program that checks the answer in a container.
    pub(super) struct SandboxKeys {
        /// The path of a file inside.
        file: String = filled().required("write the path of the file, such as `/tmp/program.py`").or_empty(),
        /// The content of the file. `{response}`, `{answer}` and `{name}` of each column are replaced.
        ///
        /// `{response:json}` and the like are strings of JSON, with quotes, which are also strings of Python.
        content: String = filled().required("write the content of the file, such as `{response}`").or_empty(),
        /// The program and its arguments.
        command: Vec<String> = command().required("write the program, such as `[python3, /tmp/program.py]`").or_empty(),
    }
}

rollout_settings::settings! {
    /// The answer is in a tag.
    struct XmlKeys {
        /// The expected tags, in order; a list stands for one tag with several names.
        xml: Vec<Vec<String>> = Form::new("list", xml_schema, fields).required(TAGS).or_empty(),
        /// The tag with the answer.
        answer_field: String = filled().default("answer".to_owned()),
    }
}

const MATCHES: [(&str, Match); 4] = [
    ("exact", Match::Exact),
    ("contains", Match::Contains),
    ("numeric", Match::Numeric),
    ("math", Match::Math),
];

const METRICS: [(&str, Metric); 9] = [
    ("exact_match", Metric::ExactMatch),
    ("f1_score", Metric::F1Score),
    ("contains_answer", Metric::ContainsAnswer),
    ("numeric_match", Metric::NumericMatch),
    ("similarity", Metric::Similarity),
    ("char_f1", Metric::CharF1),
    ("edit_similarity", Metric::EditSimilarity),
    ("math_equal", Metric::MathEqual),
    ("multiple_choice", Metric::MultipleChoice),
];

/// The ways to score, of which an entry has one.
const SCORES: [&str; 6] = ["match", "metric", "sandbox", "judge", "command", "python"];

const TAGS: &str = "write the expected tags, such as `xml: [think, answer]`";

const PARSERS: [&str; 5] = ["plain", "think", "maybe_think", "boxed", "code"];

/// Columns of every row of the results. A metric of the same name would hide one.
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

pub(super) const EXAMPLE: &str =
    "such as `- match: exact`, which compares the answer with the answer of the example";

pub(super) fn schema() -> Json {
    let mut schema = entry::<RubricKeys>();
    one_of(&SCORES, &mut schema);
    schema
}

pub(super) fn read(section: &Section<'_>, key: &str) -> Vec<RubricEntry> {
    if section.filled_list(key, EXAMPLE).is_none() {
        return Vec::new();
    }
    let independent =
        section.node("independent_scoring").is_some_and(|node| matches!(node.value, Value::Bool(true)));
    let mut entries = Vec::new();
    let mut seen = HashMap::new();
    for entry in section.sections::<RubricKeys>(key) {
        let Some(keys) = RubricKeys::read(&entry) else { continue };
        let (name, weight) = (keys.name.clone(), keys.weight);
        let Some((default, score)) = score(&entry, keys, independent) else { continue };
        let name = name.unwrap_or(default);
        let span = entry.value_span("name");
        if COLUMNS.contains(&name.as_str()) {
            let message = format!("invalid name of a metric: {}", quoted(&name));
            entry.reader.error_with_hint(
                span,
                Code::InvalidName,
                message,
                "a column of the results has this name; choose another `name:`",
            );
        }
        if let Some(first) = seen.insert(name.clone(), span) {
            let hint = "give one of them another `name:`; metrics are identified by it";
            entry.same_name("entries of the rubric", &name, span, first, hint);
        }
        entries.push(RubricEntry { name, weight, score });
    }
    entries
}

/// How an entry scores, and its default name.
fn score(entry: &Section<'_>, keys: RubricKeys, independent: bool) -> Option<(String, ScoreConfig)> {
    let hint = "an entry needs a `match:`, a `metric:`, a `sandbox:`, a `judge:`, a `command:` or a `python:` function";
    let kind = entry.one_of(&SCORES, hint)?;
    let runs = ["command", "python"].contains(&kind);
    let foreign: &[&str] = match kind {
        "command" | "python" => &["parser"],
        "sandbox" => &["group"],
        _ => &["group", "timeout_sec"],
    };
    entry.refuse(foreign, kind, |key| format!("remove `{key}`"));
    let RubricKeys { how, metric, sandbox, judge, command, python, group, timeout, parser, .. } = keys;
    if runs && group && independent {
        let message = "`group` cannot be combined with `independent_scoring`";
        entry.invalid_with_hint("group", message, "remove `independent_scoring` or `group`");
    }
    match kind {
        "match" => {
            let how = how?;
            let word = MATCHES.iter().find(|(_, known)| *known == how).map_or("match", |(word, _)| word);
            Some((word.to_owned(), ScoreConfig::Match { how, parser }))
        }
        "metric" => {
            let metric = metric?;
            Some((metric.as_str().to_owned(), ScoreConfig::Metric { metric, parser }))
        }
        "sandbox" => {
            let SandboxKeys { file, content, command } = sandbox?;
            Some(("sandbox".to_owned(), ScoreConfig::Sandbox { file, content, command, timeout, parser }))
        }
        "judge" => {
            let JudgeKeys { model, prompt } = judge?;
            Some(("judge".to_owned(), ScoreConfig::Judge { model: Box::new(model), prompt, parser }))
        }
        "python" => {
            let function = function(entry, python.as_deref()?)?;
            Some((function.function.clone(), ScoreConfig::Python { function, group, timeout }))
        }
        _ => Some(("command".to_owned(), ScoreConfig::Command { command: command?, group, timeout })),
    }
}

/// The name of a function, with its file.
pub(super) fn function_name() -> Form<String> {
    filled()
        .refine(|schema| schema["pattern"] = json!("^.+\\.py:[A-Za-z_][A-Za-z0-9_.]*$"))
        .kind("`file.py:function`")
}

/// The function in the `python:` of an entry.
pub(super) fn function(entry: &Section<'_>, written: &str) -> Option<PythonFunction> {
    let fits = |name: &str| {
        name.split('.').all(|part| {
            part.starts_with(|c: char| c.is_alphabetic() || c == '_')
                && part.chars().all(|c| c.is_alphanumeric() || c == '_')
        })
    };
    match written.rsplit_once(':') {
        Some((file, name)) if file.ends_with(".py") && fits(name) => {
            Some(PythonFunction { file: file.into(), function: name.to_owned() })
        }
        _ => {
            let message = format!("{} does not name a Python function", quoted(written));
            let hint = "write a file and a function in it, such as `python: rewards.py:exact`";
            entry.invalid_with_hint("python", message, hint);
            None
        }
    }
}

/// An entry in the form of config.json.
pub(super) fn record(entry: &RubricEntry, written: Written<'_>) -> Json {
    let mut record = written.plain();
    record["name"] = json!(entry.name);
    record["weight"] = json!(entry.weight);
    if let ScoreConfig::Judge { model, .. } = &entry.score {
        record["judge"]["model"] = ModelConfig::record(model, written.key("judge").key("model")).into();
    }
    record
}

/// How the answer is found in a model's messages.
pub(super) fn parser() -> Form<ParserConfig> {
    let schema = || json!({ "anyOf": [{ "enum": PARSERS }, entry::<XmlKeys>()] });
    Form::written("word, or mapping", schema, |section, key| {
        let node = section.node(key)?;
        let choices = "known parsers: `plain`, `think`, `maybe_think`, `boxed`, `code`, or `{xml: [fields]}`";
        match &node.value {
            Value::String(word) => match word.as_str() {
                "plain" => Some(ParserConfig::Plain),
                "think" => Some(ParserConfig::Think),
                "maybe_think" => Some(ParserConfig::MaybeThink),
                "boxed" => Some(ParserConfig::Boxed),
                "code" => Some(ParserConfig::Code),
                other => {
                    let hint = match nearest(other, &PARSERS) {
                        Some(name) => format!("did you mean `{name}`? {choices}"),
                        None => choices.to_owned(),
                    };
                    section.invalid_with_hint(key, format!("unknown parser {}", quoted(other)), hint);
                    None
                }
            },
            Value::Map(_) => xml(&section.section::<XmlKeys>(key)?),
            _ => {
                let message =
                    format!("`{}` must be a word or a mapping, not {}", section.at(key), node.kind());
                section.reader.error_with_hint(node.span, Code::WrongType, message, choices);
                None
            }
        }
    })
}

fn xml_schema() -> Json {
    let tag = json!({ "type": "string", "pattern": "^[\\w-]+$" });
    json!({ "type": "array", "minItems": 1, "items": {
        "anyOf": [tag.clone(), { "type": "array", "minItems": 1, "items": tag }],
    } })
}

fn xml(section: &Section<'_>) -> Option<ParserConfig> {
    let XmlKeys { xml: fields, answer_field } = XmlKeys::read(section)?;
    let names = || fields.iter().flatten().map(String::as_str);
    if !fields.is_empty() && !names().any(|name| name == answer_field) {
        let listed: Vec<String> = names().map(quoted).collect();
        let message = format!("{} is not a tag of this parser", quoted(&answer_field));
        let hint = format!("set `answer_field:` to one of {}", listed.join(", "));
        let key = if section.node("answer_field").is_some() { "answer_field" } else { "xml" };
        section.invalid_with_hint(key, message, hint);
    }
    let mut seen = HashSet::new();
    if let Some(twice) = names().find(|name| !seen.insert(*name)) {
        let message = format!("duplicate tag {}", quoted(twice));
        section.invalid_with_hint("xml", message, "each name belongs to one field");
    }
    Some(ParserConfig::Xml { answer_field, fields })
}

fn fields(section: &Section<'_>, key: &str) -> Option<Vec<Vec<String>>> {
    let nodes = section.filled_list(key, TAGS)?.iter();
    let alternatives = nodes.map(|node| match &node.value {
        Value::List(items) if !items.is_empty() => items.as_slice(),
        _ => std::slice::from_ref(node),
    });
    Some(alternatives.filter_map(|nodes| nodes.iter().map(|node| tag(section, node)).collect()).collect())
}

fn tag(section: &Section<'_>, node: &Node) -> Option<String> {
    let fits = |char: char| char.is_alphanumeric() || matches!(char, '_' | '-');
    match &node.value {
        Value::String(name) if !name.is_empty() && name.chars().all(fits) => Some(name.clone()),
        Value::String(name) => {
            let message = format!("invalid tag {}", quoted(name));
            section.reader.error_with_hint(
                node.span,
                Code::InvalidValue,
                message,
                "write letters, digits, `_` and `-`, without brackets",
            );
            None
        }
        _ => {
            section.reader.wrong_type(node, "xml", "a list of tags");
            None
        }
    }
}
