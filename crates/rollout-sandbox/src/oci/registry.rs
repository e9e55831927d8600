//! A client for image registries: manifests, and blobs that are resumed and verified.

use std::{
    collections::HashMap,
    fs::File,
    path::Path,
    sync::{Mutex, PoisonError},
};

use oci_client::Reference;
use reqwest::{Response, StatusCode, Url, header};
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::{
    RegistryLogin, RegistryOptions,
    answer::{accepted, connection_failed, host_of, text},
    authorization::{Authorization, authorize},
    backoff::Backoff,
    clients::RegistryClients,
    download::Download,
    error::{ImageRegistryError, PullError},
    manifest::{Descriptor, Document, architecture, for_this_machine},
};

/// The most layers that an image may have. overlayfs itself stops at 500.
const MAX_LAYERS: usize = 256;

/// The largest manifest, index or configuration of an image.
const MAX_DOCUMENT: usize = 8 << 20;

/// The most indexes inside each other.
const MAX_INDEXES: usize = 4;

/// A connection that delivers less than this in the time after which a silent one is given up is given up too.
const LEAST: u64 = 64 << 10;

/// The forms of manifests and indexes that are understood.
const DOCUMENTS: &str = "application/vnd.oci.image.index.v1+json, \
                         application/vnd.docker.distribution.manifest.list.v2+json, \
                         application/vnd.oci.image.manifest.v1+json, \
                         application/vnd.docker.distribution.manifest.v2+json";

/// What a registry says about an image.
pub(super) struct Manifest {
    /// The hash of the manifest.
    pub(super) digest: String,
    /// The configuration as JSON.
    pub(super) config: String,
    /// The layers, the lowest first.
    pub(super) layers: Vec<Descriptor>,
}

/// Where an image is pulled from: its registry, or a mirror of it.
#[derive(Clone)]
pub(super) struct Origin {
    /// The address of the image's repository.
    base: String,
    repository: String,
    login: RegistryLogin,
}

/// A client for all registries.
pub(super) struct Registry {
    options: RegistryOptions,
    clients: RegistryClients,
    /// What is sent to repositories, by their addresses.
    authorizations: Mutex<HashMap<String, Authorization>>,
}

impl Registry {
    pub(super) fn new(options: RegistryOptions) -> Self {
        let clients = RegistryClients::new(options.patience);
        Self { options, clients, authorizations: Mutex::default() }
    }

    /// The mirrors of the registry of an image.
    fn mirrors(&self, reference: &Reference) -> impl Iterator<Item = &str> {
        let known = self.options.mirrors.iter().filter(|(name, _)| name == reference.registry());
        known.flat_map(|(_, mirrors)| mirrors).map(String::as_str)
    }

    /// The registries that serve an image, as `host:port`, mirrors first.
    pub(super) fn hosts(&self, reference: &Reference) -> Vec<String> {
        let hosts = self.mirrors(reference).map(host).chain([reference.registry()]);
        hosts.map(str::to_owned).collect()
    }

    /// Where an image is pulled from, in the order of attempts.
    pub(super) fn origins(
        &self,
        reference: &Reference,
        logins: &HashMap<String, RegistryLogin>,
    ) -> Vec<Origin> {
        let mirrors = self.mirrors(reference).map(|mirror| {
            let path = mirror.split_once('/').map_or("", |(_, path)| path.trim_matches('/'));
            let repository = format!("{path}/{}", reference.repository());
            self.origin(host(mirror), host(mirror), repository.trim_start_matches('/'), logins)
        });
        // Docker Hub has another address than its name.
        let own =
            self.origin(reference.registry(), reference.resolve_registry(), reference.repository(), logins);
        mirrors.chain([own]).collect()
    }

    fn origin(
        &self,
        name: &str,
        address: &str,
        repository: &str,
        logins: &HashMap<String, RegistryLogin>,
    ) -> Origin {
        let is_insecure = self.options.insecure.iter().any(|insecure| insecure == address);
        let scheme = if is_insecure { "http" } else { "https" };
        Origin {
            base: format!("{scheme}://{address}/v2/{repository}"),
            repository: repository.to_owned(),
            login: logins.get(name).cloned().unwrap_or(RegistryLogin::Anonymous),
        }
    }

