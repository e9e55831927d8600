//! Tools that a model can call.
//!
//! [`function`] makes a tool from a function with typed arguments, [`stateful`] from one that gets the rollout,
//! [`command()`] from a command, and [`python()`] from a Python function. [`container`] has tools inside an
//! environment, and [`mcp`] those of MCP servers. Anything else implements [`Tool`].

mod command;
pub mod container;
mod function;
mod hidden;
#[cfg(feature = "mcp")]
pub mod mcp;
mod python;
mod schema;

use std::{
    any::{Any, type_name},
    error::Error as StdError,
    fmt,
};

use async_trait::async_trait;
use serde_json::{Map, Value};

use crate::{Cause, Error, ErrorKind, State};
use rollout_core::message::{Content, ToolDef};
use rollout_core::text::chain;

pub use command::command;
pub use function::{function, stateful};
pub use hidden::{UnknownArgument, hide};
pub use python::{python, python_as};

/// The arguments of a call, by name.
pub type Arguments = Map<String, Value>;

/// A tool that a model can call.
#[async_trait]
pub trait Tool: Send + Sync {
    /// The definition that the model gets.
    fn def(&self) -> &ToolDef;

    /// Runs a call. The state is that of the rollout whose model calls.
    async fn call(&self, arguments: Arguments, state: &mut State) -> Result<Content, ToolFailure>;
}

/// The failure of a call.
///
/// Every standard error converts to one, so `?` works in tools. An [`Error`] keeps its kind.
///
/// ```
/// use rollout::model::tool::ToolFailure;
///
/// fn parse(text: &str) -> Result<i64, ToolFailure> {
///     Ok(text.trim().parse::<i64>()?)
/// }
/// assert_eq!(parse("x").unwrap_err(), ToolFailure::new("ParseIntError", "invalid digit found in string"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolFailure {
    /// The name of the failure, for chains of errors and for [`StopError`](crate::StopError).
    pub name: String,
    /// The message that the model gets.
    pub message: String,
    /// The kind of error with this name, if there is one, or the kind of the [`Error`] that it was converted from.
    pub kind: Option<ErrorKind>,
}

/// The failure if the model's own commands ended the environment. The model caused it, so it must not exclude the
/// rollout or the trial from rates and baselines.
pub(crate) const ENVIRONMENT_ENDED: ErrorKind = ErrorKind::model_fault("EnvironmentEnded");

/// The name of the failure if the environment has lived for as long as it may.
pub(crate) const ENVIRONMENT_TIME_OVER: &str = "EnvironmentTimeOver";

impl ToolFailure {
    /// A failure of this name.
    pub fn new(name: impl Into<String>, message: impl Into<String>) -> Self {
        let name = name.into();
        Self { kind: ErrorKind::named(&name), name, message: message.into() }
    }

    /// A failure of the infrastructure, which the tool cannot fix.
    pub(crate) fn sandbox(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Sandbox.as_str(), message)
    }

    /// The failure of an environment that the model's own commands ended.
    pub(crate) fn ended(message: impl Into<String>) -> Self {
        let kind = ENVIRONMENT_ENDED;
        Self { name: kind.as_str().to_owned(), message: message.into(), kind: Some(kind) }
    }

    /// The failure of an environment that has lived for as long as it may. A retry would take as long.
    pub(crate) fn time_over(message: impl Into<String>) -> Self {
        Self::new(ENVIRONMENT_TIME_OVER, message)
    }

    /// The error of a rollout that this failure ends. Infrastructure failures and custom kinds keep their kind, so that
    /// the rollout is retried if needed; all others are errors of the tool.
    pub(super) fn into_error(self, kind: ErrorKind, tool: &str) -> Error {
        match self.kind {
            Some(own) if own.is(ErrorKind::Infra) || own.is_counted() => {
                Error::new(own, format!("the tool `{tool}` failed: {}", self.message))
            }
            _ => {
                let text = match kind {
                    ErrorKind::ToolParse => format!("malformed arguments of `{tool}`"),
                    _ => format!("the tool `{tool}` failed"),
                };
                Error::new(kind, text).because(Cause::new(self.name, self.message))
            }
        }
    }
}

impl fmt::Display for ToolFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl<E: StdError + 'static> From<E> for ToolFailure {
    fn from(error: E) -> Self {
        if let Some(error) = (&error as &dyn Any).downcast_ref::<Error>() {
            let (name, message) = (error.kind.as_str().to_owned(), error.to_string());
            return Self { name, message, kind: Some(error.kind.clone()) };
        }
        let full = type_name::<E>();
        let name = full.split('<').next().unwrap_or(full).rsplit("::").next().unwrap_or(full);
        Self::new(name, chain(&error))
    }
}

