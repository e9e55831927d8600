//! Tools that are Python functions.

use std::{sync::Arc, time::Duration};

use crate::{
    ErrorKind, State,
    python::{PythonError, PythonFunction, PythonWorker},
    tool::{Arguments, Tool, ToolFailure, ToolOutput as _},
};
use async_trait::async_trait;
use rollout_core::message::{Content, ToolDef};
use serde_json::Value;

/// A tool that is a Python function.
///
/// The model gets its name, its signature and its docstring, in which `Args:` describes the arguments. The function
/// gets the arguments by name. Its return value is the result: a text, a list of parts of type `text` and `image_url`,
/// or anything else, as JSON if possible. An exception is a failure of the tool, and the model gets its message.
pub async fn python(
    worker: &PythonWorker,
    function: PythonFunction,
    timeout: Duration,
) -> Result<Arc<dyn Tool>, PythonError> {
    let def = worker.describe(&function).await?;
    Ok(python_as(worker, function, timeout, def))
}

/// The same with another description.
pub fn python_as(
    worker: &PythonWorker,
    function: PythonFunction,
    timeout: Duration,
    def: ToolDef,
) -> Arc<dyn Tool> {
    Arc::new(Python { def, worker: worker.clone(), function, timeout })
}

struct Python {
    def: ToolDef,
    worker: PythonWorker,
    function: PythonFunction,
    timeout: Duration,
}

#[async_trait]
impl Tool for Python {
    fn def(&self) -> &ToolDef {
        &self.def
    }

    async fn call(&self, arguments: Arguments, _state: &mut State) -> Result<Content, ToolFailure> {
        let called = self.worker.call(&self.function, "tool", arguments, None, self.timeout).await;
        match called.map_err(failure)? {
            Value::Null => Ok(Content::Text(String::new())),
            value => value.into_content(),
        }
    }
}

fn failure(error: PythonError) -> ToolFailure {
    tracing::debug!("{error}");
    match error {
        PythonError::Raised { kind, message, .. } if message.is_empty() => {
            ToolFailure::new(kind.clone(), kind)
        }
        PythonError::Raised { kind, message, .. } => ToolFailure::new(kind, message),
        // The model cannot fix a missing or ended Python process.
        PythonError::Start { .. } | PythonError::Ended { .. } => {
            ToolFailure::new(ErrorKind::Infra.as_str(), error.to_string())
        }
        PythonError::Timeout { .. } => ToolFailure::new("TimeoutError", error.to_string()),
        _ => ToolFailure::new("PythonError", error.to_string()),
    }
}
