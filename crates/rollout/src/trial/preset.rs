//! The install phase of an agent that a preset describes: its files come from packages of the host.

use std::{error::Error, time::Duration};

use super::{
    calls::{bounded, required},
    context::TrialContext,
    failure::Failure,
};
use crate::{
    agent::preset::{self, ImagePython, NpmSpec, Platform},
    config::{PresetAgentConfig, PresetInstall},
    packages::{PackageError, Packages},
};
use rollout_core::{event::Phase, result::ErrorType};
use rollout_env::{
    CommandRole, CopyMode, Environment, EnvironmentError, Exec, FileRead, Outcome, log::LogWriter,
};

/// Looking for programs and copying logs takes seconds.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A few lines.
const MAX_PRINTED: usize = 16 << 10;

/// Copies the agent's files into the environment, and makes its commands.
pub(super) async fn bring_files(
    context: &TrialContext<'_>,
    environment: &dyn Environment,
    agent: &PresetAgentConfig,
    version: &str,
) -> Result<(), Failure> {
    let install = &agent.preset.install;
    if install.npm.is_none() && install.pip.is_empty() {
        return Ok(());
    }
    let packages = packages(context)?;
    let failed = |error| package_failure(agent, &error);
    let musl = is_musl(environment).await.map_err(|error| Failure::environment(Phase::Install, &error))?;
    let npm = npm_spec(agent, version, musl)?;
    let python = match install.pip.is_empty() {
        true => None,
        false => Some(find_python(environment, agent).await?),
    };
    let platform =
        Platform { npm: npm.as_ref(), musl, python: python.as_ref().map(|python| python.version.as_str()) };
    let parts = preset::parts(packages, install, version, platform).await.map_err(failed)?;
    if let Some(python) = &python {
        make_venv(environment, python).await?;
    }
    for part in parts {
        let place = format!("{}/{}", preset::DIR, part.place);
        required(Phase::Install, environment.copy_to(&part.dir, &place, CopyMode::Merge)).await?;
    }
    let package = npm.as_ref().map(|spec| spec.package.as_str());
    for (path, content) in preset::commands(install, package, version) {
        required(Phase::Install, environment.write_file(&path, content.as_bytes())).await?;
    }
    Ok(())
}

/// The version that is installed: the one that was asked for, or the latest where a registry knows it. All trials of a
/// run install the same version.
pub(super) async fn version(
    context: &TrialContext<'_>,
    agent: &PresetAgentConfig,
) -> Result<String, Failure> {
    let known = known_version(context, agent);
    if known != "latest" {
        return Ok(known);
    }
    let version = preset::wanted_version(packages(context)?, &agent.preset.install, &known).await;
    let version = version.map_err(|error| package_failure(agent, &error))?;
    Ok(context.trial.installs.set_version(context.trial.id.agent.as_str(), version))
}

/// The version that is installed, as far as it is known without a registry.
pub(super) fn known_version(context: &TrialContext<'_>, agent: &PresetAgentConfig) -> String {
    let of_run = match agent.version.as_str() {
        "latest" => context.trial.installs.version(context.trial.id.agent.as_str()),
        _ => None,
    };
    of_run.unwrap_or_else(|| agent.version.clone())
}

/// What an install is, for the key of its snapshot.
pub(super) fn identity(context: &TrialContext<'_>, install: &PresetInstall, version: &str) -> String {
    let identity = format!("preset 1 {version} {install:?}");
    match version {
        // The script of the preset fetches what is the latest at that time, so a later run needs an install of its own.
        "latest" => format!("{identity} {}", context.trial.installs.run()),
        _ => identity,
    }
}

fn packages<'a>(context: &TrialContext<'a>) -> Result<&'a Packages, Failure> {
    context.trial.packages.as_deref().ok_or_else(|| {
        let agent = &context.trial.id.agent;
        let message =
            format!("no directory for the packages of agent {agent}; set it with Plan::with_packages");
        Failure::new(ErrorType::InternalError, message)
    })
}

/// The npm package for an image.
fn npm_spec(agent: &PresetAgentConfig, version: &str, musl: bool) -> Result<Option<NpmSpec>, Failure> {
    let install = &agent.preset.install;
    let spec = if musl { install.npm_musl.as_ref() } else { install.npm.as_ref() };
    if musl && !install.runs_on_musl() {
        let message = format!(
            "{} has no program for images with musl, such as Alpine; use an image with glibc",
            agent.preset.name
        );
        return Err(Failure::new(ErrorType::AgentInstallFailed, message));
    }
    Ok(spec.map(|spec| NpmSpec::new(spec, version)))
}

/// Whether programs for glibc do not run in an environment.
async fn is_musl(environment: &dyn Environment) -> Result<bool, EnvironmentError> {
    let loader = match std::env::consts::ARCH {
        "aarch64" => "/lib/ld-linux-aarch64.so.1",
        _ => "/lib64/ld-linux-x86-64.so.2",
    };
    Ok(environment.read_file(loader, 0).await? == FileRead::Missing)
}

