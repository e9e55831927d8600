//! Tools that are commands of this machine.

use std::{path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    process::{ChildStdin, ChildStdout},
};

use super::{Arguments, Tool, ToolFailure, ToolOutput as _, process::Process};
use crate::model::{Content, ErrorKind, State, ToolDef};

/// What a command may print. Images are large; no text that a model can use is.
const MAX_OUTPUT_BYTES: u64 = 8 << 20;

/// A tool that runs a command of this machine, outside of any environment.
///
/// The command gets the arguments of the call as a JSON object on its standard input. What it prints is the result:
/// text, or a JSON list of parts of type `text` and `image_url`. One that fails, or takes longer than `timeout`, is a
/// failure of the tool; it ends with all that it started.
///
/// ```
/// use std::time::Duration;
///
/// use rollout::model::{ToolDef, tool};
/// use serde_json::json;
///
/// let def = ToolDef {
///     name: "today".into(),
///     description: "Tells the date.".into(),
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
        match tokio::time::timeout(self.timeout, self.run(input)).await {
            Ok(output) => output,
            Err(_) => {
                let text = format!("the command still ran after {} seconds", self.timeout.as_secs_f64());
                Err(ToolFailure::new("TimeoutError", text))
            }
        }
    }
}

impl Command {
    async fn run(&self, input: String) -> Result<Content, ToolFailure> {
        let spawned = Process::spawn(&self.argv, &[], Some(&self.directory));
        // A command that cannot even start is no fault of the model.
        let (process, stdout, stdin) = spawned.map_err(|error| {
            let program = self.argv.first().map_or("", String::as_str);
            let text = format!("the command `{program}` cannot be started: {error}");
            ToolFailure::new(ErrorKind::Infra.as_str(), text)
        })?;
        let said = process.stderr();
        // What the command left behind may hold its output open, and is killed when the command ends.
        let ((), output, status) = tokio::join!(feed(stdin, input), collect(stdout), process.wait());
        let output = output?;
        let status = status.map_err(|error| failed(format!("the command cannot be waited for: {error}")))?;
        if !status.success() {
            return Err(failed(format!("the command failed: {status}{}", said.as_suffix())));
        }
        match serde_json::from_str::<Value>(&output) {
            Ok(parts @ Value::Array(_)) => match parts.into_content()? {
                Content::Text(_) => Ok(Content::Text(output)),
                parts => Ok(parts),
            },
            _ => Ok(Content::Text(output)),
        }
    }
}

fn failed(text: String) -> ToolFailure {
    ToolFailure::new("CommandError", text)
}

/// A command may end without having read its input.
async fn feed(mut stdin: ChildStdin, input: String) {
    let _ = stdin.write_all(input.as_bytes()).await;
}

async fn collect(stdout: ChildStdout) -> Result<String, ToolFailure> {
    let mut output = Vec::new();
    let read = stdout.take(MAX_OUTPUT_BYTES + 1).read_to_end(&mut output).await;
    read.map_err(|error| failed(format!("the output of the command cannot be read: {error}")))?;
    if output.len() as u64 > MAX_OUTPUT_BYTES {
        return Err(failed(format!("the command printed more than {MAX_OUTPUT_BYTES} bytes")));
    }
    let text = String::from_utf8_lossy(&output);
    Ok(text.strip_suffix('\n').unwrap_or(&text).to_owned())
}
