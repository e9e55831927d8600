//! The errors of a rollout: a tree of kinds, each error with its causes.

use std::{
    borrow::{Borrow, Cow},
    fmt,
};

use serde::{Deserialize, Serialize};

use rollout_core::{result::FailureCause, row::OutputError, text::chain};

/// The kinds of errors. [`ErrorKind::is`] decides which kind is a special case of another.
///
/// A custom kind is a constant with a name, which appears in rows:
///
/// ```
/// use rollout::model::{Error, ErrorKind};
///
/// /// Not caused by the model: the rollout is retried, and excluded from baselines and samples.
/// const JAMMED: ErrorKind = ErrorKind::infrastructure("JammedError");
/// /// Caused by the model: the rollout counts, with its reward.
/// const CHEATED: ErrorKind = ErrorKind::model_fault("CheatedError");
///
/// assert!(JAMMED.is(ErrorKind::Infra) && JAMMED.is_retried());
/// assert_eq!(Error::new(CHEATED, "it read the answer").chain(), "CheatedError");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ErrorKind {
    /// Any error of a rollout.
    #[serde(rename = "Error")]
    Any,
    /// The request to the model failed.
    #[serde(rename = "ModelError")]
    Model,
    /// The model's response is invalid.
    #[serde(rename = "InvalidModelResponseError")]
    InvalidModelResponse,
    /// The model's response is empty: no text, no tool call, no reasoning.
    #[serde(rename = "EmptyModelResponseError")]
    EmptyModelResponse,
    /// The conversation is longer than the model's context. The rollout ends as truncated, not as failed.
    #[serde(rename = "OverlongPromptError")]
    OverlongPrompt,
    /// A tool failed.
    #[serde(rename = "ToolError")]
    Tool,
    /// The arguments of a tool call are malformed.
    #[serde(rename = "ToolParseError")]
    ToolParse,
    /// A tool failed, or is unknown.
    #[serde(rename = "ToolCallError")]
    ToolCall,
    /// The infrastructure of the rollout failed.
    #[serde(rename = "InfraError")]
    Infra,
    /// An environment did not start, or disappeared.
    #[serde(rename = "SandboxError")]
    Sandbox,
    /// A connection to an environment broke.
    #[serde(rename = "TunnelError")]
    Tunnel,
    /// The server rejects the key. Every other rollout would fail too, so this ends the run.
    #[serde(rename = "Unauthorized")]
    Unauthorized,
    /// The server does not support the settings of the model. Every other rollout would fail too, so this ends the run.
    #[serde(rename = "Unsupported")]
    Unsupported,
    /// A custom kind, created by [`ErrorKind::infrastructure`] or [`ErrorKind::model_fault`].
    Custom {
        /// Its name in rows.
        name: Cow<'static, str>,
        /// Whether the infrastructure caused it, or the model.
        is_infrastructure: bool,
    },
}

impl ErrorKind {
    /// A custom kind for failures of the infrastructure: a special case of [`ErrorKind::Infra`]. The rollout is
    /// retried, counts as an infrastructure failure, and is excluded from baselines and samples.
    pub const fn infrastructure(name: &'static str) -> Self {
        Self::Custom { name: Cow::Borrowed(name), is_infrastructure: true }
    }

    /// A custom kind for failures that the model causes: a special case of [`ErrorKind::Any`]. The rollout counts with
    /// its reward, in baselines and samples too.
    pub const fn model_fault(name: &'static str) -> Self {
        Self::Custom { name: Cow::Borrowed(name), is_infrastructure: false }
    }

    /// The kind of a saved error; none if its name is unknown.
    pub fn of_row(error: &OutputError) -> Option<Self> {
        match error.is_infrastructure {
            Some(is_infrastructure) => {
                Some(Self::Custom { name: error.error.clone().into(), is_infrastructure })
            }
            None => Self::named(&error.error),
        }
    }

