//! Which of the container's processes belong to a command, and killing them.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use rollout_guest::process::{self, ProcessEntry};
use rustix::process::Signal;

/// How long a set of processes may go on starting others before the hunt is given up.
const PATIENCE: Duration = Duration::from_secs(20);

/// The living processes that a command started: its descendants, and orphans from its time on that are no
/// command and no descendants of one.
pub(crate) fn tree(main: i32, started: u64, commands: &HashSet<i32>) -> Vec<i32> {
    process::living_below(|process| {
        // Times are told in hundredths of a second; within one, the older of two has the lower pid.
        let orphan = process.is_orphan() && (process.started, process.pid) >= (started, main);
        process.pid == main || (orphan && !commands.contains(&process.pid))
    })
}

/// Kills all that `find` finds, until it finds nothing; `false` when they outran it.
pub(crate) fn kill(find: impl Fn() -> Vec<i32>) -> bool {
    let end = Instant::now() + PATIENCE;
    if process::kill_all(&find, || Instant::now() < end) {
        return true;
    }
    process::signal(&find(), Signal::KILL);
    find().is_empty()
}

/// Signals a command that was stopped before it became its program, for which somebody waits.
pub(crate) fn signal_stopped_orphans(commands: &HashSet<i32>, with: Signal) {
    let held_up =
        |process: &ProcessEntry| process.stopped && process.is_orphan() && !commands.contains(&process.pid);
    let stopped = process::living().into_iter().filter(held_up);
    process::signal(&stopped.map(|process| process.pid).collect::<Vec<_>>(), with);
}
