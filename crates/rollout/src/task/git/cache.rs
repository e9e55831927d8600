//! The cache of repositories: directories of commits, fetched once and complete or absent.
//!
//! ```text
//! <root>/git/<hash of the URL>/lock                     held by whoever adds something below
//! <root>/git/<hash of the URL>/<commit>/repository      the commit's trees, and the files needed so far
//! <root>/git/<hash of the URL>/<commit>/<directory>-<hash of its path>
//! <root>/git/<hash of the URL>/tmp-…                    work in progress, worthless to others
//! ```
//!
//! Everything is made under `tmp-…` and renamed when it is whole, so a killed process leaves nothing
//! that could be mistaken for a finished fetch, and what is there can be read without the lock.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use sha2::{Digest, Sha256};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, BufWriter},
    process::Command,
};

use super::{
    address::{CommitId, GitUrl, RepoPath},
    command::{Git, GitError, presentable, tail},
};
use crate::task::{content::hex, sources::notice};

/// How often a lock that another process holds is tried again.
const LOCK_POLL: Duration = Duration::from_millis(100);

/// The directories of a commit, by their path in the repository; none where the commit lacks one.
pub(in crate::task) type Directories = BTreeMap<RepoPath, Option<PathBuf>>;

/// The cache, and the git that fills it.
#[derive(Debug)]
pub(in crate::task) struct GitCache {
    root: PathBuf,
    git: Git,
}

impl GitCache {
    pub(in crate::task) fn new(cache_dir: &Path, git: Git) -> Self {
        Self { root: cache_dir.join("git"), git }
    }

    pub(in crate::task) fn git(&self) -> &Git {
        &self.git
    }

    /// Makes directories of a commit available, fetching what the cache lacks.
    pub(in crate::task) async fn directories(
        &self,
        url: &GitUrl,
        commit: &CommitId,
        paths: BTreeSet<RepoPath>,
        progress: &(dyn Fn(String) + Send + Sync),
    ) -> Result<Directories, GitError> {
        let place = Place {
            git: &self.git,
            url,
            commit,
            repository_dir: self.root.join(&hex(&Sha256::digest(url.secret()))[..32]),
        };
        let (mut found, missing) = place.cached(paths).await?;
        if missing.is_empty() {
            return Ok(found);
        }
        let waiting = format!("waiting for another process that fetches {url}");
        let _lock = notice(progress, waiting, place.lock()).await?;
        let (new, missing) = place.cached(missing).await?;
        found.extend(new);
        if !missing.is_empty() {
            let fetching = format!("fetching {url} at {commit}");
            found.extend(notice(progress, fetching, place.add(missing)).await?);
        }
        Ok(found)
    }
}

/// One commit of one repository in the cache.
struct Place<'a> {
    git: &'a Git,
    url: &'a GitUrl,
    commit: &'a CommitId,
    repository_dir: PathBuf,
}

