//! Finds the provider for the `environment` section of a job.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::{
    config::{EnvironmentConfig, EnvironmentKind},
    environment::Provider,
    host::HostPaths,
};

/// Why a job has no provider.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The provider is not part of this build.
    #[error("environment.type {0:?} is not part of this build of Rollout")]
    Unsupported(&'static str),
    /// A setting under `provider_config` is invalid.
    #[error("environment.provider_config: {0}")]
    Config(String),
    /// The embedded engine cannot run on this machine.
    #[cfg(feature = "native")]
    #[error("the native environment cannot run on this machine")]
    Native(#[source] rollout_sandbox::SandboxEngineError),
    /// No Docker engine can be used.
    #[cfg(feature = "docker")]
    #[error(transparent)]
    Docker(#[from] crate::docker::EngineError),
}

impl ConnectError {
    /// Whether the provider is missing on this machine.
    fn is_absence(&self) -> bool {
        match self {
            #[cfg(feature = "docker")]
            Self::Docker(error) => error.is_absence(),
            _ => false,
        }
    }

    /// The note for a job that runs natively instead, if an engine was expected.
    fn fallback_note(&self) -> Option<String> {
        match self {
            #[cfg(feature = "docker")]
            Self::Docker(error) if error.is_unexpected() => {
                let error = error.to_string().replacen("\n  ", " at ", 1);
                Some(format!("{error}; the job runs natively"))
            }
            _ => None,
        }
    }

    /// Advice for the user.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Unsupported(_) => {
                Some("use `docker` or `native`; the native environment needs no engine and no setup")
            }
            Self::Config(_) => None,
            #[cfg(feature = "native")]
            Self::Native(_) => Some("`rollout doctor` checks what this machine can run"),
            #[cfg(feature = "docker")]
            Self::Docker(error) => error.hint(),
        }
    }
}

/// Returns the errors of [`connect`] that can be found without starting anything.
pub fn check(config: &EnvironmentConfig) -> Result<(), ConnectError> {
    match config.kind {
        Some(EnvironmentKind::Native) => native::check(config),
        Some(EnvironmentKind::Docker) => docker::check(config),
        Some(other) => Err(ConnectError::Unsupported(other.as_str())),
        None => docker::check(config).or_else(|_| native::check(config)),
    }
}

/// Finds the provider of a job and checks that it answers.
///
/// A job without a provider runs on Docker if an engine answers, and natively otherwise. A setting that only
/// one of the two supports selects that one.
pub fn connect<'a>(
    config: &'a EnvironmentConfig,
    place: &'a HostPaths,
) -> BoxFuture<'a, Result<Arc<dyn Provider>, ConnectError>> {
    Box::pin(async move {
        match config.kind {
            Some(EnvironmentKind::Native) => native::connect(config, place, None).await,
            Some(EnvironmentKind::Docker) => docker::connect(config, place).await,
            Some(other) => Err(ConnectError::Unsupported(other.as_str())),
            None if docker::check(config).is_err() => native::connect(config, place, None).await,
            None => match docker::connect(config, place).await {
                Err(error) if error.is_absence() && native::check(config).is_ok() => {
                    native::connect(config, place, error.fallback_note()).await
                }
                outcome => outcome,
            },
        }
    })
}

#[cfg(feature = "native")]
mod native {
    use super::{Arc, ConnectError, EnvironmentConfig, HostPaths, Provider};
    use crate::native::{Native, Settings};

    pub(super) fn check(config: &EnvironmentConfig) -> Result<(), ConnectError> {
        Settings::read(config).map(drop).map_err(ConnectError::Config)
    }

    pub(super) async fn connect(
        config: &EnvironmentConfig,
        place: &HostPaths,
        note: Option<String>,
    ) -> Result<Arc<dyn Provider>, ConnectError> {
        let settings = Settings::read(config).map_err(ConnectError::Config)?;
        let provider = Native::start(settings, place, note).await.map_err(ConnectError::Native)?;
        Ok(Arc::new(provider))
    }
}

#[cfg(feature = "docker")]
mod docker {
    use super::{Arc, ConnectError, EnvironmentConfig, HostPaths, Provider};
    use crate::docker::{Docker, NotStarted, Settings};

    pub(super) fn check(config: &EnvironmentConfig) -> Result<(), ConnectError> {
        Settings::read(config).map(drop).map_err(ConnectError::Config)
    }

    pub(super) async fn connect(
        config: &EnvironmentConfig,
        place: &HostPaths,
    ) -> Result<Arc<dyn Provider>, ConnectError> {
        let settings = Settings::read(config).map_err(ConnectError::Config)?;
        match Docker::start(settings, place).await {
            Ok(provider) => Ok(Arc::new(provider)),
            Err(NotStarted::Settings(message)) => Err(ConnectError::Config(message)),
            Err(NotStarted::Engine(error)) => Err(error.into()),
        }
    }
}

/// A placeholder for a provider that is not part of this build.
#[cfg(not(all(feature = "docker", feature = "native")))]
macro_rules! left_out {
    ($name:ident, $kind:expr $(, $more:ty)?) => {
        mod $name {
            use super::{Arc, ConnectError, EnvironmentConfig, EnvironmentKind, HostPaths, Provider};

            pub(super) fn check(_: &EnvironmentConfig) -> Result<(), ConnectError> {
                Err(ConnectError::Unsupported($kind.as_str()))
            }

            pub(super) async fn connect(
                _: &EnvironmentConfig,
                _: &HostPaths,
                $(_: $more,)?
            ) -> Result<Arc<dyn Provider>, ConnectError> {
                Err(ConnectError::Unsupported($kind.as_str()))
            }
        }
    };
}

#[cfg(not(feature = "docker"))]
left_out!(docker, EnvironmentKind::Docker);
#[cfg(not(feature = "native"))]
left_out!(native, EnvironmentKind::Native, Option<String>);
