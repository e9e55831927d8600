//! Where everything lies in a job directory.

use std::path::{Path, PathBuf};

use crate::event::TrialId;

/// A job's directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobDir(PathBuf);

impl JobDir {
    /// Names the directory; it need not exist.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The job file as JSON.
    pub fn config(&self) -> PathBuf {
        self.0.join("config.json")
    }

    /// The aggregate.
    pub fn result(&self) -> PathBuf {
        self.0.join("result.json")
    }

    /// The journal, from which all results can be made again.
    pub fn journal(&self) -> PathBuf {
        self.0.join("journal.jsonl")
    }

    /// Rollout's own log.
    pub fn log(&self) -> PathBuf {
        self.0.join("rollout.log")
    }

    /// The directory of a trial.
    pub fn trial(&self, trial: &TrialId) -> TrialDir {
        TrialDir(self.0.join(trial.to_string()))
    }
}

/// A trial's directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrialDir(PathBuf);

impl TrialDir {
    /// Names the directory; it need not exist.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The outcome.
    pub fn result(&self) -> PathBuf {
        self.0.join("result.json")
    }

    /// What went wrong, for people.
    pub fn error(&self) -> PathBuf {
        self.0.join("error.txt")
    }

    /// What building the image printed.
    pub fn build_log(&self) -> PathBuf {
        self.0.join("environment/build.txt")
    }

    /// Output of the install script.
    pub fn setup(&self) -> PathBuf {
        self.0.join("setup")
    }

    /// Output of the execute script.
    pub fn command(&self) -> PathBuf {
        self.0.join("command")
    }

    /// What `/logs` held inside.
    pub fn logs(&self) -> PathBuf {
        self.0.join("logs")
    }

    /// What `/logs/verifier` held inside, beside the output of the tests.
    pub fn verifier(&self) -> PathBuf {
        self.0.join("logs/verifier")
    }

    /// What is left of a try that the infrastructure failed.
    pub fn failed_try(&self, number: u32) -> PathBuf {
        self.0.join(format!("tries/{number}"))
    }
}