    /// Asks for an image's manifest, for this machine's processor. Returns where it was found, too: the first origin
    /// that has it, and those after it.
    pub(super) async fn manifest<'o>(
        &self,
        reference: &Reference,
        origins: &'o [Origin],
    ) -> Result<(Manifest, &'o [Origin]), PullError> {
        let mut rest = origins;
        loop {
            let Some((origin, others)) = rest.split_first() else {
                let problem = "it has no registry".to_owned();
                return Err(PullError::Invalid { reference: reference.whole(), problem });
            };
            match self.manifest_of(reference, origin, others.is_empty()).await {
                Ok(manifest) => return Ok((manifest, rest)),
                Err(error) if others.is_empty() => return Err(error),
                Err(error) => {
                    tracing::debug!(%error, address = origin.base, "a mirror does not have the image");
                    rest = others;
                }
            }
        }
    }

    async fn manifest_of(
        &self,
        reference: &Reference,
        origin: &Origin,
        is_last: bool,
    ) -> Result<Manifest, PullError> {
        let failed = |source| refused(reference, source);
        let invalid = |problem: String| PullError::Invalid { reference: reference.whole(), problem };
        // Others cannot be checked, so nothing is downloaded by them.
        let check = |digest: &str| match sha256(digest) {
            Some(_) => Ok(()),
            None => Err(invalid(format!("the hash {digest} is not SHA-256 in lower case"))),
        };
        let mut wanted = reference.digest().map(str::to_owned);
        wanted.as_deref().map_or(Ok(()), check)?;
        let first = wanted.as_deref().or_else(|| reference.tag()).unwrap_or("latest");
        let mut path = format!("manifests/{first}");
        for _ in 0..MAX_INDEXES {
            let (bytes, digest) =
                self.document(origin, &path, wanted.as_deref(), is_last).await.map_err(failed)?;
            let document = serde_json::from_slice::<Document>(&bytes);
            let document = document.map_err(|error| invalid(format!("its manifest is invalid: {error}")))?;
            if let Some(manifests) = document.manifests {
                let Some(chosen) = for_this_machine(&manifests) else {
                    return Err(invalid(format!("it has no image for linux/{}", architecture())));
                };
                check(&chosen.digest)?;
                path = format!("manifests/{}", chosen.digest);
                wanted = Some(chosen.digest.clone());
                continue;
            }
            let (Some(config), Some(layers)) = (document.config, document.layers) else {
                return Err(invalid(format!(
                    "its manifest (schema version {}) has no configuration or no layers",
                    document.schema_version
                )));
            };
            if layers.len() > MAX_LAYERS {
                return Err(invalid(format!("it has {} layers, more than {MAX_LAYERS}", layers.len())));
            }
            [&config].into_iter().chain(&layers).try_for_each(|blob| check(&blob.digest))?;
            let blob = format!("blobs/{}", config.digest);
            let config = self.document(origin, &blob, Some(&config.digest), is_last).await;
            let config = String::from_utf8(config.map_err(failed)?.0);
            let config = config.map_err(|_| invalid("its configuration is not UTF-8 text".to_owned()))?;
            return Ok(Manifest { digest, config, layers });
        }
        Err(invalid(format!("it has more than {MAX_INDEXES} nested indexes")))
    }

    /// Downloads a small file, with its hash.
    async fn document(
        &self,
        origin: &Origin,
        path: &str,
        digest: Option<&str>,
        is_last: bool,
    ) -> Result<(Vec<u8>, String), ImageRegistryError> {
        let mut backoff = Backoff::new(is_last);
        let url = format!("{}/{path}", origin.base);
        // A configuration is a blob, which a strict server does not have in the form of a manifest.
        let accept = if path.starts_with("manifests/") { DOCUMENTS } else { "*/*" };
        loop {
            let got = self.document_once(origin, &url, accept, digest);
            let got = tokio::time::timeout(self.options.patience, got);
            let error = match got.await.unwrap_or_else(|_| Err(self.stalled(&url))) {
                Ok(document) => return Ok(document),
                Err(error) => error,
            };
            match backoff.after(&error) {
                Some(wait) => tokio::time::sleep(wait).await,
                None => return Err(error),
            }
        }
    }

    async fn document_once(
        &self,
        origin: &Origin,
        url: &str,
        accept: &str,
        digest: Option<&str>,
    ) -> Result<(Vec<u8>, String), ImageRegistryError> {
        let response = self.send(origin, url, accept, 0).await?;
        let host = host_of(response.url());
        // A registry names the hash of what a tag stands for.
        let named = response.headers().get("docker-content-digest");
        let named = named.and_then(|value| value.to_str().ok()).map(str::to_owned);
        let bytes = text(response, MAX_DOCUMENT).await?;
        let hash = hex(&Sha256::digest(&bytes));
        for expected in digest.into_iter().chain(named.as_deref()) {
            match sha256(expected) {
                Some(expected) if expected == hash => {}
                None if digest != Some(expected) => {}
                _ => return Err(ImageRegistryError::Corrupt { host, what: expected.to_owned() }),
            }
        }
        Ok((bytes, format!("sha256:{hash}")))
    }

    /// Downloads a layer to a file, and checks its hash. An interrupted download goes on where it ended. `received` is
    /// called with the number of new bytes.
    pub(super) async fn blob(
        &self,
        reference: &Reference,
        origins: &[Origin],
        layer: &Descriptor,
        path: &Path,
        received: &(dyn Fn(u64) + Sync),
    ) -> Result<File, PullError> {
        let write_error = |source| PullError::Store { path: path.to_owned(), source };
        let invalid = |problem: String| PullError::Invalid { reference: reference.whole(), problem };
        let expected = sha256(&layer.digest)
            .ok_or_else(|| invalid(format!("the layer {} has no SHA-256 hash", layer.digest)))?;
        let mut download = Download::create(path, layer.size, received).await.map_err(write_error)?;
        let mut rest = origins;
        let mut backoff = Backoff::new(origins.len() == 1);
        loop {
            let Some((origin, others)) = rest.split_first() else {
                return Err(invalid("it has no registry".to_owned()));
            };
            let before = download.best();
            let error = match self.fetch(origin, layer, &mut download).await {
                Ok(()) if download.hash() == expected => break,
                Ok(()) => {
                    download.restart().await.map_err(write_error)?;
                    let what = format!("the layer {}", layer.digest);
                    Failure::Registry(ImageRegistryError::Corrupt { host: origin.base.clone(), what })
                }
                Err(error) => error,
            };
            let error = match error {
                Failure::Store(error) => return Err(write_error(error)),
                Failure::Registry(error) => error,
            };
            if download.best() >= before + LEAST {
                backoff.reset();
            }
            match backoff.after(&error) {
                Some(wait) => tokio::time::sleep(wait).await,
                None if others.is_empty() => {
                    return Err(match error {
                        ImageRegistryError::Corrupt { what, .. } => {
                            invalid(format!("{what} does not have that hash"))
                        }
                        error => refused(reference, error),
                    });
                }
                None => {
                    tracing::debug!(%error, address = origin.base, "a mirror does not have a layer");
                    rest = others;
                    backoff = Backoff::new(rest.len() == 1);
                }
            }
        }
        download.finish().await.map_err(write_error)?;
        File::open(path).map_err(write_error)
    }

    /// Downloads what is missing of a layer.
    async fn fetch(
        &self,
        origin: &Origin,
        layer: &Descriptor,
        download: &mut Download<'_>,
    ) -> Result<(), Failure> {
        if download.is_complete() {
            return Ok(());
        }
        let patience = self.options.patience;
        let url = format!("{}/blobs/{}", origin.base, layer.digest);
        let mut response = match self.send_blob(origin, &url, download.received()).await {
            Err(error) if download.received() > 0 && error.refuses_range() => {
                download.restart().await.map_err(Failure::Store)?;
                self.send_blob(origin, &url, 0).await?
            }
            sent => sent?,
        };
        let host = host_of(response.url());
        if response.status() != StatusCode::PARTIAL_CONTENT && download.received() > 0 {
            // The server sends everything again.
            download.restart().await.map_err(Failure::Store)?;
        }
        let (mut since, mut arrived) = (Instant::now(), 0);
        loop {
            let chunk = tokio::time::timeout(patience, response.chunk()).await;
            let bytes = match chunk.map_err(|_| self.stalled(&url))? {
                Ok(Some(bytes)) => bytes,
                Ok(None) if download.is_complete() => return Ok(()),
                Ok(None) => return Err(ImageRegistryError::Truncated { host }.into()),
                Err(source) => return Err(connection_failed(host, source).into()),
            };
            arrived += bytes.len() as u64;
            if !download.add(&bytes).await.map_err(Failure::Store)? {
                let what = format!("the layer {}", layer.digest);
                download.restart().await.map_err(Failure::Store)?;
                return Err(ImageRegistryError::Corrupt { host, what }.into());
            }
            if since.elapsed() >= patience && !download.is_complete() {
                if arrived < LEAST {
                    return Err(self.stalled(&url).into());
                }
                (since, arrived) = (Instant::now(), 0);
            }
        }
    }

    /// Requests a blob from this byte on.
    async fn send_blob(&self, origin: &Origin, url: &str, from: u64) -> Result<Response, ImageRegistryError> {
        let sent = tokio::time::timeout(self.options.patience, self.send(origin, url, "*/*", from));
        sent.await.unwrap_or_else(|_| Err(self.stalled(url)))
    }

    /// Sends a request, and what the registry requires with it. An answer that refuses is an error.
    async fn send(
        &self,
        origin: &Origin,
        url: &str,
        accept: &str,
        from: u64,
    ) -> Result<Response, ImageRegistryError> {
        let client = self.clients.ordinary().await?;
        let mut was_rejected = false;
        loop {
            let mut request = client.get(url).header(header::ACCEPT, accept);
            if from > 0 {
                request = request.header(header::RANGE, format!("bytes={from}-"));
            }
            if let Some(known) = self.authorization(origin) {
                request = known.add_to(request);
            }
            let sent = request.send().await;
            let response = sent.map_err(|source| connection_failed(host_in(url), source))?;
            // Only the registry itself may ask for the login, not a server that it redirects to. A token is valid for
            // some minutes, and then rejected once.
            let is_asked = response.status() == StatusCode::UNAUTHORIZED
                && is_same_server(url, response.url())
                && !was_rejected;
            if is_asked {
                was_rejected = true;
                let found = authorize(
                    &self.clients,
                    &response,
                    &origin.login,
                    &origin.repository,
                    self.options.patience,
                );
                if let Some(found) = found.await? {
                    let mut known = self.authorizations.lock().unwrap_or_else(PoisonError::into_inner);
                    known.insert(origin.base.clone(), found);
                    continue;
                }
            }
            return accepted(response).await;
        }
    }

    fn authorization(&self, origin: &Origin) -> Option<Authorization> {
        if let RegistryLogin::Token(token) = &origin.login {
            return Some(Authorization::Bearer(token.clone()));
        }
        let known = self.authorizations.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&origin.base).cloned()
    }

    fn stalled(&self, url: &str) -> ImageRegistryError {
        ImageRegistryError::Stalled { host: host_in(url), time: self.options.patience }
    }
}