    /// The kind of this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        serde_json::from_value(name.into()).ok()
    }

    /// The kind that this is a special case of.
    pub fn parent(&self) -> Option<Self> {
        match self {
            Self::Any | Self::Unauthorized | Self::Unsupported => None,
            Self::Model | Self::OverlongPrompt | Self::Tool | Self::Infra => Some(Self::Any),
            Self::InvalidModelResponse => Some(Self::Model),
            Self::EmptyModelResponse => Some(Self::InvalidModelResponse),
            Self::ToolParse | Self::ToolCall => Some(Self::Tool),
            Self::Sandbox | Self::Tunnel => Some(Self::Infra),
            Self::Custom { is_infrastructure: true, .. } => Some(Self::Infra),
            Self::Custom { is_infrastructure: false, .. } => Some(Self::Any),
        }
    }

    /// Whether this is the other kind or a special case of it.
    pub fn is(&self, other: impl Borrow<Self>) -> bool {
        let other = other.borrow();
        self == other || self.parent().is_some_and(|parent| parent.is(other))
    }

    /// Whether a retry of the rollout may succeed.
    pub fn is_retried(&self) -> bool {
        self.is(Self::Infra) || self.is(Self::InvalidModelResponse)
    }

    /// The cause of failure of a rollout that ends with this error.
    pub fn fault(&self) -> FailureCause {
        match self {
            Self::Custom { is_infrastructure: false, .. } => FailureCause::Agent,
            // The output of the model is unusable.
            Self::EmptyModelResponse | Self::OverlongPrompt | Self::ToolParse => FailureCause::Agent,
            Self::Any
            | Self::Model
            | Self::InvalidModelResponse
            | Self::Tool
            | Self::ToolCall
            | Self::Infra
            | Self::Sandbox
            | Self::Tunnel
            | Self::Unauthorized
            | Self::Unsupported
            | Self::Custom { is_infrastructure: true, .. } => FailureCause::Infrastructure,
        }
    }

    /// Whether a rollout that ends with this error stays in baselines and samples, because its reward says something
    /// about the model: true for custom kinds that the model causes.
    pub fn is_counted(&self) -> bool {
        matches!(self, Self::Custom { is_infrastructure: false, .. })
    }

    /// The class name in records.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Any => "Error",
            Self::Model => "ModelError",
            Self::InvalidModelResponse => "InvalidModelResponseError",
            Self::EmptyModelResponse => "EmptyModelResponseError",
            Self::OverlongPrompt => "OverlongPromptError",
            Self::Tool => "ToolError",
            Self::ToolParse => "ToolParseError",
            Self::ToolCall => "ToolCallError",
            Self::Infra => "InfraError",
            Self::Sandbox => "SandboxError",
            Self::Tunnel => "TunnelError",
            Self::Unauthorized => "Unauthorized",
            Self::Unsupported => "Unsupported",
            Self::Custom { name, .. } => name,
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// An error of a rollout, as data: it is part of the state and of records.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Error {
    /// The kind of the error.
    pub kind: ErrorKind,
    /// What was attempted and what happened.
    pub message: String,
    /// The cause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Box<Cause>>,
}

/// A cause of an [`Error`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// The name of its type.
    pub name: String,
    /// Its message.
    pub message: String,
    /// Its own cause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Box<Cause>>,
}

impl Cause {
    /// A cause without a cause of its own.
    pub fn new(name: impl Into<String>, message: impl Into<String>) -> Self {
        Self { name: name.into(), message: message.into(), cause: None }
    }

    /// A Rust error. Its sources have no type names, so they are part of its message.
    pub fn of(name: impl Into<String>, error: &dyn std::error::Error) -> Self {
        Self::new(name, chain(error))
    }
}

impl From<Error> for Cause {
    fn from(error: Error) -> Self {
        Self { name: error.kind.as_str().to_owned(), message: error.message, cause: error.cause }
    }
}

