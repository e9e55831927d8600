//! Saves results on disk: the journal first, then the files derived from it.
//!
//! It is a separate thread, because syncing blocks. Results that finish shortly after one sync are written with the
//! next, so the number of syncs does not grow with the number of trials.

use std::{
    path::PathBuf,
    sync::{Arc, mpsc as blocking_mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use serde::Serialize;
use serde_json::Value;
use tokio::sync::mpsc;

use super::{JobError, Plan, episode_log::EpisodeLog, planned::Work, provenance::Origin, rollouts::Finished};
use rollout_core::{name::TrialIndex, provenance::TrialProvenance, result::TrialResult};
use rollout_record::{
    atomic,
    journal::{Journal, JournalEntry},
    layout::{JobDir, TrialDir},
    metadata::GenerateMetadata,
    rows::RowFile,
};

/// The minimum time from the start of one write to the next. A write syncs two files and wakes two threads, which costs as
/// much as many short rollouts. No trial waits for it to start; only the reports of ended trials come later.
const PASS_INTERVAL: Duration = Duration::from_millis(2);

/// The outcome of recording trials together.
pub(super) enum Recorded {
    /// They are saved.
    Written(Vec<Finished>),
    /// They are not saved. The reason comes with the first group that it affects.
    Lost(Option<JobError>),
    /// Something other than a result could not be written. It belongs to no group.
    Warning(String),
}

/// A message to the recorder.
pub(super) enum Message {
    /// Trials that ended together. A row is written to the file with that number.
    Trials(Vec<(Option<usize>, Finished)>),
    /// Averages.
    Metadata(PathBuf, Box<GenerateMetadata>),
}

/// Receives finished trials.
pub(super) enum Recorder {
    /// Sends them to the thread that writes them.
    Disk { sender: blocking_mpsc::Sender<Message>, thread: JoinHandle<Journal> },
    /// Nothing is saved.
    Nowhere(mpsc::UnboundedSender<Recorded>),
}

impl Recorder {
    /// Starts the thread. Every group is reported once in `recorded`. The files are those of rows.
    pub(super) fn start(
        plan: Arc<Plan>,
        dir: JobDir,
        journal: Journal,
        files: Vec<PathBuf>,
        origin: Origin,
    ) -> (Self, mpsc::UnboundedReceiver<Recorded>) {
        let (sender, messages) = blocking_mpsc::channel();
        let (done, recorded) = mpsc::unbounded_channel();
        let thread = thread::spawn(move || {
            let files = files.into_iter().map(|path| (path, None)).collect();
            let eval_log = EpisodeLog::start(&plan, &dir, &done);
            let mut disk = Disk { plan: &plan, dir: &dir, journal, files, origin, eval_log };
            disk.write_all(&messages, &done);
            disk.journal
        });
        (Self::Disk { sender, thread }, recorded)
    }

    /// Saves nothing, and returns what it receives.
    pub(super) fn nowhere() -> (Self, mpsc::UnboundedReceiver<Recorded>) {
        let (done, recorded) = mpsc::unbounded_channel();
        (Self::Nowhere(done), recorded)
    }

    /// Whether trials are saved.
    pub(super) fn writes(&self) -> bool {
        matches!(self, Self::Disk { .. })
    }

    /// Records trials together, each with the number of the file of its row.
    pub(super) fn record(&self, trials: Vec<(Option<usize>, Finished)>) {
        match self {
            // The thread ends only after this sender is dropped, so it can receive.
            Self::Disk { sender, .. } => _ = sender.send(Message::Trials(trials)),
            Self::Nowhere(done) => {
                let trials = trials.into_iter().map(|(_, trial)| trial).collect();
                _ = done.send(Recorded::Written(trials));
            }
        }
    }

    /// Writes averages. A failure is only logged, because they are written again at the end.
    pub(super) fn metadata(&self, path: PathBuf, metadata: GenerateMetadata) {
        if let Self::Disk { sender, .. } = self {
            let _ = sender.send(Message::Metadata(path, Box::new(metadata)));
        }
    }

    /// Waits for running writes and returns the journal, if there is one.
    pub(super) async fn finish(self) -> Result<Option<Journal>, Panicked> {
        let Self::Disk { sender, thread } = self else { return Ok(None) };
        drop(sender);
        let journal = tokio::task::spawn_blocking(move || thread.join().ok()).await.ok().flatten();
        journal.map(Some).ok_or(Panicked)
    }
}

/// The writing thread has panicked.
pub(super) struct Panicked;

struct Disk<'a> {
    plan: &'a Plan,
    dir: &'a JobDir,
    journal: Journal,
    /// Files of rows, opened for the first row.
    files: Vec<(PathBuf, Option<RowFile>)>,
    origin: Origin,
    eval_log: Option<EpisodeLog>,
}

impl Disk<'_> {
    fn write_all(
        &mut self,
        messages: &blocking_mpsc::Receiver<Message>,
        done: &mpsc::UnboundedSender<Recorded>,
    ) {
        let mut begun: Option<Instant> = None;
        while let Ok(first) = messages.recv() {
            if let Some(rest) = begun.and_then(|begun| PASS_INTERVAL.checked_sub(begun.elapsed())) {
                thread::sleep(rest);
            }
            begun = Some(Instant::now());
            let mut groups = Vec::new();
            let mut averages = Vec::new();
            for message in [first].into_iter().chain(messages.try_iter()) {
                match message {
                    Message::Trials(trials) => groups.push(trials),
                    Message::Metadata(path, metadata) => averages.push((path, metadata)),
                }
            }
            let mut failure = self.write_groups(&groups).err();
            let durable = failure.is_none();
            for group in groups {
                let mut trials: Vec<_> = group.into_iter().map(|(_, trial)| trial).collect();
                let rows: Vec<_> = trials.iter_mut().map(|trial| trial.row.take()).collect();
                let written = durable.then(|| trials.iter().try_for_each(|trial| self.write_trial(trial)));
                let outcome = match written {
                    Some(Ok(())) => {
                        if let Some(log) = &mut self.eval_log {
                            log.write(self.plan, &trials, &rows, done);
                        }
                        Recorded::Written(trials)
                    }
                    Some(Err(error)) => Recorded::Lost(Some(error)),
                    None => Recorded::Lost(failure.take()),
                };
                let _ = done.send(outcome);
            }
            for (path, metadata) in averages {
                if let Err(error) = atomic::write_json(&path, &metadata) {
                    tracing::warn!(%error, "cannot write the averages");
                }
            }
        }
    }

    /// Rows are written first: a result counts when it is in the journal, and then its row exists.
    fn write_groups(&mut self, groups: &[Vec<(Option<usize>, Finished)>]) -> Result<(), JobError> {
        let mut lines = vec![Vec::new(); self.files.len()];
        for (file, trial) in groups.iter().flatten() {
            if let (Some(file), Some(row)) = (*file, &trial.row) {
                lines[file].extend_from_slice(row);
            }
        }
        for ((path, file), lines) in self.files.iter_mut().zip(lines) {
            if lines.is_empty() {
                continue;
            }
            let file = match file {
                Some(file) => file,
                None => file.insert(RowFile::open(path)?),
            };
            file.append(&lines)?;
        }
        for (_, trial) in groups.iter().flatten() {
            self.journal.push(&JournalEntry::Trial { index: trial.index, result: Arc::clone(&trial.result) });
        }
        Ok(self.journal.sync()?)
    }

    fn write_trial(&self, trial: &Finished) -> Result<(), JobError> {
        match self.plan.parts(trial.index).1.work {
            Work::Container(_) => {
                let dir = self.dir.trial(&self.plan.trial(trial.index));
                write_trial(&dir, &TrialFile::new(self.plan, trial.index, &trial.result, &self.origin))
            }
            Work::Example { .. } => Ok(()),
        }
    }
}

