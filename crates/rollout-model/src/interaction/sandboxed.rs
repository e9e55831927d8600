//! Tool use with a separate environment for each rollout.

use std::{fmt, sync::Arc, time::Instant};

use async_trait::async_trait;

use super::{Cleanup, Interaction, ToolUse};
use crate::{
    Error, State,
    environments::{self, EnvironmentMaker},
    tool::container::{READY_WAIT_TIME, Sandbox},
};
use rollout_env::{EnvironmentTemplate, Provider};

/// Tool use with a separate environment for each rollout: created before its first turn, removed after its last.
///
/// The tools usually include those of [`container::tools`](crate::tool::container::tools). Other tools find the
/// environment in the state, as the resource [`Sandbox`].
pub struct Sandboxed {
    maker: EnvironmentMaker,
    tools: ToolUse<'static>,
}

impl Sandboxed {
    /// Use of these tools in environments created from the template. `job` is a label for the provider's resources.
    pub fn new(
        provider: Arc<dyn Provider>,
        template: EnvironmentTemplate,
        job: impl Into<String>,
        tools: ToolUse<'static>,
    ) -> Self {
        Self { maker: EnvironmentMaker::new(provider, template, job), tools }
    }
}

impl fmt::Debug for Sandboxed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sandboxed")
            .field("maker", &self.maker)
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
        let environment = self.maker.create(&state.trajectory_id).await?;
        state.resources.insert(Sandbox(environment));
        state.set(READY_WAIT_TIME, started.elapsed().as_secs_f64())?;
        Ok(())
    }
}

async fn destroy(state: &mut State) -> Result<(), Error> {
    if let Some(Sandbox(environment)) = state.resources.remove() {
        environments::destroy(environment).await;
    }
    Ok(())
}
