//! The protocol of a hub: the requests and their answers.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use serde_json::{Value, json};

use super::{
    HubServer,
    store::{Repo, Store, Stored, sha256},
};

/// The size from which files are large.
pub(super) const LARGE: u64 = 1000;

/// A request.
pub(super) struct HubRequest<'a> {
    pub(super) method: &'a str,
    pub(super) path: Vec<String>,
    pub(super) query: &'a str,
    pub(super) authorization: Option<&'a str>,
    pub(super) body: Bytes,
}

impl HubRequest<'_> {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    fn is_writer(&self) -> bool {
        self.authorization == Some(&format!("Bearer {}", HubServer::TOKEN))
    }

    /// The number of a part in the query.
    fn part(&self) -> Option<usize> {
        self.query.split('&').find_map(|pair| pair.strip_prefix("part="))?.parse().ok()
    }
}

/// An answer.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Bytes,
}

impl Answer {
    pub(super) fn status(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Bytes::new() }
    }

    pub(super) fn json(status: u16, value: &Value) -> Self {
        let answer = Self { body: value.to_string().into(), ..Self::status(status) };
        answer.header("content-type", "application/json")
    }

    pub(super) fn error(status: u16, message: &str) -> Self {
        Self::json(status, &json!({"error": message}))
    }

    pub(super) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }
}

/// A request to the hub itself.
pub(super) fn hub(store: &mut Store, asked: &HubRequest<'_>) -> Answer {
    let path: Vec<&str> = asked.path.iter().map(String::as_str).collect();
    // The URL that completes an upload is only known to authorized clients: the official client sends no token
    // there.
    let is_open = matches!(asked.method, "GET" | "HEAD") || path.starts_with(&["lfs", "complete"]);
    if asked.authorization.is_some() && !asked.is_writer() || asked.authorization.is_none() && !is_open {
        let echo = asked.authorization.unwrap_or("no token");
        return Answer::error(401, &format!("Invalid credentials: {echo}"));
    }
    match (asked.method, path.as_slice()) {
        ("GET", ["api", "whoami-v2"]) if asked.is_writer() => Answer::json(
            200,
            &json!({
                "type": "user", "name": HubServer::USER,
                "orgs": [{"type": "org", "name": HubServer::ORGANISATION}],
                "auth": {"type": "access_token", "accessToken": {"displayName": "test", "role": "write"}},
            }),
        ),
        ("GET", ["api", "whoami-v2"]) => Answer::error(401, "Invalid username or password."),
        ("POST", ["api", "repos", "create"]) => create(store, &asked.json()),
        ("POST", ["api", "validate-yaml"]) => Answer::json(200, &json!({"errors": [], "warnings": []})),
        ("POST", ["lfs", "complete", oid]) => complete(store, oid, &asked.json()),
        ("POST", ["lfs", "verify"]) => {
            match store.large.get(asked.json()["oid"].as_str().unwrap_or_default()) {
                Some(content) if asked.json()["size"] == content.len() => Answer::status(200),
                _ => Answer::error(404, "the object has not arrived"),
            }
        }
        (_, ["api", "datasets", owner, name, rest @ ..]) => {
            of_repo(store, asked, &format!("{owner}/{name}"), rest)
        }
        ("POST", ["datasets", owner, name, "info", "lfs", "objects", "batch"]) => {
            let repo = format!("{owner}/{}", name.trim_end_matches(".git"));
            if store.repos.contains_key(&repo) { batch(store, &asked.json()) } else { no_repo() }
        }
        ("GET" | "HEAD", ["datasets", owner, name, "resolve", revision, file @ ..]) => {
            resolve(store, asked, &format!("{owner}/{name}"), revision, &file.join("/"))
        }
        _ => Answer::error(404, "Not found"),
    }
}

/// A request to the storage of large files.
pub(super) fn storage(store: &mut Store, asked: &HubRequest<'_>) -> Answer {
    match (asked.method, asked.path.first().map(String::as_str).unwrap_or_default(), asked.part()) {
        ("PUT", oid, None) if sha256(&asked.body) == oid => {
            store.large.insert(oid.to_owned(), asked.body.clone());
            Answer::status(200)
        }
        ("PUT", oid, Some(part)) => {
            store.parts.insert((oid.to_owned(), part), asked.body.clone());
            Answer::status(200).header("etag", &format!("\"{}\"", &sha256(&asked.body)[..32]))
        }
        ("GET", oid, None) => match store.large.get(oid) {
            Some(content) => Answer { body: content.clone(), ..Answer::status(200) },
            None => Answer::error(404, "no such object"),
        },
        _ => Answer::error(400, "the content is not what its name says"),
    }
}

