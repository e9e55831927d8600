//! Announces changes of a page to the browser, as server-sent events.
//!
//! Files are looked at twice a second: their sizes and times, never their content. So a page that is open costs the job
//! nothing.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::{Stream, stream};
use rollout_core::name::TrialId;
use rollout_record::{layout::JobDir, saved};
use tokio_util::sync::CancellationToken;

use crate::library::Library;

/// How often files are looked at.
const PERIOD: Duration = Duration::from_millis(500);

/// The files whose changes change a page.
#[derive(Debug, Clone)]
pub(crate) enum Watched {
    Jobs,
    Job(String),
    Trial(String, TrialId),
}

/// How often the page of a running trial changes by itself, because it shows the age of the trial.
const AGE_PERIOD: u64 = 5;

/// The sizes and times of files, which jobs run, and the age of a running trial in periods.
type Stamp = (Vec<Option<(u64, SystemTime)>>, Vec<bool>, Option<u64>);

impl Watched {
    fn stamp(&self, library: &Library) -> Stamp {
        let names = match self {
            Self::Jobs => library.names().unwrap_or_default(),
            Self::Job(job) | Self::Trial(job, _) => vec![job.clone()],
        };
        let jobs: Vec<PathBuf> = names.iter().filter_map(|name| library.path(name)).collect();
        let files = |job: &PathBuf| match self {
            Self::Jobs => vec![JobDir::new(job).journal(), JobDir::new(job).notes()],
            Self::Job(_) => job_files(job),
            Self::Trial(_, trial) => trial_files(job, trial),
        };
        let paths: Vec<PathBuf> = jobs.iter().flat_map(files).collect();
        let stamp = |path: &PathBuf| {
            let entry = fs::metadata(path).ok()?;
            Some((entry.len(), entry.modified().ok()?))
        };
        // A job ends after its last file is written.
        let running: Vec<bool> = jobs.iter().map(|job| JobDir::new(job).is_running()).collect();
        let age = match (self, &jobs[..]) {
            (Self::Trial(_, trial), [job]) if running.contains(&true) => {
                let dir = JobDir::new(job).trial(trial);
                let age = saved::live::age(&dir).filter(|_| !dir.result().exists());
                age.map(|age| age.as_secs() / AGE_PERIOD)
            }
            _ => None,
        };
        (paths.iter().map(stamp).collect(), running, age)
    }
}

/// The journal, and the directories to which trials are added when they start.
fn job_files(job: &Path) -> Vec<PathBuf> {
    let dir = JobDir::new(job);
    let mut files = vec![dir.journal(), dir.notes()];
    let below = |dir: &Path| {
        let entries = fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok);
        entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path())
    };
    for agent in below(job) {
        files.extend(below(&agent));
    }
    files
}

fn trial_files(job: &Path, trial: &TrialId) -> Vec<PathBuf> {
    let job = JobDir::new(job);
    let dir = job.trial(trial);
    let mut files = vec![job.journal(), job.notes(), dir.result(), dir.build_log()];
    for dir in [&dir, &dir.current_step()] {
        files.extend([dir.trajectory(), dir.calls(), dir.live_conversation()]);
        for output in [dir.setup(), dir.command(), dir.verifier()] {
            files.extend(["stdout.txt", "stderr.txt"].map(|name| output.join(name)));
        }
    }
    files
}

/// What a stream of events knows.
struct Watch {
    library: Arc<Library>,
    watched: Watched,
    stop: CancellationToken,
    seen: Option<Stamp>,
}

/// Sends an event for each change, until the browser leaves or the server stops.
pub(crate) fn events(
    library: Arc<Library>,
    watched: Watched,
    stop: CancellationToken,
) -> Sse<impl Stream<Item = Result<Event, std::convert::Infallible>>> {
    let watch = Watch { library, watched, stop, seen: None };
    let changes = stream::unfold(watch, async |mut watch| {
        loop {
            let (library, watched) = (Arc::clone(&watch.library), watch.watched.clone());
            let stamp = tokio::task::spawn_blocking(move || watched.stamp(&library)).await.ok()?;
            let is_first = watch.seen.is_none();
            let is_new = watch.seen.as_ref() != Some(&stamp);
            watch.seen = Some(stamp);
            // The first event shows the browser that it is connected. Browsers ignore events without data.
            if is_first {
                return Some((Ok(Event::default().event("connected").data("1")), watch));
            }
            if is_new {
                return Some((Ok(Event::default().event("changed").data("1")), watch));
            }
            tokio::select! {
                () = watch.stop.cancelled() => return None,
                () = tokio::time::sleep(PERIOD) => {}
            }
        }
    });
    Sse::new(changes).keep_alive(KeepAlive::default())
}
