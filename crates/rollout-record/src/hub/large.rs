//! Uploads of large files, which are stored before a commit names them.

use std::{
    collections::HashMap,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use reqwest::{Method, RequestBuilder, Response, header};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    Hub, HubError, RepoName,
    client::{short, time_for},
    commit::blocks,
    files::{HashedFile, total},
};

/// How many files are sent at the same time.
const AT_ONCE: usize = 4;

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
    header: Option<Map<String, Value>>,
}

impl Hub {
    /// Sends the files that are not in the storage yet. `sent` counts bytes.
    pub(super) async fn send_large(
        &self,
        repo: &RepoName,
        files: &[&HashedFile],
        sent: &Arc<AtomicU64>,
    ) -> Result<(), HubError> {
        if files.is_empty() {
            return Ok(());
        }
        // Files with the same content are sent once.
        let mut contents = files.to_vec();
        contents.sort_by(|one, other| one.sha256.cmp(&other.sha256));
        contents.dedup_by(|one, other| one.sha256 == other.sha256);
        let again = total(files.iter().copied()) - total(contents.iter().copied());
        sent.fetch_add(again, Ordering::Relaxed);

        let action = "request upload URLs for large files";
        let url = self.url(&format!("datasets/{repo}.git/info/lfs/objects/batch"));
        let object = |file: &&HashedFile| json!({"oid": file.sha256, "size": file.size});
        let question = json!({
            "operation": "upload",
            "transfers": ["basic", "multipart"],
            "hash_algo": "sha256",
            "ref": {"name": "main"},
            "objects": contents.iter().map(object).collect::<Vec<_>>(),
        });
        let answer: Answer =
            self.json(action, Method::POST, url, |request| lfs_json(request, &question)).await?;
        let mut objects: HashMap<_, _> =
            answer.objects.into_iter().map(|object| (object.oid.clone(), object)).collect();
        let mut uploads = Vec::with_capacity(contents.len());
        for file in contents {
            // A file without an entry in the answer would be committed without its content.
            let object = objects
                .remove(&file.sha256)
                .ok_or_else(|| HubError::strange(action, format!("no upload URL for {}", file.name)))?;
            uploads.push(Ok((object, file)));
        }
        stream::iter(uploads)
            .try_for_each_concurrent(AT_ONCE, |(object, file)| self.send_object(object, file, sent))
            .await
    }

    async fn send_object(
        &self,
        object: Object,
        file: &HashedFile,
        sent: &Arc<AtomicU64>,
    ) -> Result<(), HubError> {
        let action = &format!("send {}", file.name);
        if let Some(error) = object.error {
            return Err(HubError::strange(action, short(&error.message)));
        }
        let Some(Actions { upload: Some(upload), verify }) = object.actions else {
            sent.fetch_add(file.size, Ordering::Relaxed);
            return Ok(());
        };
        let header = upload.header.unwrap_or_default();
        match header.get("chunk_size") {
            None => _ = self.put(action, &upload.href, &header, file, 0..file.size, sent).await?,
            Some(size) => {
                let parts = self.send_parts(action, size, &header, file, sent).await?;
                let body = json!({"oid": file.sha256, "parts": parts});
                let url = self.given(action, &upload.href)?;
                self.ask(action, Method::POST, url, |request| lfs_json(request, &body)).await?;
            }
        }
        if let Some(verify) = verify {
            let url = self.given(action, &verify.href)?;
            let body = json!({"oid": file.sha256, "size": file.size});
            self.ask(action, Method::POST, url, |request| request.json(&body)).await?;
        }
        Ok(())
    }

    /// Sends a file in parts. Returns the list of parts for the hub.
    async fn send_parts(
        &self,
        action: &str,
        size: &Value,
        header: &Map<String, Value>,
        file: &HashedFile,
        sent: &Arc<AtomicU64>,
    ) -> Result<Vec<Value>, HubError> {
        let strange = |what| HubError::strange(action, what);
        let size = match size {
            Value::String(text) => text.parse().ok(),
            number => number.as_u64(),
        };
        let size = size.filter(|size| *size > 0).ok_or_else(|| strange("the part size is invalid"))?;
        let mut parts: Vec<(u64, &str)> =
            header.iter().filter_map(|(key, url)| Some((key.parse().ok()?, url.as_str()?))).collect();
        parts.sort_unstable();
        if parts.len() as u64 != file.size.div_ceil(size) {
            return Err(strange("the number of parts does not match the file"));
        }
        let mut done = Vec::with_capacity(parts.len());
        for (number, (_, url)) in (0u64..).zip(parts) {
            let start = number * size;
            let part = start..file.size.min(start + size);
            let answer = self.put(action, url, &Map::new(), file, part, sent).await?;
            let etag = answer.headers().get(header::ETAG).and_then(|etag| etag.to_str().ok());
            let etag = etag.filter(|etag| !etag.is_empty()).ok_or_else(|| strange("a part has no ETag"))?;
            done.push(json!({"partNumber": number + 1, "etag": etag}));
        }
        Ok(done)
    }

    /// Sends a range of a file.
    async fn put(
        &self,
        action: &str,
        href: &str,
        headers: &Map<String, Value>,
        file: &HashedFile,
        bytes: Range<u64>,
        sent: &Arc<AtomicU64>,
    ) -> Result<Response, HubError> {
        let url = self.given(action, href)?;
        let length = bytes.end - bytes.start;
        self.ask(action, Method::PUT, url, |mut request| {
            for (name, value) in headers {
                // These headers are set by the HTTP client.
                let own = ["authorization", "content-length", "host", "transfer-encoding"];
                if let Some(value) = value.as_str()
                    && !own.contains(&name.to_lowercase().as_str())
                {
                    request = request.header(name, value);
                }
            }
            let sent = Arc::clone(sent);
            let body = blocks(file.path.clone(), bytes.start, length)
                .inspect_ok(move |block| _ = sent.fetch_add(block.len() as u64, Ordering::Relaxed));
            request
                .timeout(time_for(length))
                .header(header::CONTENT_LENGTH, length)
                .body(reqwest::Body::wrap_stream(body.boxed()))
        })
        .await
    }
}

fn lfs_json(request: RequestBuilder, body: &Value) -> RequestBuilder {
    const LFS_JSON: &str = "application/vnd.git-lfs+json";
    request.json(body).header(header::ACCEPT, LFS_JSON).header(header::CONTENT_TYPE, LFS_JSON)
}
