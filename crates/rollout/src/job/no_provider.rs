//! The provider of jobs without containers.

use async_trait::async_trait;

use rollout_env::{Environment, EnvironmentError, EnvironmentSpec, ImageRequest, PreparedImage, Provider};

/// Creates no environments: for jobs whose tasks are all examples for models.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoProvider;

fn none() -> EnvironmentError {
    EnvironmentError::Start("this job was started without a provider of environments".to_owned())
}

#[async_trait]
impl Provider for NoProvider {
    fn name(&self) -> &'static str {
        "none"
    }

    async fn prepare(&self, _request: ImageRequest<'_>) -> Result<PreparedImage, EnvironmentError> {
        Err(none())
    }

    async fn create(&self, _spec: EnvironmentSpec<'_>) -> Result<Box<dyn Environment>, EnvironmentError> {
        Err(none())
    }

    async fn snapshot(&self, _key: &str) -> Result<Option<PreparedImage>, EnvironmentError> {
        Ok(None)
    }

    async fn reopen(&self, _place: &str) -> Result<Box<dyn Environment>, EnvironmentError> {
        Err(none())
    }
}
