//! Owners of run directories, and removal of the directories of killed engines.
//!
//! A live engine, its zygote and its supervisors hold a lock on a file in their directory. A process that gets
//! the lock knows that all of them have ended.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, IFlags, flock, ioctl_getflags, ioctl_setflags};

use rollout_guest::remove::remove_tree;

use crate::{cgroup, limits::Controllers, private::private_dir};

const LOCK: &str = "lock";

/// The file in an engine's directory that lists the entries of [`crate::store`] that it uses.
pub(crate) const USES: &str = "uses";

/// The result of a sweep.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Dead engines whose directories and cgroups were removed.
    pub removed: u64,
    /// Engines that are alive, or whose sandboxes are still ending, and were left alone.
    pub live: u64,
    /// What could not be removed: the path and the reason.
    pub failed: Vec<String>,
}

/// Removes the directories and cgroups of dead engines; keeps live and preserved ones.
///
/// Blocks; the directories may be large.
pub fn sweep(state_dir: &Path) -> io::Result<SweepReport> {
    let run = state_dir.join("run");
    if !run.is_dir() {
        return Ok(SweepReport::default());
    }
    let (dead, live) = find_dead(&run)?;
    if dead.is_empty() {
        return Ok(SweepReport { live, ..SweepReport::default() });
    }
    let mut report = SweepReport { live, ..SweepReport::default() };
    let parents = Controllers::detect().parents();
    for (dir, _lock) in &dead {
        let engine_id = dir.file_name().unwrap_or_default().to_string_lossy();
        cgroup::remove_leftovers(&parents, &engine_id);
        match remove_tree(dir) {
            Ok(()) => report.removed += 1,
            Err(error) => report.failed.push(error.to_string()),
        }
    }
    Ok(report)
}

/// A dead engine's directory and, during its removal, its lock.
type Dead = (PathBuf, Option<fs::File>);

/// Takes the locks of dead engines, and counts the live ones.
fn find_dead(run: &Path) -> io::Result<(Vec<Dead>, u64)> {
    let _guard = guard(run, FlockOperation::LockExclusive)?;
    let (mut dead, mut live) = (Vec::new(), 0);
    for entry in fs::read_dir(run)? {
        let dir = entry?.path();
        if !dir.is_dir() {
            continue;
        }
        match fs::File::open(dir.join(LOCK)) {
            Ok(lock) if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() => {
                dead.push((dir, Some(lock)))
            }
            Ok(_) => live += 1,
            // Under the guard, every directory has its lock, unless its removal was interrupted.
            Err(error) if error.kind() == io::ErrorKind::NotFound => dead.push((dir, None)),
            Err(error) => return Err(error),
        }
    }
    Ok((dead, live))
}

/// Creates an engine's directory and the lock that marks it as alive.
pub(crate) fn claim(run_dir: &Path) -> io::Result<fs::File> {
    let run = run_dir.parent().ok_or(io::ErrorKind::InvalidInput)?;
    private_dir(run)?;
    let _guard = guard(run, FlockOperation::LockExclusive)?;
    fs::create_dir(run_dir)?;
    spread(run_dir);
    let lock = fs::File::create(run_dir.join(LOCK))?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    Ok(lock)
}

/// Asks ext4 to spread the sandboxes' directories over the disk.
///
/// Without a journal, ext4 skips every inode that was freed in the last minutes, one by one. If sandboxes came
/// and went in one part of the disk, each new file would soon cost milliseconds.
fn spread(run_dir: &Path) {
    let spread = fs::File::open(run_dir).and_then(|dir| {
        let flags = ioctl_getflags(&dir)?;
        Ok(ioctl_setflags(&dir, flags | IFlags::TOPDIR)?)
    });
    // Other file systems do not support this hint, and do not need it.
    let _ = spread;
}

/// Lists the live engines. The caller holds the guard.
pub(crate) fn live(run: &Path) -> io::Result<Vec<PathBuf>> {
    let mut live = Vec::new();
    for entry in fs::read_dir(run)? {
        let dir = entry?.path();
        match fs::File::open(dir.join(LOCK)) {
            // The lock is released again at once.
            Ok(lock) if flock(&lock, FlockOperation::NonBlockingLockShared).is_err() => live.push(dir),
            _ => {}
        }
    }
    Ok(live)
}

/// Locks the run directory, so that others do not see a half-made directory or a half-recorded use.
pub(crate) fn guard(run: &Path, how: FlockOperation) -> io::Result<fs::File> {
    let guard = fs::File::create(run.join("guard"))?;
    flock(&guard, how)?;
    Ok(guard)
}
