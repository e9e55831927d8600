//! The paths in a job directory.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use rollout_core::{name::TrialId, result::TrialResult};

/// Opens a regular file inside a directory. Links to the outside and pipes are rejected, because files of untrusted
/// tasks and jobs are published or sent to a server.
pub fn open_below(dir: &Path, path: &Path) -> io::Result<File> {
    let path = path.canonicalize()?;
    if path.starts_with(dir.canonicalize()?) && path.metadata()?.is_file() {
        File::open(path)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file inside the directory"))
    }
}

/// A job's directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobDir(PathBuf);

impl JobDir {
    /// Creates the path; the directory need not exist.
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

    /// The journal, from which all results can be restored.
    pub fn journal(&self) -> PathBuf {
        self.0.join("journal.jsonl")
    }

    /// The records of the tasks, from when the job was planned.
    pub fn tasks(&self) -> PathBuf {
        self.0.join("tasks.jsonl")
    }

    /// The tags and comments that people gave to trials.
    pub fn notes(&self) -> PathBuf {
        self.0.join("notes.jsonl")
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
    /// Creates the path; the directory need not exist.
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

    /// The error as text.
    pub fn error(&self) -> PathBuf {
        self.0.join("error.txt")
    }

    /// The output of the image build.
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

    /// The conversation of a model and its tools.
    pub fn trajectory(&self) -> PathBuf {
        self.0.join("trajectory.json")
    }

    /// The messages of a model and its tools while they work, one JSON line each. The trajectory replaces it.
    pub fn live_conversation(&self) -> PathBuf {
        self.0.join("conversation.jsonl")
    }

    /// The calls of the agent to its model, one JSON line each.
    pub fn calls(&self) -> PathBuf {
        self.0.join("agent/calls.jsonl")
    }

    /// The directory of a step, for a task with steps.
    pub fn step(&self, name: &str) -> Self {
        Self(self.0.join("steps").join(name))
    }

    /// The directories of the steps that ran, in their order. For a task without steps, the directory of the trial.
    /// Blocks.
    pub fn steps(&self, result: &TrialResult) -> Vec<Self> {
        match result.steps.is_empty() {
            false => result.steps.iter().map(|step| self.step(&step.name)).collect(),
            // A trial that failed before the agent started has output of the first step, but no result of a step.
            true => self.steps_so_far(),
        }
    }

    /// The directory of the step that explains the result: the last one that is below the pass threshold, or the last
    /// one. Blocks.
    pub fn deciding_step(&self, result: &TrialResult) -> Self {
        let is_solved = |reward: Option<f64>| reward.is_some_and(|reward| reward >= result.pass_threshold);
        let decides = result.steps.iter().rev().find(|step| step.error.is_some() || !is_solved(step.reward));
        match decides {
            Some(step) => self.step(&step.name),
            None => self.steps(result).pop().unwrap_or_else(|| self.clone()),
        }
    }

    /// The directories of the steps that have output until now, the newest last. For a task without steps, and before
    /// the first output of a step, the directory of the trial. Blocks.
    pub fn steps_so_far(&self) -> Vec<Self> {
        let changed = |dir: &Self| {
            let output = |dir: PathBuf| dir.join("stdout.txt");
            let outputs = [output(dir.setup()), output(dir.command()), output(dir.verifier())];
            let files = [dir.live_conversation(), dir.trajectory(), dir.calls()];
            let times = files.iter().chain(&outputs);
            times.filter_map(|file| fs::metadata(file).ok()?.modified().ok()).max()
        };
        let entries = fs::read_dir(self.0.join("steps")).into_iter().flatten().filter_map(Result::ok);
        let steps = entries.filter_map(|entry| Some(self.step(entry.file_name().to_str()?)));
        let mut steps: Vec<_> = steps.filter_map(|step| Some((changed(&step)?, step))).collect();
        steps.sort_by_key(|(time, _)| *time);
        match steps.is_empty() {
            true => vec![self.clone()],
            false => steps.into_iter().map(|(_, step)| step).collect(),
        }
    }

    /// The directory whose files grow while the trial runs: that of the newest step, for a task with steps. Blocks.
    pub fn current_step(&self) -> Self {
        self.steps_so_far().pop().unwrap_or_else(|| self.clone())
    }

    /// The content of `/logs` in the environment.
    pub fn logs(&self) -> PathBuf {
        self.0.join("logs")
    }

    /// Files that the agent left for tests in a separate environment.
    pub fn artifacts(&self) -> PathBuf {
        self.0.join("artifacts")
    }

    /// The content of `/logs/verifier` in the environment, and the output of the tests.
    pub fn verifier(&self) -> PathBuf {
        self.0.join("logs/verifier")
    }

    /// Returns the directory with the files of the last recorded result. While the trial runs again, and after that run
    /// was interrupted, it is the directory of earlier files.
    pub fn of_last_result(&self) -> Self {
        let earlier = self.earlier();
        let is_there = earlier.symlink_metadata().is_ok_and(|entry| entry.is_dir());
        if is_there { Self(earlier) } else { self.clone() }
    }

    /// The files of an earlier run while the trial runs again.
    fn earlier(&self) -> PathBuf {
        self.0.join("earlier")
    }

    /// Prepares the directory for a trial. Files of an existing result are moved aside until the new result replaces
    /// them. Files of an unfinished run are removed.
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

    /// Removes the files that were moved aside, after the new result is on disk.
    pub fn settle(&self) -> io::Result<()> {
        match fs::remove_dir_all(self.earlier()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Restores the files that were moved aside, and removes those of an unfinished run.
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

    /// The files of a try that failed because of the infrastructure.
    pub fn failed_try(&self, number: u32) -> PathBuf {
        self.0.join(format!("tries/{number}"))
    }
}