async fn find_python(
    environment: &dyn Environment,
    agent: &PresetAgentConfig,
) -> Result<ImagePython, Failure> {
    let printed = required(Phase::Install, run(environment, preset::FIND_PYTHON)).await?;
    ImagePython::choose(&agent.preset.install.python, &printed)
        .map_err(|problem| install_failure(agent, &problem))
}

/// Gives the agent the MCP servers and the skills of its task.
pub(super) async fn bring_extensions(
    context: &TrialContext<'_>,
    environment: &dyn Environment,
    agent: &PresetAgentConfig,
) -> Result<(), Failure> {
    let config = &context.task.config;
    if let Some(mcp) = agent.preset.mcp {
        let file = mcp.file(&config.mcp_servers);
        required(Phase::Execute, environment.write_file(crate::agent::MCP_SERVERS, file.as_bytes())).await?;
    }
    let (Some(source), Some(target)) = (&config.skills_dir, &agent.preset.skills) else { return Ok(()) };
    let printed = required(Phase::Execute, run(environment, &preset::skills_script(source, target))).await?;
    match printed.trim_end() {
        preset::SKILLS_COPIED => Ok(()),
        _ => {
            let message = format!(
                "`environment.skills_dir` of task.toml: {source} cannot be copied in the environment"
            );
            Err(Failure::new(ErrorType::TaskInvalid, message))
        }
    }
}

/// Copies the agent's own logs to where logs are collected. The error is a note.
pub(super) async fn gather_logs(
    environment: &dyn Environment,
    agent: &PresetAgentConfig,
) -> Result<(), String> {
    let Some(script) = preset::logs_script(&agent.preset) else { return Ok(()) };
    match bounded(run_to_end(environment, &script)).await {
        Ok((Outcome::TimedOut, _)) => Err(format!(
            "the agent's own logs are incomplete: copying them took more than {} seconds; look for large or special \
             files among `logs` of the preset",
            TIMEOUT.as_secs()
        )),
        Ok(_) => Ok(()),
        Err(error) => Err(format!("the agent's own logs could not be copied: {error}")),
    }
}

/// Removes the copy of the agent's own log that was read.
pub(super) async fn forget_own_log(environment: &dyn Environment, agent: &PresetAgentConfig) {
    let Some(script) = preset::forget_script(&agent.preset) else { return };
    if let Err(error) = bounded(run(environment, &script)).await {
        // The environment is gone, and the copy with it.
        tracing::debug!(%error, "the copy of an agent's own log was not removed");
    }
}

/// Asks all programs of the agent to end. Its script goes on, and may have something left to do.
pub(super) async fn ask_to_end(environment: &dyn Environment) {
    if let Err(error) = bounded(run(environment, preset::ASK_TO_END)).await {
        // It is killed a little later.
        tracing::debug!(%error, "an agent was not asked to end");
    }
}

/// Runs a short script as the agent, and returns what it printed.
async fn run(environment: &dyn Environment, script: &str) -> Result<String, EnvironmentError> {
    run_to_end(environment, script).await.map(|(_, printed)| printed)
}

/// Runs a short script as the agent, and returns how it ended and what it printed.
async fn run_to_end(
    environment: &dyn Environment,
    script: &str,
) -> Result<(Outcome, String), EnvironmentError> {
    let (stdout, printed) = LogWriter::excerpt(MAX_PRINTED);
    let command = Exec {
        role: CommandRole::Agent,
        argv: &["bash", "-c", script],
        env: &[],
        deadline: Some(TIMEOUT),
        stdout,
        stderr: LogWriter::discard(),
    };
    let exit = environment.exec(command).await?;
    Ok((exit.outcome, printed.text().0))
}

async fn make_venv(environment: &dyn Environment, python: &ImagePython) -> Result<(), Failure> {
    let venv = format!("{}/venv", preset::DIR);
    let settings = python.settings();
    let (config, bin) = (format!("{venv}/pyvenv.cfg"), format!("{venv}/bin"));
    required(Phase::Install, environment.write_file(&config, settings.as_bytes())).await?;
    required(Phase::Install, environment.make_dirs(&[&bin], false)).await?;
    required(Phase::Install, environment.link(&python.path, &format!("{bin}/python"))).await
}

fn install_failure(agent: &PresetAgentConfig, problem: &str) -> Failure {
    let message = format!("{} cannot be installed: {problem}", agent.preset.name);
    Failure::new(ErrorType::AgentInstallFailed, message)
}

fn package_failure(agent: &PresetAgentConfig, error: &PackageError) -> Failure {
    let causes = std::iter::successors(Some(error as &dyn Error), |&error| error.source());
    let chain = causes.map(ToString::to_string).collect::<Vec<_>>().join(": ");
    Failure { transient: error.is_transient(), ..install_failure(agent, &chain) }
}
