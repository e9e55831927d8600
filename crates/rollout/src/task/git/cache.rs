//! The cache of repositories: directories of commits, each fetched once, and either complete or absent.
//!
//! ```text
//! <root>/git/<hash of the URL>/use                      locked by readers of the files below
//! <root>/git/<hash of the URL>/lock                     locked by writers of the files below
//! <root>/git/<hash of the URL>/refs/<hash of its name>  the last known commit of a branch or tag
//! <root>/git/<hash of the URL>/<commit>/repository      the commit's trees, and the files needed so far
//! <root>/git/<hash of the URL>/<commit>/<directory>-<hash of its path>
//! <root>/git/<hash of the URL>/<commit>/<directory>-<hash of its path>.files   the files of the directory
//! <root>/git/<hash of the URL>/tmp-…                    incomplete work, useless to others
//! ```
//!
//! Everything is created under `tmp-…` and renamed when it is complete, so a killed process leaves nothing that looks
//! like a finished fetch, and existing files can be read without the lock. A directory whose files were changed after it
//! was fetched is replaced.

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
    held,
    manifest::{self, Condition},
};
use crate::task::sources::notice;
use rollout_core::text::hex;
use rollout_env::blocking::blocking;

/// The interval of checks for a lock that another process holds.
const LOCK_POLL: Duration = Duration::from_millis(100);

/// Leaves out files until they are needed.
const FILTER: &str = "--filter=blob:none";

/// The directories of a commit, by their path in the repository; none if the commit does not have one.
pub(in crate::task) type Directories = BTreeMap<RepoPath, Option<PathBuf>>;

/// The cache, and the git command that fills it.
#[derive(Debug)]
pub(in crate::task) struct GitCache {
    root: PathBuf,
    git: Git,
    /// Whether only what is in the cache may be used.
    offline: bool,
}

impl GitCache {
    pub(in crate::task) fn new(cache_dir: &Path, git: Git, offline: bool) -> Self {
        Self { root: cache_dir.join("git"), git, offline }
    }

    /// The commit of a branch or tag, or of the default branch. Without a network, it is the last known one.
    pub(in crate::task) async fn look_up(
        &self,
        url: &GitUrl,
        revision: Option<&str>,
    ) -> Result<CommitId, GitError> {
        let dir = self.repository_dir(url);
        let kept = dir.join("refs").join(&hex(&Sha256::digest(revision.unwrap_or("HEAD")))[..32]);
        let failed = |source| GitError::Cache { path: dir.clone(), source };
        if self.is_offline(url) {
            let known = blocking(move || fs::read_to_string(kept)).await.ok();
            return known.and_then(|id| CommitId::parse(id.trim()).ok()).ok_or_else(|| {
                let what = revision.map_or("the default branch".to_owned(), |name| format!("`{name}`"));
                GitError::Offline { url: url.to_string(), what }
            });
        }
        let commit = self.git.look_up(url, revision).await?;
        let (held, id) = (dir.clone(), commit.to_string());
        let keep = move || {
            held::hold(&held)?;
            fs::create_dir_all(held.join("refs"))?;
            let mut file = tempfile::NamedTempFile::new_in(held.join("refs"))?;
            io::Write::write_all(&mut file, id.as_bytes())?;
            file.persist(kept)?;
            Ok(())
        };
        blocking(keep).await.map_err(failed)?;
        Ok(commit)
    }

    /// Whether the repository cannot be asked. One on this machine always can.
    fn is_offline(&self, url: &GitUrl) -> bool {
        self.offline && !url.is_local()
    }

    /// Named without credentials, so that a renewed token fetches nothing twice, and a journal, which has no credentials,
    /// leads to the same directory. A commit is the same wherever it comes from.
    fn repository_dir(&self, url: &GitUrl) -> PathBuf {
        repository_dir(&self.root, url)
    }

    /// Makes directories of a commit available, and fetches what is missing in the cache.
    pub(in crate::task) async fn directories(
        &self,
        url: &GitUrl,
        commit: &CommitId,
        paths: BTreeSet<RepoPath>,
        progress: &(dyn Fn(String) + Send + Sync),
    ) -> Result<Directories, GitError> {
        let place = Place { git: &self.git, url, commit, repository_dir: self.repository_dir(url) };
        let dir = place.repository_dir.clone();
        place.blocking(move || held::hold(&dir)).await?;
        let Cached { mut found, missing, changed } = place.cached(paths).await?;
        if missing.is_empty() {
            return Ok(found);
        }
        if self.is_offline(url) {
            if let Some(path) = changed {
                return Err(GitError::Changed { path });
            }
            let paths: Vec<String> = missing.iter().map(|path| format!("`{path}`")).collect();
            let what = format!("{} at {commit}", rollout_core::text::listed(paths));
            return Err(GitError::Offline { url: url.to_string(), what });
        }
        let waiting = format!("waiting for another process to fetch {url}");
        let _lock = notice(progress, waiting, place.lock()).await?;
        let Cached { found: new, missing, .. } = place.cached(missing).await?;
        found.extend(new);
        if !missing.is_empty() {
            let fetching = format!("fetching {url} at {commit}");
            found.extend(notice(progress, fetching, place.add(missing)).await?);
        }
        Ok(found)
    }
}

