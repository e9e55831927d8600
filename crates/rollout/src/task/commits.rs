//! The commits of local tasks: one git query per repository.

use std::{
    collections::HashMap,
    ffi::OsStr,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    process::Stdio,
};

use super::git::{LIST_FILTERS, filters_off, isolated};

/// Caches the repository of a directory and its `HEAD`.
#[derive(Debug, Default)]
pub struct GitCommits {
    repositories: HashMap<PathBuf, Option<PathBuf>>,
    heads: HashMap<PathBuf, Option<Head>>,
}

/// A commit, and what differs from it.
#[derive(Debug)]
struct Head {
    commit: String,
    /// Files that are changed, new or deleted, and files or directories that git ignores.
    changed: Vec<PathBuf>,
    ignored: Vec<PathBuf>,
}

impl GitCommits {
    /// The commit of `HEAD` in the repository of a directory, with the suffix `-dirty` if the directory differs from
    /// the commit. Files that git ignores do not count.
    ///
    /// None outside of a repository, without commits, if git refuses to read the repository, and on a machine without
    /// git. It waits for git, so call it on a thread that may block.
    pub fn of(&mut self, dir: &Path) -> Option<String> {
        let repository = self.repository(dir)?;
        let relative = dir.strip_prefix(&repository).ok()?.to_owned();
        let head = self.heads.entry(repository).or_insert_with_key(|root| head(root)).as_ref()?;
        let differs = head.changed.iter().any(|path| path.starts_with(&relative))
            || head.ignored.iter().any(|path| relative.starts_with(path));
        Some(if differs { format!("{}-dirty", head.commit) } else { head.commit.clone() })
    }

    fn repository(&mut self, dir: &Path) -> Option<PathBuf> {
        if dir.join(".git").symlink_metadata().is_ok() {
            return Some(dir.to_owned());
        }
        let parent = dir.parent()?;
        if let Some(known) = self.repositories.get(parent) {
            return known.clone();
        }
        let found = self.repository(parent);
        self.repositories.insert(parent.to_owned(), found.clone());
        found
    }
}

fn head(root: &Path) -> Option<Head> {
    let commit = git(root, &[], &["rev-parse", "--verify", "--quiet", "HEAD^{commit}"])?;
    let commit = String::from_utf8(commit).ok()?.trim().to_owned();
    let (mut changed, mut ignored) = (Vec::new(), Vec::new());
    for entry in status(root).unwrap_or_default().split(|byte| *byte == 0) {
        // Two letters and a space come before a path.
        let Some((letters, path)) = entry.split_at_checked(3) else { continue };
        let path = PathBuf::from(OsStr::from_bytes(path));
        if letters.starts_with(b"!!") { ignored.push(path) } else { changed.push(path) }
    }
    (!commit.is_empty()).then_some(Head { commit, changed, ignored })
}

/// The files that differ, from git. None if git cannot determine this without running commands of the repository.
fn status(root: &Path) -> Option<Vec<u8>> {
    let list = String::from_utf8(git(root, &[], &LIST_FILTERS).unwrap_or_default()).ok()?;
    let off = filters_off(&list)?;
    let asked = ["status", "--porcelain=v1", "-z", "--no-renames", "--untracked-files=all"];
    git(root, &off, &[&asked[..], &["--ignored=matching", "--ignore-submodules=dirty"]].concat())
}

fn git(root: &Path, settings: &[String], arguments: &[&str]) -> Option<Vec<u8>> {
    let mut git = isolated(Path::new("git"));
    git.env("GIT_OPTIONAL_LOCKS", "0").arg("-C").arg(root);
    for setting in settings {
        git.args(["-c", setting]);
    }
    let output = git.args(arguments).stderr(Stdio::null()).output().ok()?;
    output.status.success().then_some(output.stdout)
}
