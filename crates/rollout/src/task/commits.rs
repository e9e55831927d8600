//! The commits of local tasks: one call of git per repository, however many tasks it holds.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Remembers which repository holds a directory and where its `HEAD` is.
#[derive(Debug, Default)]
pub struct GitCommits {
    repositories: HashMap<PathBuf, Option<PathBuf>>,
    heads: HashMap<PathBuf, Option<String>>,
}

impl GitCommits {
    /// The commit that `HEAD` of the repository around a directory names.
    ///
    /// There is none outside of a repository, in one without commits, in one that git refuses to read,
    /// and on a machine without git. This waits for git, so it belongs on a thread that may block.
    pub fn of(&mut self, dir: &Path) -> Option<String> {
        let repository = self.repository(dir)?;
        self.heads.entry(repository).or_insert_with_key(|root| head(root)).clone()
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

fn head(root: &Path) -> Option<String> {
    let mut git = Command::new("git");
    // Variables such as GIT_DIR, set while a hook runs, would point git at another repository.
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"GIT_") {
            git.env_remove(name);
        }
    }
    let output = git
        .arg("-C")
        .arg(root)
        .args(["rev-parse", "--verify", "--quiet", "HEAD^{commit}"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let commit = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !commit.is_empty()).then_some(commit)
}