impl Place<'_> {
    fn commit_dir(&self) -> PathBuf {
        self.repository_dir.join(self.commit.as_str())
    }

    fn repository(&self) -> PathBuf {
        self.commit_dir().join("repository")
    }

    /// Where a directory of the commit lies once it is whole. The path is hashed because one task may
    /// lie inside of another, and because it may be longer than a name can be.
    fn slot(&self, path: &RepoPath) -> PathBuf {
        let last = path.as_str().rsplit('/').next().unwrap_or_default();
        let readable: String =
            last.chars().filter(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c)).take(60).collect();
        let hash = &hex(&Sha256::digest(path.as_str()))[..16];
        self.commit_dir().join(format!("{readable}-{hash}"))
    }

    /// Splits paths into those that the cache has and those that it lacks.
    async fn cached(&self, paths: BTreeSet<RepoPath>) -> Result<(Directories, BTreeSet<RepoPath>), GitError> {
        let slots: Vec<_> = paths.into_iter().map(|path| (self.slot(&path), path)).collect();
        self.blocking(move || {
            let mut found = Directories::new();
            let mut missing = BTreeSet::new();
            for (slot, path) in slots {
                if slot.try_exists()? {
                    found.insert(path, Some(slot));
                } else {
                    missing.insert(path);
                }
            }
            Ok((found, missing))
        })
        .await
    }

    /// Takes the repository's lock, and with it the right to remove what killed processes left.
    async fn lock(&self) -> Result<File, GitError> {
        let dir = self.repository_dir.clone();
        let lock = self
            .blocking(move || {
                fs::create_dir_all(&dir)?;
                File::options().create(true).append(true).open(dir.join("lock"))
            })
            .await?;
        loop {
            match lock.try_lock() {
                Ok(()) => break,
                // A thread that waits for the lock could not be cancelled.
                Err(TryLockError::WouldBlock) => tokio::time::sleep(LOCK_POLL).await,
                Err(TryLockError::Error(source)) => return Err(self.cache_error(source)),
            }
        }
        let dir = self.repository_dir.clone();
        self.blocking(move || {
            for entry in fs::read_dir(&dir)? {
                let entry = entry?;
                if entry.file_name().as_encoded_bytes().starts_with(b"tmp-") {
                    // A git that outlived its parent may still write there; the next one sweeps again.
                    let _ = fs::remove_dir_all(entry.path());
                }
            }
            Ok(lock)
        })
        .await
    }

    /// Fetches the commit if need be, and adds directories of it to the cache.
    async fn add(&self, paths: BTreeSet<RepoPath>) -> Result<Directories, GitError> {
        let repository = self.repository();
        if !self.blocking(move || repository.try_exists()).await? {
            self.fetch().await?;
        }
        let mut added = Directories::new();
        let mut rest = paths;
        // A directory is moved out of the work tree, so one that lies inside of another waits its turn.
        while !rest.is_empty() {
            let mut round = BTreeSet::<RepoPath>::new();
            for path in &rest {
                if !round.iter().any(|outer| outer.contains(path) || path.contains(outer)) {
                    round.insert(path.clone());
                }
            }
            rest.retain(|path| !round.contains(path));
            added.extend(self.check_out(round).await?);
        }
        Ok(added)
    }

    /// Fetches the commit and its trees, without history and without files.
    async fn fetch(&self) -> Result<(), GitError> {
        let work = self.work_dir().await?;
        let repository = work.path().join("repository");
        let mut init = self.git.command(self.url);
        init.args(["init", "--quiet", "--bare", "--template=", "--"]).arg(&repository);
        self.run(&mut init, "prepare to fetch").await?;

        let mut fetch = self.command(&repository);
        fetch.args([
            "fetch",
            "--quiet",
            "--no-tags",
            "--filter=blob:none",
            "--depth=1",
            "origin",
            self.commit.as_str(),
        ]);
        if let Err(failure) = self.git.run(&mut fetch, self.url).await? {
            if failure.stderr.contains("not our ref") {
                return Err(self.no_commit());
            }
            // An old server gives out only the tips of branches and tags, and a plain file server
            // knows neither depth nor filters. The commit is in the history of some branch.
            if !["unadvertised object", "shallow", "dumb http"]
                .iter()
                .any(|sign| failure.stderr.contains(sign))
            {
                return Err(failure.during("fetch from", self.url));
            }
            let mut fetch = self.command(&repository);
            fetch.args(["fetch", "--quiet", "--filter=blob:none", "origin"]);
            fetch.args(["+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"]);
            self.run(&mut fetch, "fetch from").await?;
        }
        let mut verify = self.command(&repository);
        verify.args(["rev-parse", "--verify", "--quiet", &format!("{}^{{commit}}", self.commit)]);
        if self.git.run(&mut verify, self.url).await?.is_err() {
            return Err(self.no_commit());
        }
        let (commit_dir, target) = (self.commit_dir(), self.repository());
        self.blocking(move || {
            fs::create_dir_all(commit_dir)?;
            fs::rename(repository, target)?;
            work.close()
        })
        .await
    }

    /// Checks out directories, none inside of another, and moves them to their places.
    ///
    /// The commit is first narrowed to a tree that holds nothing else, because git then asks the
    /// server for all missing files at once, and writes no other.
    async fn check_out(&self, paths: BTreeSet<RepoPath>) -> Result<Directories, GitError> {
        let work = self.work_dir().await?;
        let tree_dir = work.path().join("tree");
        let present = self.narrow(&work.path().join("selection"), &paths).await?;
        if !present.is_empty() {
            let mut write = self.command(&self.repository());
            write.env("GIT_INDEX_FILE", work.path().join("selection")).args(["write-tree", "--missing-ok"]);
            let tree = self.run(&mut write, "select tasks of").await?;
            let made = tree_dir.clone();
            self.blocking(move || fs::create_dir(made)).await?;
            let mut read = self.command(&self.repository());
            read.env("GIT_INDEX_FILE", work.path().join("index"))
                .env("GIT_WORK_TREE", &tree_dir)
                .current_dir(&tree_dir)
                .args(["read-tree", "-m", "-u", &tree]);
            self.run(&mut read, "check out tasks of").await?;
        }
        let moves: Vec<_> = paths
            .into_iter()
            .map(|path| {
                (present.contains(&path).then(|| (tree_dir.join(path.as_str()), self.slot(&path))), path)
            })
            .collect();
        self.blocking(move || {
            let mut done = Directories::new();
            for (step, path) in moves {
                if let Some((from, to)) = &step {
                    fs::rename(from, to)?;
                }
                done.insert(path, step.map(|(_, to)| to));
            }
            work.close()?;
            Ok(done)
        })
        .await
    }

    /// Writes an index of all files under some directories, and tells which of the directories exist.
    ///
    /// Submodules are left out: their files are in other repositories, which no registry named.
    async fn narrow(&self, index: &Path, paths: &BTreeSet<RepoPath>) -> Result<BTreeSet<RepoPath>, GitError> {
        let mut list = self.command(&self.repository());
        list.args(["ls-tree", "-r", "-z", "--full-tree", self.commit.as_str()]);
        let mut select = self.command(&self.repository());
        select
            .env("GIT_INDEX_FILE", index)
            .args(["update-index", "-z", "--index-info"])
            .stdin(Stdio::piped());
        let mut list = self.git.start(&mut list)?;
        let mut select = self.git.start(&mut select)?;
        let (stdout, stdin) = (list.stdout.take(), select.stdin.take());
        let (list_stderr, select_stderr) = (list.stderr.take(), select.stderr.take());
        let copy = async move {
            let mut present = BTreeSet::new();
            let (Some(stdout), Some(stdin)) = (stdout, stdin) else { return Ok(present) };
            let (mut entries, mut selected) = (BufReader::new(stdout), BufWriter::new(stdin));
            let mut entry = Vec::new();
            while entries.read_until(0, &mut entry).await? > 0 {
                if let Some(path) = owner(&entry, paths) {
                    selected.write_all(&entry).await?;
                    if !present.contains(path) {
                        present.insert(path.clone());
                    }
                }
                entry.clear();
            }
            selected.shutdown().await?;
            io::Result::Ok(present)
        };
        let (present, list_tail, select_tail, listed, selected) =
            tokio::join!(copy, tail(list_stderr), tail(select_stderr), list.wait(), select.wait());
        for (status, stderr) in [(listed, list_tail), (selected, select_tail)] {
            if !status.is_ok_and(|status| status.success()) {
                let detail = presentable(&stderr, self.url);
                return Err(GitError::Failed {
                    action: "read the tree of",
                    url: self.url.to_string(),
                    detail,
                });
            }
        }
        present.map_err(|source| self.cache_error(source))
    }

    /// A git in a repository of the cache. The URL is given each time and never stored, because it
    /// may hold a password.
    fn command(&self, repository: &Path) -> Command {
        let mut command = self.git.command(self.url);
        command.env("GIT_DIR", repository).arg("-c").arg(format!("remote.origin.url={}", self.url.secret()));
        command
    }

    async fn run(&self, command: &mut Command, action: &'static str) -> Result<String, GitError> {
        self.git.run(command, self.url).await?.map_err(|failure| failure.during(action, self.url))
    }

    async fn work_dir(&self) -> Result<TempDir, GitError> {
        let dir = self.repository_dir.clone();
        self.blocking(move || tempfile::Builder::new().prefix("tmp-").tempdir_in(dir)).await
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Result<T, GitError> {
        tokio::task::spawn_blocking(work)
            .await
            .unwrap_or_else(|error| Err(io::Error::other(error)))
            .map_err(|source| self.cache_error(source))
    }

    fn cache_error(&self, source: io::Error) -> GitError {
        GitError::Cache { path: self.repository_dir.clone(), source }
    }

    fn no_commit(&self) -> GitError {
        GitError::NoCommit { url: self.url.to_string(), commit: self.commit.to_string() }
    }
}

/// The wanted directory that an entry of `git ls-tree -r -z` lies in.
fn owner<'a>(entry: &[u8], wanted: &'a BTreeSet<RepoPath>) -> Option<&'a RepoPath> {
    const SUBMODULE: &[u8] = b"160000 ";
    if entry.starts_with(SUBMODULE) {
        return None;
    }
    let path = &entry[entry.iter().position(|byte| *byte == b'\t')? + 1..];
    let ancestors = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(end, _)| end);
    std::iter::once(0).chain(ancestors).find_map(|end| {
        let ancestor = std::str::from_utf8(&path[..end]).ok()?;
        wanted.get(ancestor)
    })
}
