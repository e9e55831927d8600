//! A program of this machine as a tool.

use std::{path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::sync::Semaphore;

use super::{Arguments, Tool, ToolFailure};
use crate::model::{
    Content, ErrorKind, State, ToolDef,
    program::{Program, ProgramError},
};

/// More than this no model reads.
const MAX_OUTPUT: usize = 256 << 10;

/// A program that gets the arguments of a call as a JSON object on its standard input, and whose output is the result.
///
/// There is no shell in between: what a model writes is never part of a command line. A program that fails or takes too
/// long is told to the model as a failed call, with the end of what it said to its standard error. One that cannot be
/// started is an [`InfraError`](ErrorKind::Infra). What it leaves running is killed.
///
/// ```
/// use rollout::model::{ToolDef, tool::{CommandTool, Tool as _}};
/// use serde_json::json;
///
/// let def = ToolDef {
///     name: "add".to_owned(),
///     description: "Adds two numbers.".to_owned(),
///     parameters: json!({"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}}),
///     strict: None,
/// };
/// let tool = CommandTool::new(def, "python3", ["add.py"]);
/// assert_eq!(tool.def().name, "add");
/// ```
#[derive(Debug, Clone)]
pub struct CommandTool {
    def: ToolDef,
    program: Program,
    /// How many may run at once: a thousand rollouts would otherwise start a thousand interpreters.
    slots: Arc<Semaphore>,
}

impl CommandTool {
    /// How long a call may take unless told otherwise.
    pub const TIMEOUT: Duration = Duration::from_secs(60);

    /// A program with its arguments, in the current directory.
    pub fn new(
        def: ToolDef,
        program: impl Into<String>,
        arguments: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        let command = std::iter::once(program.into()).chain(arguments.into_iter().map(Into::into)).collect();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            def,
            program: Program { command, directory: PathBuf::from("."), timeout: Self::TIMEOUT },
            slots: Arc::new(Semaphore::new(4 * cores)),
        }
    }

    /// Runs in this directory instead of the current one.
    #[must_use]
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.program.directory = directory.into();
        self
    }

    /// Gives a call so much time.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.program.timeout = timeout;
        self
    }

    async fn answer(&self, arguments: Arguments) -> Result<String, ToolFailure> {
        let input = serde_json::Value::Object(arguments).to_string();
        let _slot = self.slots.acquire().await.expect("nobody closes the semaphore");
        let written = self.program.run(input.as_bytes(), MAX_OUTPUT).await.map_err(failure)?;
        let mut text = String::from_utf8_lossy(&written.output).trim_end_matches('\n').to_owned();
        if written.left_out > 0 {
            text += &format!("\n… ({} more bytes are left out)", written.left_out);
        }
        Ok(text)
    }
}

#[async_trait]
impl Tool for CommandTool {
    fn def(&self) -> &ToolDef {
        &self.def
    }

    async fn call(&self, arguments: Arguments, _state: &mut State) -> Result<Content, ToolFailure> {
        self.answer(arguments).await.map(Content::Text)
    }
}

fn failure(error: ProgramError) -> ToolFailure {
    let name = match &error {
        ProgramError::Start { .. } | ProgramError::Talk(_) => ErrorKind::Infra.as_str(),
        ProgramError::Timeout(_) => "TimeoutError",
        ProgramError::Failed { .. } => "CalledProcessError",
    };
    ToolFailure { name: name.to_owned(), ..ToolFailure::from(error) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn def() -> ToolDef {
        ToolDef { name: "t".to_owned(), description: "d".to_owned(), parameters: json!({}), strict: None }
    }

    fn shell(script: &str) -> CommandTool {
        CommandTool::new(def(), "sh", ["-c", script])
    }

    async fn call(tool: &CommandTool) -> Result<String, ToolFailure> {
        tool.answer(Arguments::from_iter([("a".to_owned(), json!(1))])).await
    }

    #[tokio::test]
    async fn arguments_are_the_input_and_the_output_is_the_result() {
        assert_eq!(call(&shell("cat; echo; pwd >&2")).await.unwrap(), r#"{"a":1}"#);
        let dir = tempfile::tempdir().unwrap();
        let pwd = call(&shell("pwd -P").directory(dir.path())).await.unwrap();
        assert_eq!(pwd, dir.path().canonicalize().unwrap().display().to_string());
    }

    #[tokio::test]
    async fn a_program_that_fails_says_why() {
        let failure = call(&shell("echo no such city >&2; exit 3")).await.unwrap_err();
        assert_eq!(failure.name, "CalledProcessError");
        assert_eq!(failure.message, "the program ended with exit status: 3; it said: no such city");
    }

    #[tokio::test]
    async fn a_program_that_is_not_there_is_a_fault_of_the_machine() {
        let failure = call(&CommandTool::new(def(), "/no/such/program", ["x"])).await.unwrap_err();
        assert_eq!(failure.name, "InfraError");
        assert_eq!(
            failure.message,
            "`/no/such/program` does not start; is it installed, and executable?: No such file or directory (os error 2)"
        );
    }

    #[tokio::test]
    async fn a_program_that_hangs_is_killed_with_all_that_it_started() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        // The pipe ends for its reader when the last process that could write to it is gone.
        let reader = std::thread::spawn(move || std::fs::read_to_string(pipe).unwrap());
        let tool = shell("(exec >pipe; echo up; exec sleep 600) & wait").directory(dir.path());
        let failure = call(&tool.timeout(Duration::from_secs(1))).await.unwrap_err();
        assert_eq!(failure, ToolFailure::new("TimeoutError", "the program did not end within 1 s"));
        assert_eq!(reader.join().unwrap(), "up\n");
    }

    #[tokio::test]
    async fn a_process_that_is_left_behind_holds_nothing_up() {
        assert_eq!(call(&shell("sleep 600 & echo done")).await.unwrap(), "done");
    }

    #[tokio::test]
    async fn only_the_start_of_a_long_output_is_kept() {
        let text = call(&shell("yes | head -c 1000000")).await.unwrap();
        assert!(text.ends_with("\n… (737856 more bytes are left out)"), "{}", &text[text.len() - 60..]);
    }
}