/// The results of tools: text, numbers, JSON, [`Content`], nothing, or a `Result` of those.
///
/// A JSON list is kept as parts of a message if each item is a part of type `text` or `image_url`. All other JSON
/// becomes text.
pub trait ToolOutput {
    /// The content that the model gets.
    fn into_content(self) -> Result<Content, ToolFailure>;
}

impl ToolOutput for Content {
    fn into_content(self) -> Result<Content, ToolFailure> {
        Ok(self)
    }
}

impl ToolOutput for Value {
    fn into_content(self) -> Result<Content, ToolFailure> {
        Ok(match self {
            Self::String(text) => Content::Text(text),
            Self::Array(parts) if !parts.is_empty() && parts.iter().all(is_part) => Content::Parts(parts),
            other => Content::Text(other.to_string()),
        })
    }
}

fn is_part(value: &Value) -> bool {
    matches!(value.get("type").and_then(Value::as_str), Some("text" | "image_url"))
}

impl<T: ToolOutput, E: Into<ToolFailure>> ToolOutput for Result<T, E> {
    fn into_content(self) -> Result<Content, ToolFailure> {
        self.map_err(Into::into)?.into_content()
    }
}

macro_rules! shown_as_text {
    ($($type:ty),*) => {$(
        impl ToolOutput for $type {
            fn into_content(self) -> Result<Content, ToolFailure> {
                Ok(Content::Text(self.to_string()))
            }
        }
    )*};
}

shown_as_text!(&str, bool, f32, f64, i32, i64, u32, u64, usize);

impl ToolOutput for String {
    fn into_content(self) -> Result<Content, ToolFailure> {
        Ok(Content::Text(self))
    }
}

impl ToolOutput for () {
    fn into_content(self) -> Result<Content, ToolFailure> {
        Ok(Content::Text(String::new()))
    }
}

#[cfg(test)]
mod tests {
    use rollout_core::result::FailureCause;
    use serde_json::json;

    use crate::tool::*;

    #[test]
    fn parts_are_kept_only_if_each_is_text_or_an_image() {
        let text = json!({"type": "text", "text": "a"});
        let image = json!({"type": "image_url", "image_url": {"url": "data:"}});
        let audio = json!({"type": "input_audio"});
        let both = json!([text, image]);
        assert_eq!(both.clone().into_content().unwrap(), serde_json::from_value(both).unwrap());
        let mixed = json!([text, audio]);
        assert_eq!(mixed.clone().into_content().unwrap(), Content::Text(mixed.to_string()));
        assert_eq!(json!([]).into_content().unwrap(), Content::Text("[]".to_owned()));
    }

    #[test]
    fn values_become_text() {
        let texts: Vec<Content> = [
            "a".into_content(),
            7.into_content(),
            true.into_content(),
            ().into_content(),
            json!({"a": 1}).into_content(),
            json!("plain").into_content(),
            Ok::<_, ToolFailure>(1.5).into_content(),
        ]
        .into_iter()
        .map(Result::unwrap)
        .collect();
        let expected = ["a", "7", "true", "", r#"{"a":1}"#, "plain", "1.5"];
        assert_eq!(texts, expected.map(Content::from));
    }

    #[test]
    fn infrastructure_failures_of_tools_keep_their_kind() {
        let lost = ToolFailure::sandbox("it is gone").into_error(ErrorKind::ToolCall, "bash");
        assert!(lost.kind.is_retried());
        assert_eq!(lost.chain(), "SandboxError");
        let ended = ToolFailure::ended("it has no memory left").into_error(ErrorKind::ToolCall, "bash");
        assert_eq!((ended.kind.is_retried(), ended.kind.fault()), (false, FailureCause::Agent));
        assert_eq!(ended.chain(), "EnvironmentEnded");
        let over = ToolFailure::time_over("its lifetime was over").into_error(ErrorKind::ToolCall, "bash");
        assert_eq!((over.kind.is_retried(), over.kind.fault()), (false, FailureCause::Infrastructure));
        let own = ToolFailure::new("ValueError", "no").into_error(ErrorKind::ToolCall, "add");
        assert_eq!((own.chain().as_str(), own.kind.is_retried()), ("ToolCallError -> ValueError", false));
    }
}
