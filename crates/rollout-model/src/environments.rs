//! Creates and removes the environments of rollouts.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use tokio::sync::OnceCell;

use crate::{Cause, Error, ErrorKind};
use rollout_env::{
    Environment, EnvironmentError, EnvironmentSpec, EnvironmentTemplate, ImageRequest, Origin, PreparedImage,
    Provider, blocking::blocking,
};

/// The timeout for removing an environment.
const DESTROY_TIMEOUT: Duration = Duration::from_secs(300);

/// Creates environments from a template. The image is prepared once.
pub struct EnvironmentMaker {
    provider: Arc<dyn Provider>,
    template: EnvironmentTemplate,
    job: String,
    image: OnceCell<PreparedImage>,
}

impl EnvironmentMaker {
    /// `job` is a label for the provider's resources.
    pub fn new(provider: Arc<dyn Provider>, template: EnvironmentTemplate, job: impl Into<String>) -> Self {
        Self { provider, template, job: job.into(), image: OnceCell::new() }
    }

    /// Creates an environment for a rollout.
    pub(crate) async fn create(&self, trial: &str) -> Result<Box<dyn Environment>, Error> {
        let origin = Origin { job: &self.job, trial };
        let image = self.image.get_or_try_init(|| self.prepare(origin)).await?;
        let name = format!("{}-{trial}", self.template.name);
        let spec = EnvironmentSpec {
            cpus: self.template.cpus,
            memory: self.template.memory,
            storage: self.template.storage,
            ..EnvironmentSpec::new(origin, image, &name)
        };
        let environment = self.provider.create(spec).await;
        environment.map_err(|error| failed("cannot start the environment", &error))
    }

    async fn prepare(&self, origin: Origin<'_>) -> Result<PreparedImage, Error> {
        let dir = blocking(tempfile::tempdir).await.map_err(|error| {
            Error::new(ErrorKind::Infra, "cannot create a directory for the build log")
                .because(Cause::of("OSError", &error))
        })?;
        let log: PathBuf = dir.path().join("build.txt");
        let request = ImageRequest {
            origin,
            context: &self.template.context,
            docker_image: self.template.docker_image.as_deref(),
            build: None,
            force_build: false,
            log: &log,
        };
        let limit = self.template.build_timeout;
        match tokio::time::timeout(limit, self.provider.prepare(request)).await {
            Ok(prepared) => prepared.map_err(|error| failed("cannot get the image", &error)),
            Err(_) => {
                let text = format!("the image was not ready after {} seconds", limit.as_secs());
                Err(Error::new(ErrorKind::Sandbox, text))
            }
        }
    }
}

impl fmt::Debug for EnvironmentMaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EnvironmentMaker")
            .field("provider", &self.provider.name())
            .field("task", &self.template.name)
            .finish_non_exhaustive()
    }
}

/// An error of an environment, as the error of a rollout.
pub(crate) fn failed(what: &str, error: &EnvironmentError) -> Error {
    Error::new(ErrorKind::Sandbox, what).because(Cause::of("EnvironmentError", error))
}

/// Removes an environment. A rollout stays valid if that fails, so this is only logged.
pub(crate) async fn destroy(environment: Box<dyn Environment>) {
    let id = environment.id().to_owned();
    match tokio::time::timeout(DESTROY_TIMEOUT, environment.destroy()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!("cannot remove the environment {id} of a rollout: {error}"),
        Err(_) => tracing::warn!("removing the environment {id} of a rollout timed out"),
    }
}
