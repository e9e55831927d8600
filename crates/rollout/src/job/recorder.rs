//! Puts results on the disk: the journal first, then the files that are made from it.
//!
//! A thread of its own, because syncing blocks. What finishes during one sync goes out with the
//! next, so the number of syncs does not grow with the number of trials.

use std::{
    sync::{Arc, mpsc as blocking_mpsc},
    thread::JoinHandle,
};

use tokio::sync::mpsc;

use super::{JobError, Plan};
use crate::{
    event::TrialIndex,
    record::{
        atomic,
        journal::{Entry, Journal},
        layout::{JobDir, TrialDir},
    },
    result::TrialResult,
    trial::error_text,
};

/// What became of one result that was handed over.
pub(super) enum Recorded {
    /// It is on the disk.
    Written(TrialIndex, Arc<TrialResult>),
    /// It is not. The reason comes with the first of those that share it.
    Lost(Option<JobError>),
}

/// Hands results to the thread that writes them.
pub(super) struct Recorder {
    sender: blocking_mpsc::Sender<(TrialIndex, Arc<TrialResult>)>,
    thread: JoinHandle<Journal>,
}

impl Recorder {
    /// Starts the thread. Every result handed over comes out of `recorded` once.
    pub(super) fn start(
        plan: Arc<Plan>,
        dir: JobDir,
        journal: Journal,
    ) -> (Self, mpsc::UnboundedReceiver<Recorded>) {
        let (sender, results) = blocking_mpsc::channel();
        let (done, recorded) = mpsc::unbounded_channel();
        let thread = std::thread::spawn(move || write_all(&plan, &dir, journal, &results, &done));
        (Self { sender, thread }, recorded)
    }

    /// Takes a result.
    pub(super) fn record(&self, index: TrialIndex, result: TrialResult) {
        // The thread ends only after this sender is gone, so it is there to receive.
        let _ = self.sender.send((index, Arc::new(result)));
    }

    /// Waits for what is under way and gives the journal back.
    pub(super) async fn finish(self) -> Option<Journal> {
        drop(self.sender);
        let thread = self.thread;
        tokio::task::spawn_blocking(move || thread.join().ok()).await.ok().flatten()
    }
}

fn write_all(
    plan: &Plan,
    dir: &JobDir,
    mut journal: Journal,
    results: &blocking_mpsc::Receiver<(TrialIndex, Arc<TrialResult>)>,
    done: &mpsc::UnboundedSender<Recorded>,
) -> Journal {
    while let Ok(first) = results.recv() {
        let mut group = vec![first];
        group.extend(results.try_iter());
        for (index, result) in &group {
            journal.push(&Entry::Trial { index: *index, result: Box::new(result.as_ref().clone()) });
        }
        let mut failure = journal.sync().err().map(JobError::from);
        let durable = failure.is_none();
        for (index, result) in group {
            let outcome = match durable.then(|| write_trial(&dir.trial(&plan.trial(index)), &result)) {
                Some(Ok(())) => Recorded::Written(index, result),
                Some(Err(error)) => Recorded::Lost(Some(error)),
                None => Recorded::Lost(failure.take()),
            };
            let _ = done.send(outcome);
        }
    }
    journal
}

/// Writes the files of a finished trial, whose directory is there.
fn write_trial(dir: &TrialDir, result: &TrialResult) -> Result<(), JobError> {
    if let Some(error) = &result.error {
        atomic::write(&dir.error(), |file| file.write_all(error_text(error).as_bytes()))?;
    }
    atomic::write_json(&dir.result(), result)?;
    // What stays of an earlier run is only clutter.
    let _ = dir.settle();
    Ok(())
}

/// Writes the files of a trial again of which the journal knows and the disk does not.
pub(super) fn restore_trial(dir: &TrialDir, result: &TrialResult) -> Result<(), JobError> {
    let path = dir.path();
    let made = std::fs::create_dir_all(path).and_then(|()| dir.put_back());
    made.map_err(|source| JobError::Directory { path: path.to_owned(), source })?;
    write_trial(dir, result)
}
