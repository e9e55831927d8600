//! Environments for the sessions of tools that run programs.

use std::{path::Path, sync::Arc, time::Duration};

use rollout_core::{
    quantity::{Bytes, Cpus},
    text::chain,
};
use rollout_env::{
    ConnectError, DEFAULT_STORAGE, Environment, EnvironmentConfig, EnvironmentError, EnvironmentKind,
    EnvironmentSpec, HostPaths, ImageRequest, Origin, Provider, connect,
};
use serde_json::json;
use tokio::sync::{OnceCell, Semaphore};

use crate::resource::{ErrorCode, ToolError};

/// The image of native environments: this machine's own system.
pub(crate) const HOST: &str = "host";

/// The job name of these environments in the provider's labels.
const JOB: &str = "tools";

/// The timeout for removing an environment.
const DESTROY_TIMEOUT: Duration = Duration::from_secs(50);

/// The provider of environments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnvironmentType {
    /// The embedded engine, with this machine's own system inside.
    Native,
    /// A Docker engine.
    Docker,
}

/// The provider and the limits of the environments of one kind of tools.
pub(crate) struct Settings {
    pub(crate) environment: EnvironmentType,
    pub(crate) network: String,
    pub(crate) cpus: Cpus,
    pub(crate) memory: Bytes,
    pub(crate) pids: usize,
}

/// Creates environments for one kind of tools.
pub(crate) struct Environments {
    /// The name of the kind.
    kind: &'static str,
    settings: Settings,
    place: HostPaths,
    provider: OnceCell<Arc<dyn Provider>>,
    starts: Semaphore,
}

impl Environments {
    /// Creates environments for this kind of tools, at most `most` at the same time. Nothing is started yet.
    pub(crate) fn new(kind: &'static str, settings: Settings, place: HostPaths, most: usize) -> Self {
        Self { kind, settings, place, provider: OnceCell::new(), starts: Semaphore::new(most) }
    }

    /// The provider, connected once.
    async fn provider(&self) -> Result<&Arc<dyn Provider>, ToolError> {
        let connected = self.provider.get_or_try_init(|| async {
            let config = self.settings.environment_config();
            connect(&config, &self.place).await.map_err(|error| self.not_connected(&error))
        });
        connected.await
    }

    /// Starts an environment with a unique name.
    pub(crate) async fn start(&self, name: &str, image: &str) -> Result<Box<dyn Environment>, ToolError> {
        let provider = self.provider().await?;
        let _turn = self.starts.acquire().await;
        let origin = Origin { job: JOB, trial: name };
        // Nothing is built, so nothing is logged; the provider requires a path.
        let log = std::env::temp_dir().join("rollout-tools-build.txt");
        let request = ImageRequest {
            origin,
            context: Path::new(""),
            docker_image: Some(image),
            build: None,
            force_build: false,
            log: &log,
        };
        let image = provider.prepare(request).await.map_err(|error| failed(&error))?;
        let spec = EnvironmentSpec {
            cpus: Some(self.settings.cpus),
            memory: Some(self.settings.memory),
            storage: Some(DEFAULT_STORAGE),
            ..EnvironmentSpec::new(origin, &image, name)
        };
        provider.create(spec).await.map_err(|error| failed(&error))
    }

    /// Waits until the files of ended environments are removed, so that the server does not exit before.
    pub(crate) async fn settle(&self) {
        let Some(provider) = self.provider.get() else { return };
        for left in provider.settle().await {
            tracing::warn!("{left}");
        }
    }

    fn not_connected(&self, error: &ConnectError) -> ToolError {
        let mut text = format!("{} cannot run: {}", self.kind, chain(error));
        if let Some(hint) = error.hint() {
            text = format!("{text}; {hint}");
        }
        ToolError::new(ErrorCode::DependencyMissing, text)
    }
}

impl Settings {
    fn environment_config(&self) -> EnvironmentConfig {
        let (kind, mut settings) = match self.environment {
            EnvironmentType::Native => (EnvironmentKind::Native, json!({"images": {HOST: "host"}})),
            EnvironmentType::Docker => (EnvironmentKind::Docker, json!({})),
        };
        settings["network"] = self.network.as_str().into();
        settings["pids"] = self.pids.into();
        let provider_config = settings.as_object().cloned().unwrap_or_default();
        EnvironmentConfig { kind: Some(kind), provider_config, ..EnvironmentConfig::default() }
    }
}

/// Removes an environment and all its processes.
pub(crate) async fn end(environment: Box<dyn Environment>) {
    let id = environment.id().to_owned();
    match tokio::time::timeout(DESTROY_TIMEOUT, environment.destroy()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!("the environment {id} of a session was not removed: {error}"),
        Err(_) => tracing::warn!("the environment {id} of a session was not removed in time"),
    }
}

/// Converts an environment error to the error of a call.
pub(crate) fn failed(error: &EnvironmentError) -> ToolError {
    let code = match error {
        EnvironmentError::Command(_) => ErrorCode::ExecutionError,
        EnvironmentError::Pull(_) | EnvironmentError::NoImage(_) => ErrorCode::DependencyMissing,
        _ => ErrorCode::ResourceFailed,
    };
    ToolError::new(code, error.to_string())
}
