//! The `stop` conditions of an interaction, and the errors of tools that end a rollout.

use std::{collections::HashMap, time::Duration};

use serde_json::Value as Json;

use super::{
    ToolConfig,
    rubric::{function, function_name},
    tools,
};
use rollout_model::{PythonFunction, PythonWorker, Stop};
use rollout_settings::{
    Code, Node, Section, Settings as _, Value,
    declare::{entry, one_of},
    diagnostic::{nearest, quoted},
    forms::{filled, seconds},
};

/// A condition that ends a rollout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopConfig {
    /// The `stop_condition` of rollouts that this entry ends.
    pub name: String,
    /// When it is met.
    pub when: StopWhen,
}

/// When a stop condition is met. It is checked after each response of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopWhen {
    /// The model's last message contains this text.
    Contains(String),
    /// This regular expression matches a part of the model's last message.
    Matches(String),
    /// The model called this tool.
    Called(String),
    /// A Python function returns true.
    Python {
        /// The function, in a file below the directory of the interaction.
        function: PythonFunction,
        /// The timeout of a call.
        timeout: Duration,
    },
}

rollout_settings::settings! {
    /// A condition that ends a rollout.
    pub(super) struct StopKeys {
        /// The `stop_condition` of rollouts that this entry ends; when absent, the kind of the entry, or the name of
        /// the function.
        name: Option<String> = filled().optional(),
        /// A text that the model's last message contains.
        contains: Option<String> = filled().optional(),
        /// A regular expression that matches a part of the model's last message.
        ///
        /// The syntax is that of Rust's crate `regex`: without look-around and back-references. `(?i)` at the start
        /// ignores case.
        matches: Option<String> = filled().kind("regular expression").optional(),
        /// A tool that the model calls.
        ///
        /// The rollout ends before the tool runs.
        called: Option<String> = filled().kind("name of a tool").optional(),
        /// A Python function that returns a boolean, as `file.py:function`.
        ///
        /// It gets the arguments that its parameters name: `messages`, all messages so far, and those of functions of a
        /// [rubric](scoring.md#python-functions).
        python: Option<String> = function_name().optional(),
        /// The timeout of a call of the function, in seconds.
        timeout as "timeout_sec": Duration = seconds().default(PythonWorker::TIMEOUT),
    }
}

const KINDS: [&str; 4] = ["contains", "matches", "called", "python"];

/// The conditions that every rollout has.
const TAKEN: [&str; 9] = [
    "has_error",
    "has_final_env_response",
    "max_cost_reached",
    "max_total_completion_tokens_reached",
    "max_total_tokens_reached",
    "max_turns_reached",
    "no_tools_called",
    "prompt_too_long",
    "timeout_reached",
];

/// The errors of tools: the kinds of errors, and the names of failures of tools other than Python functions.
const TOOL_ERRORS: [&str; 19] = [
    "Error",
    "ToolError",
    "ToolParseError",
    "ToolCallError",
    "InfraError",
    "SandboxError",
    "TunnelError",
    "JSONDecodeError",
    "ValueError",
    "TypeError",
    "KeyError",
    "TimeoutError",
    "CommandError",
    "FileError",
    "McpError",
    "McpToolError",
    "PythonError",
    "EnvironmentEnded",
    "EnvironmentTimeOver",
];

pub(super) fn schema() -> Json {
    let mut schema = entry::<StopKeys>();
    one_of(&KINDS, &mut schema);
    schema
}

pub(super) fn read(section: &Section<'_>, key: &str) -> Vec<StopConfig> {
    let mut stops = Vec::new();
    let mut seen = HashMap::new();
    for entry in section.sections::<StopKeys>(key) {
        let Some(keys) = StopKeys::read(&entry) else { continue };
        let name = keys.name.clone();
        let Some((default, when)) = when(&entry, keys) else { continue };
        let name = name.unwrap_or(default);
        let span = entry.value_span("name");
        if TAKEN.contains(&name.as_str()) {
            let message = format!("invalid name of a stop condition: {}", quoted(&name));
            let hint = "a built-in condition has this name; choose another `name:`";
            entry.reader.error_with_hint(span, Code::InvalidName, message, hint);
        }
        if let Some(first) = seen.insert(name.clone(), span) {
            let hint = "give one of them another `name:`; results have it as `stop_condition`";
            entry.same_name("stop conditions", &name, span, first, hint);
        }
        stops.push(StopConfig { name, when });
    }
    stops
}

/// When a condition is met, and its default name.
fn when(entry: &Section<'_>, keys: StopKeys) -> Option<(String, StopWhen)> {
    let hint = "a condition needs a `contains:`, a `matches:`, a `called:` or a `python:` function";
    let kind = entry.one_of(&KINDS, hint)?;
    if kind != "python" {
        entry.refuse(&["timeout_sec"], kind, |key| format!("remove `{key}`"));
    }
    let StopKeys { contains, matches, called, python, timeout, .. } = keys;
    let when = match kind {
        "contains" => StopWhen::Contains(contains?),
        "matches" => {
            let pattern = matches?;
            if let Err(error) = Stop::matches(kind, &pattern) {
                let hint = "write one like `matches: 'ANSWER: \\d+'`; for plain text, use `contains:`";
                entry.invalid_with_hint(kind, error.to_string(), hint);
            }
            StopWhen::Matches(pattern)
        }
        "called" => StopWhen::Called(called?),
        _ => {
            let function = function(entry, python.as_deref()?)?;
            return Some((function.function.clone(), StopWhen::Python { function, timeout }));
        }
    };
    Some((kind.to_owned(), when))
}

/// Reports conditions on unknown tools, and unknown errors of tools.
pub(super) fn check(section: &Section<'_>, tools: &[ToolConfig]) {
    // The tools of an MCP server are known only when it runs. A tool that could not be read is unknown too.
    let listed = section.node("tools").map_or(0, |node| node.items().len());
    let all_known = tools.len() == listed && !tools.iter().any(|tool| matches!(tool, ToolConfig::Mcp(_)));
    let names = tools::names(tools);
    for node in section.node("stop").map(Node::items).unwrap_or_default() {
        let Some(called) = node.get("called") else { continue };
        if let (Value::String(name), true) = (&called.value, all_known)
            && !names.contains(&name.as_str())
        {
            let message = format!("unknown tool {}", quoted(name));
            let listed: Vec<String> = names.iter().map(|name| quoted(name)).collect();
            let hint = match nearest(name, &names) {
                Some(near) => format!("did you mean `{near}`?"),
                None if names.is_empty() => "the interaction has no tools".to_owned(),
                None => format!("known tools: {}", listed.join(", ")),
            };
            section.reader.error_with_hint(called.span, Code::InvalidValue, message, hint);
        }
    }
    // A Python exception can have any name.
    let any_name = tools.len() != listed || tools.iter().any(|tool| matches!(tool, ToolConfig::Python(_)));
    for node in section.node("stop_errors").map(Node::items).unwrap_or_default() {
        let Value::String(name) = &node.value else { continue };
        let fits = !name.starts_with(|c: char| c.is_ascii_digit())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        let known = name.is_empty() || TOOL_ERRORS.contains(&name.as_str()) || any_name && fits;
        if !known {
            let message = format!("unknown error of a tool: {}", quoted(name));
            let hint = match nearest(name, &TOOL_ERRORS) {
                Some(near) => format!("did you mean `{near}`?"),
                None => {
                    format!(
                        "known errors: {}, and exception classes with a `python:` tool",
                        TOOL_ERRORS.join(", ")
                    )
                }
            };
            section.reader.error_with_hint(node.span, Code::InvalidValue, message, hint);
        }
    }
}