fn repository_dir(root: &Path, url: &GitUrl) -> PathBuf {
    root.join(&hex(&Sha256::digest(url.shown()))[..32])
}

fn slot_name(path: &RepoPath) -> String {
    let last = path.as_str().rsplit('/').next().unwrap_or_default();
    let readable: String =
        last.chars().filter(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c)).take(60).collect();
    let hash = &hex(&Sha256::digest(path.as_str()))[..16];
    format!("{readable}-{hash}")
}

/// The directory in the cache that has a directory of a commit, if it was fetched and not removed. Blocks.
pub fn cached_directory(cache_dir: &Path, url: &str, commit: &str, path: &str) -> Option<PathBuf> {
    let (url, commit) = (GitUrl::parse(url).ok()?, CommitId::parse(commit).ok()?);
    let commit_dir = repository_dir(&cache_dir.join("git"), &url).join(commit.as_str());
    // A task of a set was fetched together with the set, so a directory above it may be in the cache instead.
    Path::new(path).ancestors().find_map(|above| {
        let fetched = match above.to_str()? {
            "" => RepoPath::root(),
            above => RepoPath::parse(above).ok()?,
        };
        let dir = commit_dir.join(slot_name(&fetched)).join(Path::new(path).strip_prefix(above).ok()?);
        dir.is_dir().then_some(dir)
    })
}

/// The list of the files of a directory in the cache.
fn list_of(slot: &Path) -> PathBuf {
    slot.with_added_extension("files")
}

/// Which directories of a commit are in the cache.
struct Cached {
    found: Directories,
    missing: BTreeSet<RepoPath>,
    /// The first file that is not as it was fetched. Its directory is one of the missing ones.
    changed: Option<PathBuf>,
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

    /// The location of a complete directory of the commit. The path is hashed because one task may be inside another,
    /// and because it may be too long for a file name.
    fn slot(&self, path: &RepoPath) -> PathBuf {
        self.commit_dir().join(slot_name(path))
    }

    /// Splits paths into cached and missing ones.
    async fn cached(&self, paths: BTreeSet<RepoPath>) -> Result<Cached, GitError> {
        let slots: Vec<_> = paths.into_iter().map(|path| (self.slot(&path), path)).collect();
        self.blocking(move || {
            let mut cached = Cached { found: Directories::new(), missing: BTreeSet::new(), changed: None };
            for (slot, path) in slots {
                let condition = match slot.try_exists()? {
                    true => Some(manifest::check(&slot, &list_of(&slot))?),
                    false => None,
                };
                if condition == Some(Condition::Unchanged) {
                    cached.found.insert(path, Some(slot));
                    continue;
                }
                if let Some(Condition::Changed(file)) = condition {
                    cached.changed.get_or_insert(file);
                }
                cached.missing.insert(path);
            }
            Ok(cached)
        })
        .await
    }

