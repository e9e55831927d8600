//! Paths and settings of this machine that providers need. The caller of the library looks them up.

use std::{
    collections::BTreeMap,
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
    /// How to reach a Kubernetes cluster.
    pub kubernetes: KubernetesAccess,
    /// The user's accounts for cloud sandboxes.
    pub clouds: CloudAccess,
}

/// The variables and the home directory in which the programs of cloud vendors look for credentials.
#[derive(Clone, Default)]
pub struct CloudAccess {
    /// The variables that are set. Their values may be secret.
    variables: BTreeMap<&'static str, String>,
    /// `HOME`.
    home: Option<PathBuf>,
}

impl CloudAccess {
    /// The variables that vendors' programs read.
    const VARIABLES: [&'static str; 23] = [
        "DAYTONA_API_KEY",
        "DAYTONA_API_URL",
        "DAYTONA_ORGANIZATION_ID",
        "DAYTONA_TARGET",
        "E2B_ACCESS_TOKEN",
        "E2B_API_KEY",
        "E2B_API_URL",
        "E2B_DOMAIN",
        "E2B_SANDBOX_URL",
        "FLY_ACCESS_TOKEN",
        "FLY_API_TOKEN",
        "FLY_APP",
        "FLY_CONFIG_DIR",
        "FLY_FLAPS_BASE_URL",
        "FLY_ORG",
        "FLY_REGION",
        "FLY_REGISTRY_HOST",
        "MODAL_CONFIG_PATH",
        "MODAL_ENVIRONMENT",
        "MODAL_PROFILE",
        "MODAL_SERVER_URL",
        "MODAL_TOKEN_ID",
        "MODAL_TOKEN_SECRET",
    ];

    /// Reads the same environment variables as the vendors' programs.
    pub fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let text = |name| Some((name, set(name)?.into_string().ok()?));
        let variables = Self::VARIABLES.into_iter().filter_map(text).collect();
        Self { variables, home: set("HOME").map(PathBuf::from) }
    }

    /// The value of a variable.
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// A file in the home directory.
    pub fn home_file(&self, path: impl AsRef<Path>) -> Option<PathBuf> {
        self.home.as_ref().map(|home| home.join(path))
    }
}

impl std::fmt::Debug for CloudAccess {
    /// Shows only the names of variables.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CloudAccess")
            .field("variables", &self.variables.keys())
            .field("home", &self.home)
            .finish()
    }
}

/// How to reach a Kubernetes cluster, if a job does not name a kubeconfig file.
#[derive(Debug, Clone, Default)]
pub struct KubernetesAccess {
    /// The files in `KUBECONFIG`, otherwise `.kube/config` in the home directory.
    pub kubeconfig: Vec<PathBuf>,
    /// Whether this process runs in a pod, whose service account can be used.
    pub in_cluster: bool,
}

impl KubernetesAccess {
    /// Reads the same environment variables as kubectl.
    pub fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let home = || set("HOME").map(|home| PathBuf::from(home).join(".kube/config"));
        let kubeconfig = match set("KUBECONFIG") {
            Some(list) => std::env::split_paths(&list).filter(|path| !path.as_os_str().is_empty()).collect(),
            None => home().into_iter().collect(),
        };
        Self { kubeconfig, in_cluster: set("KUBERNETES_SERVICE_HOST").is_some() }
    }
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
    fn access_to_a_cluster_follows_the_variables_of_kubectl() {
        let access = |kubeconfig: Option<&'static str>| {
            KubernetesAccess::from_variables(move |name| match name {
                "HOME" => Some("/home/u".into()),
                "KUBECONFIG" => kubeconfig.map(Into::into),
                _ => None,
            })
        };
        assert_eq!(access(None).kubeconfig, [PathBuf::from("/home/u/.kube/config")]);
        assert_eq!(access(Some("/a:/b")).kubeconfig, [PathBuf::from("/a"), PathBuf::from("/b")]);
        assert!(!access(None).in_cluster);
    }

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