impl Error {
    /// An error without a cause.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), cause: None }
    }

    /// The same error with a cause.
    #[must_use]
    pub fn because(self, cause: Cause) -> Self {
        Self { cause: Some(Box::new(cause)), ..self }
    }

    /// Whether it is of this kind or a special case of it.
    pub fn is(&self, kind: impl Borrow<ErrorKind>) -> bool {
        self.kind.is(kind)
    }

    /// The names of the error and its causes, as `ToolCallError -> ValueError`.
    pub fn chain(&self) -> String {
        self.joined(|name, _| name.to_owned())
    }

    /// The error and its causes with their messages, as `ToolCallError('…') -> ValueError('…')`.
    pub(crate) fn long_chain(&self) -> String {
        self.joined(|name, message| format!("{name}({message:?})"))
    }

    fn joined(&self, each: impl Fn(&str, &str) -> String) -> String {
        let mut text = each(self.kind.as_str(), &self.message);
        let mut next = self.cause.as_deref();
        while let Some(cause) = next {
            text.push_str(" -> ");
            text.push_str(&each(&cause.name, &cause.message));
            next = cause.cause.as_deref();
        }
        text
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        let mut next = self.cause.as_deref();
        while let Some(cause) = next {
            write!(f, ": {}", cause.message)?;
            next = cause.cause.as_deref();
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

/// Conversions of standard library errors, so that `?` works in hooks.
macro_rules! errors_of_hooks {
    ($($name:literal: $error:ty),* $(,)?) => {$(
        impl From<$error> for Error {
            fn from(error: $error) -> Self {
                Self::new(ErrorKind::Any, "the interaction failed").because(Cause::of($name, &error))
            }
        }
    )*};
}
errors_of_hooks! {
    "IoError": std::io::Error,
    "JsonError": serde_json::Error,
    "ParseIntError": std::num::ParseIntError,
    "ParseFloatError": std::num::ParseFloatError,
    "Utf8Error": std::string::FromUtf8Error,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_each_of_its_ancestors_and_nothing_else() {
        use ErrorKind as K;
        let lines = [
            &[K::Any][..],
            &[K::Model, K::Any],
            &[K::InvalidModelResponse, K::Model, K::Any],
            &[K::EmptyModelResponse, K::InvalidModelResponse, K::Model, K::Any],
            &[K::OverlongPrompt, K::Any],
            &[K::Tool, K::Any],
            &[K::ToolParse, K::Tool, K::Any],
            &[K::ToolCall, K::Tool, K::Any],
            &[K::Infra, K::Any],
            &[K::Sandbox, K::Infra, K::Any],
            &[K::Tunnel, K::Infra, K::Any],
            &[K::Unauthorized],
            &[K::Unsupported],
        ];
        for line in lines {
            for other in lines.map(|line| &line[0]) {
                assert_eq!(line[0].is(other), line.contains(other), "{} is {other}", line[0]);
            }
            assert_eq!(serde_json::to_value(&line[0]).unwrap(), line[0].as_str());
        }
        assert_eq!(
            lines.map(|line| line[0].as_str()).join(" "),
            "Error ModelError InvalidModelResponseError EmptyModelResponseError OverlongPromptError ToolError \
             ToolParseError ToolCallError InfraError SandboxError TunnelError Unauthorized Unsupported"
        );
    }

    #[test]
    fn infrastructure_errors_and_invalid_responses_are_retried() {
        use ErrorKind as K;
        let retried: Vec<_> = [K::Model, K::InvalidModelResponse, K::EmptyModelResponse, K::OverlongPrompt]
            .into_iter()
            .chain([K::ToolParse, K::ToolCall, K::Infra, K::Sandbox, K::Tunnel, K::Unauthorized])
            .filter(|kind| kind.is_retried())
            .collect();
        assert_eq!(
            retried,
            [K::InvalidModelResponse, K::EmptyModelResponse, K::Infra, K::Sandbox, K::Tunnel]
        );
    }

    #[test]
    fn a_custom_kind_is_caused_by_the_infrastructure_or_the_model() {
        let (jammed, cheated) =
            (ErrorKind::infrastructure("JammedError"), ErrorKind::model_fault("CheatedError"));
        assert!(jammed.is(ErrorKind::Infra) && jammed.is(ErrorKind::Any) && jammed.is(&jammed));
        assert!(cheated.is(ErrorKind::Any) && !cheated.is(ErrorKind::Infra) && !cheated.is(&jammed));
        assert_eq!((jammed.is_retried(), cheated.is_retried()), (true, false));
        assert_eq!((jammed.fault(), cheated.fault()), (FailureCause::Infrastructure, FailureCause::Agent));
        for kind in [jammed, cheated, ErrorKind::ToolCall] {
            let row = OutputError::from(&Error::new(kind.clone(), "no"));
            assert_eq!(ErrorKind::of_row(&row), Some(kind));
        }
        let foreign = OutputError { error: "ValueError".to_owned(), ..OutputError::default() };
        assert_eq!(ErrorKind::of_row(&foreign), None);
    }

    #[test]
    fn a_chain_names_the_error_and_then_its_causes() {
        let error = Error::new(ErrorKind::ToolCall, "add failed").because(Cause::new("ValueError", "no"));
        assert_eq!(error.chain(), "ToolCallError -> ValueError");
        assert_eq!(error.long_chain(), r#"ToolCallError("add failed") -> ValueError("no")"#);
        assert_eq!(error.to_string(), "add failed: no");
        let deeper =
            Cause { cause: Some(Box::new(Cause::new("OSError", "gone"))), ..Cause::new("ValueError", "no") };
        assert_eq!(error.because(deeper).chain(), "ToolCallError -> ValueError -> OSError");
    }
}
