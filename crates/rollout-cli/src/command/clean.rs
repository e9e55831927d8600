//! `rollout clean`: removes what ended runs left behind, and says what takes room.

use std::{
    fs::{self, File, TryLockError},
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use crate::{
    args::Clean,
    exit::{Exit, Failure},
    report::{
        Align, table,
        text::{BOLD, count, paint, size},
    },
    state::state_dir,
};

/// Where the engine keeps the environments of each of its processes, and those that were preserved.
const RUNS: &str = "run";
const PRESERVED: &str = "preserved";

/// What is kept to make the next job faster.
const CACHES: [&str; 3] = ["images", "layers", "git"];

/// Removes what may go and prints what was found.
pub(crate) fn run(args: &Clean) -> Result<Exit, Failure> {
    let state_dir = state_dir()?;
    let (dead, live) = by_use(&state_dir.join(RUNS), "lock");
    let (preserved, attached) = by_use(&state_dir.join(PRESERVED), "sandbox.json");
    let gone = if args.dry_run { "to remove" } else { "removed" };
    let for_preserved = if args.preserved { gone } else { "kept" };
    let mut rows = vec![
        row(gone, &count(dead.len() as u64, "ended run"), &dead),
        row("kept", &count(live.len() as u64, "running job"), &live),
        row(for_preserved, &count(preserved.len() as u64, "preserved environment"), &preserved),
    ];
    if !attached.is_empty() {
        rows.push(row("kept", &count(attached.len() as u64, "attached environment"), &attached));
    }
    rows.extend(CACHES.map(|cache| row("kept", cache, &[state_dir.join(cache)])));
    if !args.dry_run {
        if args.preserved {
            discard(&state_dir, &preserved)?;
        }
        rollout_sandbox::sweep(&state_dir)?;
    }
    let mut lines = table(&[Align::Left, Align::Left, Align::Right], &rows);
    lines.insert(0, paint(BOLD, &state_dir.display().to_string()));
    super::print(&lines.join("\n"))?;
    Ok(Exit::Success)
}

fn row(fate: &str, what: &str, paths: &[PathBuf]) -> Vec<String> {
    let bytes = paths.iter().map(|path| disk_use(path)).sum();
    vec![fate.to_owned(), what.to_owned(), size(bytes)]
}

/// The directories of a directory that nobody uses, and those that somebody does: a process holds a
/// lock on the file of that name.
fn by_use(parent: &Path, lock: &str) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let free = |dir: &PathBuf| match File::open(dir.join(lock)) {
        Ok(lock) => !matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)),
        Err(_) => true,
    };
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).partition(free)
}

/// Makes preserved environments the leftovers of a run that is over, so that the engine's own sweep
/// removes them: it copes with whatever agents put there.
fn discard(state_dir: &Path, preserved: &[PathBuf]) -> io::Result<()> {
    for kept in preserved {
        let Some(name) = kept.file_name() else { continue };
        let run = state_dir.join(RUNS).join(name);
        fs::create_dir_all(&run)?;
        fs::rename(kept, run.join(name))?;
    }
    Ok(())
}

/// The room that a tree takes, as far as it can be read.
fn disk_use(path: &Path) -> u64 {
    const BLOCK_BYTES: u64 = 512;
    let mut bytes = 0;
    let mut waiting = vec![path.to_owned()];
    while let Some(path) = waiting.pop() {
        let Ok(found) = fs::symlink_metadata(&path) else { continue };
        bytes += found.blocks() * BLOCK_BYTES;
        if found.is_dir() {
            waiting.extend(fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path()));
        }
    }
    bytes
}
