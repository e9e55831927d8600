//! Which of the container's processes belong to a command, and killing them.

use std::{
    collections::HashSet,
    thread::sleep,
    time::{Duration, Instant},
};

use rollout_guest::process::{self, ProcessEntry};
use rustix::{
    io::Errno,
    process::{Pid, Signal, kill_process_group},
};

/// How long a set of processes may go on starting others before the hunt is given up.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long processes get to stop before the work goes on without those that do not.
const HOLD_PATIENCE: Duration = Duration::from_secs(1);

/// How long processes get to end or stop before the next look.
const PAUSE: Duration = Duration::from_micros(500);

/// Signals every process but this one; `false` when there is none.
///
/// The kernel does it in one step, during which no process can start another. A walk over /proc has no end against
/// one that goes on starting others.
fn signal_everything(signal: Signal) -> bool {
    kill_process_group(Pid::INIT, signal) != Err(Errno::SRCH)
}

/// Kills every process but this one; `false` when some do not end.
pub(crate) fn kill_everything() -> bool {
    let end = Instant::now() + PATIENCE;
    while signal_everything(Signal::KILL) {
        if process::living().is_empty() {
            break;
        }
        if Instant::now() > end {
            return false;
        }
        sleep(PAUSE);
    }
    true
}

/// The processes that are there. One that keeps starting another and ending is held for a moment to be seen.
pub(crate) fn survivors() -> Vec<ProcessEntry> {
    let found = process::living();
    if !found.is_empty() || !signal_everything(Signal::STOP) {
        return found;
    }
    let found = process::living();
    signal_everything(Signal::CONT);
    found
}

/// Processes that do nothing until they are let go on.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// Those that somebody else had stopped before.
    stopped: Vec<i32>,
}

impl Held {
    /// Stops every process but this one.
    pub(crate) fn hold() -> Self {
        let running = |process: &ProcessEntry| !process.stopped;
        let stopped = process::living().into_iter().filter(|process| !running(process));
        let held = Self { stopped: stopped.map(|process| process.pid).collect() };
        let end = Instant::now() + HOLD_PATIENCE;
        while signal_everything(Signal::STOP) && process::living().iter().any(running) {
            if Instant::now() > end {
                break;
            }
            sleep(PAUSE);
        }
        held
    }

    /// Lets them go on.
    pub(crate) fn release(self) {
        signal_everything(Signal::CONT);
        process::signal(&self.stopped, Signal::STOP);
    }
}

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