fn no_repo() -> Answer {
    Answer::error(404, "Repository not found").header("x-error-code", "RepoNotFound")
}

fn no_revision() -> Answer {
    Answer::error(404, "Invalid rev id").header("x-error-code", "RevisionNotFound")
}

fn create(store: &mut Store, asked: &Value) -> Answer {
    let owner = asked["organization"].as_str().unwrap_or(HubServer::USER);
    if ![HubServer::USER, HubServer::ORGANISATION].contains(&owner) {
        return Answer::error(403, "You don't have the rights to create a dataset under this namespace");
    }
    let id = format!("{owner}/{}", asked["name"].as_str().unwrap_or_default());
    let url = format!("{}/datasets/{id}", store.url);
    if asked["type"] != "dataset" {
        return Answer::error(400, "only datasets are kept here");
    }
    if store.repos.contains_key(&id) {
        return Answer::json(409, &json!({"error": "You already created this dataset repo", "url": url}));
    }
    let attributes = store.regular(Bytes::from_static(b"*.parquet filter=lfs diff=lfs merge=lfs -text\n"));
    store.repos.insert(id.clone(), Repo::new(asked["visibility"] == "private", attributes));
    Answer::json(200, &json!({"url": url, "name": id, "id": id}))
}

fn of_repo(store: &mut Store, asked: &HubRequest<'_>, id: &str, rest: &[&str]) -> Answer {
    let is_writer = asked.is_writer();
    let Some(repo) = store.repos.get(id).filter(|repo| is_writer || !repo.private) else { return no_repo() };
    match (asked.method, rest) {
        ("GET", ["revision", revision]) if repo.at(revision).is_none() => no_revision(),
        ("GET", [] | ["revision", _]) => {
            let file = |name: &String| json!({"rfilename": name});
            Answer::json(
                200,
                &json!({
                    "id": id, "sha": repo.head, "private": repo.private, "tags": [], "downloads": 0, "likes": 0,
                    "siblings": repo.files.keys().map(file).collect::<Vec<_>>(),
                }),
            )
        }
        ("GET", ["tree", revision, ..]) => {
            let Some(files) = repo.at(revision) else { return no_revision() };
            let file = |(name, file): (&String, &Stored)| {
                let size = store.content(file).len();
                let mut entry = json!({"type": "file", "path": name, "size": size, "oid": file.oid()});
                if let Stored::Large { sha256 } = file {
                    entry["lfs"] = json!({"oid": sha256, "size": size, "pointerSize": 130});
                }
                entry
            };
            Answer::json(200, &files.iter().map(file).collect())
        }
        ("POST", ["preupload", "main"]) => {
            let mode = |file: &Value| {
                let name = file["path"].as_str().unwrap_or_default();
                let is_large =
                    file["size"].as_u64().unwrap_or_default() >= LARGE || name.ends_with(".parquet");
                json!({
                    "path": name, "uploadMode": if is_large { "lfs" } else { "regular" }, "shouldIgnore": false,
                    "oid": repo.files.get(name).map(Stored::oid),
                })
            };
            let files =
                asked.json()["files"].as_array().map(|files| files.iter().map(mode).collect::<Vec<_>>());
            Answer::json(200, &json!({"files": files}))
        }
        ("POST", ["commit", "main"]) => commit(store, id, &asked.body),
        _ => Answer::error(404, "Not found"),
    }
}

