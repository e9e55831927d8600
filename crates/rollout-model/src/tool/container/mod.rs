//! Tools inside an environment: a shell, and files.
//!
//! They use a running environment ([`tools_in`]), or the environment of the rollout whose model calls them ([`tools`]),
//! which [`Sandboxed`](crate::Sandboxed) creates.

mod files;
mod patch;
mod shell;

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::State;
use crate::tool::{Arguments, Tool, ToolFailure, function::from_arguments, schema};
use rollout_core::message::{Content, ToolDef};
use rollout_env::{Environment, EnvironmentError};

pub use patch::PatchError;

/// A tool inside a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerTool {
    /// Runs a command.
    Bash,
    /// Reads a file.
    ReadFile,
    /// Writes a file.
    WriteFile,
    /// Changes files.
    ApplyPatch,
}

/// The field of a [`State`] with the seconds that the rollout waited for its environment.
pub const READY_WAIT_TIME: &str = "sandbox_ready_wait_time";

/// The field of a [`State`] with the average duration of a call of these tools, in seconds.
pub const COMMAND_EXECUTION_TIME: &str = "sandbox_command_execution_time";

/// The default timeout of a command.
pub const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

/// How long an environment may take to answer a call, in addition to the call itself.
const CALL_TIMEOUT: Duration = Duration::from_secs(300);

/// All tools.
pub const ALL: [ContainerTool; 4] =
    [ContainerTool::Bash, ContainerTool::ReadFile, ContainerTool::WriteFile, ContainerTool::ApplyPatch];

fn def(kind: ContainerTool, command_timeout: Duration) -> ToolDef {
    let (name, description, parameters) = match kind {
            ContainerTool::Bash => (
                "bash",
                format!(
                    "Runs a command with bash and returns its output and exit code. Each command starts in a new \
                     shell and is killed after {} seconds, with all that it started.",
                    command_timeout.as_secs_f64()
                ),
                schema::of::<Bash>(),
            ),
            ContainerTool::ReadFile => (
                "read_file",
                "Returns the text of a file, or some lines of it.".to_owned(),
                schema::of::<ReadFile>(),
            ),
            ContainerTool::WriteFile => (
                "write_file",
                "Writes text to a file and replaces its content. Missing directories are created.".to_owned(),
                schema::of::<WriteFile>(),
            ),
            ContainerTool::ApplyPatch => (
                "apply_patch",
                "Changes files with a patch: either a unified diff, or sections `*** Update File: <path>`, \
                 `*** Add File: <path>` and `*** Delete File: <path>` between `*** Begin Patch` and `*** End Patch`. \
                 In an update, `@@` starts each place to change, and lines start with a space (kept), `-` (removed) \
                 or `+` (added). Either all of the patch is applied or nothing."
                    .to_owned(),
                schema::of::<ApplyPatch>(),
            ),
        };
    ToolDef { name: name.to_owned(), description, parameters, strict: None }
}

#[derive(Deserialize, JsonSchema)]
struct Bash {
    /// The command to run.
    command: String,
}

#[derive(Deserialize, JsonSchema)]
struct ReadFile {
    /// The file, absolute or relative to the working directory.
    path: String,
    /// The first line to read, counted from 1.
    #[serde(default)]
    start_line: Option<usize>,
    /// How many lines to read.
    #[serde(default)]
    line_count: Option<usize>,
}

#[derive(Deserialize, JsonSchema)]
struct WriteFile {
    /// The file, absolute or relative to the working directory.
    path: String,
    /// The whole text of the file.
    content: String,
}

#[derive(Deserialize, JsonSchema)]
struct ApplyPatch {
    /// The patch.
    patch: String,
}

/// Tools in the environment of the rollout whose model calls them.
pub fn tools(kinds: &[ContainerTool], command_timeout: Duration) -> Vec<Arc<dyn Tool>> {
    kinds.iter().map(|kind| tool(*kind, command_timeout, Place::OfTheRollout, &[])).collect()
}

