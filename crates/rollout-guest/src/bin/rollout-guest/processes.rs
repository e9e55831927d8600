//! Finds the processes that belong to the guest or to one of its commands, and kills them.

use std::{
    collections::HashSet,
    thread::sleep,
    time::{Duration, Instant},
};

use rollout_guest::{
    KillScope,
    process::{self, ProcessEntry},
};
use rustix::{
    io::Errno,
    process::{Pid, Signal, WaitOptions, getpid, kill_process_group, wait},
};

use crate::descendants;

/// How long to keep killing processes that keep forking before giving up.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long to wait for processes to stop before continuing without them.
const HOLD_PATIENCE: Duration = Duration::from_secs(1);

/// How long processes get to end or stop before the next check.
const PAUSE: Duration = Duration::from_micros(500);

/// The processes that this one is responsible for.
pub(crate) fn scope() -> KillScope {
    if getpid().is_init() { KillScope::Namespace } else { KillScope::Descendants }
}

/// The living processes of the guest, without itself.
fn living() -> Vec<ProcessEntry> {
    match scope() {
        KillScope::Namespace => process::living(),
        KillScope::Descendants => descendants::living(),
    }
}

/// The same, and whether none is missing.
fn scan() -> (Vec<ProcessEntry>, bool) {
    match scope() {
        // Signals to all stop also processes that a walk over /proc misses.
        KillScope::Namespace => (process::living(), true),
        KillScope::Descendants => descendants::scan(),
    }
}

/// Whether the parent of a process is the guest, also because its original parent has ended.
fn is_orphan(process: &ProcessEntry) -> bool {
    process.parent == own_pid()
}

fn own_pid() -> i32 {
    getpid().as_raw_pid()
}

/// Signals every other process; `false` if there is none.
///
/// For the first process of a namespace, the kernel does this in one step, during which no process can fork. A walk over
/// /proc may never finish against a process that keeps forking.
fn signal_everything(signal: Signal) -> bool {
    match scope() {
        KillScope::Namespace => kill_process_group(Pid::INIT, signal) != Err(Errno::SRCH),
        KillScope::Descendants => descendants::signal(signal),
    }
}

/// Kills every other process; `false` if some do not end.
pub(crate) fn kill_everything() -> bool {
    let end = Instant::now() + PATIENCE;
    if scope() == KillScope::Descendants {
        // The reaper waits for them.
        return descendants::kill(end, || ());
    }
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

/// Kills the descendants that a guest has left to its parent.
pub(crate) fn kill_left_behind() {
    let reap = || while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {};
    descendants::kill(Instant::now() + PATIENCE, reap);
}

/// The command lines of the running processes.
///
/// All are stopped until their command lines are read: a process that keeps forking and exiting would be gone by then,
/// and its child would be missing in the list.
pub(crate) fn survivors() -> Vec<String> {
    let held = Held::hold();
    let commands = living().into_iter().map(|process| process::command_line(process.pid)).collect();
    held.release();
    commands
}

/// Processes that are stopped until they are released.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// Processes that were stopped before.
    stopped: Vec<i32>,
}

impl Held {
    /// Stops every other process.
    pub(crate) fn hold() -> Self {
        let running = |process: &ProcessEntry| !process.stopped;
        let stopped = living().into_iter().filter(|process| !running(process));
        let held = Self { stopped: stopped.map(|process| process.pid).collect() };
        let end = Instant::now() + HOLD_PATIENCE;
        while signal_everything(Signal::STOP) {
            let (living, complete) = scan();
            let settled = complete && !living.iter().any(running);
            if settled || Instant::now() > end {
                break;
            }
            sleep(PAUSE);
        }
        held
    }

    /// Continues them.
    pub(crate) fn release(self) {
        signal_everything(Signal::CONT);
        process::signal(&self.stopped, Signal::STOP);
    }
}

/// The living processes of a command: its descendants, and orphans that started after it and are neither
/// commands nor descendants of one.
pub(crate) fn tree(main: i32, started: u64, commands: &HashSet<i32>) -> Vec<i32> {
    process::living_below(|process| {
        // Start times have a resolution of a hundredth of a second; at equal times, the older process has the
        // lower pid.
        let orphan = is_orphan(process) && (process.started, process.pid) >= (started, main);
        process.pid == main || (orphan && !commands.contains(&process.pid))
    })
}

/// Kills all processes that `find` returns until it returns none; `false` if they fork too fast.
pub(crate) fn kill(find: impl Fn() -> Vec<i32>) -> bool {
    let end = Instant::now() + PATIENCE;
    if process::kill_all(&find, || Instant::now() < end) {
        return true;
    }
    process::signal(&find(), Signal::KILL);
    find().is_empty()
}

/// Signals commands that were stopped before they executed their program, because a thread waits for the start.
pub(crate) fn signal_stopped_orphans(commands: &HashSet<i32>, with: Signal) {
    let held_up =
        |process: &ProcessEntry| process.stopped && is_orphan(process) && !commands.contains(&process.pid);
    let stopped = living().into_iter().filter(held_up);
    process::signal(&stopped.map(|process| process.pid).collect::<Vec<_>>(), with);
}