/// A trial's result.json.
#[derive(Serialize)]
struct TrialFile<'a> {
    #[serde(flatten)]
    result: &'a TrialResult,
    /// `source` of task.toml.
    #[serde(skip_serializing_if = "Option::is_none")]
    task_source: Option<String>,
    /// `[metadata]` of task.toml.
    #[serde(skip_serializing_if = "Option::is_none")]
    task_metadata: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    provenance: Option<TrialProvenance>,
}

impl<'a> TrialFile<'a> {
    fn new(plan: &Plan, index: TrialIndex, result: &'a TrialResult, origin: &Origin) -> Self {
        let task = plan.parts(index).1.container().map(|task| &task.config);
        let source = task.and_then(|task| task.source.as_deref());
        let metadata = task.map(|task| &task.metadata).filter(|metadata| !metadata.is_empty());
        Self {
            result,
            task_source: source.map(|source| plan.redactor().text(source).into_owned()),
            task_metadata: metadata.map(|metadata| plan.redactor().json(Value::Object(metadata.clone()))),
            provenance: origin.of(plan, index, result),
        }
    }
}

/// Writes the files of a finished trial. Its directory exists.
fn write_trial(dir: &TrialDir, trial: &TrialFile<'_>) -> Result<(), JobError> {
    if let Some(error) = &trial.result.error {
        atomic::write(&dir.error(), |file| file.write_all(error.file_content().as_bytes()))?;
    }
    atomic::write_json(&dir.result(), trial)?;
    // Remains of an earlier run are harmless.
    let _ = dir.settle();
    Ok(())
}

/// Writes the files of a trial again that is in the journal but not on disk.
pub(super) fn restore_trial(
    dir: &JobDir,
    plan: &Plan,
    index: TrialIndex,
    result: &TrialResult,
    origin: &Origin,
) -> Result<(), JobError> {
    let dir = &dir.trial(&plan.trial(index));
    let path = dir.path();
    let made = std::fs::create_dir_all(path).and_then(|()| dir.put_back());
    made.map_err(|source| JobError::Directory { path: path.to_owned(), source })?;
    write_trial(dir, &TrialFile::new(plan, index, result, origin))
}
