//! The cache of datasets from a hub: every file once, verified by its hash, and either complete or absent.
//!
//! A file is verified when it was downloaded, and again when its size or time is another one than then.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

use reqwest::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha1::Sha1;
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncWriteExt as _;

use super::{
    HubAccess, HubDataError, HubFile,
    client::{HubClient, failed, success},
};
use crate::{download_client::without_secrets, task::verified};
use rollout_core::text::hex;
use rollout_env::blocking::blocking;
use rollout_record::hub::RepoName;

/// The interval of checks for a lock that another process holds.
const LOCK_POLL: Duration = Duration::from_millis(100);

/// The maximum number of files of a dataset.
const MAX_FILES: usize = 100_000;

/// The files of a dataset at a commit.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Snapshot {
    pub(super) commit: String,
    pub(super) files: Vec<HubFile>,
}

/// One dataset of a hub in the cache.
#[derive(Debug)]
pub(super) struct HubCache {
    client: HubClient,
    repo: RepoName,
    /// What is known of the dataset.
    dir: PathBuf,
    /// The content of files of all datasets.
    files: PathBuf,
    offline: bool,
}

impl HubCache {
    pub(super) fn new(
        root: &Path,
        access: &HubAccess,
        repo: &RepoName,
        offline: bool,
    ) -> Result<Self, HubDataError> {
        let client = HubClient::new(access)?;
        let root = root.join("hub");
        let hash = hex(&Sha256::digest(format!("{}/datasets/{repo}", client.endpoint())));
        Ok(Self {
            client,
            repo: repo.clone(),
            dir: root.join(&hash[..32]),
            files: root.join("files"),
            offline,
        })
    }

    /// The address of the dataset.
    pub(super) fn url(&self) -> String {
        format!("{}/datasets/{}", self.client.endpoint(), self.repo)
    }

    fn api(&self, rest: &[&str]) -> reqwest::Url {
        let owner = self.repo.owner().unwrap_or_default();
        self.client.url(&[&["api", "datasets", owner, self.repo.name()], rest].concat())
    }

    /// The commit of a branch or tag. Without a network, it is the last known one.
    pub(super) async fn commit(&self, revision: &str) -> Result<String, HubDataError> {
        let kept = self.dir.join("refs").join(&hex(&Sha256::digest(revision))[..32]);
        if self.offline {
            let read = kept.clone();
            let known = blocking(move || fs::read_to_string(read)).await;
            return known.map_err(|_| self.missing(&format!("the revision `{revision}` of {}", self.url())));
        }
        let url = self.api(&["revision", revision]);
        let (answer, _) = self.client.json(&url).await?;
        let commit = answer["sha"].as_str().filter(|sha| super::is_commit(sha)).ok_or_else(|| {
            HubDataError::Strange {
                url: without_secrets(&url),
                reason: "it has no commit in `sha`".to_owned(),
            }
        })?;
        self.keep(kept, commit.as_bytes().to_vec()).await?;
        Ok(commit.to_owned())
    }

    /// The files of a commit.
    pub(super) async fn snapshot(&self, commit: &str) -> Result<Snapshot, HubDataError> {
        let kept = self.dir.join(format!("{commit}.json"));
        let read = kept.clone();
        if let Ok(text) = blocking(move || fs::read(read)).await
            && let Ok(snapshot) = serde_json::from_slice(&text)
        {
            return Ok(snapshot);
        }
        if self.offline {
            return Err(self.missing(&format!("the list of files of {} at {commit}", self.url())));
        }
        let mut url = self.api(&["tree", commit]);
        url.set_query(Some("recursive=true"));
        let mut files = Vec::new();
        loop {
            let (page, next) = self.client.json(&url).await?;
            let strange = |reason: &str| HubDataError::Strange {
                url: without_secrets(&url),
                reason: reason.to_owned(),
            };
            let entries = page.as_array().ok_or_else(|| strange("it is not a list of files"))?;
            for entry in entries.iter().filter(|entry| entry["type"] == "file") {
                files.push(described(entry).ok_or_else(|| strange("a file has no path, size or id"))?);
            }
            if files.len() > MAX_FILES {
                return Err(strange("it has too many files"));
            }
            match next {
                Some(next) => url = next,
                None => break,
            }
        }
        files.sort_by(|a: &HubFile, b| a.path.cmp(&b.path));
        let snapshot = Snapshot { commit: commit.to_owned(), files };
        let text = serde_json::to_vec(&snapshot).unwrap_or_default();
        self.keep(kept, text).await?;
        Ok(snapshot)
    }

