//! An image registry at the address of the API server, with the part of the protocol that pushes and pulls need.
//!
//! The layers of a pushed image become files of the pods that name it.

use std::{
    collections::HashMap,
    fs, io,
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use hyper::header::{HeaderName, HeaderValue};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{
    query::Query,
    serve::{Answer, empty, with_body},
};

/// The media type of the manifests that are made here.
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// The header with the digest of a manifest or blob.
const DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");

/// The blobs and manifests of all repositories.
#[derive(Default)]
pub(super) struct Registry(Mutex<Contents>);

#[derive(Default)]
struct Contents {
    blobs: HashMap<String, Bytes>,
    /// Media type and text, by repository and by tag or digest.
    manifests: HashMap<(String, String), (String, Bytes)>,
    /// The images whose manifests were asked for.
    asked: Vec<String>,
    /// Blobs that are not complete.
    uploads: HashMap<String, Vec<u8>>,
    started: u64,
}

/// A request to the registry.
pub(super) struct RegistryRequest<'a> {
    pub(super) method: &'a str,
    /// The path after `/v2/`.
    pub(super) path: &'a str,
    pub(super) query: &'a Query,
    pub(super) content_type: &'a str,
    pub(super) body: Bytes,
}

/// An image that was pushed: its name with its tag, and its layers.
pub(super) struct PushedImage {
    pub(super) name: String,
    pub(super) layers: Vec<Bytes>,
}

impl Registry {
    fn lock(&self) -> MutexGuard<'_, Contents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an image without layers.
    pub(super) fn add(&self, repository: &str, tag: &str, config: &Value) {
        let mut contents = self.lock();
        let config = Bytes::from(json!({"os": "linux", "config": config}).to_string());
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {
                "mediaType": "application/vnd.oci.image.config.v1+json",
                "digest": digest(&config),
                "size": config.len(),
            },
            "layers": [],
        });
        contents.blobs.insert(digest(&config), config);
        contents.put_manifest(repository, tag, MANIFEST, manifest.to_string().into());
    }

    /// The images whose manifests were asked for, as repository and tag or digest.
    pub(super) fn asked(&self) -> Vec<String> {
        self.lock().asked.clone()
    }

    /// Answers a request. If an image is complete with it, returns the image.
    pub(super) fn answer(&self, asked: &RegistryRequest<'_>) -> (Answer, Option<PushedImage>) {
        let mut contents = self.lock();
        if asked.path.is_empty() {
            return (empty(200), None);
        }
        if let Some((repository, upload)) = asked.path.split_once("/blobs/uploads/") {
            return (contents.upload(repository, upload, asked), None);
        }
        if let Some((_, digest)) = asked.path.split_once("/blobs/") {
            return (contents.blob(digest), None);
        }
        match (asked.method, asked.path.split_once("/manifests/")) {
            ("PUT", Some((repository, reference))) => contents.push(repository, reference, asked),
            (_, Some((repository, reference))) => (contents.manifest(repository, reference), None),
            _ => (refuse(404, "UNSUPPORTED", "the registry has no such path"), None),
        }
    }
}

impl Contents {
    /// Starts, continues or completes the upload of a blob.
    fn upload(&mut self, repository: &str, upload: &str, asked: &RegistryRequest<'_>) -> Answer {
        if asked.method == "POST" {
            self.started += 1;
            let name = self.started.to_string();
            self.uploads.insert(name.clone(), Vec::new());
            return located(202, &format!("/v2/{repository}/blobs/uploads/{name}"));
        }
        let Some(mut bytes) = self.uploads.remove(upload) else {
            return refuse(404, "BLOB_UPLOAD_UNKNOWN", "the upload is not known");
        };
        bytes.extend_from_slice(&asked.body);
        if asked.method == "PATCH" {
            self.uploads.insert(upload.to_owned(), bytes);
            return located(202, &format!("/v2/{repository}/blobs/uploads/{upload}"));
        }
        let found = digest(&bytes);
        if asked.query.get("digest") != Some(found.as_str()) {
            return refuse(400, "DIGEST_INVALID", "the digest is not that of the upload");
        }
        self.blobs.insert(found.clone(), bytes.into());
        located(201, &format!("/v2/{repository}/blobs/{found}"))
    }

    fn blob(&self, name: &str) -> Answer {
        match self.blobs.get(name) {
            Some(bytes) => described(name, "application/octet-stream", bytes.clone()),
            None => refuse(404, "BLOB_UNKNOWN", "the blob is not known"),
        }
    }

    fn manifest(&mut self, repository: &str, reference: &str) -> Answer {
        self.asked.push(format!("{repository}:{reference}"));
        match self.manifests.get(&(repository.to_owned(), reference.to_owned())) {
            Some((kind, bytes)) => described(&digest(bytes), kind, bytes.clone()),
            None => refuse(404, "MANIFEST_UNKNOWN", "the manifest is not known"),
        }
    }

    fn push(
        &mut self,
        repository: &str,
        reference: &str,
        asked: &RegistryRequest<'_>,
    ) -> (Answer, Option<PushedImage>) {
        let manifest: Value = serde_json::from_slice(&asked.body).unwrap_or(Value::Null);
        let mut layers = Vec::new();
        for layer in manifest["layers"].as_array().into_iter().flatten() {
            let name = layer["digest"].as_str().unwrap_or_default();
            let is_plain = layer["mediaType"].as_str().is_some_and(|kind| kind.ends_with(".tar"));
            match self.blobs.get(name) {
                Some(bytes) if is_plain => layers.push(bytes.clone()),
                Some(_) => return (refuse(400, "UNSUPPORTED", "only plain tars are supported"), None),
                None => return (refuse(400, "MANIFEST_BLOB_UNKNOWN", "a layer is not known"), None),
            }
        }
        self.put_manifest(repository, reference, asked.content_type, asked.body.clone());
        let answer = located(201, &format!("/v2/{repository}/manifests/{reference}"));
        (answer, Some(PushedImage { name: format!("{repository}:{reference}"), layers }))
    }

    fn put_manifest(&mut self, repository: &str, reference: &str, kind: &str, bytes: Bytes) {
        for name in [reference.to_owned(), digest(&bytes)] {
            self.manifests.insert((repository.to_owned(), name), (kind.to_owned(), bytes.clone()));
        }
    }
}

/// Unpacks a layer below a directory.
pub(super) fn unpack(layer: &[u8], dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    tar::Archive::new(layer).unpack(dir)
}

fn digest(bytes: &[u8]) -> String {
    let hash = Sha256::digest(bytes);
    let digits: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{digits}")
}

fn described(digest: &str, kind: &str, bytes: Bytes) -> Answer {
    let mut answer = with_body(200, kind, bytes);
    if let Ok(digest) = HeaderValue::from_str(digest) {
        answer.headers_mut().insert(DIGEST, digest);
    }
    answer
}

fn located(code: u16, path: &str) -> Answer {
    let mut answer = empty(code);
    if let Ok(path) = HeaderValue::from_str(path) {
        answer.headers_mut().insert("location", path);
    }
    answer
}

fn refuse(code: u16, reason: &str, message: &str) -> Answer {
    let body = json!({"errors": [{"code": reason, "message": message}]});
    with_body(code, "application/json", body.to_string().into())
}
