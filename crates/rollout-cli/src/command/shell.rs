//! `rollout shell` and `rollout attach`: a shell where a task runs, or where it ran.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use rollout::{
    config::{EnvironmentConfig, EnvironmentKind, PreservePolicy},
    environment::{CopyMode, Environment, EnvironmentError, EnvironmentSpec, Origin, Provider},
    name::TaskName,
    result::TrialResult,
    task::{Task, load_task},
};

use super::run;
use crate::{
    args::{Attach, Shell, ShellEnvironment},
    engine::{self, Found},
    exit::{Exit, Failure},
    report::text::{DIM, paint},
    terminal::{self, Session},
};

/// Where the instruction is, as in a job that does not say otherwise.
const INSTRUCTION: &str = "/tmp/instruction.md";

/// Bash where there is one, with the variable that agents find the instruction by.
const SHELL: &str = "export ROLLOUT_TASK_INSTRUCTION=/tmp/instruction.md
if command -v bash > /dev/null; then exec bash; else exec sh; fi";

/// Why there is nothing to attach to.
#[derive(Debug, thiserror::Error)]
enum AttachError {
    #[error("{} is not a trial's directory", dir.display())]
    NotATrial { dir: PathBuf, source: io::Error },
    #[error("{} is not the result of a trial", path.display())]
    NotAResult { path: PathBuf, source: serde_json::Error },
    #[error("the environment of this trial was not kept")]
    NotKept,
    #[error("the environment was made by {0}, which this version cannot open")]
    Provider(String),
}

/// Opens a shell in a new environment of a task, and removes the environment afterwards.
pub(crate) async fn shell(args: &Shell) -> Result<Exit, Failure> {
    terminal::require()?;
    let task = task(&args.task)?;
    let provider = shell_provider(args.environment).await?;
    super::print(&paint(DIM, &format!("{} on {}", task.name, provider.description())))?;
    let scratch = tempfile::tempdir()?;
    let log = scratch.path().join("build.txt");
    let origin = Origin { job: "shell", trial: task.name.as_str() };
    let image = provider.prepare(task.image_request(origin, false, &log)).await?;
    let spec = EnvironmentSpec {
        origin,
        image: &image,
        name: task.name.as_str(),
        cpus: task.config.cpus,
        memory: task.config.memory,
        storage: task.config.storage,
        hosts: &[],
        private_dirs: &[],
    };
    let environment = provider.create(spec).await?;
    let session = async {
        furnish(environment.as_ref(), &task, args.with_tests).await?;
        super::print(&paint(
            DIM,
            "the instruction is in /tmp/instruction.md; what you change here is gone when you leave",
        ))?;
        enter(environment.as_ref()).await
    };
    let session = session.await;
    environment.destroy().await?;
    session?.close();
    Ok(Exit::Success)
}

/// The provider that was asked for, else the one of a job that names none.
async fn shell_provider(wanted: Option<ShellEnvironment>) -> Result<Arc<dyn Provider>, Failure> {
    let wanted = match wanted {
        Some(wanted) => wanted,
        None => match engine::find().await {
            Found::Engine(_) | Found::Unusable(_) => ShellEnvironment::Docker,
            Found::None(_) | Found::Missing(_) => ShellEnvironment::Native,
        },
    };
    run::provider(&match wanted {
        ShellEnvironment::Docker => section(EnvironmentKind::Docker, serde_json::json!({})),
        ShellEnvironment::Native => {
            section(EnvironmentKind::Native, serde_json::json!({ "images": { "*": "host" } }))
        }
    })
    .await
}

fn task(dir: &Path) -> Result<Task, Failure> {
    let dir = fs::canonicalize(dir).map_err(|error| Failure::from(format!("{}: {error}", dir.display())))?;
    let name = TaskName::new(dir.file_name().unwrap_or_default().to_string_lossy())?;
    let (task, _) = load_task(&dir, name)?;
    Ok(task)
}

/// Puts in place what agents find, and the tests if they are wanted.
async fn furnish(environment: &dyn Environment, task: &Task, tests: bool) -> Result<(), EnvironmentError> {
    environment.make_dirs(&["/logs/agent", "/logs/verifier"], false).await?;
    environment.copy_to(&task.dir.join("instruction.md"), INSTRUCTION, CopyMode::Replace).await?;
    if tests {
        environment.copy_to(&task.dir.join("tests"), "/tests", CopyMode::Replace).await?;
    }
    Ok(())
}

/// Opens a shell in the environment that a trial left, and leaves it there again.
pub(crate) async fn attach(args: &Attach) -> Result<Exit, Failure> {
    let (place, section) = record(&args.trial).map_err(|error| {
        let hint = match error {
            AttachError::NotKept => {
                Some("set environment.preserve_env to on_failure or always, and run the trial again")
            }
            AttachError::NotATrial { .. } | AttachError::NotAResult { .. } => {
                Some("give a directory of the form <job>/<agent>/<dataset>/<task>__<attempt>")
            }
            AttachError::Provider(_) => None,
        };
        Failure::from(error).hint(hint)
    })?;
    terminal::require()?;
    let provider = run::provider(&section).await?;
    let environment = provider.reopen(&place).await?;
    super::print(&paint(DIM, "what you change here stays; `rollout clean --preserved` removes it"))?;
    let session = enter(environment.as_ref()).await;
    environment.preserve().await?;
    session?.close();
    Ok(Exit::Success)
}

/// Where a trial's environment is kept, and how its provider is reached.
fn record(dir: &Path) -> Result<(String, EnvironmentConfig), AttachError> {
    let path = dir.join("result.json");
    let text = fs::read(&path).map_err(|source| AttachError::NotATrial { dir: dir.to_owned(), source })?;
    let result: TrialResult =
        serde_json::from_slice(&text).map_err(|source| AttachError::NotAResult { path, source })?;
    let record = result.environment.ok_or(AttachError::NotKept)?;
    let place = record.preserved.clone().ok_or(AttachError::NotKept)?;
    let section = match record.provider.as_str() {
        "native" => section(EnvironmentKind::Native, serde_json::json!({ "network": record.network })),
        // A container keeps the network that it has.
        "docker" => section(EnvironmentKind::Docker, serde_json::json!({})),
        _ => return Err(AttachError::Provider(record.provider)),
    };
    Ok((place, section))
}

async fn enter(environment: &dyn Environment) -> Result<Session, Failure> {
    let (session, inner) = Session::open()?;
    let run = environment.exec_on_terminal(&["sh", "-c", SHELL], inner);
    session.during(run).await?;
    Ok(session)
}

/// The `environment` section of a job for one environment.
fn section(kind: EnvironmentKind, provider_config: serde_json::Value) -> EnvironmentConfig {
    EnvironmentConfig {
        kind: Some(kind),
        force_build: false,
        cache_agent_install: false,
        preserve: PreservePolicy::Never,
        provider_config: provider_config.as_object().cloned().unwrap_or_default(),
        override_cpus: None,
        override_memory: None,
        override_storage: None,
    }
}
