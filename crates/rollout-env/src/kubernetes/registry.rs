//! Reads the configuration of images from their registry, and pushes the image of the guest.

use std::time::Duration;

use oci_client::{
    Client, Reference,
    client::{ClientConfig, ClientProtocol, Config, ImageLayer},
    errors::{OciDistributionError, OciErrorCode},
    secrets::RegistryAuth,
};
use rollout_core::{
    address::is_loopback_host,
    text::{chain, hex},
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::pod::GUEST;
use crate::{
    docker::Credentials,
    environment::{EnvironmentError, ImageHealthcheck, ImageStartup},
    guest,
};

/// A registry that sends nothing for this long is given up.
const SILENCE: Duration = Duration::from_secs(60);

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(10);

/// The attempts at a registry that cannot answer.
const TRIES: u32 = 3;

/// The largest configuration of an image.
const MAX_CONFIG: usize = 8 << 20;

/// The parts of an image's configuration that a pod does not know.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ImageFacts {
    pub(super) user: Option<String>,
    pub(super) workdir: String,
    pub(super) startup: ImageStartup,
}

/// Why an image's configuration is not known.
#[derive(Debug)]
pub(super) enum NotRead {
    /// The registry does not have the image.
    Missing(String),
    /// The registry cannot be reached or used from here. The cluster may be able to.
    Unreachable(String),
}

/// A client for registries.
pub(super) struct Registries {
    client: Client,
    credentials: Credentials,
}

impl Registries {
    /// `insecure` are the registries that are reached by plain HTTP, besides loopback addresses.
    pub(super) fn new(insecure: &[String], registry: &str, credentials: Credentials) -> Self {
        let host = registry.split('/').next().unwrap_or_default();
        let mut insecure = insecure.to_vec();
        if is_loopback_host(host) {
            insecure.push(host.to_owned());
        }
        let client = Client::new(ClientConfig {
            protocol: ClientProtocol::HttpsExcept(insecure),
            read_timeout: Some(SILENCE),
            connect_timeout: Some(CONNECT),
            user_agent: concat!("rollout/", env!("CARGO_PKG_VERSION")),
            ..ClientConfig::default()
        });
        Self { client, credentials }
    }

    async fn auth(&self, image: &str) -> RegistryAuth {
        let Some(found) = self.credentials.of_image(image).await else { return RegistryAuth::Anonymous };
        match (found.username, found.password, found.registrytoken) {
            (Some(user), Some(password), _) => RegistryAuth::Basic(user, password),
            (_, _, Some(token)) => RegistryAuth::Bearer(token),
            _ => RegistryAuth::Anonymous,
        }
    }

    /// Reads an image, and returns its reference by content with its configuration.
    pub(super) async fn read(&self, image: &str) -> Result<(String, ImageFacts), NotRead> {
        let invalid = |why: String| NotRead::Missing(format!("{image}: {why}"));
        let reference: Reference = image.parse().map_err(|error| invalid(format!("{error}")))?;
        let auth = self.auth(image).await;
        let mut tries = 1;
        let (_, digest, config) = loop {
            match self.client.pull_manifest_and_config(&reference, &auth).await {
                Ok(found) => break found,
                Err(error) if is_missing(&error) => {
                    return Err(invalid(format!("the registry does not have it: {error}")));
                }
                Err(error) if tries == TRIES || !is_temporary(&error) => {
                    return Err(NotRead::Unreachable(format!("{image}: {}", chain(&error))));
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(500)).await,
            }
            tries += 1;
        };
        if config.len() > MAX_CONFIG {
            return Err(invalid("its configuration is too large".to_owned()));
        }
        let config: Value = serde_json::from_str(&config).map_err(|error| invalid(error.to_string()))?;
        let by_content = reference.clone_with_digest(digest);
        Ok((by_content.whole(), facts(&config["config"])))
    }

    /// Whether a registry has an image. Errors count as no: the next step then fails with its own message.
    pub(super) async fn has(&self, image: &str) -> bool {
        let Ok(reference) = image.parse::<Reference>() else { return false };
        let auth = self.auth(image).await;
        self.client.fetch_manifest_digest(&reference, &auth).await.is_ok()
    }

