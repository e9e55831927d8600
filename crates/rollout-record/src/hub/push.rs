//! A push: creates the repository, finds the missing files, and commits them.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use futures_util::future::BoxFuture;
use reqwest::{Method, StatusCode, header};
use serde::Deserialize;
use serde_json::json;

use super::{
    Hub, HubError, RepoName, card,
    client::time_for,
    commit::Commit,
    files::{FileError, HashedFile, PushFile, total},
};

/// The branch that is pushed to.
const BRANCH: &str = "main";

/// How many files are sent in one request to find the missing ones.
const BATCH: usize = 256;

/// The interval between progress reports.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

const CARD: &str = "README.md";

/// Files to push to a dataset.
#[derive(Debug, Clone)]
pub struct Push {
    repo: RepoName,
    files: Vec<PushFile>,
    private: bool,
    message: String,
}

/// The progress of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PushProgress {
    /// Bytes that were sent or need not be sent.
    pub sent: u64,
    /// Total bytes of all files.
    pub total: u64,
}

/// The result of a push.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pushed {
    /// The URL of the dataset's page.
    pub url: String,
    /// The last commit; None if the dataset already had every file.
    pub commit: Option<String>,
    /// The number of new or changed files.
    pub changed: usize,
    /// The number of unchanged files.
    pub unchanged: usize,
}

#[derive(Deserialize)]
struct WhoAmI {
    name: String,
    #[serde(default)]
    orgs: Vec<Organisation>,
}

#[derive(Deserialize)]
struct Organisation {
    name: String,
}

#[derive(Deserialize)]
struct RepoInfo {
    #[serde(default)]
    private: bool,
}

#[derive(Deserialize)]
struct Modes {
    files: Vec<Mode>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mode {
    path: String,
    upload_mode: UploadMode,
    #[serde(default)]
    should_ignore: bool,
    #[serde(default)]
    oid: Option<String>,
}

#[derive(Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum UploadMode {
    Lfs,
    Regular,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Committed {
    commit_oid: String,
}

impl Push {
    /// Creates a push of these files.
    pub fn files(repo: RepoName, files: Vec<PushFile>) -> Self {
        Self { repo, files, private: false, message: "Add results of Rollout".to_owned() }
    }

    /// Creates a push of all files below a directory. It must contain at least one file and no links.
    pub async fn directory(repo: RepoName, dir: impl Into<PathBuf>) -> Result<Self, FileError> {
        let dir = dir.into();
        let gathered = tokio::task::spawn_blocking({
            let dir = dir.clone();
            move || PushFile::below(&dir)
        });
        let files = gathered.await.map_err(|error| FileError::Read { path: dir, source: error.into() })??;
        Ok(Self::files(repo, files))
    }

    /// Sets whether the dataset is private.
    #[must_use]
    pub fn private(self, private: bool) -> Self {
        Self { private, ..self }
    }

    /// Sets the message of the commits.
    #[must_use]
    pub fn message(self, message: impl Into<String>) -> Self {
        Self { message: message.into(), ..self }
    }
}

impl Hub {
    /// Returns the user of the token.
    pub fn whoami(&self) -> BoxFuture<'_, Result<String, HubError>> {
        Box::pin(async move { Ok(self.who().await?.name) })
    }

    async fn who(&self) -> Result<WhoAmI, HubError> {
        let action = "read the user of the token";
        let who: WhoAmI =
            self.json(action, Method::GET, self.url("api/whoami-v2"), |request| request).await?;
        // The name becomes a part of URLs, and is printed.
        match who.name.parse::<RepoName>() {
            Ok(name) if name.owner().is_none() => Ok(who),
            _ => Err(HubError::strange(action, "an invalid user name")),
        }
    }

