//! Where everything lies in a job directory.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use rollout_core::name::TrialId;

/// Opens a file that has to be a regular one below a directory. A link that leads elsewhere is refused, and so is a pipe:
/// what is read of a task or a job that others made is published, or sent to a server.
pub fn open_below(dir: &Path, path: &Path) -> io::Result<File> {
    let path = path.canonicalize()?;
    if path.starts_with(dir.canonicalize()?) && path.metadata()?.is_file() {
        File::open(path)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file of this directory"))
    }
}

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

    /// What the tasks said when the job was planned.
    pub fn tasks(&self) -> PathBuf {
        self.0.join("tasks.jsonl")
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

    /// What a model and its tools said.
    pub fn trajectory(&self) -> PathBuf {
        self.0.join("trajectory.json")
    }

    /// What `/logs` held inside.
    pub fn logs(&self) -> PathBuf {
        self.0.join("logs")
    }

    /// What the agent left for the tests, where these run in an environment of their own.
    pub fn artifacts(&self) -> PathBuf {
        self.0.join("artifacts")
    }

    /// What `/logs/verifier` held inside, beside the output of the tests.
    pub fn verifier(&self) -> PathBuf {
        self.0.join("logs/verifier")
    }

    /// The directory with the files of the result that the journal has: what was set aside, while the trial is run again
    /// and when that was cut short.
    pub fn of_last_result(&self) -> Self {
        let earlier = self.earlier();
        let is_there = earlier.symlink_metadata().is_ok_and(|entry| entry.is_dir());
        if is_there { Self(earlier) } else { self.clone() }
    }

    /// What an earlier run left, while the trial is run again.
    fn earlier(&self) -> PathBuf {
        self.0.join("earlier")
    }

    /// Makes the directory ready for a trial. A result that is there is set aside until the new one takes its place;
    /// what an unfinished run left is removed.
    pub fn make(&self) -> io::Result<()> {
        match fs::create_dir(&self.0) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return fs::create_dir_all(&self.0),
            Err(error) => return Err(error),
        }
        self.put_back()?;
        if !self.result().exists() {
            fs::remove_dir_all(&self.0)?;
            return fs::create_dir(&self.0);
        }
        let entries: Vec<_> = fs::read_dir(&self.0)?.collect::<io::Result<_>>()?;
        fs::create_dir(self.earlier())?;
        entries
            .into_iter()
            .try_for_each(|entry| fs::rename(entry.path(), self.earlier().join(entry.file_name())))
    }

    /// Drops what was set aside: the new result is on the disk.
    pub fn settle(&self) -> io::Result<()> {
        match fs::remove_dir_all(self.earlier()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Brings back what was set aside, in the place of what an unfinished run left.
    pub fn put_back(&self) -> io::Result<()> {
        if !self.earlier().is_dir() {
            return Ok(());
        }
        for entry in fs::read_dir(&self.0)? {
            let entry = entry?;
            if entry.file_name() != "earlier" {
                if entry.file_type()?.is_dir() {
                    fs::remove_dir_all(entry.path())
                } else {
                    fs::remove_file(entry.path())
                }?;
            }
        }
        for entry in fs::read_dir(self.earlier())? {
            let entry = entry?;
            fs::rename(entry.path(), self.0.join(entry.file_name()))?;
        }
        fs::remove_dir(self.earlier())
    }

    /// What is left of a try that the infrastructure failed.
    pub fn failed_try(&self, number: u32) -> PathBuf {
        self.0.join(format!("tries/{number}"))
    }
}