fn batch(store: &Store, asked: &Value) -> Answer {
    let object = |object: &Value| {
        let (oid, size) =
            (object["oid"].as_str().unwrap_or_default(), object["size"].as_u64().unwrap_or_default());
        if store.large.contains_key(oid) {
            return json!({"oid": oid, "size": size});
        }
        let put = format!("{}/{oid}", store.storage_url);
        let upload = match store.part_size {
            None => json!({"href": put}),
            Some(part) => {
                let mut header = json!({"chunk_size": part.to_string()});
                for number in 1..=size.div_ceil(part as u64) {
                    header[format!("{number:05}")] = json!(format!("{put}?part={number}"));
                }
                json!({"href": format!("{}/lfs/complete/{oid}", store.url), "header": header})
            }
        };
        let verify = json!({"href": format!("{}/lfs/verify", store.url)});
        json!({"oid": oid, "size": size, "actions": {"upload": upload, "verify": verify}})
    };
    let objects: Vec<_> = asked["objects"].as_array().into_iter().flatten().map(object).collect();
    let transfer = if store.part_size.is_some() { "multipart" } else { "basic" };
    Answer::json(200, &json!({"transfer": transfer, "objects": objects}))
        .header("content-type", "application/vnd.git-lfs+json")
}

fn complete(store: &mut Store, oid: &str, asked: &Value) -> Answer {
    let mut content = Vec::new();
    for part in asked["parts"].as_array().into_iter().flatten() {
        let number = part["partNumber"].as_u64().unwrap_or_default() as usize;
        let Some(bytes) = store.parts.get(&(oid.to_owned(), number)) else {
            return Answer::error(400, "a part is missing");
        };
        if part["etag"] != format!("\"{}\"", &sha256(bytes)[..32]) {
            return Answer::error(400, "a part is another");
        }
        content.extend_from_slice(bytes);
    }
    if sha256(&content) != oid {
        return Answer::error(400, "the content is not what its name says");
    }
    store.large.insert(oid.to_owned(), content.into());
    Answer::status(200)
}

fn commit(store: &mut Store, id: &str, body: &[u8]) -> Answer {
    let mut message = String::new();
    let mut files = Vec::new();
    for line in body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let Ok(line) = serde_json::from_slice::<Value>(line) else {
            return Answer::error(400, "a line is not JSON");
        };
        let value = &line["value"];
        let name = || value["path"].as_str().unwrap_or_default().to_owned();
        match line["key"].as_str() {
            Some("header") => message = value["summary"].as_str().unwrap_or_default().to_owned(),
            Some("file") if value["encoding"] == "base64" => {
                match value["content"].as_str().and_then(|text| BASE64_STANDARD.decode(text).ok()) {
                    Some(content) => files.push((name(), store.regular(content.into()))),
                    None => return Answer::error(400, "the content of a file is not base64"),
                }
            }
            Some("lfsFile") => {
                let sha256 = value["oid"].as_str().unwrap_or_default().to_owned();
                if !store.large.contains_key(&sha256) {
                    return Answer::error(400, "a large file has not arrived");
                }
                files.push((name(), Stored::Large { sha256 }));
            }
            _ => return Answer::error(400, "a line of an unknown kind"),
        }
    }
    if message.is_empty() {
        return Answer::error(400, "the commit has no summary");
    }
    let url = format!("{}/datasets/{id}/commit", store.url);
    let Some(repo) = store.repos.get_mut(id) else { return no_repo() };
    repo.files.extend(files);
    repo.commit(&message);
    let head = &repo.head;
    Answer::json(
        200,
        &json!({"success": true, "commitOid": head, "commitUrl": format!("{url}/{head}"), "hookOutput": ""}),
    )
}

fn resolve(store: &Store, asked: &HubRequest<'_>, id: &str, revision: &str, name: &str) -> Answer {
    let is_writer = asked.is_writer();
    let Some(repo) = store.repos.get(id).filter(|repo| is_writer || !repo.private) else { return no_repo() };
    let Some(files) = repo.at(revision) else { return no_revision() };
    let Some(file) = files.get(name) else {
        return Answer::error(404, "Entry not found").header("x-error-code", "EntryNotFound");
    };
    let content = store.content(file);
    let etag = format!("\"{}\"", file.oid());
    let answer = match file {
        Stored::Regular { .. } => Answer { body: content, ..Answer::status(200) }.header("etag", &etag),
        Stored::Large { sha256 } => Answer::status(302)
            .header("location", &format!("{}/{sha256}", store.storage_url))
            .header("x-linked-etag", &etag)
            .header("x-linked-size", &content.len().to_string()),
    };
    answer.header("x-repo-commit", &repo.head)
}
