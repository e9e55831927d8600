//! Tool use with a separate environment for each rollout.

use std::{
    fmt,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use tokio::sync::OnceCell;

use super::{Cleanup, Interaction, ToolUse};
use crate::{
    Cause, Error, ErrorKind, State,
    tool::container::{READY_WAIT_TIME, Sandbox},
};
use rollout_env::{
    EnvironmentError, EnvironmentSpec, EnvironmentTemplate, ImageRequest, Origin, PreparedImage, Provider,
    blocking::blocking,
};

/// The timeout for removing an environment.
const DESTROY_TIMEOUT: Duration = Duration::from_secs(300);

/// Tool use with a separate environment for each rollout: created before its first turn, removed after its last.
///
/// The tools usually include those of [`container::tools`](crate::tool::container::tools). Other tools find the
/// environment in the state, as the resource [`Sandbox`].
pub struct Sandboxed {
    provider: Arc<dyn Provider>,
    template: EnvironmentTemplate,
    job: String,
    tools: ToolUse<'static>,
    image: OnceCell<PreparedImage>,
}

impl Sandboxed {
    /// Use of these tools in environments created from the template. `job` is a label for the provider's resources.
    pub fn new(
        provider: Arc<dyn Provider>,
        template: EnvironmentTemplate,
        job: impl Into<String>,
        tools: ToolUse<'static>,
    ) -> Self {
        Self { provider, template, job: job.into(), tools, image: OnceCell::new() }
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

fn failed(what: &str, error: &EnvironmentError) -> Error {
    Error::new(ErrorKind::Sandbox, what).because(Cause::of("EnvironmentError", error))
}

impl fmt::Debug for Sandboxed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sandboxed")
            .field("provider", &self.provider.name())
            .field("task", &self.template.name)
            .field("tools", &self.tools)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Interaction for Sandboxed {
    fn base(&self) -> Option<&dyn Interaction> {
        Some(&self.tools)
    }

    fn cleanups(&self) -> Vec<Cleanup> {
        vec![Cleanup::new("destroy_sandbox", destroy)]
    }

    async fn setup_state(&self, state: &mut State) -> Result<(), Error> {
        let started = Instant::now();
        let trial = Arc::clone(&state.trajectory_id);
        let origin = Origin { job: &self.job, trial: &trial };
        let image = self.image.get_or_try_init(|| self.prepare(origin)).await?;
        let name = format!("{}-{trial}", self.template.name);
        let spec = EnvironmentSpec {
            cpus: self.template.cpus,
            memory: self.template.memory,
            storage: self.template.storage,
            ..EnvironmentSpec::new(origin, image, &name)
        };
        let environment = self.provider.create(spec).await;
        let environment = environment.map_err(|error| failed("cannot start the environment", &error))?;
        state.resources.insert(Sandbox(environment));
        state.set(READY_WAIT_TIME, started.elapsed().as_secs_f64())?;
        Ok(())
    }
}

/// A rollout stays valid if its environment cannot be removed, so this is only logged.
async fn destroy(state: &mut State) -> Result<(), Error> {
    let Some(Sandbox(environment)) = state.resources.remove() else { return Ok(()) };
    let id = environment.id().to_owned();
    match tokio::time::timeout(DESTROY_TIMEOUT, environment.destroy()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!("cannot remove the environment {id} of a rollout: {error}"),
        Err(_) => tracing::warn!("removing the environment {id} of a rollout timed out"),
    }
    Ok(())
}
