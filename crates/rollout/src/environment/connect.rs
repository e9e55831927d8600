//! From the `environment` section of a job to its provider.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::Provider;
use crate::config::{EnvironmentConfig, EnvironmentKind};

/// What providers need of this machine. The library looks up none of it by itself.
#[derive(Debug, Clone)]
pub struct Place {
    /// Where images and running environments are kept between jobs.
    pub state_dir: PathBuf,
    /// The program that becomes the native environments' supervisor.
    pub helper: PathBuf,
    /// What leads to a Docker engine.
    pub docker: DockerPlace,
}

/// What leads to a Docker engine, and to the credentials for its registries.
#[derive(Debug, Clone, Default)]
pub struct DockerPlace {
    /// `DOCKER_HOST`.
    pub host: Option<String>,
    /// `DOCKER_TLS_VERIFY` is set.
    pub tls: bool,
    /// `DOCKER_CERT_PATH`.
    pub cert_dir: Option<PathBuf>,
    /// `DOCKER_CONTEXT`.
    pub context: Option<String>,
    /// `DOCKER_CONFIG`, else `.docker` in the home directory.
    pub config_dir: Option<PathBuf>,
    /// `HOME`.
    pub home: Option<PathBuf>,
    /// `XDG_RUNTIME_DIR`.
    pub runtime_dir: Option<PathBuf>,
}

impl DockerPlace {
    /// Takes what the docker command takes from its environment.
    pub fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let path = |name: &str| set(name).map(PathBuf::from);
        let text = |name: &str| set(name).map(|value| value.to_string_lossy().into_owned());
        let home = path("HOME");
        Self {
            host: text("DOCKER_HOST"),
            tls: set("DOCKER_TLS_VERIFY").is_some(),
            cert_dir: path("DOCKER_CERT_PATH"),
            context: text("DOCKER_CONTEXT"),
            config_dir: path("DOCKER_CONFIG").or_else(|| home.as_deref().map(|home| home.join(".docker"))),
            runtime_dir: path("XDG_RUNTIME_DIR"),
            home,
        }
    }

    /// A file of the docker command's configuration.
    #[cfg_attr(not(feature = "docker"), expect(dead_code, reason = "only the docker provider looks there"))]
    pub(super) fn config_file(&self, path: impl AsRef<Path>) -> Option<PathBuf> {
        self.config_dir.as_ref().map(|dir| dir.join(path))
    }
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
    /// There is no Docker engine to work with.
    #[cfg(feature = "docker")]
    #[error(transparent)]
    Docker(#[from] super::docker::EngineError),
}

impl ConnectError {
    /// Whether it means that the provider is not here at all.
    fn is_absence(&self) -> bool {
        match self {
            #[cfg(feature = "docker")]
            Self::Docker(error) => error.is_absence(),
            _ => false,
        }
    }

    /// What to say where the job runs natively instead, unless nobody expects an engine.
    fn told_on_fallback(&self) -> Option<String> {
        match self {
            #[cfg(feature = "docker")]
            Self::Docker(error) if error.is_unexpected() => {
                let error = error.to_string().replacen("\n  ", " at ", 1);
                Some(format!("{error}; the job runs natively"))
            }
            _ => None,
        }
    }

    /// What the reader can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Unsupported(_) => Some("write `type: native`: it needs no daemon and no set-up"),
            Self::Config(_) => None,
            #[cfg(feature = "native")]
            Self::Native(_) => Some("`rollout doctor` tells what this machine can run"),
            #[cfg(feature = "docker")]
            Self::Docker(error) => error.hint(),
        }
    }
}

/// Tells what [`connect`] would refuse, without starting anything.
pub fn check(config: &EnvironmentConfig) -> Result<(), ConnectError> {
    match config.kind {
        Some(EnvironmentKind::Native) => native::check(config),
        Some(EnvironmentKind::Docker) => docker::check(config),
        Some(other) => Err(ConnectError::Unsupported(other.as_str())),
        None => docker::check(config).or_else(|_| native::check(config)),
    }
}

/// Finds the provider that a job asks for, and makes sure that it answers.
///
/// A job that names none runs on Docker where an engine answers, and natively elsewhere. Settings that only one
/// of the two knows decide for that one.
pub async fn connect(config: &EnvironmentConfig, place: &Place) -> Result<Arc<dyn Provider>, ConnectError> {
    match config.kind {
        Some(EnvironmentKind::Native) => native::connect(config, place, None).await,
        Some(EnvironmentKind::Docker) => docker::connect(config, place).await,
        Some(other) => Err(ConnectError::Unsupported(other.as_str())),
        None if docker::check(config).is_err() => native::connect(config, place, None).await,
        None => match docker::connect(config, place).await {
            Err(error) if error.is_absence() && native::check(config).is_ok() => {
                native::connect(config, place, error.told_on_fallback()).await
            }
            outcome => outcome,
        },
    }
}

#[cfg(feature = "native")]
mod native {
    use super::{Arc, ConnectError, EnvironmentConfig, Place, Provider};
    use crate::environment::native::{Native, Settings};

    pub(super) fn check(config: &EnvironmentConfig) -> Result<(), ConnectError> {
        Settings::read(config).map(drop).map_err(ConnectError::Config)
    }

    pub(super) async fn connect(
        config: &EnvironmentConfig,
        place: &Place,
        note: Option<String>,
    ) -> Result<Arc<dyn Provider>, ConnectError> {
        let settings = Settings::read(config).map_err(ConnectError::Config)?;
        Ok(Arc::new(Native::start(settings, place, note).await?))
    }
}

#[cfg(feature = "docker")]
mod docker {
    use super::{Arc, ConnectError, EnvironmentConfig, Place, Provider};
    use crate::environment::docker::{Docker, Settings};

    pub(super) fn check(config: &EnvironmentConfig) -> Result<(), ConnectError> {
        Settings::read(config).map(drop).map_err(ConnectError::Config)
    }

    pub(super) async fn connect(
        config: &EnvironmentConfig,
        place: &Place,
    ) -> Result<Arc<dyn Provider>, ConnectError> {
        let settings = Settings::read(config).map_err(ConnectError::Config)?;
        Ok(Arc::new(Docker::start(settings, place).await?))
    }
}

/// Stands for a provider that was left out of the build.
#[cfg(not(all(feature = "docker", feature = "native")))]
macro_rules! left_out {
    ($name:ident, $kind:expr $(, $more:ty)?) => {
        mod $name {
            use super::{Arc, ConnectError, EnvironmentConfig, EnvironmentKind, Place, Provider};

            pub(super) fn check(_: &EnvironmentConfig) -> Result<(), ConnectError> {
                Err(ConnectError::Unsupported($kind.as_str()))
            }

            pub(super) async fn connect(
                _: &EnvironmentConfig,
                _: &Place,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_to_an_engine_follows_the_variables_of_the_docker_command() {
        let place = DockerPlace::from_variables(|name| match name {
            "HOME" => Some("/home/u".into()),
            "DOCKER_HOST" => Some("".into()),
            "DOCKER_CONTEXT" => Some("remote".into()),
            _ => None,
        });
        assert_eq!(place.host, None);
        assert_eq!(place.context.as_deref(), Some("remote"));
        assert_eq!(place.config_file("config.json"), Some("/home/u/.docker/config.json".into()));
    }
}
