//! `rollout shell` and `rollout attach`: a shell in a new or a preserved environment.

use std::{
    fs,
    io::{self, Write as _},
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

use super::{load, warnings::line};
use crate::{
    args::{Attach, Shell, ShellEnvironment},
    engine::{self, Found},
    exit::{Exit, Failure},
    report::text::{DIM, paint},
    terminal::{self, Session},
};

/// The path of the instruction, the same as the default of a job.
const INSTRUCTION: &str = "/tmp/instruction.md";

/// Starts bash, or sh if bash is missing, with the variable that gives agents the path of the instruction.
const SHELL: &str = "export ROLLOUT_TASK_INSTRUCTION=/tmp/instruction.md
if command -v bash > /dev/null; then exec bash; else exec sh; fi";

/// Why `attach` failed.
#[derive(Debug, thiserror::Error)]
enum AttachError {
    #[error("{} is not a trial directory", dir.display())]
    NotATrial { dir: PathBuf, source: io::Error },
    #[error("{} is not a valid trial result", path.display())]
    NotAResult { path: PathBuf, source: serde_json::Error },
    #[error("the environment of this trial was not preserved")]
    NotKept,
    #[error("the environment has an unsupported provider: {0}")]
    Provider(String),
}

/// Opens a shell in a new environment of a task, and removes the environment afterwards.
pub(crate) async fn shell(args: &Shell) -> Result<Exit, Failure> {
    terminal::require()?;
    let task = task(&args.task)?;
    let provider = shell_provider(args.environment).await?;
    super::print(&paint(DIM, &format!("{} on {}", task.name, provider.description())))?;
    if task.compose.as_ref().is_some_and(|compose| compose.sidecars().next().is_some()) {
        super::print(&paint(DIM, "only the service `main` of docker-compose.yaml is started"))?;
    }
    let ended = in_environment(args, &task, provider.as_ref()).await;
    for message in provider.settle().await {
        writeln!(anstream::stderr().lock(), "{}", line(provider.name(), &message))?;
    }
    ended.map(|()| Exit::Success)
}

async fn in_environment(args: &Shell, task: &Task, provider: &dyn Provider) -> Result<(), Failure> {
    let scratch = tempfile::tempdir()?;
    let log = scratch.path().join("build.txt");
    let origin = Origin { job: "shell", trial: task.name.as_str() };
    let image = provider.prepare(task.image_request(task.compose.as_deref(), origin, false, &log)).await?;
    let bounds = task.bounds();
    let spec = EnvironmentSpec {
        cpus: bounds.cpus,
        memory: bounds.memory,
        storage: bounds.storage,
        workdir: task.config.workdir.as_deref(),
        ..EnvironmentSpec::new(origin, &image, task.name.as_str())
    };
    let environment = provider.create(spec).await?;
    let session = async {
        copy_files(environment.as_ref(), task, args.with_tests).await?;
        super::print(&paint(
            DIM,
            "the instruction is in /tmp/instruction.md; changes are discarded when you exit",
        ))?;
        enter(environment.as_ref()).await
    };
    let session = session.await;
    environment.destroy().await?;
    session?.close();
    Ok(())
}

/// Starts the requested provider, or the default provider of a job.
async fn shell_provider(wanted: Option<ShellEnvironment>) -> Result<Arc<dyn Provider>, Failure> {
    let wanted = match wanted {
        Some(wanted) => wanted,
        None => match engine::find().await {
            Found::Engine(_) | Found::Unusable(_) => ShellEnvironment::Docker,
            Found::None(_) | Found::Missing(_) => ShellEnvironment::Native,
        },
    };
    load::provider(&match wanted {
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

/// Copies the instruction and optionally the tests into the environment.
async fn copy_files(environment: &dyn Environment, task: &Task, tests: bool) -> Result<(), EnvironmentError> {
    environment.make_dirs(&["/logs/agent", "/logs/verifier"], false).await?;
    environment.copy_to(&task.dir.join("instruction.md"), INSTRUCTION, CopyMode::Replace).await?;
    if tests {
        environment.copy_to(&task.dir.join("tests"), "/tests", CopyMode::Replace).await?;
    }
    Ok(())
}

/// Opens a shell in the preserved environment of a trial. The environment stays preserved.
pub(crate) async fn attach(args: &Attach) -> Result<Exit, Failure> {
    let (place, section) = record(&args.trial).map_err(|error| {
        let hint = match error {
            AttachError::NotKept => {
                Some("set environment.preserve_env to on_failure or always, and run the trial again")
            }
            AttachError::NotATrial { .. } | AttachError::NotAResult { .. } => {
                Some("pass a directory of the form <job>/<agent>/<dataset>/<task>__<attempt>")
            }
            AttachError::Provider(_) => None,
        };
        Failure::from(error).hint(hint)
    })?;
    terminal::require()?;
    let provider = load::provider(&section).await?;
    let environment = provider.reopen(&place).await?;
    super::print(&paint(DIM, "changes are kept; `rollout clean --preserved` removes the environment"))?;
    let session = enter(environment.as_ref()).await;
    environment.preserve().await?;
    session?.close();
    Ok(Exit::Success)
}

/// Returns the id of a trial's preserved environment, and the configuration of its provider.
fn record(dir: &Path) -> Result<(String, EnvironmentConfig), AttachError> {
    let path = dir.join("result.json");
    let text = fs::read(&path).map_err(|source| AttachError::NotATrial { dir: dir.to_owned(), source })?;
    let result: TrialResult =
        serde_json::from_slice(&text).map_err(|source| AttachError::NotAResult { path, source })?;
    let record = result.environment.ok_or(AttachError::NotKept)?;
    let place = record.preserved.clone().ok_or(AttachError::NotKept)?;
    let section = match record.provider.as_str() {
        "native" => section(EnvironmentKind::Native, serde_json::json!({ "network": record.network })),
        // A container keeps its network, so there is nothing to configure.
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

/// Returns the `environment` section of a job with this provider.
fn section(kind: EnvironmentKind, provider_config: serde_json::Value) -> EnvironmentConfig {
    EnvironmentConfig {
        kind: Some(kind),
        force_build: false,
        cache_agent_install: false,
        preserve: PreservePolicy::Never,
        provider_config: provider_config.as_object().cloned().unwrap_or_default(),
        ..EnvironmentConfig::default()
    }
}
