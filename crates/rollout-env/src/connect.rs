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
    /// No Kubernetes cluster can be used.
    #[cfg(feature = "kubernetes")]
    #[error(transparent)]
    Kubernetes(#[from] crate::kubernetes::ClusterError),
    /// No cloud can be used.
    #[cfg(feature = "remote")]
    #[error(transparent)]
    Cloud(#[from] crate::remote::CloudConnectError),
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
                Some("build Rollout with the cargo feature of the same name, or use `docker` or `native`")
            }
            Self::Config(_) => None,
            #[cfg(feature = "native")]
            Self::Native(_) => Some("`rollout doctor` checks what this machine can run"),
            #[cfg(feature = "docker")]
            Self::Docker(error) => error.hint(),
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(error) => error.hint(),
            #[cfg(feature = "remote")]
            Self::Cloud(error) => error.hint(),
        }
    }
}

/// Returns the errors of [`connect`] that can be found without starting anything.
pub fn check(config: &EnvironmentConfig) -> Result<(), ConnectError> {
    match config.kind {
        Some(EnvironmentKind::Native) => native::check(config),
        Some(EnvironmentKind::Docker) => docker::check(config),
        Some(EnvironmentKind::Kubernetes) => kubernetes::check(config),
        Some(EnvironmentKind::Daytona) => daytona::check(config),
        Some(EnvironmentKind::E2b) => e2b::check(config),
        Some(EnvironmentKind::Fly) => fly::check(config),
        Some(EnvironmentKind::Modal) => modal::check(config),
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
            Some(EnvironmentKind::Kubernetes) => kubernetes::connect(config, place).await,
            Some(EnvironmentKind::Daytona) => daytona::connect(config, place).await,
            Some(EnvironmentKind::E2b) => e2b::connect(config, place).await,
            Some(EnvironmentKind::Fly) => fly::connect(config, place).await,
            Some(EnvironmentKind::Modal) => modal::connect(config, place).await,
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

#[cfg(feature = "kubernetes")]
mod kubernetes {
    use super::{Arc, ConnectError, EnvironmentConfig, HostPaths, Provider};
    use crate::kubernetes::{Kubernetes, Settings};

    pub(super) fn check(config: &EnvironmentConfig) -> Result<(), ConnectError> {
        Settings::read(config).map(drop).map_err(ConnectError::Config)
    }

    pub(super) async fn connect(
        config: &EnvironmentConfig,
        place: &HostPaths,
    ) -> Result<Arc<dyn Provider>, ConnectError> {
        let settings = Settings::read(config).map_err(ConnectError::Config)?;
        Ok(Arc::new(Kubernetes::start(settings, place).await?))
    }
}

/// The provider of a cloud. The module of a vendor has its settings, and a function that connects with them.
#[cfg(feature = "remote")]
macro_rules! cloud {
    ($name:ident) => {
        mod $name {
            use super::{Arc, ConnectError, EnvironmentConfig, HostPaths, Provider};
            use crate::remote::$name::{Settings, connect as start};

            pub(super) fn check(config: &EnvironmentConfig) -> Result<(), ConnectError> {
                Settings::read(config).map(drop).map_err(ConnectError::Config)
            }

            pub(super) async fn connect(
                config: &EnvironmentConfig,
                place: &HostPaths,
            ) -> Result<Arc<dyn Provider>, ConnectError> {
                let settings = Settings::read(config).map_err(ConnectError::Config)?;
                Ok(Arc::new(start(settings, place).await?))
            }
        }
    };
}

#[cfg(feature = "daytona")]
cloud!(daytona);
#[cfg(feature = "e2b")]
cloud!(e2b);
#[cfg(feature = "fly")]
cloud!(fly);
#[cfg(feature = "modal")]
cloud!(modal);

/// A placeholder for a provider that is not part of this build.
#[cfg(not(all(
    feature = "daytona",
    feature = "docker",
    feature = "e2b",
    feature = "fly",
    feature = "kubernetes",
    feature = "modal",
    feature = "native"
)))]
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

#[cfg(not(feature = "daytona"))]
left_out!(daytona, EnvironmentKind::Daytona);
#[cfg(not(feature = "docker"))]
left_out!(docker, EnvironmentKind::Docker);
#[cfg(not(feature = "e2b"))]
left_out!(e2b, EnvironmentKind::E2b);
#[cfg(not(feature = "fly"))]
left_out!(fly, EnvironmentKind::Fly);
#[cfg(not(feature = "kubernetes"))]
left_out!(kubernetes, EnvironmentKind::Kubernetes);
#[cfg(not(feature = "modal"))]
left_out!(modal, EnvironmentKind::Modal);
#[cfg(not(feature = "native"))]
left_out!(native, EnvironmentKind::Native, Option<String>);
