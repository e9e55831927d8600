//! Finds the cluster, and connects to it.

use std::{path::PathBuf, time::Duration};

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

use super::settings::Settings;
use crate::host::KubernetesAccess;

/// How long the API server may take to answer at first.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// Why no cluster can be used.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// There is neither a kubeconfig file nor the service account of a pod.
    #[error("no Kubernetes cluster is configured: there is no kubeconfig file at {}", .tried.display())]
    Absent {
        /// The path that was tried.
        tried: PathBuf,
    },
    /// The configuration cannot be used.
    #[error("the kubeconfig cannot be used: {0}")]
    Config(String),
    /// The API server does not answer.
    #[error("the Kubernetes API at {at} does not answer: {why}")]
    Away {
        /// Its address.
        at: String,
        /// The cause.
        why: String,
    },
    /// The API server refused a call.
    #[error("cannot {what}: {why}")]
    Call {
        /// The call.
        what: &'static str,
        /// The cause.
        why: String,
    },
}

impl ClusterError {
    /// Whether no cluster is configured on this machine.
    pub fn is_absence(&self) -> bool {
        matches!(self, Self::Absent { .. })
    }

    /// Advice for the user.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Absent { .. } => Some("set KUBECONFIG, or `provider_config.kubeconfig`"),
            Self::Config(_) => Some("`provider_config.context` selects another context"),
            Self::Away { .. } => Some("`kubectl version` shows whether the cluster answers"),
            Self::Call { .. } => Some("docs/kubernetes.md lists the permissions that Rollout needs"),
        }
    }

    pub(super) fn call(what: &'static str) -> impl Fn(kube::Error) -> Self {
        move |error| Self::Call { what, why: words(&error) }
    }
}

/// The text of an error, with the innermost cause of those that only say that there is one.
pub(super) fn words(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        error => {
            let mut cause: &dyn std::error::Error = error;
            while let Some(deeper) = cause.source() {
                cause = deeper;
            }
            cause.to_string()
        }
    }
}

/// The HTTP status of a refusal.
pub(super) fn code(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        kube::Error::UpgradeConnection(kube::client::UpgradeConnectionError::ProtocolSwitch(status)) => {
            Some(status.as_u16())
        }
        _ => None,
    }
}

/// Whether the server was not reached, or could not answer: the call may have succeeded all the same.
pub(super) fn is_away(error: &kube::Error) -> bool {
    match code(error) {
        Some(code) => code == 429 || code >= 500,
        None => {
            !matches!(error, kube::Error::SerdeError(_) | kube::Error::BuildRequest(_) | kube::Error::Auth(_))
        }
    }
}

/// Reads the configuration of the cluster.
pub(super) async fn config(settings: &Settings, access: &KubernetesAccess) -> Result<Config, ClusterError> {
    let options = KubeConfigOptions { context: settings.context.clone(), ..KubeConfigOptions::default() };
    let paths = match &settings.kubeconfig {
        Some(path) => vec![PathBuf::from(path)],
        None => access.kubeconfig.clone(),
    };
    let mut found: Option<Kubeconfig> = None;
    for path in paths.iter().filter(|path| path.exists()) {
        let invalid = |error: kube::config::KubeconfigError| {
            ClusterError::Config(format!("{}: {error}", path.display()))
        };
        let next = Kubeconfig::read_from(path).map_err(invalid)?;
        found = Some(match found {
            Some(earlier) => earlier.merge(next).map_err(invalid)?,
            None => next,
        });
    }
    match found {
        Some(kubeconfig) => Config::from_custom_kubeconfig(kubeconfig, &options)
            .await
            .map_err(|error| ClusterError::Config(error.to_string())),
        None if access.in_cluster && settings.kubeconfig.is_none() => {
            Config::incluster_dns().map_err(|error| ClusterError::Config(error.to_string()))
        }
        None => Err(ClusterError::Absent { tried: paths.into_iter().next().unwrap_or_default() }),
    }
}

/// Connects, and asks the server for its version.
pub(super) async fn connect(config: &Config) -> Result<(Client, String), ClusterError> {
    let at = config.cluster_url.to_string();
    let away = |why: String| ClusterError::Away { at: at.clone(), why };
    let client = Client::try_from(config.clone()).map_err(|error| ClusterError::Config(words(&error)))?;
    let version = tokio::time::timeout(ANSWER_TIMEOUT, client.apiserver_version())
        .await
        .map_err(|_| away(format!("no answer within {} seconds", ANSWER_TIMEOUT.as_secs())))?
        .map_err(|error| away(words(&error)))?;
    Ok((client, version.git_version))
}
