//! `--push-to-hub`: pushes the files of an export to a hub.

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

const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);

/// The output directory is not empty.
#[derive(Debug, thiserror::Error)]
#[error("{} is not empty, and everything in it would be pushed", .0.display())]
struct NotEmpty(PathBuf);

/// Writes the files, and pushes them if requested. The endpoint, the token and the output directory are checked before
/// anything is written.
pub(super) fn pushing(from: &FromJob, make: impl FnOnce() -> Result<Exit, Failure>) -> Result<Exit, Failure> {
    let Some(repo) = &from.push_to_hub else { return make() };
    let endpoint = load::variable("HF_ENDPOINT").filter(|endpoint| !endpoint.trim().is_empty());
    let token = load::variable("HF_TOKEN").unwrap_or_default();
    let failure = hinted(HubError::hint);
    let hub = Hub::new(endpoint.as_deref().unwrap_or(DEFAULT_ENDPOINT).trim(), token).map_err(&failure)?;
    if !is_free(&from.out) {
        let hint = "choose another directory; files that are already on the hub are not sent again";
        return Err(Failure::from(NotEmpty(from.out.clone())).hint(Some(hint)));
    }
    let exit = make()?;
    let pushed = on_runtime(async {
        let push = Push::directory(repo.clone(), &from.out).await.map_err(|error| failure(error.into()))?;
        hub.push(&push.private(from.hub_private), &mut progress()).await.map_err(&failure)
    })?;
    let unchanged = match pushed.unchanged {
        0 => String::new(),
        number => format!(", {} unchanged", count(number as u64, "file")),
    };
    print(&format!("pushed {}{unchanged}: {}", count(pushed.changed as u64, "file"), pushed.url))?;
    Ok(exit)
}

/// Whether a directory is missing or empty.
fn is_free(dir: &Path) -> bool {
    fs::read_dir(dir).map_or(true, |mut entries| entries.next().is_none())
}

/// Prints the progress to stderr every [`PROGRESS_INTERVAL`].
fn progress() -> impl FnMut(PushProgress) + Send {
    let mut last = Instant::now();
    move |progress| {
        if last.elapsed() >= PROGRESS_INTERVAL {
            last = Instant::now();
            let megabytes = |bytes: u64| bytes.div_ceil(1_000_000);
            let text = format!("sent {} of {} MB", megabytes(progress.sent), megabytes(progress.total));
            // The push works without progress messages, so write errors are ignored.
            let _ = writeln!(anstream::stderr().lock(), "{}", paint(DIM, &text));
        }
    }
}
