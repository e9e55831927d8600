//! From the `environment` section of a job to its provider.

use std::{path::PathBuf, sync::Arc};

use super::Provider;
use crate::config::{EnvironmentConfig, EnvironmentKind};

/// What providers need of this machine. The library looks up none of it by itself.
#[derive(Debug, Clone)]
pub struct Place {
    /// Where images and running environments are kept between jobs.
    pub state_dir: PathBuf,
    /// The program that becomes the native environments' supervisor.
    pub helper: PathBuf,
}

/// Why there is no provider, and nothing can run.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// This build does not have it.
    #[error("environment.type {0:?} is not part of this build of Rollout")]
    Unsupported(&'static str),
    /// A setting under `provider_config` is wrong.
    #[error("environment.provider_config: {0}")]
    Config(String),
    /// The embedded engine cannot run here.
    #[cfg(feature = "native")]
    #[error("the native environment cannot run on this machine")]
    Native(#[source] rollout_sandbox::EngineError),
}

impl ConnectError {
    /// What the reader can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Unsupported(_) => Some("write `type: native`: it needs no daemon and no set-up"),
            Self::Config(_) => None,
            #[cfg(feature = "native")]
            Self::Native(_) => Some("`rollout doctor` tells what this machine can run"),
        }
    }
}

/// Tells what [`connect`] would refuse, without starting anything.
pub fn check(config: &EnvironmentConfig) -> Result<(), ConnectError> {
    match config.kind.unwrap_or(EnvironmentKind::Native) {
        #[cfg(feature = "native")]
        EnvironmentKind::Native => {
            super::native::Settings::read(config).map(drop).map_err(ConnectError::Config)
        }
        other => Err(ConnectError::Unsupported(other.as_str())),
    }
}

/// Finds the provider that a job asks for, and makes sure that it answers.
pub async fn connect(config: &EnvironmentConfig, place: &Place) -> Result<Arc<dyn Provider>, ConnectError> {
    match config.kind.unwrap_or(EnvironmentKind::Native) {
        #[cfg(feature = "native")]
        EnvironmentKind::Native => {
            let settings = super::native::Settings::read(config).map_err(ConnectError::Config)?;
            Ok(Arc::new(super::native::Native::start(settings, place).await?))
        }
        other => Err(ConnectError::Unsupported(other.as_str())),
    }
}
