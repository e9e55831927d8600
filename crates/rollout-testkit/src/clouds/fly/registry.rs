//! Fly's registry, as far as an engine needs it to push, and a client to pull.
//!
//! Layers are files that all fakes of a test run share. Tags belong to one fake.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::{Method, Request, body::Incoming, header::HeaderValue};
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncWriteExt as _;

use super::{TOKEN, state::FlyState};
use crate::{
    clouds::server::{Answer, CutHere, bytes_answer},
    kubernetes::query::Query,
};

/// The images of a fake.
pub(super) struct Registry {
    blobs: PathBuf,
    next: AtomicU64,
    /// Manifests with their types, by repository and digest.
    manifests: Mutex<HashMap<(String, String), (Bytes, String)>>,
    /// Digests, by repository and tag.
    tags: Mutex<HashMap<(String, String), String>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Registry {
    pub(super) fn new(blobs: PathBuf) -> Self {
        Self { blobs, next: AtomicU64::new(0), manifests: Mutex::default(), tags: Mutex::default() }
    }

    /// The reference by content of an image with a tag.
    pub(super) fn resolve(&self, image: &str, host: &str) -> Option<String> {
        let rest = image.strip_prefix(host)?.strip_prefix('/')?;
        let (repository, tag) = rest.rsplit_once(':')?;
        let tags = lock(&self.tags);
        let digest = tags.get(&(repository.to_owned(), tag.to_owned()))?;
        Some(format!("{host}/{repository}@{digest}"))
    }

    fn manifest(&self, repository: &str, reference: &str) -> Option<(String, Bytes, String)> {
        let tag = lock(&self.tags).get(&(repository.to_owned(), reference.to_owned())).cloned();
        let digest = tag.unwrap_or_else(|| reference.to_owned());
        let (body, kind) = lock(&self.manifests).get(&(repository.to_owned(), digest.clone())).cloned()?;
        Some((digest, body, kind))
    }

    fn put_manifest(&self, repository: &str, reference: &str, body: Bytes, kind: &str) -> String {
        let digest = format!("sha256:{}", hex(&Sha256::digest(&body)));
        lock(&self.manifests).insert((repository.to_owned(), digest.clone()), (body, kind.to_owned()));
        lock(&self.tags).insert((repository.to_owned(), reference.to_owned()), digest.clone());
        digest
    }

    /// The file of a layer or configuration, if it is stored.
    fn blob(&self, digest: &str) -> Option<PathBuf> {
        let hash = digest.strip_prefix("sha256:").filter(|hash| is_hash(hash))?;
        Some(self.blobs.join(hash)).filter(|path| path.exists())
    }

    fn upload(&self, id: &str) -> Option<PathBuf> {
        let is_plain = id.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
        is_plain.then(|| self.blobs.join(format!("upload-{id}")))
    }
}

fn is_hash(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Answers a request.
pub(super) async fn answer(state: &FlyState, request: Request<Incoming>) -> Result<Answer, CutHere> {
    let login = format!("Basic {}", BASE64_STANDARD.encode(format!("x:{TOKEN}")));
    if request.headers().get("authorization").is_none_or(|sent| *sent != login) {
        let refused =
            bytes_answer(401, "application/json", r#"{"errors":[{"code":"UNAUTHORIZED","message":""}]}"#);
        return Ok(with(refused, "www-authenticate", r#"Basic realm="fly""#));
    }
    let path = request.uri().path().to_owned();
    let parts: Vec<&str> = path.split('/').skip(2).collect();
    let registry = &state.registry;
    Ok(match (request.method().clone(), parts.as_slice()) {
        (Method::GET, [] | [""]) => bytes_answer(200, "application/json", "{}"),
        (Method::HEAD | Method::GET, [_, "blobs", digest]) => match registry.blob(digest) {
            Some(path) => send_blob(&request, &path, digest).await,
            None => missing("BLOB_UNKNOWN"),
        },
        (Method::POST, [name, "blobs", "uploads", ..]) => {
            let id = format!("{}-{}", std::process::id(), registry.next.fetch_add(1, Ordering::Relaxed));
            accepted(name, &id, 0)
        }
        (Method::PATCH | Method::PUT, [name, "blobs", "uploads", id]) => match registry.upload(id) {
            Some(file) => receive(registry, request, name, id, &file).await?,
            None => missing("BLOB_UPLOAD_UNKNOWN"),
        },
        (Method::HEAD | Method::GET, [name, "manifests", reference]) => {
            match registry.manifest(name, reference) {
                Some((digest, body, kind)) => {
                    let mut answer = bytes_answer(200, "application/json", body);
                    answer = with(answer, "content-type", &kind);
                    with(answer, "docker-content-digest", &digest)
                }
                None => missing("MANIFEST_UNKNOWN"),
            }
        }
        (Method::PUT, [name, "manifests", reference]) => {
            let kind = request.headers().get("content-type").and_then(|kind| kind.to_str().ok());
            let kind = kind.unwrap_or("application/vnd.oci.image.manifest.v1+json").to_owned();
            let body = request.into_body().collect().await.map_err(|_| CutHere)?.to_bytes();
            let digest = registry.put_manifest(name, reference, body, &kind);
            let answer = bytes_answer(201, "application/json", "");
            let answer = with(answer, "location", &format!("/v2/{name}/manifests/{digest}"));
            with(answer, "docker-content-digest", &digest)
        }
        _ => missing("UNSUPPORTED"),
    })
}

fn missing(code: &str) -> Answer {
    bytes_answer(404, "application/json", format!(r#"{{"errors":[{{"code":"{code}","message":""}}]}}"#))
}

fn with(mut answer: Answer, name: &'static str, value: &str) -> Answer {
    if let Ok(value) = HeaderValue::from_str(value) {
        answer.headers_mut().insert(name, value);
    }
    answer
}

/// The answer to a part of an upload.
fn accepted(name: &str, id: &str, length: u64) -> Answer {
    let answer = bytes_answer(202, "application/json", "");
    let answer = with(answer, "location", &format!("/v2/{name}/blobs/uploads/{id}"));
    let answer = with(answer, "range", &format!("0-{}", length.saturating_sub(1)));
    with(answer, "docker-upload-uuid", id)
}

async fn send_blob(request: &Request<Incoming>, path: &Path, digest: &str) -> Answer {
    let Ok(content) = tokio::fs::read(path).await else { return missing("BLOB_UNKNOWN") };
    let range = request.headers().get("range").and_then(|range| range.to_str().ok());
    let start: Option<usize> =
        range.and_then(|range| range.strip_prefix("bytes=")?.split('-').next()?.parse().ok());
    let total = content.len();
    let content = Bytes::from(content);
    let answer = match start.filter(|start| *start < total) {
        Some(start) => {
            let answer = bytes_answer(206, "application/octet-stream", content.slice(start..));
            with(answer, "content-range", &format!("bytes {start}-{}/{total}", total - 1))
        }
        None => bytes_answer(200, "application/octet-stream", content),
    };
    with(answer, "docker-content-digest", digest)
}

/// Appends to an upload. A PUT ends it.
async fn receive(
    registry: &Registry,
    request: Request<Incoming>,
    name: &str,
    id: &str,
    file: &Path,
) -> Result<Answer, CutHere> {
    let (is_end, query) =
        (request.method() == Method::PUT, request.uri().query().unwrap_or_default().to_owned());
    let failed = |_: std::io::Error| CutHere;
    let mut upload = tokio::fs::File::options().create(true).append(true).open(file).await.map_err(failed)?;
    let mut body = request.into_body();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.map_err(|_| CutHere)?.into_data() {
            upload.write_all(&data).await.map_err(failed)?;
        }
    }
    upload.flush().await.map_err(failed)?;
    let length = upload.metadata().await.map_err(failed)?.len();
    if !is_end {
        return Ok(accepted(name, id, length));
    }
    let content = tokio::fs::read(file).await.map_err(failed)?;
    let hash = hex(&Sha256::digest(&content));
    let digest = format!("sha256:{hash}");
    if Query::parse(&query).get("digest") != Some(&digest) {
        return Ok(bytes_answer(
            400,
            "application/json",
            r#"{"errors":[{"code":"DIGEST_INVALID","message":""}]}"#,
        ));
    }
    tokio::fs::rename(file, registry.blobs.join(&hash)).await.map_err(failed)?;
    let answer = bytes_answer(201, "application/json", "");
    let answer = with(answer, "location", &format!("/v2/{name}/blobs/{digest}"));
    Ok(with(answer, "docker-content-digest", &digest))
}