    /// Whether a file is in the cache and undamaged.
    pub(super) async fn has(&self, file: &HubFile) -> Result<bool, HubDataError> {
        Ok(matches!(self.kept(file).await?, Kept::Sound))
    }

    async fn kept(&self, file: &HubFile) -> Result<Kept, HubDataError> {
        let (path, id, size) = (self.files.join(&file.id), file.id.clone(), file.size);
        blocking(move || kept(&path, &id, size)).await.map_err(|source| self.cache_error(source))
    }

    /// The path of a file in the cache. It is downloaded if it is missing or damaged: a part of it that is there is
    /// kept, and nothing becomes visible before its hash is verified.
    pub(super) async fn file(&self, commit: &str, file: &HubFile) -> Result<PathBuf, HubDataError> {
        let target = self.files.join(&file.id);
        match self.kept(file).await? {
            Kept::Sound => return Ok(target),
            Kept::Damaged(reason) if self.offline => {
                return Err(HubDataError::Damaged { path: target, reason });
            }
            Kept::Absent if self.offline => {
                return Err(self.missing(&format!("{} of {} at {commit}", file.path, self.url())));
            }
            Kept::Damaged(_) | Kept::Absent => {}
        }
        let cache = |source| self.cache_error(source);
        let _lock = self.lock(&file.id).await?;
        if self.has(file).await? {
            return Ok(target);
        }
        let part = self.files.join(format!("{}.part", file.id));
        let url = self.client.url(
            &[
                &["datasets", self.repo.owner().unwrap_or_default(), self.repo.name(), "resolve", commit][..],
                &file.path.split('/').collect::<Vec<_>>(),
            ]
            .concat(),
        );
        self.fetch(&url, file, &part).await?;
        let (hashed, id) = (part.clone(), file.id.clone());
        let found = blocking(move || content_id(&hashed, &id)).await.map_err(cache)?;
        if found != file.id {
            // The next try starts from the beginning.
            let _ = tokio::fs::remove_file(&part).await;
            let (path, url) = (file.path.clone(), without_secrets(&url));
            return Err(HubDataError::Hash { path, url, expected: file.id.clone(), found });
        }
        let place = target.clone();
        let replace = move || {
            fs::rename(part, &place)?;
            verified::record(&place)
        };
        blocking(replace).await.map_err(cache)?;
        Ok(target)
    }

    /// Appends what is missing of a file to its beginning.
    async fn fetch(&self, url: &reqwest::Url, file: &HubFile, part: &Path) -> Result<(), HubDataError> {
        let shown = without_secrets(url);
        let cache = |source| self.cache_error(source);
        let mut out = tokio::fs::File::options()
            .create(true)
            .append(true)
            .read(true)
            .open(part)
            .await
            .map_err(cache)?;
        let mut length = out.metadata().await.map_err(cache)?.len();
        if length >= file.size {
            if length == file.size && file.size > 0 {
                return Ok(());
            }
            out.set_len(0).await.map_err(cache)?;
            length = 0;
        }
        let mut answer = success(&shown, self.client.get(url, length).await?)?;
        if answer.status() != StatusCode::PARTIAL_CONTENT && length > 0 {
            out.set_len(0).await.map_err(cache)?;
            length = 0;
        }
        let mut broken = None;
        loop {
            match answer.chunk().await {
                Ok(Some(chunk)) => {
                    length += chunk.len() as u64;
                    if length > file.size {
                        let reason = format!(
                            "{} is larger than the {} bytes of its description",
                            file.path, file.size
                        );
                        let _ = tokio::fs::remove_file(part).await;
                        return Err(HubDataError::Strange { url: shown, reason });
                    }
                    out.write_all(&chunk).await.map_err(cache)?;
                }
                Ok(None) => break,
                Err(error) => {
                    broken = Some(failed(&shown, error));
                    break;
                }
            }
        }
        // What arrived is kept for the next try.
        out.flush().await.map_err(cache)?;
        broken.map_or(Ok(()), Err)
    }

