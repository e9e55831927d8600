//! From an image to an environment with everything in it that an agent needs.
//!
//! An install that is kept for other trials runs before anything of its own trial comes in, so that
//! they find nothing of it.

use super::{
    attempt::{Attempt, CALL_TIMEOUT, bounded, flat, unanswered},
    failure::{self, Failure},
    installs::{self, Turn},
};
use crate::{agent, config::AgentKind};
use rollout_core::{event::Phase, result::ErrorType};
use rollout_env::{
    CopyMode, Environment, EnvironmentError, EnvironmentSpec, Origin, PreparedImage, blocking::blocking,
};

/// What becomes of the agent's install.
#[derive(Debug)]
pub(super) enum Snapshot {
    /// It belongs to this try alone.
    Unwanted,
    /// It is kept under this key for other trials, which may be waiting for it.
    Wanted { key: String, turn: Option<Turn> },
    /// It was found under this key, and is in the environment already.
    Found { key: String },
}

impl Attempt<'_> {
    /// The image, then a running environment.
    pub(super) async fn start(&mut self) -> Result<Box<dyn Environment>, Failure> {
        let config = &self.trial.config.environment;
        self.phase(Phase::Image);
        let log = self.trial.dir.build_log();
        let trial = self.trial.id.to_string();
        let origin = Origin { job: &self.trial.job_name, trial: &trial };
        let request = self.task.image_request(origin, config.force_build, &log);
        let prepared = tokio::time::timeout(self.timeouts.build, self.trial.provider.prepare(request));
        let image = prepared
            .await
            .map_err(|_| Failure::build_timeout(self.timeouts.build))?
            .map_err(|error| Failure::environment(Phase::Image, &error))?;
        let snapshot = self.find_snapshot(&image).await;
        self.phase(Phase::Start);
        let name = format!("{}-{}-{}", self.task.name, self.trial.id.agent, self.trial.id.attempt);
        let spec = EnvironmentSpec {
            origin,
            image: &image,
            name: &name,
            cpus: config.override_cpus.unwrap_or(self.task.config.cpus),
            memory: config.override_memory.unwrap_or(self.task.config.memory),
            storage: config.override_storage.unwrap_or(self.task.config.storage),
        };
        let environment = match snapshot {
            Some(snapshot) => self.create_from(&snapshot, spec).await,
            None => self.trial.provider.create(spec).await,
        };
        let environment = environment.map_err(|error| Failure::environment(Phase::Start, &error))?;
        self.image = Some(image);
        Ok(environment)
    }

    /// Starts an environment from a snapshot, or where that does not start from the image below.
    async fn create_from(
        &mut self,
        snapshot: &PreparedImage,
        spec: EnvironmentSpec<'_>,
    ) -> Result<Box<dyn Environment>, EnvironmentError> {
        let error = match self.trial.provider.create(EnvironmentSpec { image: snapshot, ..spec }).await {
            Ok(environment) => return Ok(environment),
            Err(error) => error,
        };
        self.notes.push(format!("the snapshot of the install does not start: {error}"));
        self.snapshot = match std::mem::replace(&mut self.snapshot, Snapshot::Unwanted) {
            Snapshot::Found { key } => Snapshot::Wanted { key, turn: None },
            other => other,
        };
        self.trial.provider.create(spec).await
    }

    /// The image that holds the agent's install already. Where there is none yet, one trial of the job makes it,
    /// and the others wait here.
    async fn find_snapshot(&mut self, image: &PreparedImage) -> Option<PreparedImage> {
        let trial = self.trial;
        let AgentKind::Script { install: Some(script), .. } = &trial.agent.kind else { return None };
        if !trial.config.environment.cache_agent_install {
            return None;
        }
        let key = installs::key(&image.reference, script, trial.agent.env.keys().map(String::as_str));
        let turn = trial.installs.turn(&key).await;
        let found = tokio::time::timeout(CALL_TIMEOUT, trial.provider.snapshot(&key)).await;
        match found.unwrap_or_else(|_| Err(unanswered())) {
            Ok(Some(found)) => {
                self.snapshot = Snapshot::Found { key };
                Some(found)
            }
            missing => {
                let failed = missing
                    .err()
                    .map(|error| format!("no snapshot of the install could be looked for: {error}"));
                self.notes.extend(failed);
                self.snapshot = Snapshot::Wanted { key, turn };
                None
            }
        }
    }

    /// Brings everything in that the agent's execute script needs.
    pub(super) async fn set_up(&mut self, environment: &dyn Environment) -> Result<(), Failure> {
        match &self.snapshot {
            Snapshot::Unwanted => {
                let furnished = async {
                    self.make_logs(environment, false).await?;
                    self.instruct(environment).await
                };
                let furnished = furnished.await;
                self.setup.end();
                furnished?;
                self.install(environment, &self.agent_env()).await
            }
            // What is kept for other trials is made before anything of this one comes in.
            Snapshot::Wanted { key, .. } => {
                let key = key.clone();
                let made = self.make_logs(environment, false).await;
                self.setup.end();
                made?;
                self.install(environment, &flat(&self.trial.agent.env)).await?;
                self.keep_install(environment, &key).await;
                self.instruct(environment).await
            }
            Snapshot::Found { .. } => {
                let furnished = async {
                    // The logs are those of the trial that installed.
                    self.make_logs(environment, true).await?;
                    self.instruct(environment).await
                };
                let furnished = furnished.await;
                self.setup.end();
                furnished
            }
        }
    }

    /// Keeps what the install made. Without it later trials take longer, and this one is none the worse.
    async fn keep_install(&mut self, environment: &dyn Environment, key: &str) {
        // In an environment that starts from a snapshot nothing runs, so neither does it here.
        let kept = async {
            environment.kill_all().await?;
            environment.snapshot(key).await
        };
        let kept = tokio::time::timeout(CALL_TIMEOUT, kept).await;
        if let Err(error) = kept.unwrap_or_else(|_| Err(unanswered())) {
            self.notes.push(format!("the install could not be kept for other trials: {error}"));
        }
    }

    /// Makes the directories that logs are collected from.
    async fn make_logs(&self, environment: &dyn Environment, empty: bool) -> Result<(), Failure> {
        if empty {
            bounded(Phase::Start, environment.make_dirs(&["/logs"], true)).await?;
        }
        bounded(Phase::Start, environment.make_dirs(&["/logs/agent", "/logs/verifier"], false)).await
    }

    /// Puts the instruction where scripts expect it.
    async fn instruct(&self, environment: &dyn Environment) -> Result<(), Failure> {
        let instruction = self.task.dir.join("instruction.md");
        // A link within the task is as good as a file, and environments follow none.
        let instruction = blocking(move || std::fs::canonicalize(instruction)).await.map_err(|error| {
            Failure::new(ErrorType::TaskInvalid, format!("instruction.md cannot be read: {error}"))
        })?;
        let target = &self.trial.config.instruction_path;
        bounded(Phase::Start, environment.copy_to(&instruction, target, CopyMode::Merge)).await
    }

    async fn install(
        &mut self,
        environment: &dyn Environment,
        env: &[(String, String)],
    ) -> Result<(), Failure> {
        let AgentKind::Script { install: Some(script), .. } = &self.trial.agent.kind else {
            return Ok(());
        };
        self.phase(Phase::Install);
        self.install.begin();
        let result = async {
            bounded(Phase::Install, environment.write_file(agent::INSTALL_SCRIPT, script.as_bytes())).await?;
            self.run_script(environment, failure::INSTALL, agent::INSTALL_SCRIPT, env, self.timeouts.install)
                .await
                .map(drop)
        }
        .await;
        self.install.end();
        result
    }
}
