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
use rollout_sandbox::oci::exchange_identity;
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

/// What a token of a registry is for.
const PULL: &str = "pull";
const PUSH: &str = "pull,push";

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
    /// The registries that are reached by plain HTTP.
    insecure: Vec<String>,
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
            protocol: ClientProtocol::HttpsExcept(insecure.clone()),
            read_timeout: Some(SILENCE),
            connect_timeout: Some(CONNECT),
            user_agent: concat!("rollout/", env!("CARGO_PKG_VERSION")),
            ..ClientConfig::default()
        });
        Self { client, insecure, credentials }
    }

    async fn auth(&self, image: &Reference, actions: &str) -> RegistryAuth {
        let Some(found) = self.credentials.of_image(&image.whole()).await else {
            return RegistryAuth::Anonymous;
        };
        if let Some(token) = found.registrytoken {
            return RegistryAuth::Bearer(token);
        }
        match (found.identitytoken, found.username, found.password) {
            (Some(identity), ..) => self.exchange(image, actions, identity).await,
            (None, Some(user), Some(password)) => RegistryAuth::Basic(user, password),
            _ => RegistryAuth::Anonymous,
        }
    }

    /// Exchanges an identity token, which the client cannot do itself. After an error, the registry rejects the request.
    async fn exchange(&self, image: &Reference, actions: &str, identity: String) -> RegistryAuth {
        let host = image.resolve_registry();
        let scheme = if self.insecure.iter().any(|insecure| insecure == host) { "http" } else { "https" };
        let registry = format!("{scheme}://{host}");
        match exchange_identity(&registry, (image.repository(), actions), identity).await {
            Ok(token) => token.map_or(RegistryAuth::Anonymous, RegistryAuth::Bearer),
            Err(error) => {
                tracing::warn!(registry, error = chain(&error), "the login for a registry cannot be used");
                RegistryAuth::Anonymous
            }
        }
    }

    /// Reads an image, and returns its reference by content with its configuration.
    pub(super) async fn read(&self, image: &str) -> Result<(String, ImageFacts), NotRead> {
        let invalid = |why: String| NotRead::Missing(format!("{image}: {why}"));
        let reference: Reference = image.parse().map_err(|error| invalid(format!("{error}")))?;
        let auth = self.auth(&reference, PULL).await;
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
        let auth = self.auth(&reference, PULL).await;
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
        let auth = self.auth(&reference, PUSH).await;
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
        // An answer with a body in the form of the protocol has lost its status.
        OciDistributionError::RegistryError { envelope, .. } => {
            envelope.errors.iter().any(|error| error.code == OciErrorCode::Toomanyrequests)
        }
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
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

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

    /// Answers requests one after the other, and returns them.
    async fn serve(listener: TcpListener, answers: &[String]) -> Vec<String> {
        let mut asked = Vec::new();
        for answer in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            let is_complete = |request: &[u8]| {
                let text = String::from_utf8_lossy(request);
                let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                length.is_none_or(|length| length.parse() == Ok(body.len()))
            };
            while !is_complete(&request) {
                assert!(stream.read_buf(&mut request).await.unwrap() > 0, "the request ends early");
            }
            asked.push(String::from_utf8(request).unwrap());
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
        asked
    }

    #[tokio::test]
    async fn an_identity_token_is_exchanged_for_a_token_that_permits_a_push() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let challenge =
            format!("Bearer realm=\"http://{address}/token\",service=\"tests\",scope=\"registry:x:*\"");
        let answers = [
            format!(
                "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: {challenge}\r\nContent-Length: 0\r\n\
                 Connection: close\r\n\r\n"
            ),
            "HTTP/1.1 200 OK\r\nContent-Length: 24\r\nConnection: close\r\n\r\n{\"access_token\":\"short\"}"
                .to_owned(),
        ];
        // The command `az acr login` stores a user without a password beside the token.
        let login = json!({"auth": "MDAwOg==", "identitytoken": "secret"});
        let credentials = serde_json::from_value(json!({"auths": {(address.clone()): login}})).unwrap();
        let registries = Registries::new(&[], &address, credentials);
        let image: Reference = format!("{address}/team/rollout-guest:1").parse().unwrap();
        let (auth, asked) = tokio::join!(registries.auth(&image, PUSH), serve(listener, &answers));
        assert_eq!(auth, RegistryAuth::Bearer("short".to_owned()));
        assert!(asked[0].starts_with("GET /v2/ "), "{}", asked[0]);
        for part in
            ["POST /token ", "refresh_token=secret", "scope=repository%3Ateam%2Frollout-guest%3Apull%2Cpush"]
        {
            assert!(asked[1].contains(part), "{}", asked[1]);
        }
    }

    #[test]
    fn a_registry_that_counts_requests_is_asked_again() {
        let answer = |code: &str| OciDistributionError::RegistryError {
            envelope: serde_json::from_value(
                json!({"errors": [{"code": code, "message": "", "detail": null}]}),
            )
            .unwrap(),
            url: "https://registry.example.com/v2/".to_owned(),
        };
        assert!(is_temporary(&answer("TOOMANYREQUESTS")));
        assert!(!is_temporary(&answer("DENIED")));
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
