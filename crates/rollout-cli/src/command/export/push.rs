//! `--push-to-hub`: the files of an export, on a hub.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rollout::hub::{DEFAULT_ENDPOINT, Hub, HubError, Push, PushProgress};

use super::super::{load, print};
use crate::{
    args::FromJob,
    exit::{Exit, Failure, hinted},
    report::text::{DIM, count, paint},
    runtime::on_runtime,
};

const TOLD_EVERY: Duration = Duration::from_secs(2);

/// Nothing was made, because it could not have been pushed.
#[derive(Debug, thiserror::Error)]
#[error("{} is not empty, and everything in it would be pushed", .0.display())]
struct NotEmpty(PathBuf);

/// Makes files, and pushes them if that is asked for. What can be told to go wrong with that is told before anything
/// is made.
pub(super) fn pushing(from: &FromJob, make: impl FnOnce() -> Result<Exit, Failure>) -> Result<Exit, Failure> {
    let Some(repo) = &from.push_to_hub else { return make() };
    let endpoint = load::variable("HF_ENDPOINT").filter(|endpoint| !endpoint.trim().is_empty());
    let token = load::variable("HF_TOKEN").unwrap_or_default();
    let failure = hinted(HubError::hint);
    let hub = Hub::new(endpoint.as_deref().unwrap_or(DEFAULT_ENDPOINT).trim(), token).map_err(&failure)?;
    if !is_free(&from.out) {
        let hint = "give another directory: what has arrived on the hub is not sent again";
        return Err(Failure::from(NotEmpty(from.out.clone())).hint(Some(hint)));
    }
    let exit = make()?;
    let pushed = on_runtime(async {
        let push = Push::directory(repo.clone(), &from.out).await.map_err(|error| failure(error.into()))?;
        hub.push(&push.private(from.hub_private), &mut progress()).await.map_err(&failure)
    })?;
    let unchanged = match pushed.unchanged {
        0 => String::new(),
        number => format!(", {} there already", count(number as u64, "file")),
    };
    print(&format!("pushed {}{unchanged}: {}", count(pushed.changed as u64, "file"), pushed.url))?;
    Ok(exit)
}

/// Whether a directory is not there, or empty.
fn is_free(dir: &Path) -> bool {
    fs::read_dir(dir).map_or(true, |mut entries| entries.next().is_none())
}

/// Tells on standard error how far it is, if it takes long.
fn progress() -> impl FnMut(PushProgress) + Send {
    let mut told = Instant::now();
    move |progress| {
        if told.elapsed() >= TOLD_EVERY {
            told = Instant::now();
            let megabytes = |bytes: u64| bytes.div_ceil(1_000_000);
            let text = format!("sent {} of {} MB", megabytes(progress.sent), megabytes(progress.total));
            // Only for whoever waits.
            let _ = writeln!(anstream::stderr().lock(), "{}", paint(DIM, &text));
        }
    }
}
