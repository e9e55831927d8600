//! Possible addresses of an engine: `DOCKER_HOST`, a context of the docker command, or the usual sockets.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::EngineError;
use crate::host::DockerAccess;

/// A possible address of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Endpoint {
    /// A socket file.
    Unix(PathBuf),
    /// Host and port, without encryption.
    Tcp(String),
    /// Host and port, with the directory of `ca.pem`, `cert.pem` and `key.pem`.
    Tls(String, PathBuf),
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Tcp(address) | Self::Tls(address, _) => write!(f, "tcp://{address}"),
        }
    }
}

/// The part of the docker command's `config.json` that names a context.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CommandConfig {
    #[serde(default)]
    current_context: String,
}

/// The part of a context's `meta.json` that contains the engine's address.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ContextMeta {
    #[serde(default)]
    endpoints: ContextEndpoints,
}

#[derive(Deserialize, Default)]
struct ContextEndpoints {
    docker: Option<ContextEndpoint>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ContextEndpoint {
    #[serde(default)]
    host: String,
}

/// Lists the addresses to try, the preferred one first. An address that was configured is the only one.
pub(super) fn candidates(place: &DockerAccess) -> Result<Vec<Endpoint>, EngineError> {
    if let Some(host) = &place.host {
        let certificates = if place.tls || place.cert_dir.is_some() {
            place.cert_dir.clone().or_else(|| place.config_dir.clone())
        } else {
            None
        };
        return Ok(vec![parse(host, "DOCKER_HOST", certificates)?]);
    }
    let context = match &place.context {
        Some(context) => Some(context.clone()),
        None => current_context(place)?,
    };
    match context.filter(|context| context != "default") {
        Some(context) => Ok(vec![of_context(place, &context)?]),
        None => Ok(usual_sockets(place)),
    }
}

/// Parses an address in the form of `DOCKER_HOST`.
fn parse(host: &str, from: &str, certificates: Option<PathBuf>) -> Result<Endpoint, EngineError> {
    let address = |text: &str| text.trim_end_matches('/').to_owned();
    match host.split_once("://") {
        Some(("unix", path)) => Ok(Endpoint::Unix(path.into())),
        Some(("tcp" | "http" | "https", rest)) if !rest.is_empty() => Ok(match certificates {
            Some(dir) => Endpoint::Tls(address(rest), dir),
            None => Endpoint::Tcp(address(rest)),
        }),
        Some(("ssh", rest)) => {
            Err(EngineError::Ssh { from: from.to_owned(), target: rest.trim_end_matches('/').to_owned() })
        }
        _ => Err(EngineError::Address { from: from.to_owned(), address: host.to_owned() }),
    }
}

fn current_context(place: &DockerAccess) -> Result<Option<String>, EngineError> {
    let Some(path) = place.config_file("config.json") else { return Ok(None) };
    match read_json::<CommandConfig>(&path) {
        Ok(config) => Ok(Some(config.current_context).filter(|context| !context.is_empty())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(EngineError::File { path, source }),
    }
}

/// Reads the address of a context. Its directories are named by the hash of its name.
fn of_context(place: &DockerAccess, name: &str) -> Result<Endpoint, EngineError> {
    let id = rollout_core::text::hex(&Sha256::digest(name));
    let unknown = || EngineError::UnknownContext(name.to_owned());
    let path = place.config_file(format!("contexts/meta/{id}/meta.json")).ok_or_else(unknown)?;
    let meta: ContextMeta = read_json(&path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => unknown(),
        _ => EngineError::File { path: path.clone(), source },
    })?;
    let host = meta.endpoints.docker.map(|endpoint| endpoint.host).unwrap_or_default();
    let certificates =
        place.config_file(format!("contexts/tls/{id}/docker")).filter(|dir| dir.join("ca.pem").exists());
    parse(&host, &format!("docker context {name:?}"), certificates)
}

fn usual_sockets(place: &DockerAccess) -> Vec<Endpoint> {
    let runtime = place.runtime_dir.as_deref();
    let home = place.home.as_deref();
    let below = |dir: Option<&Path>, path: &str| dir.map(|dir| dir.join(path));
    [
        Some("/var/run/docker.sock".into()),
        below(runtime, "docker.sock"),
        below(home, ".docker/run/docker.sock"),
        below(home, ".docker/desktop/docker.sock"),
        below(runtime, "podman/podman.sock"),
        Some("/run/podman/podman.sock".into()),
    ]
    .into_iter()
    .flatten()
    .map(Endpoint::Unix)
    .collect()
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> io::Result<T> {
    serde_json::from_slice(&fs::read(path)?).map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_context(name: &str, host: &str, tls: bool) -> (tempfile::TempDir, DockerAccess) {
        let dir = tempfile::tempdir().unwrap();
        let id = rollout_core::text::hex(&Sha256::digest(name));
        let meta = dir.path().join("contexts/meta").join(&id);
        fs::create_dir_all(&meta).unwrap();
        let text = serde_json::json!({"Name": name, "Endpoints": {"docker": {"Host": host}}});
        fs::write(meta.join("meta.json"), text.to_string()).unwrap();
        if tls {
            let tls = dir.path().join("contexts/tls").join(&id).join("docker");
            fs::create_dir_all(&tls).unwrap();
            fs::write(tls.join("ca.pem"), "").unwrap();
        }
        let place = DockerAccess { config_dir: Some(dir.path().to_owned()), ..DockerAccess::default() };
        (dir, place)
    }

    #[test]
    fn docker_host_is_the_only_candidate() {
        let at = |host: &str, tls: bool| {
            let place = DockerAccess {
                host: Some(host.to_owned()),
                tls,
                config_dir: Some("/c".into()),
                context: Some("ignored".to_owned()),
                ..DockerAccess::default()
            };
            candidates(&place).unwrap()
        };
        assert_eq!(at("unix:///a/sock", false), [Endpoint::Unix("/a/sock".into())]);
        assert_eq!(at("tcp://host:2375/", false), [Endpoint::Tcp("host:2375".to_owned())]);
        assert_eq!(at("tcp://host:2376", true), [Endpoint::Tls("host:2376".to_owned(), "/c".into())]);
    }

    #[test]
    fn an_ssh_address_is_rejected_with_a_workaround() {
        let place = DockerAccess { host: Some("ssh://me@far".to_owned()), ..DockerAccess::default() };
        let error = candidates(&place).unwrap_err();
        assert!(error.hint().is_some_and(|hint| hint.contains("ssh -nNT -L")), "{error:?}");
        insta::assert_snapshot!(error, @"DOCKER_HOST is an ssh address (me@far), which Rollout does not support");
    }

    #[test]
    fn the_current_context_leads_to_its_engine_and_certificates() {
        let (dir, place) = with_context("far", "tcp://far:2376", true);
        fs::write(dir.path().join("config.json"), r#"{"currentContext": "far"}"#).unwrap();
        let found = candidates(&place).unwrap();
        let [Endpoint::Tls(address, certificates)] = &found[..] else { panic!("{found:?}") };
        assert_eq!(address, "far:2376");
        assert!(certificates.ends_with("docker"));
    }

    #[test]
    fn a_context_by_variable_wins_over_the_current_one() {
        let (dir, mut place) = with_context("near", "unix:///near", false);
        fs::write(dir.path().join("config.json"), r#"{"currentContext": "gone"}"#).unwrap();
        assert!(matches!(candidates(&place), Err(EngineError::UnknownContext(name)) if name == "gone"));
        place.context = Some("near".to_owned());
        assert_eq!(candidates(&place).unwrap(), [Endpoint::Unix("/near".into())]);
    }

    #[test]
    fn without_a_choice_the_usual_sockets_are_tried_docker_first() {
        let place = DockerAccess {
            home: Some("/h".into()),
            runtime_dir: Some("/r".into()),
            context: Some("default".to_owned()),
            ..DockerAccess::default()
        };
        let found: Vec<String> = candidates(&place).unwrap().iter().map(Endpoint::to_string).collect();
        assert_eq!(
            found,
            [
                "unix:///var/run/docker.sock",
                "unix:///r/docker.sock",
                "unix:///h/.docker/run/docker.sock",
                "unix:///h/.docker/desktop/docker.sock",
                "unix:///r/podman/podman.sock",
                "unix:///run/podman/podman.sock",
            ]
        );
    }
}