    /// Takes the repository's lock, which allows removing what killed processes left behind.
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
                    // A git process that outlived its parent may still write there; the next cleanup removes it.
                    let _ = fs::remove_dir_all(entry.path());
                }
            }
            Ok(lock)
        })
        .await
    }

    /// Fetches the commit if needed, and adds directories of it to the cache.
    async fn add(&self, paths: BTreeSet<RepoPath>) -> Result<Directories, GitError> {
        let repository = self.repository();
        if !self.blocking(move || repository.try_exists()).await? {
            self.fetch().await?;
        }
        let mut added = Directories::new();
        let mut rest = paths;
        // A directory is moved out of the work tree, so one that is inside another is added in a later round.
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

    /// Fetches the commit and its trees, without history and, if the server supports it, without files.
    async fn fetch(&self) -> Result<(), GitError> {
        let work = self.work_dir().await?;
        let mut repository = work.path().join("partial");
        self.init(&repository).await?;
        let mut fetch = self.command(&repository);
        fetch.args(["fetch", "--quiet", "--no-tags", FILTER, "--depth=1", "origin", self.commit.as_str()]);
        if let Err(failure) = self.git.run(&mut fetch, self.url).await? {
            if failure.stderr.contains("not our ref") {
                return Err(self.no_commit());
            }
            // An old server offers only the tips of branches and tags, and a plain file server supports neither depth
            // nor filters. The commit is in the history of some branch.
            let signs = ["unadvertised object", "shallow", "dumb http"];
            if !signs.iter().any(|sign| failure.stderr.contains(sign)) {
                return Err(failure.during("fetch from", self.url));
            }
            // The failed try has marked its repository as partial, which this one is not.
            repository = work.path().join("whole");
            self.init(&repository).await?;
            let mut fetch = self.command(&repository);
            fetch.args([
                "fetch",
                "--quiet",
                "origin",
                "+refs/heads/*:refs/heads/*",
                "+refs/tags/*:refs/tags/*",
            ]);
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

    async fn init(&self, repository: &Path) -> Result<(), GitError> {
        let mut init = self.git.command(self.url);
        init.args(["init", "--quiet", "--bare", "--template=", "--"]).arg(repository);
        self.run(&mut init, "prepare to fetch").await.map(drop)
    }

    /// Checks out directories, none of them inside another, and moves them to their locations.
    ///
    /// The commit is first reduced to a tree with only these directories, so that git writes no other file, and all
    /// files of the tree are fetched at once.
    async fn check_out(&self, paths: BTreeSet<RepoPath>) -> Result<Directories, GitError> {
        let work = self.work_dir().await?;
        let tree_dir = work.path().join("tree");
        let files = work.path().join("files");
        let present = self.narrow(&work.path().join("selection"), &files, &paths).await?;
        if !present.is_empty() {
            self.fetch_files(files).await?;
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
            for (number, (step, path)) in moves.into_iter().enumerate() {
                if let Some((from, to)) = &step {
                    // Before the directory, so that every directory has one.
                    manifest::write(from, &list_of(to))?;
                    match fs::rename(to, work.path().join(format!("changed-{number}"))) {
                        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                        _ => fs::rename(from, to)?,
                    }
                }
                done.insert(path, step.map(|(_, to)| to));
            }
            work.close()?;
            Ok(done)
        })
        .await
    }

    /// Fetches the files with the listed ids, if the repository is partial.
    ///
    /// Git would fetch them by itself, but a server that changes its protocol in between could make it recurse without
    /// end.
    async fn fetch_files(&self, list: PathBuf) -> Result<(), GitError> {
        let config = self.repository().join("config");
        let list = self
            .blocking(move || {
                let partial = fs::read_to_string(config)?.contains("promisor");
                partial.then(|| File::open(list)).transpose()
            })
            .await?;
        let Some(list) = list else { return Ok(()) };
        let mut fetch = self.command(&self.repository());
        fetch
            .args(["-c", "fetch.negotiationAlgorithm=noop"])
            .args(["fetch", "--quiet", "--no-tags", "--no-write-fetch-head", FILTER, "--stdin", "origin"])
            .stdin(list);
        self.run(&mut fetch, "fetch files from").await.map(drop)
    }

    /// Writes an index of all files in some directories and a list of their ids, and returns which of the directories
    /// exist.
    ///
    /// Submodules are left out: their files are in other repositories, which the registry does not name.
    async fn narrow(
        &self,
        index: &Path,
        files: &Path,
        paths: &BTreeSet<RepoPath>,
    ) -> Result<BTreeSet<RepoPath>, GitError> {
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
            let mut ids = BufWriter::new(tokio::fs::File::create(files).await?);
            let mut line = Vec::new();
            while entries.read_until(0, &mut line).await? > 0 {
                if let Some(entry) = Entry::parse(&line)
                    && let Some(path) = entry.owner(paths)
                {
                    selected.write_all(&line).await?;
                    ids.write_all(entry.id).await?;
                    ids.write_all(b"\n").await?;
                    if !present.contains(path) {
                        present.insert(path.clone());
                    }
                }
                line.clear();
            }
            selected.shutdown().await?;
            ids.shutdown().await?;
            io::Result::Ok(present)
        };
        let (present, list_tail, select_tail, listed, selected) =
            tokio::join!(copy, tail(list_stderr), tail(select_stderr), list.wait(), select.wait());
        // If the second process fails, the first one cannot write to it: the reason is in the second.
        for (status, stderr) in [(selected, select_tail), (listed, list_tail)] {
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

    /// A git command in a repository of the cache. The URL is passed each time and never stored, because its query may
    /// be secret.
    fn command(&self, repository: &Path) -> Command {
        let mut command = self.git.command(self.url);
        command.env("GIT_DIR", repository).arg("-c").arg(format!("remote.origin.url={}", self.url.as_str()));
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
        blocking(work).await.map_err(|source| self.cache_error(source))
    }

    fn cache_error(&self, source: io::Error) -> GitError {
        GitError::Cache { path: self.repository_dir.clone(), source }
    }

    fn no_commit(&self) -> GitError {
        GitError::NoCommit { url: self.url.to_string(), commit: self.commit.to_string() }
    }
}

/// A file in the output of `git ls-tree -r -z`.
struct Entry<'a> {
    id: &'a [u8],
    path: &'a [u8],
}

impl<'a> Entry<'a> {
    /// Parses `<mode> <kind> <id>\t<path>`; none for a submodule.
    fn parse(line: &'a [u8]) -> Option<Self> {
        let tab = line.iter().position(|byte| *byte == b'\t')?;
        let mut words = line[..tab].split(|byte| *byte == b' ');
        let (_mode, kind, id) = (words.next()?, words.next()?, words.next()?);
        (kind == b"blob").then_some(Self { id, path: &line[tab + 1..] })
    }

    /// The requested directory that contains the file.
    fn owner<'w>(&self, wanted: &'w BTreeSet<RepoPath>) -> Option<&'w RepoPath> {
        let ends = self.path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(end, _)| end);
        std::iter::once(0)
            .chain(ends)
            .find_map(|end| wanted.get(std::str::from_utf8(&self.path[..end]).ok()?))
    }
}