    /// Pushes the image of the guest to a registry, unless it is there, and returns its reference.
    pub(super) async fn push_guest(&self, registry: &str) -> Result<String, EnvironmentError> {
        let hash = &hex(&Sha256::digest(guest::PROGRAM))[..16];
        let image = format!("{registry}/rollout-guest:{hash}");
        if self.has(&image).await {
            return Ok(image);
        }
        let failed = |why: String| {
            EnvironmentError::Pull(format!("cannot push the image of the guest to {image}: {why}"))
        };
        let reference: Reference = image.parse().map_err(|error| {
            EnvironmentError::Refused(format!("provider_config.registry is {registry:?}: {error}"))
        })?;
        let layer = guest_layer().map_err(|error| failed(error.to_string()))?;
        let config = json!({
            "architecture": arch(),
            "os": "linux",
            "config": {"Entrypoint": [GUEST]},
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", hex(&Sha256::digest(&layer)))]},
        });
        let layers = [ImageLayer::oci_v1(layer, None)];
        let config = Config::oci_v1(config.to_string().into_bytes(), None);
        let auth = self.auth(&image).await;
        let pushed = self.client.push(&reference, &layers, config, &auth, None).await;
        pushed.map_err(|error| failed(chain(&error)))?;
        Ok(image)
    }
}

/// The only layer of the guest's image.
fn guest_layer() -> std::io::Result<Vec<u8>> {
    let mut layer = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(guest::PROGRAM.len() as u64);
    header.set_mode(0o555);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    layer.append_data(&mut header, GUEST.trim_start_matches('/'), guest::PROGRAM)?;
    layer.into_inner()
}

/// The architecture of the guest, in the naming of images.
fn arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn is_missing(error: &OciDistributionError) -> bool {
    match error {
        OciDistributionError::ImageManifestNotFoundError(_) => true,
        OciDistributionError::RegistryError { envelope, .. } => envelope.errors.iter().any(|error| {
            matches!(
                error.code,
                OciErrorCode::ManifestUnknown | OciErrorCode::NameUnknown | OciErrorCode::NotFound
            )
        }),
        OciDistributionError::ServerError { code, .. } => *code == 404,
        _ => false,
    }
}

fn is_temporary(error: &OciDistributionError) -> bool {
    match error {
        OciDistributionError::RequestError(error) => {
            error.status().is_none_or(|status| status.is_server_error() || status.as_u16() == 429)
        }
        OciDistributionError::ServerError { code, .. } => *code >= 500 || *code == 429,
        OciDistributionError::IoError(_) => true,
        _ => false,
    }
}

/// Reads the configuration that images of Docker and of OCI have in common.
fn facts(config: &Value) -> ImageFacts {
    let text = |key: &str| config[key].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let words = |value: &Value| -> Vec<String> {
        let words = value.as_array().into_iter().flatten();
        words.filter_map(|word| word.as_str().map(str::to_owned)).collect()
    };
    ImageFacts {
        user: text("User"),
        workdir: text("WorkingDir").unwrap_or_else(|| "/".to_owned()),
        startup: ImageStartup {
            entrypoint: words(&config["Entrypoint"]),
            command: words(&config["Cmd"]),
            healthcheck: healthcheck(&config["Healthcheck"], &words),
        },
    }
}

fn healthcheck(check: &Value, words: &dyn Fn(&Value) -> Vec<String>) -> Option<ImageHealthcheck> {
    let number = |key: &str| check[key].as_i64().unwrap_or_default();
    let times = ["Interval", "Timeout", "StartPeriod"].map(number);
    ImageHealthcheck::of_engine(&words(&check["Test"]), times, number("Retries"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_of_an_image_is_read() {
        let read = facts(&json!({
            "User": "daemon", "WorkingDir": "/app", "Entrypoint": ["/entry"], "Cmd": ["serve"],
            "Healthcheck": {"Test": ["CMD-SHELL", "true"], "Interval": 5_000_000_000_u64},
        }));
        assert_eq!((read.user.as_deref(), read.workdir.as_str()), (Some("daemon"), "/app"));
        assert_eq!(
            (read.startup.entrypoint, read.startup.command),
            (vec!["/entry".to_owned()], vec!["serve".to_owned()])
        );
        let check = read.startup.healthcheck.unwrap();
        assert_eq!((check.argv.len(), check.interval, check.retries), (3, Duration::from_secs(5), 3));
        assert_eq!(
            facts(&json!({"User": ""})),
            ImageFacts { workdir: "/".to_owned(), ..ImageFacts::default() }
        );
    }

    #[test]
    fn the_layer_of_the_guest_has_one_executable_file() {
        let layer = guest_layer().unwrap();
        let mut archive = tar::Archive::new(layer.as_slice());
        let entries: Vec<_> = archive.entries().unwrap().map(Result::unwrap).collect();
        assert_eq!(entries.len(), 1);
        assert_eq!(entries[0].header().mode().unwrap(), 0o555);
    }
}