/// Tools in a running environment. Commands get these variables in addition to those of the image.
///
/// ```
/// # use rollout::environment::{Environment, EnvironmentSpec, Provider};
/// use rollout::model::{DuplicateTool, ToolUse, tool::container};
///
/// fn interaction(environment: &dyn Environment) -> Result<ToolUse<'_>, DuplicateTool> {
///     ToolUse::new(container::tools_in(environment, &container::ALL, container::COMMAND_TIMEOUT, &[]))
/// }
/// ```
pub fn tools_in<'e>(
    environment: &'e dyn Environment,
    kinds: &[ContainerTool],
    command_timeout: Duration,
    env: &'e [(String, String)],
) -> Vec<Arc<dyn Tool + 'e>> {
    kinds.iter().map(|kind| tool(*kind, command_timeout, Place::Running(environment), env)).collect()
}

fn tool<'e>(
    kind: ContainerTool,
    command_timeout: Duration,
    place: Place<'e>,
    env: &'e [(String, String)],
) -> Arc<dyn Tool + 'e> {
    Arc::new(InContainer { kind, def: def(kind, command_timeout), command_timeout, place, env })
}

/// The environment of one rollout, as a resource of its [`State`].
pub struct Sandbox(pub Box<dyn Environment>);

impl fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sandbox").field(&self.0.id()).finish()
    }
}

enum Place<'e> {
    Running(&'e dyn Environment),
    OfTheRollout,
}

struct InContainer<'e> {
    kind: ContainerTool,
    def: ToolDef,
    command_timeout: Duration,
    place: Place<'e>,
    env: &'e [(String, String)],
}

#[async_trait]
impl Tool for InContainer<'_> {
    fn def(&self) -> &ToolDef {
        &self.def
    }

    async fn call(&self, arguments: Arguments, state: &mut State) -> Result<Content, ToolFailure> {
        let environment = match self.place {
            Place::Running(environment) => environment,
            Place::OfTheRollout => match state.resources.get::<Sandbox>() {
                Some(sandbox) => &*sandbox.0,
                None => return Err(ToolFailure::sandbox("the rollout has no environment")),
            },
        };
        let started = Instant::now();
        let text = self.run(environment, arguments).await;
        count(state, started.elapsed());
        text.map(Content::Text)
    }
}

impl InContainer<'_> {
    async fn run(&self, environment: &dyn Environment, arguments: Arguments) -> Result<String, ToolFailure> {
        match self.kind {
            ContainerTool::Bash => {
                let Bash { command } = from_arguments(arguments)?;
                shell::bash(environment, &command, self.env, self.command_timeout).await
            }
            ContainerTool::ReadFile => {
                let ReadFile { path, start_line, line_count } = from_arguments(arguments)?;
                files::read(environment, &path, start_line, line_count).await
            }
            ContainerTool::WriteFile => {
                let WriteFile { path, content } = from_arguments(arguments)?;
                files::write(environment, &path, content.as_bytes()).await?;
                Ok(format!("wrote {} bytes to {path}", content.len()))
            }
            ContainerTool::ApplyPatch => {
                let ApplyPatch { patch } = from_arguments(arguments)?;
                files::apply(environment, &patch).await
            }
        }
    }
}

/// The number and total duration of a rollout's calls.
#[derive(Default)]
struct Calls {
    number: u32,
    time: Duration,
}

fn count(state: &mut State, took: Duration) {
    let mut calls = state.resources.remove::<Calls>().unwrap_or_default();
    calls.number += 1;
    calls.time += took;
    let mean = calls.time.as_secs_f64() / f64::from(calls.number);
    state.fields.insert(COMMAND_EXECUTION_TIME.to_owned(), mean.into());
    state.resources.insert(calls);
}

/// Waits for a call to an environment, with a timeout.
async fn bounded<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, EnvironmentError>>,
) -> Result<T, ToolFailure> {
    let limit = limit.saturating_add(CALL_TIMEOUT);
    match tokio::time::timeout(limit, call).await {
        Ok(Ok(value)) => Ok(value),
        // The model can install a missing command itself.
        Ok(Err(EnvironmentError::Command(text))) => Err(ToolFailure::new("CommandError", text)),
        Ok(Err(EnvironmentError::Ended(text))) => Err(ToolFailure::ended(text)),
        Ok(Err(EnvironmentError::TimeOver(text))) => Err(ToolFailure::time_over(text)),
        Ok(Err(error)) => Err(ToolFailure::sandbox(error.to_string())),
        Err(_) => Err(ToolFailure::sandbox(format!(
            "the environment did not answer within {} seconds",
            limit.as_secs()
        ))),
    }
}
