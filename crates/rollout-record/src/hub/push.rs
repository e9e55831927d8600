//! A push: the repository, what of the files it lacks, and the commits that add them.

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

/// How many files the hub is asked about at a time.
const BATCH: usize = 256;

/// How often whoever waits is told how far it is.
const TOLD_EVERY: Duration = Duration::from_millis(500);

const CARD: &str = "README.md";

/// Files on their way to a dataset.
#[derive(Debug, Clone)]
pub struct Push {
    repo: RepoName,
    files: Vec<PushFile>,
    private: bool,
    message: String,
}

/// How far a push is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PushProgress {
    /// Bytes that have been sent, or need not be.
    pub sent: u64,
    /// Bytes of all files.
    pub total: u64,
}

/// What came of a push.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pushed {
    /// Where people look at the dataset.
    pub url: String,
    /// The last commit; none if the dataset had every file already.
    pub commit: Option<String>,
    /// How many files were new or different.
    pub changed: usize,
    /// How many files the dataset had already.
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
    /// These files.
    pub fn files(repo: RepoName, files: Vec<PushFile>) -> Self {
        Self { repo, files, private: false, message: "Add results of Rollout".to_owned() }
    }

    /// All files below a directory. There has to be one, and no links.
    pub async fn directory(repo: RepoName, dir: impl Into<PathBuf>) -> Result<Self, FileError> {
        let dir = dir.into();
        let gathered = tokio::task::spawn_blocking({
            let dir = dir.clone();
            move || PushFile::below(&dir)
        });
        let files = gathered.await.map_err(|error| FileError::Read { path: dir, source: error.into() })??;
        Ok(Self::files(repo, files))
    }

    /// Whether only its owner may read the dataset.
    #[must_use]
    pub fn private(self, private: bool) -> Self {
        Self { private, ..self }
    }

    /// What the commits say.
    #[must_use]
    pub fn message(self, message: impl Into<String>) -> Self {
        Self { message: message.into(), ..self }
    }
}

impl Hub {
    /// Who has the token.
    pub async fn whoami(&self) -> Result<String, HubError> {
        Ok(self.who().await?.name)
    }

    async fn who(&self) -> Result<WhoAmI, HubError> {
        let action = "ask who has the token";
        let who: WhoAmI =
            self.json(action, Method::GET, self.url("api/whoami-v2"), |request| request).await?;
        // It becomes a part of addresses, and is shown.
        match who.name.parse::<RepoName>() {
            Ok(name) if name.owner().is_none() => Ok(who),
            _ => Err(HubError::strange(action, "a user without a name")),
        }
    }

    /// Pushes files to a dataset, which is made where there is none. Whoever waits is told now and then how far it is.
    pub async fn push(
        &self,
        push: &Push,
        told: &mut (dyn FnMut(PushProgress) + Send),
    ) -> Result<Pushed, HubError> {
        let total: Arc<AtomicU64> = Arc::default();
        let sent: Arc<AtomicU64> = Arc::default();
        let mut work = std::pin::pin!(self.push_all(push, &total, &sent));
        let mut ticks = tokio::time::interval(TOLD_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        ticks.tick().await;
        loop {
            tokio::select! {
                biased;
                pushed = &mut work => return pushed,
                _ = ticks.tick() => {
                    let total = total.load(Ordering::Relaxed);
                    // What is sent twice is counted twice.
                    told(PushProgress { sent: sent.load(Ordering::Relaxed).min(total), total });
                }
            }
        }
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

    /// Makes the repository. One that is there is fine, unless it is public and must not be.
    async fn create(&self, repo: &RepoName, private: bool) -> Result<(), HubError> {
        let action = format!("make the dataset {repo}");
        let mut question = json!({"type": "dataset", "name": repo.name(), "organization": repo.owner()});
        if private {
            question["visibility"] = json!("private");
        }
        let url = self.url("api/repos/create");
        let answer = self.send(&action, &Method::POST, url, |request| request.json(&question)).await?;
        // It is there; or, a token may be allowed to write to it, and not to make one.
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
        self.json(&format!("look at the dataset {repo}"), Method::GET, url, |request| request).await
    }

    async fn has_card(&self, repo: &RepoName) -> Result<bool, HubError> {
        let url = self.url(&format!("datasets/{repo}/resolve/{BRANCH}/{CARD}"));
        let action = format!("look for a card in {repo}");
        match self.ask(&action, Method::HEAD, url, |request| request).await {
            Err(HubError::Refused { status: StatusCode::NOT_FOUND, .. }) => Ok(false),
            // Content may be kept elsewhere.
            Ok(_) | Err(HubError::Elsewhere { .. }) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Those of the files that the repository has not, or in another form, with the way in which each is to be sent.
    async fn lacking<'a>(
        &self,
        repo: &RepoName,
        files: &'a [HashedFile],
    ) -> Result<Vec<(&'a HashedFile, UploadMode)>, HubError> {
        let action = &format!("ask what {repo} lacks");
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
                modes.remove(&file.name).ok_or_else(|| strange(format!("nothing about {}", file.name)))?;
            if mode.should_ignore {
                return Err(strange(format!("{} is in the dataset's .gitignore", file.name)));
            }
            // The storage for large files takes no empty ones.
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
        // A commit whose answer was lost is made twice, with nothing in the second.
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

/// How many bytes files have. It only tells how far a push is, so a file that is gone is told later.
async fn size(files: &[PushFile]) -> u64 {
    let files = files.to_vec();
    let length = |file: &PushFile| file.path.metadata().map_or(0, |found| found.len());
    let sizes = tokio::task::spawn_blocking(move || files.iter().map(length).sum());
    sizes.await.unwrap_or_default()
}

/// Hashes files, where that may block.
async fn hashed(files: &[PushFile]) -> Result<Vec<HashedFile>, FileError> {
    let path = files.first().map(|file| file.path.clone()).unwrap_or_default();
    let files = files.to_vec();
    let hashed = tokio::task::spawn_blocking(move || files.into_iter().map(PushFile::hash).collect());
    hashed.await.map_err(|error| FileError::Read { path, source: error.into() })?
}
