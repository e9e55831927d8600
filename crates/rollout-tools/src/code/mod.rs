//! `code`: Python and shell commands, in an environment for each session.
//!
//! The environment is started by the first call of a session and lasts as long as the session, with its files and
//! whatever was left running in it.

mod config;
mod seed;
mod session;

use std::sync::Arc;

use async_trait::async_trait;
use rollout::{
    config::{EnvironmentConfig, EnvironmentKind, TaskConfig, load_task_config},
    environment::{
        ConnectError, Environment, EnvironmentError, EnvironmentSpec, ImageRequest, Origin, Place,
        PreparedImage, Provider, connect,
    },
    name::TaskName,
    task::Task,
};
use serde_json::{Value, json};
use tokio::sync::{OnceCell, Semaphore};

pub use config::{CodeConfig, EnvironmentType};

use self::{seed::Seed, session::CodeSession};
use crate::{Code as FailureCode, Params, Resource, Session, ToolError, ToolSpec};

/// How many environments start at the same time: more of them would only be slower.
const MAX_STARTS: usize = 8;

/// What the provider's labels say of environments of this kind.
const JOB: &str = "tools";

/// The image of native environments: this machine's own system.
const HOST: &str = "host";

/// Runs code.
pub struct Code(Arc<Environments>);

/// Makes the environments of sessions.
struct Environments {
    config: CodeConfig,
    place: Place,
    provider: OnceCell<Arc<dyn Provider>>,
    starts: Semaphore,
}

impl Code {
    /// Runs code as configured, with what providers need of this machine. Nothing is started yet.
    pub fn new(config: CodeConfig, place: Place) -> Self {
        let starts = Semaphore::new(MAX_STARTS);
        Self(Arc::new(Environments { config, place, provider: OnceCell::new(), starts }))
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
            "description": format!("Seconds after which it is killed, with all that it started; {limit} if not given."),
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
                ("command", "The command, as one would type it."),
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
        removed.map_err(|error| ToolError::new(FailureCode::ResourceFailed, error.to_string()))
    }

    async fn open(&self, config: &Params) -> Result<Box<dyn Session>, ToolError> {
        let image = match config.get("image") {
            None | Some(Value::Null) => self.0.config.image(),
            Some(Value::String(image)) => self.0.config.allowed(image)?,
            Some(_) => {
                return Err(ToolError::new(FailureCode::InvalidType, "`image` is the name of an image"));
            }
        };
        let seed = match config.get("seed_path") {
            None | Some(Value::Null) => None,
            Some(Value::String(path)) => Some(Seed::find(path.clone(), self.0.config.roots.clone()).await?),
            Some(_) => return Err(ToolError::new(FailureCode::InvalidType, "`seed_path` is a path")),
        };
        Ok(Box::new(CodeSession::new(Arc::clone(&self.0), image.to_owned(), seed)))
    }
}

impl Environments {
    /// The provider, connected once.
    async fn provider(&self) -> Result<&Arc<dyn Provider>, ToolError> {
        let connected = self.provider.get_or_try_init(|| async {
            let config = self.environment_config();
            connect(&config, &self.place).await.map_err(|error| not_connected(&error))
        });
        connected.await
    }

    fn environment_config(&self) -> EnvironmentConfig {
        let (kind, mut settings) = match self.config.environment {
            EnvironmentType::Native => (EnvironmentKind::Native, json!({"images": {HOST: "host"}})),
            EnvironmentType::Docker => (EnvironmentKind::Docker, json!({})),
        };
        settings["network"] = self.config.network.as_str().into();
        settings["pids"] = self.config.pids.into();
        let provider_config = settings.as_object().cloned().unwrap_or_default();
        EnvironmentConfig { kind: Some(kind), provider_config, ..EnvironmentConfig::default() }
    }

    /// Starts an environment of this name.
    async fn start(&self, name: &str, image: &str) -> Result<Box<dyn Environment>, ToolError> {
        let provider = self.provider().await?;
        let _turn = self.starts.acquire().await;
        let task = task(image);
        let origin = Origin { job: JOB, trial: name };
        let image = prepare(&**provider, &task, origin).await?;
        let spec = EnvironmentSpec {
            origin,
            image: &image,
            name,
            cpus: self.config.cpus,
            memory: self.config.memory,
            storage: task.config.storage,
        };
        let environment = provider.create(spec).await.map_err(|error| failed(&error))?;
        environment.make_dirs(&[session::WORK_DIR], false).await.map_err(|error| failed(&error))?;
        Ok(environment)
    }
}

async fn prepare(
    provider: &dyn Provider,
    task: &Task,
    origin: Origin<'_>,
) -> Result<PreparedImage, ToolError> {
    // Nothing is built, so nothing is logged; the provider wants to know where it would be.
    let log = std::env::temp_dir().join("rollout-tools-build.txt");
    let request = ImageRequest { origin, task, force_build: false, log: &log };
    provider.prepare(request).await.map_err(|error| failed(&error))
}

/// What providers need to know of an image: a task with nothing but that.
fn task(image: &str) -> Task {
    let (defaults, _) = load_task_config("task.toml".as_ref(), "").expect("every setting has a default");
    Task {
        name: TaskName::new("code").expect("it is a name"),
        // Providers prepare the image of a directory once, so each needs a key of its own.
        dir: image.into(),
        context: std::path::PathBuf::new(),
        config: TaskConfig { docker_image: Some(image.to_owned()), ..defaults },
        git_commit_id: None,
        has_solution: false,
        has_config: false,
    }
}

fn not_connected(error: &ConnectError) -> ToolError {
    let mut text = format!("code cannot run: {}", chain(error));
    if let Some(hint) = error.hint() {
        text = format!("{text}; {hint}");
    }
    ToolError::new(FailureCode::DependencyMissing, text)
}

/// What an environment that fails means for a call.
fn failed(error: &EnvironmentError) -> ToolError {
    let code = match error {
        EnvironmentError::Command(_) => FailureCode::ExecutionError,
        EnvironmentError::Pull(_) | EnvironmentError::NoImage(_) => FailureCode::DependencyMissing,
        _ => FailureCode::ResourceFailed,
    };
    ToolError::new(code, error.to_string())
}

/// An error with its causes, as one sentence.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
