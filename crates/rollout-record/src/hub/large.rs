//! Large files, which go to the hub's storage before a commit names them.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use reqwest::{Method, Response, header};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    Hub, HubError, RepoName,
    client::{short, time_for},
    commit::blocks,
    files::{Content, PushFile},
};

/// How many files the hub is asked for at a time.
const BATCH: usize = 256;

/// How many files are sent at the same time.
const AT_ONCE: usize = 4;

const LFS_JSON: &str = "application/vnd.git-lfs+json";

#[derive(Deserialize)]
struct Answer {
    objects: Vec<Object>,
}

#[derive(Deserialize)]
struct Object {
    oid: String,
    actions: Option<Actions>,
    error: Option<ObjectError>,
}

#[derive(Deserialize)]
struct ObjectError {
    message: String,
}

#[derive(Deserialize)]
struct Actions {
    upload: Option<Action>,
    verify: Option<Action>,
}

#[derive(Deserialize)]
struct Action {
    href: String,
    #[serde(default)]
    header: Option<Map<String, Value>>,
}

impl Hub {
    /// Sends the content of files, unless the storage has it. `sent` counts bytes.
    pub(super) async fn send_large(
        &self,
        repo: &RepoName,
        files: &[(&PushFile, &Content)],
        sent: &Arc<AtomicU64>,
    ) -> Result<(), HubError> {
        // Files of the same content are sent once.
        let mut by_hash: HashMap<&str, (&PushFile, &Content)> = HashMap::new();
        for (file, content) in files {
            if by_hash.insert(&content.sha256, (file, content)).is_some() {
                sent.fetch_add(content.size, Ordering::Relaxed);
            }
        }
        let mut objects: Vec<_> = by_hash.values().map(|(_, content)| *content).collect();
        objects.sort_by(|one, other| one.sha256.cmp(&other.sha256));
        for batch in objects.chunks(BATCH) {
            let action = "ask where large files go";
            let url = self.url(&format!("datasets/{repo}.git/info/lfs/objects/batch"));
            let object = |content: &&Content| json!({"oid": content.sha256, "size": content.size});
            let question = json!({
                "operation": "upload",
                "transfers": ["basic", "multipart"],
                "hash_algo": "sha256",
                "ref": {"name": "main"},
                "objects": batch.iter().map(object).collect::<Vec<_>>(),
            });
            let answer: Answer = self
                .json(action, Method::POST, url, |request| {
                    request
                        .json(&question)
                        .header(header::ACCEPT, LFS_JSON)
                        .header(header::CONTENT_TYPE, LFS_JSON)
                })
                .await?;
            // A file that the answer passes over would be committed without ever having been sent.
            if let Some(missing) =
                batch.iter().find(|content| answer.objects.iter().all(|object| object.oid != content.sha256))
            {
                let what = format!("no place for {}", by_hash[missing.sha256.as_str()].0.name);
                return Err(HubError::Strange { action: action.to_owned(), what });
            }
            let known = answer.objects.into_iter().filter_map(|object| {
                let file = *by_hash.get(object.oid.as_str())?;
                Some((object, file))
            });
            stream::iter(known.map(Ok))
                .try_for_each_concurrent(AT_ONCE, |(object, (file, content))| {
                    self.send_object(object, file, content, sent)
                })
                .await?;
        }
        Ok(())
    }

    async fn send_object(
        &self,
        object: Object,
        file: &PushFile,
        content: &Content,
        sent: &Arc<AtomicU64>,
    ) -> Result<(), HubError> {
        let action = format!("send {}", file.name);
        if let Some(error) = object.error {
            return Err(HubError::Strange { action, what: short(&error.message) });
        }
        let Some(Actions { upload: Some(upload), verify }) = object.actions else {
            sent.fetch_add(content.size, Ordering::Relaxed);
            return Ok(());
        };
        let header = upload.header.unwrap_or_default();
        match header.get("chunk_size") {
            None => {
                let answer = self.put(&action, &upload.href, &header, file, (0, content.size), sent).await?;
                self.accepted(&action, answer).await?;
            }
            Some(size) => self.send_parts(&action, &upload.href, &header, size, file, content, sent).await?,
        }
        if let Some(verify) = verify {
            let url = self.given(&action, &verify.href)?;
            let told = json!({"oid": content.sha256, "size": content.size});
            let answer = self.send(&action, &Method::POST, url, |request| request.json(&told)).await?;
            self.accepted(&action, answer).await?;
        }
        Ok(())
    }

    /// Sends a file part by part, and then tells that it is whole.
    #[expect(clippy::too_many_arguments, reason = "the parts of one answer and of one file")]
    async fn send_parts(
        &self,
        action: &str,
        href: &str,
        header: &Map<String, Value>,
        chunk_size: &Value,
        file: &PushFile,
        content: &Content,
        sent: &Arc<AtomicU64>,
    ) -> Result<(), HubError> {
        let strange = |what: &str| HubError::Strange { action: action.to_owned(), what: what.to_owned() };
        let size = match chunk_size {
            Value::String(text) => text.parse().ok(),
            number => number.as_u64(),
        };
        let size = size.filter(|size| *size > 0).ok_or_else(|| strange("the size of parts is none"))?;
        let mut parts: Vec<(u64, &str)> =
            header.iter().filter_map(|(key, url)| Some((key.parse().ok()?, url.as_str()?))).collect();
        parts.sort_unstable();
        if parts.len() as u64 != content.size.div_ceil(size) {
            return Err(strange("the number of parts does not fit the file"));
        }
        let mut done = Vec::with_capacity(parts.len());
        for (number, (_, url)) in (0u64..).zip(parts) {
            let start = number * size;
            let length = size.min(content.size - start);
            let answer = self.put(action, url, &Map::new(), file, (start, length), sent).await?;
            let answer = self.accepted(action, answer).await?;
            let etag = answer.headers().get(header::ETAG).and_then(|etag| etag.to_str().ok());
            let etag = etag.filter(|etag| !etag.is_empty()).ok_or_else(|| strange("a part has no ETag"))?;
            done.push(json!({"partNumber": number + 1, "etag": etag}));
        }
        let told = json!({"oid": content.sha256, "parts": done});
        let url = self.given(action, href)?;
        let answer = self
            .send(action, &Method::POST, url, |request| {
                request.json(&told).header(header::ACCEPT, LFS_JSON).header(header::CONTENT_TYPE, LFS_JSON)
            })
            .await?;
        self.accepted(action, answer).await.map(|_| ())
    }

    /// Sends a stretch of a file, given by its start and length.
    async fn put(
        &self,
        action: &str,
        href: &str,
        headers: &Map<String, Value>,
        file: &PushFile,
        (start, length): (u64, u64),
        sent: &Arc<AtomicU64>,
    ) -> Result<Response, HubError> {
        let url = self.given(action, href)?;
        self.send(action, &Method::PUT, url, |mut request| {
            for (name, value) in headers {
                // These say how the request itself is sent.
                let own = ["authorization", "content-length", "host", "transfer-encoding"];
                if let Some(value) = value.as_str()
                    && !own.contains(&name.to_lowercase().as_str())
                {
                    request = request.header(name, value);
                }
            }
            let sent = Arc::clone(sent);
            let body = blocks(file.path.clone(), start, length)
                .inspect_ok(move |block| _ = sent.fetch_add(block.len() as u64, Ordering::Relaxed));
            request
                .timeout(time_for(length))
                .header(header::CONTENT_LENGTH, length)
                .body(reqwest::Body::wrap_stream(body.boxed()))
        })
        .await
    }
}
