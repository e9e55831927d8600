//! Paths and settings of this machine that providers need. The caller of the library looks them up.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

/// Paths and settings of this machine that providers need. The library does not look them up itself.
#[derive(Debug, Clone)]
pub struct HostPaths {
    /// The directory for images and running environments, kept between jobs.
    pub state_dir: PathBuf,
    /// The program that runs as the supervisor of native environments.
    pub helper: PathBuf,
    /// How to reach a Docker engine.
    pub docker: DockerAccess,
}

/// How to reach a Docker engine, and where the credentials for its registries are.
#[derive(Debug, Clone, Default)]
pub struct DockerAccess {
    /// `DOCKER_HOST`.
    pub host: Option<String>,
    /// `DOCKER_TLS_VERIFY` is set.
    pub tls: bool,
    /// `DOCKER_CERT_PATH`.
    pub cert_dir: Option<PathBuf>,
    /// `DOCKER_CONTEXT`.
    pub context: Option<String>,
    /// `DOCKER_CONFIG`, otherwise `.docker` in the home directory.
    pub config_dir: Option<PathBuf>,
    /// `HOME`.
    pub home: Option<PathBuf>,
    /// `XDG_RUNTIME_DIR`.
    pub runtime_dir: Option<PathBuf>,
}

impl DockerAccess {
    /// Reads the same environment variables as the docker command.
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
    #[cfg_attr(not(feature = "docker"), expect(dead_code, reason = "only the docker provider uses it"))]
    pub(crate) fn config_file(&self, path: impl AsRef<Path>) -> Option<PathBuf> {
        self.config_dir.as_ref().map(|dir| dir.join(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_to_an_engine_follows_the_variables_of_the_docker_command() {
        let place = DockerAccess::from_variables(|name| match name {
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
