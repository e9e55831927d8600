//! Tools that run commands on this machine.

use std::{path::PathBuf, sync::Arc, time::Duration};

use crate::tool::{Arguments, Tool, ToolFailure, ToolOutput as _};
use crate::{
    ErrorKind, State,
    process::{RunError, run},
};
use async_trait::async_trait;
use rollout_core::message::{Content, ToolDef};
use serde_json::Value;

/// The maximum output of a command. Images are large; useful texts are not.
const MAX_OUTPUT_BYTES: usize = 8 << 20;

const FAILED: &str = "CommandError";

/// A tool that runs a command on this machine, outside of any environment.
///
/// The command gets the arguments of the call as a JSON object on its standard input. Its output is the result: text,
/// or a JSON list of parts of type `text` and `image_url`. If it fails or times out, the tool fails. Processes that it
/// started end with it.
///
/// ```
/// use std::time::Duration;
///
/// use rollout::model::{ToolDef, tool};
/// use serde_json::json;
///
/// let def = ToolDef {
///     name: "today".into(),
///     description: "Returns the date.".into(),
///     parameters: json!({"type": "object", "properties": {}}),
///     strict: None,
/// };
/// let today = tool::command(def, vec!["date".into(), "-I".into()], ".".into(), Duration::from_secs(5));
/// assert_eq!(today.def().name, "today");
/// ```
pub fn command(def: ToolDef, argv: Vec<String>, directory: PathBuf, timeout: Duration) -> Arc<dyn Tool> {
    Arc::new(Command { def, argv, directory, timeout })
}

struct Command {
    def: ToolDef,
    argv: Vec<String>,
    directory: PathBuf,
    timeout: Duration,
}

#[async_trait]
impl Tool for Command {
    fn def(&self) -> &ToolDef {
        &self.def
    }

    async fn call(&self, arguments: Arguments, _state: &mut State) -> Result<Content, ToolFailure> {
        let input = Value::Object(arguments).to_string();
        let ran =
            run(&self.argv, Some(&self.directory), input.as_bytes(), MAX_OUTPUT_BYTES, self.timeout).await;
        let (output, _) = ran.map_err(|error| self.failure(error))?;
        let output = String::from_utf8_lossy(&output);
        let output = output.strip_suffix('\n').unwrap_or(&output).to_owned();
        match serde_json::from_str::<Value>(&output) {
            Ok(parts @ Value::Array(_)) => match parts.into_content()? {
                Content::Text(_) => Ok(Content::Text(output)),
                parts => Ok(parts),
            },
            _ => Ok(Content::Text(output)),
        }
    }
}

impl Command {
    fn failure(&self, error: RunError) -> ToolFailure {
        let (name, text) = match error {
            // A command that cannot be started is not the fault of the model.
            RunError::Start(error) => {
                let program = self.argv.first().map_or("", String::as_str);
                (ErrorKind::Infra.as_str(), format!("cannot start the command `{program}`: {error}"))
            }
            RunError::Talk(error) => (FAILED, format!("cannot read the output of the command: {error}")),
            RunError::TooMuch => (FAILED, format!("the command printed more than {MAX_OUTPUT_BYTES} bytes")),
            RunError::Timeout(_) => {
                let seconds = self.timeout.as_secs_f64();
                ("TimeoutError", format!("the command timed out after {seconds} seconds"))
            }
            RunError::Failed(status, said) => {
                (FAILED, format!("the command failed: {status}{}", said.as_suffix()))
            }
        };
        ToolFailure::new(name, text)
    }
}
