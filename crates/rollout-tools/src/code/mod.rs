//! `code`: Python and shell commands, in one environment per session.
//!
//! The environment is started by the first call of a session and lasts as long as the session, with its files
//! and background processes.

mod config;
mod seed;
mod session;

use std::sync::Arc;

use async_trait::async_trait;
use rollout_env::{Environment, HostPaths};
use serde_json::{Value, json};

pub(crate) use config::CodeConfig;

use self::{seed::Seed, session::CodeSession};
use crate::{
    environments::{Environments, failed},
    resource::{ErrorCode, Params, PlannedUse, Resource, Session, ToolError, ToolSpec},
};

/// The number of environments that start at the same time: more would only be slower.
const MAX_STARTS: usize = 8;

/// Runs code.
pub(crate) struct Code(Arc<Shared>);

/// The state shared by all sessions.
struct Shared {
    config: CodeConfig,
    environments: Environments,
}

impl Code {
    /// Creates the tools from their configuration and the paths that providers need. Nothing is started yet.
    pub(crate) fn new(config: CodeConfig, place: HostPaths) -> Self {
        let environments = Environments::new("code", config.settings(), place, MAX_STARTS);
        Self(Arc::new(Shared { config, environments }))
    }
}

#[async_trait]
impl Resource for Code {
    fn name(&self) -> &str {
        "code"
    }

    fn tools(&self) -> Vec<ToolSpec> {
        let limit = self.0.config.timeout_sec.as_secs_f64();
        let timeout = json!({
            "type": "number",
            "description": format!("Seconds after which it and its child processes are killed; {limit} by default."),
        });
        let spec = |name: &str, aliases: &[&str], description: &str, what: (&str, &str)| ToolSpec {
            name: name.to_owned(),
            aliases: aliases.iter().map(|alias| (*alias).to_owned()).collect(),
            description: description.to_owned(),
            parameters: json!({
                "type": "object",
                "properties": {what.0: {"type": "string", "description": what.1}, "timeout": timeout},
                "required": [what.0],
            }),
        };
        vec![
            spec(
                "python",
                &["run_python", "execute", "execute_python", "run", "run_code"],
                "Runs a Python program and returns what it prints. Each call is a program of its own: print what you \
                 want to see. Files in the working directory stay for later calls.",
                ("code", "The program."),
            ),
            spec(
                "shell",
                &["bash", "run_shell", "execute_shell", "run_command", "command"],
                "Runs a shell command and returns its output. Each call starts in a new shell in the working \
                 directory; files there stay for later calls.",
                ("command", "The command, as typed in a shell."),
            ),
        ]
    }

    async fn warm_up(&self) -> Result<(), ToolError> {
        let environment = self.0.start("code_warm-up", self.0.config.image()).await?;
        let python = session::has_python(&*environment).await;
        let removed = environment.destroy().await;
        if !python? {
            return Err(session::no_python());
        }
        removed.map_err(|error| ToolError::new(ErrorCode::ResourceFailed, error.to_string()))
    }

    async fn check(&self, planned: &PlannedUse) -> Result<Vec<String>, ToolError> {
        if let Some(Value::String(image)) = planned.config.get("image") {
            self.0.config.allowed(image)?;
        }
        if let Some(Value::String(path)) = planned.config.get("seed_path") {
            Seed::find(path.clone(), &self.0.config.roots).await?;
        }
        Ok(planned.warnings(&["image", "seed_path"]))
    }

    async fn open(&self, config: &Params) -> Result<Box<dyn Session>, ToolError> {
        let image = match config.get("image") {
            None | Some(Value::Null) => self.0.config.image(),
            Some(Value::String(image)) => self.0.config.allowed(image)?,
            Some(_) => {
                return Err(ToolError::new(ErrorCode::InvalidType, "`image` is the name of an image"));
            }
        };
        let seed = match config.get("seed_path") {
            None | Some(Value::Null) => None,
            Some(Value::String(path)) => Some(Seed::find(path.clone(), &self.0.config.roots).await?),
            Some(_) => return Err(ToolError::new(ErrorCode::InvalidType, "`seed_path` is a path")),
        };
        Ok(Box::new(CodeSession::new(Arc::clone(&self.0), image.to_owned(), seed)))
    }

    async fn close(&self) {
        self.0.environments.settle().await;
    }
}

impl Shared {
    /// Starts an environment with this name.
    async fn start(&self, name: &str, image: &str) -> Result<Box<dyn Environment>, ToolError> {
        let environment = self.environments.start(name, image).await?;
        environment.make_dirs(&[session::WORK_DIR], false).await.map_err(|error| failed(&error))?;
        Ok(environment)
    }
}