/// Why a layer was not downloaded.
enum Failure {
    Registry(ImageRegistryError),
    Store(std::io::Error),
}

impl From<ImageRegistryError> for Failure {
    fn from(error: ImageRegistryError) -> Self {
        Self::Registry(error)
    }
}

fn refused(reference: &Reference, source: ImageRegistryError) -> PullError {
    PullError::Registry { reference: reference.whole(), source: Box::new(source) }
}

/// The server of a mirror.
fn host(mirror: &str) -> &str {
    mirror.split_once('/').map_or(mirror, |(host, _)| host)
}

fn host_in(url: &str) -> String {
    Url::parse(url).map_or_else(|_| url.to_owned(), |url| host_of(&url))
}

/// Whether an answer is from the server that was asked, over the same kind of connection.
fn is_same_server(asked: &str, answered: &Url) -> bool {
    Url::parse(asked).is_ok_and(|asked| asked.origin() == answered.origin())
}

/// The hash in a digest, if it is SHA-256 in lower case, as registries and stored layers name it.
pub(super) fn sha256(digest: &str) -> Option<&str> {
    let hash = digest.strip_prefix("sha256:")?;
    (hash.len() == 64 && hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))).then_some(hash)
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_server_that_was_asked_may_ask_for_a_login() {
        for (answered, expected) in [
            ("https://registry.example/v2/y", true),
            ("https://registry.example:443/v2/y", true),
            ("http://registry.example/v2/x", false),
            ("https://registry.example:8443/v2/x", false),
            ("https://other.example/v2/x", false),
        ] {
            let answered = Url::parse(answered).unwrap();
            assert_eq!(is_same_server("https://registry.example/v2/x", &answered), expected, "{answered}");
        }
    }
}