    /// Keeps other processes from downloading the same file.
    async fn lock(&self, id: &str) -> Result<File, HubDataError> {
        let (dir, path) = (self.files.clone(), self.files.join(format!("{id}.lock")));
        let open = move || {
            fs::create_dir_all(dir)?;
            File::options().create(true).append(true).open(path)
        };
        let lock = blocking(open).await.map_err(|source| self.cache_error(source))?;
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(lock),
                // A thread that waits for the lock could not be cancelled.
                Err(TryLockError::WouldBlock) => tokio::time::sleep(LOCK_POLL).await,
                Err(TryLockError::Error(source)) => return Err(self.cache_error(source)),
            }
        }
    }

    /// Writes a small file, complete or not at all.
    async fn keep(&self, path: PathBuf, content: Vec<u8>) -> Result<(), HubDataError> {
        let write = move || {
            let dir = path.parent().unwrap_or(Path::new("."));
            fs::create_dir_all(dir)?;
            let mut file = tempfile::NamedTempFile::new_in(dir)?;
            file.write_all(&content)?;
            file.persist(&path)?;
            Ok(())
        };
        blocking(write).await.map_err(|source| self.cache_error(source))
    }

    fn missing(&self, what: &str) -> HubDataError {
        HubDataError::Offline { what: what.to_owned() }
    }

    fn cache_error(&self, source: io::Error) -> HubDataError {
        HubDataError::Cache { path: self.files.clone(), source }
    }
}

/// The state of a file in the cache.
enum Kept {
    Absent,
    Sound,
    /// With the reason.
    Damaged(String),
}

/// Reads a file only if it is not in the state in which it was verified.
fn kept(path: &Path, id: &str, size: u64) -> io::Result<Kept> {
    let found = match fs::metadata(path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Kept::Absent),
        Err(error) => return Err(error),
    };
    if found != size {
        return Ok(Kept::Damaged(format!("it has {found} bytes instead of {size}")));
    }
    if verified::is_recorded(path) {
        return Ok(Kept::Sound);
    }
    let found = content_id(path, id)?;
    if found != id {
        return Ok(Kept::Damaged(format!("its hash is {found}, expected {id}")));
    }
    // Without the record, the file is only read again.
    let _ = verified::record(path);
    Ok(Kept::Sound)
}

/// A file in the list of a hub. Large files have their SHA-256, others the id of git.
fn described(entry: &Value) -> Option<HubFile> {
    let id = entry["lfs"]["oid"].as_str().or_else(|| entry["oid"].as_str())?;
    let is_hash = [40, 64].contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let size = entry["lfs"]["size"].as_u64().or_else(|| entry["size"].as_u64())?;
    is_hash.then(|| HubFile {
        path: entry["path"].as_str().unwrap_or_default().to_owned(),
        size,
        id: id.to_ascii_lowercase(),
        is_cached: false,
    })
}

/// The hash of a file, of the same kind as an expected one.
fn content_id(path: &Path, expected: &str) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut buffer = vec![0; 1 << 16];
    let mut each = |take: &mut dyn FnMut(&[u8])| -> io::Result<()> {
        loop {
            match file.read(&mut buffer)? {
                0 => return Ok(()),
                length => take(&buffer[..length]),
            }
        }
    };
    match expected.len() {
        64 => {
            let mut hash = Sha256::new();
            each(&mut |bytes| hash.update(bytes))?;
            Ok(hex(&hash.finalize()))
        }
        _ => {
            let mut hash = Sha1::new();
            hash.update(format!("blob {}\0", fs::metadata(path)?.len()));
            each(&mut |bytes| hash.update(bytes))?;
            Ok(hex(&hash.finalize()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_hashed_as_the_hub_names_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "hello\n").unwrap();
        let git = "ce013625030ba8dba906f756967f9e9ca394464a";
        assert_eq!(content_id(&path, git).unwrap(), git);
        let sha256 = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
        assert_eq!(content_id(&path, sha256).unwrap(), sha256);
    }
}
