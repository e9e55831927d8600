//! A client for image registries: manifests, and blobs that are resumed and verified.

use std::{fs::File, io, path::Path, time::Duration};

use futures_util::StreamExt as _;
use oci_client::{
    Client, Reference,
    client::{BlobResponse, ClientConfig, ClientProtocol},
    errors::OciDistributionError,
    manifest::OciDescriptor,
    secrets::RegistryAuth,
};
use sha2::{Digest as _, Sha256};
use tokio::{io::AsyncWriteExt as _, sync::OnceCell};

use super::error::PullError;
use crate::blocking::blocking;

/// How often an interrupted download is resumed without any progress in between.
const TRIES: u32 = 5;

/// The wait before the first of them. It doubles each time.
const FIRST_WAIT: Duration = Duration::from_millis(250);

/// A server that sends nothing for this long is given up.
const SILENCE: Duration = Duration::from_secs(60);

/// The most layers that an image may have. overlayfs itself stops at 500.
const MAX_LAYERS: usize = 256;

/// The largest configuration of an image.
const MAX_CONFIG: usize = 8 << 20;

/// What a registry says about an image.
pub(super) struct Manifest {
    /// The hash of the manifest.
    pub(super) digest: String,
    /// The configuration as JSON.
    pub(super) config: String,
    /// The layers, the lowest first.
    pub(super) layers: Vec<OciDescriptor>,
}

/// A client for all registries.
pub(super) struct Registry {
    insecure: Vec<String>,
    /// Created by the first request: most jobs have none, and a client reads all certificates of the machine.
    client: OnceCell<Client>,
}

impl Registry {
    /// `insecure` are the registries that are asked by plain HTTP.
    pub(super) fn new(insecure: Vec<String>) -> Self {
        Self { insecure, client: OnceCell::new() }
    }

    async fn client(&self) -> &Client {
        let create = || {
            let insecure = self.insecure.clone();
            blocking(move || {
                Client::new(ClientConfig {
                    protocol: ClientProtocol::HttpsExcept(insecure),
                    read_timeout: Some(SILENCE),
                    connect_timeout: Some(SILENCE / 4),
                    user_agent: concat!("rollout/", env!("CARGO_PKG_VERSION")),
                    ..ClientConfig::default()
                })
            })
        };
        self.client.get_or_init(create).await
    }

    /// Asks for an image's manifest, for this machine's processor.
    pub(super) async fn manifest(
        &self,
        reference: &Reference,
        auth: &RegistryAuth,
    ) -> Result<Manifest, PullError> {
        let failed = |source| refused(reference, source);
        let mut wait = FIRST_WAIT;
        let mut tries = 1;
        let (manifest, digest, config) = loop {
            match self.client().await.pull_manifest_and_config(reference, auth).await {
                Err(error) if tries < TRIES && is_temporary(&error) => tokio::time::sleep(wait).await,
                answer => break answer.map_err(failed)?,
            }
            (tries, wait) = (tries + 1, wait * 2);
        };
        let invalid = |problem: String| PullError::Invalid { reference: reference.whole(), problem };
        if manifest.layers.len() > MAX_LAYERS {
            return Err(invalid(format!("it has {} layers", manifest.layers.len())));
        }
        if config.len() > MAX_CONFIG {
            return Err(invalid("its configuration is too large".to_owned()));
        }
        if format!("sha256:{}", hex(&Sha256::digest(&config))) != manifest.config.digest {
            return Err(invalid("its configuration does not have the hash of the manifest".to_owned()));
        }
        Ok(Manifest { digest, config, layers: manifest.layers })
    }

    /// Downloads a layer to a file, and checks its hash. An interrupted download goes on where it ended.
    pub(super) async fn blob(
        &self,
        reference: &Reference,
        layer: &OciDescriptor,
        path: &Path,
    ) -> Result<File, PullError> {
        let write_error = |source| PullError::Store { path: path.to_owned(), source };
        let invalid = |problem: String| PullError::Invalid { reference: reference.whole(), problem };
        let expected = sha256(&layer.digest)
            .ok_or_else(|| invalid(format!("the layer {} has no SHA-256 hash", layer.digest)))?;
        let size = u64::try_from(layer.size)
            .map_err(|_| invalid(format!("the layer {} has no size", layer.digest)))?;
        let mut file = tokio::fs::File::create_new(path).await.map_err(write_error)?;
        let mut hash = Sha256::new();
        let (mut received, mut wait, mut tries) = (0, FIRST_WAIT, 1);
        while received < size {
            let before = received;
            let client = self.client().await;
            let failure = match client.pull_blob_stream_partial(reference, layer, received, None).await {
                Ok(BlobResponse::Full(_)) if received > 0 => {
                    return Err(PullError::NoResume { reference: reference.whole() });
                }
                Ok(BlobResponse::Full(answer) | BlobResponse::Partial(answer)) => {
                    let mut stream = answer.stream;
                    loop {
                        match stream.next().await {
                            Some(Ok(bytes)) => {
                                received += bytes.len() as u64;
                                if received > size {
                                    let problem =
                                        format!("the layer {} is larger than its size", layer.digest);
                                    return Err(invalid(problem));
                                }
                                hash.update(&bytes);
                                file.write_all(&bytes).await.map_err(write_error)?;
                            }
                            Some(Err(error)) => break Some(OciDistributionError::IoError(error)),
                            None => break None,
                        }
                    }
                }
                Err(error) if is_temporary(&error) => Some(error),
                Err(source) => return Err(refused(reference, source)),
            };
            if received == size {
                break;
            }
            if received > before {
                (tries, wait) = (1, FIRST_WAIT);
            } else if tries == TRIES {
                let source = failure.unwrap_or_else(|| {
                    OciDistributionError::IoError(io::Error::from(io::ErrorKind::UnexpectedEof))
                });
                return Err(refused(reference, source));
            }
            tokio::time::sleep(wait).await;
            (tries, wait) = (tries + 1, wait * 2);
        }
        if hex(&hash.finalize()) != expected {
            return Err(invalid(format!("the layer {} does not have that hash", layer.digest)));
        }
        file.flush().await.map_err(write_error)?;
        drop(file);
        File::open(path).map_err(write_error)
    }
}

fn refused(reference: &Reference, source: OciDistributionError) -> PullError {
    PullError::Registry { reference: reference.whole(), source: Box::new(source) }
}

/// The hash in a digest, if it is SHA-256.
pub(super) fn sha256(digest: &str) -> Option<&str> {
    let hash = digest.strip_prefix("sha256:")?;
    (hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(hash)
}

/// Whether another try may succeed.
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

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