    /// Pushes files to a dataset, which is created if it is missing. `progress` is called regularly.
    pub fn push<'a>(
        &'a self,
        push: &'a Push,
        progress: &'a mut (dyn FnMut(PushProgress) + Send),
    ) -> BoxFuture<'a, Result<Pushed, HubError>> {
        Box::pin(async move {
            let total: Arc<AtomicU64> = Arc::default();
            let sent: Arc<AtomicU64> = Arc::default();
            let mut work = std::pin::pin!(self.push_all(push, &total, &sent));
            let mut ticks = tokio::time::interval(PROGRESS_INTERVAL);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            ticks.tick().await;
            loop {
                tokio::select! {
                    biased;
                    pushed = &mut work => return pushed,
                    _ = ticks.tick() => {
                        let total = total.load(Ordering::Relaxed);
                        // Bytes that are sent twice are counted twice.
                        progress(PushProgress { sent: sent.load(Ordering::Relaxed).min(total), total });
                    }
                }
            }
        })
    }

    async fn push_all(
        &self,
        push: &Push,
        all: &AtomicU64,
        sent: &Arc<AtomicU64>,
    ) -> Result<Pushed, HubError> {
        let user = self.who().await?;
        let repo = push.repo.clone().owned_by(&user.name);
        let owner = repo.owner().unwrap_or_default();
        if owner != user.name && user.orgs.iter().all(|org| org.name != owner) {
            return Err(HubError::NotTheOwner { user: user.name, owner: owner.to_owned() });
        }
        self.create(&repo, push.private).await?;
        let url = self.url(&format!("datasets/{repo}")).to_string();
        let mut pushed = Pushed { url, commit: None, changed: 0, unchanged: 0 };
        all.store(size(&push.files).await, Ordering::Relaxed);

        let mut commit = Commit::new(&push.message);
        if push.files.iter().all(|file| file.name != CARD) && !self.has_card(&repo).await? {
            let names = push.files.iter().map(|file| file.name.as_str());
            commit.add_text(CARD, &card::text(repo.name(), names));
        }
        for files in push.files.chunks(BATCH) {
            let files = hashed(files).await?;
            let lacking = self.lacking(&repo, &files).await?;
            pushed.unchanged += files.len() - lacking.len();
            pushed.changed += lacking.len();
            let large = lacking.iter().filter(|(_, mode)| *mode == UploadMode::Lfs);
            let large: Vec<_> = large.map(|(file, _)| *file).collect();
            self.send_large(&repo, &large, sent).await?;
            sent.fetch_add(total(&files) - total(large), Ordering::Relaxed);
            for (file, mode) in lacking {
                let inline = if mode == UploadMode::Regular { file.size } else { 0 };
                if !commit.has_room(inline) {
                    let full = std::mem::replace(&mut commit, Commit::new(&push.message));
                    pushed.commit = Some(self.commit(&repo, &full).await?);
                }
                match mode {
                    UploadMode::Regular => commit.add_file(&file.name, &file.path, file.size),
                    UploadMode::Lfs => commit.add_large(&file.name, &file.sha256, file.size),
                }
            }
        }
        if !commit.is_empty() {
            pushed.commit = Some(self.commit(&repo, &commit).await?);
        }
        Ok(pushed)
    }

    /// Creates the repository. An existing repository is accepted, unless it is public and a private one was requested.
    async fn create(&self, repo: &RepoName, private: bool) -> Result<(), HubError> {
        let action = format!("create the dataset {repo}");
        let mut question = json!({"type": "dataset", "name": repo.name(), "organization": repo.owner()});
        if private {
            question["visibility"] = json!("private");
        }
        let url = self.url("api/repos/create");
        let answer = self.send(&action, &Method::POST, url, |request| request.json(&question)).await?;
        // The repository exists, or the token can write to it but cannot create repositories.
        let may_be_there = matches!(
            answer.status(),
            StatusCode::CONFLICT | StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN
        );
        let is_there = answer.status().is_success() || (may_be_there && self.info(repo).await.is_ok());
        if !is_there {
            return Err(self.refused(&action, answer).await);
        }
        if private && !self.info(repo).await?.private {
            return Err(HubError::Public(repo.to_string()));
        }
        Ok(())
    }

    async fn info(&self, repo: &RepoName) -> Result<RepoInfo, HubError> {
        let url = self.url(&format!("api/datasets/{repo}"));
        self.json(&format!("read the dataset {repo}"), Method::GET, url, |request| request).await
    }

    async fn has_card(&self, repo: &RepoName) -> Result<bool, HubError> {
        let url = self.url(&format!("datasets/{repo}/resolve/{BRANCH}/{CARD}"));
        let action = format!("read the card of {repo}");
        match self.ask(&action, Method::HEAD, url, |request| request).await {
            Err(HubError::Refused { status: StatusCode::NOT_FOUND, .. }) => Ok(false),
            // The content may be stored on another host.
            Ok(_) | Err(HubError::Elsewhere { .. }) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Returns the files that are missing or different in the repository, with their upload modes.
    async fn lacking<'a>(
        &self,
        repo: &RepoName,
        files: &'a [HashedFile],
    ) -> Result<Vec<(&'a HashedFile, UploadMode)>, HubError> {
        let action = &format!("find the missing files of {repo}");
        let about = |file: &HashedFile| {
            let sample = BASE64_STANDARD.encode(&file.sample);
            json!({"path": file.name, "sample": sample, "size": file.size})
        };
        let question = json!({"files": files.iter().map(about).collect::<Vec<_>>()});
        let url = self.url(&format!("api/datasets/{repo}/preupload/{BRANCH}"));
        let modes: Modes = self.json(action, Method::POST, url, |request| request.json(&question)).await?;
        let mut modes: HashMap<_, _> =
            modes.files.into_iter().map(|mode| (mode.path.clone(), mode)).collect();
        let mut lacking = Vec::new();
        for file in files {
            let strange = |what| HubError::strange(action, what);
            let mode =
                modes.remove(&file.name).ok_or_else(|| strange(format!("no entry for {}", file.name)))?;
            if mode.should_ignore {
                return Err(strange(format!("{} is ignored by the dataset's .gitignore", file.name)));
            }
            // The storage for large files does not accept empty files.
            let upload = if file.size == 0 { UploadMode::Regular } else { mode.upload_mode };
            let oid = if upload == UploadMode::Lfs { &file.sha256 } else { &file.git_blob };
            if mode.oid.as_ref() != Some(oid) {
                lacking.push((file, upload));
            }
        }
        Ok(lacking)
    }

    async fn commit(&self, repo: &RepoName, commit: &Commit) -> Result<String, HubError> {
        let length = commit.length();
        let url = self.url(&format!("api/datasets/{repo}/commit/{BRANCH}"));
        // If the answer to a commit is lost, the commit is repeated, and the second one is empty.
        let committed: Committed = self
            .json(&format!("commit to {repo}"), Method::POST, url, |request| {
                request
                    .timeout(time_for(length))
                    .header(header::CONTENT_TYPE, "application/x-ndjson")
                    .header(header::CONTENT_LENGTH, length)
                    .body(reqwest::Body::wrap_stream(commit.stream()))
            })
            .await?;
        Ok(committed.commit_oid)
    }
}

/// Returns the total size of files for progress reports. A missing file is reported later.
async fn size(files: &[PushFile]) -> u64 {
    let files = files.to_vec();
    let length = |file: &PushFile| file.path.metadata().map_or(0, |found| found.len());
    let sizes = tokio::task::spawn_blocking(move || files.iter().map(length).sum());
    sizes.await.unwrap_or_default()
}

/// Hashes files on a blocking thread.
async fn hashed(files: &[PushFile]) -> Result<Vec<HashedFile>, FileError> {
    let path = files.first().map(|file| file.path.clone()).unwrap_or_default();
    let files = files.to_vec();
    let hashed = tokio::task::spawn_blocking(move || files.into_iter().map(PushFile::hash).collect());
    hashed.await.map_err(|error| FileError::Read { path, source: error.into() })?
}
