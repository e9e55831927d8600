//! Finds, signals and kills the descendants of a process that is not the first of a namespace.
//!
//! The process is their subreaper, so orphans become its children. A walk over /proc can miss a process that forks and
//! exits while it is walked. So only the kernel's answer that there are no children counts as the end of a kill, and
//! children are signalled as soon as they are listed while processes keep appearing.

use std::{
    collections::HashSet,
    fs,
    thread::sleep,
    time::{Duration, Instant},
};

use rollout_guest::process::{self, ProcessEntry};
use rustix::{
    io::Errno,
    process::{Pid, Signal, WaitId, WaitIdOptions, getpgrp, getpid, kill_process_group, waitid},
};

/// How long killed processes get to end before the next check.
const PAUSE: Duration = Duration::from_micros(500);

/// How often children are listed and signalled while processes keep appearing.
const RACES: usize = 100;

/// The living descendants.
pub(crate) fn living() -> Vec<ProcessEntry> {
    process::living_descendants(getpid().as_raw_pid())
}

/// The same, and whether no process can be missing because none was started meanwhile.
pub(crate) fn scan() -> (Vec<ProcessEntry>, bool) {
    let before = last_pid();
    let living = living();
    (living, last_pid() == before)
}

/// The last pid that was given to a process or thread, also of others. `None` if it is not shown.
fn last_pid() -> Option<String> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    text.split_whitespace().last().map(str::to_owned)
}

/// Whether there are children, living or not reaped.
fn has_children() -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    waitid(WaitId::All, options).err() != Some(Errno::CHILD)
}

/// Signals all descendants; `false` if there is none.
pub(crate) fn signal(signal: Signal) -> bool {
    if !has_children() {
        return false;
    }
    let (living, complete) = scan();
    signal_found(&living, complete, signal);
    true
}

/// Kills all descendants until none is left; `false` if some do not end before `end`.
///
/// All are stopped before any is killed, so that fewer start another. `reap` must wait for ended children, unless
/// another thread does.
pub(crate) fn kill(end: Instant, reap: impl Fn()) -> bool {
    let mut stopped = HashSet::new();
    loop {
        reap();
        if !has_children() {
            return true;
        }
        let late = Instant::now() > end;
        let (living, complete) = scan();
        let fresh =
            living.iter().filter(|process| stopped.insert((process.pid, process.started))).count() > 0;
        let stops = fresh && !late;
        signal_found(&living, complete, if stops { Signal::STOP } else { Signal::KILL });
        if late {
            return self::living().is_empty();
        }
        if !stops {
            sleep(PAUSE);
        }
    }
}

/// Signals processes that were found, and children that were not, if some may be missing.
fn signal_found(found: &[ProcessEntry], complete: bool, signal: Signal) {
    signal_with_groups(found, signal);
    if !complete {
        for _ in 0..RACES {
            signal_children(signal);
        }
    }
}

/// Signals processes and their groups. The kernel signals a group in one step, during which none of it can fork.
///
/// The descendants are in the session of this process, which it has started, or in sessions of their own. So all
/// processes of their groups are descendants too, except that they can join the group of this process.
fn signal_with_groups(processes: &[ProcessEntry], signal: Signal) {
    let groups: HashSet<i32> = processes.iter().map(|process| process.group).collect();
    let own = getpgrp().as_raw_pid();
    for group in groups.into_iter().filter(|group| *group > 1 && *group != own).filter_map(Pid::from_raw) {
        // A group whose processes have ended ignores the signal.
        let _ = kill_process_group(group, signal);
    }
    process::signal(&processes.iter().map(|process| process.pid).collect::<Vec<_>>(), signal);
}

/// Signals the children that the kernel lists in one step. Orphans become children of the first thread.
fn signal_children(signal: Signal) {
    let own = getpid().as_raw_pid();
    let children = fs::read_to_string(format!("/proc/{own}/task/{own}/children")).unwrap_or_default();
    let pids: Vec<i32> = children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
    process::signal(&pids, signal);
}
