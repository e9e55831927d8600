//! A git repository made for one test.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::TestTask;

/// A repository with tasks in its directory `tasks`.
pub struct TestRepo(PathBuf);

impl TestRepo {
    /// An empty repository in a new directory.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        let repo = Self(dir.into());
        fs::create_dir_all(&repo.0).expect("make a directory for the repository");
        repo.git(&["init", "--quiet", "--initial-branch=main"]);
        repo
    }

    /// Writes this task, commits all files, and returns the commit's id.
    pub fn commit(&self, task: &TestTask) -> String {
        task.write(&self.0.join("tasks"));
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--message=tasks"]);
        // For servers that only serve files.
        self.git(&["update-server-info"]);
        self.git(&["rev-parse", "HEAD"])
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.0
    }

    /// Its file URL.
    pub fn url(&self) -> String {
        format!("file://{}", self.0.display())
    }

    fn git(&self, arguments: &[&str]) -> String {
        let output = Command::new("git")
            .current_dir(&self.0)
            .args(["-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgSign=false"])
            .args(arguments)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_SYSTEM", "/dev/null")
            .output()
            .expect("run git");
        assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}
