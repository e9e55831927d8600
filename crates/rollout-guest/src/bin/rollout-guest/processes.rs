//! The container's processes, by its /proc.

use std::{
    collections::{HashMap, HashSet},
    fs::File,
    io::Read as _,
    thread::sleep,
    time::{Duration, Instant},
};

use rollout_guest::process::{self, Process};
use rustix::process::{Pid, Signal, kill_process};

/// How long a set of processes may go on starting others before the hunt is given up.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_micros(500);

/// Enough for whoever shows a command line to find the secrets in it before it is cut.
const MAX_COMMAND_LINE: usize = 4096;

/// All living processes but this one.
pub(crate) fn living() -> Vec<Process> {
    process::all().into_iter().filter(|process| process.pid != 1 && !process.dead).collect()
}

/// The living processes that a command started: its descendants, and orphans from its time on that are no
/// command and no descendants of one.
pub(crate) fn tree(main: i32, started: u64, commands: &HashSet<i32>) -> Vec<i32> {
    let entries = process::all();
    let mut children: HashMap<i32, Vec<&Process>> = HashMap::new();
    for entry in &entries {
        children.entry(entry.parent).or_default().push(entry);
    }
    let is_root = |process: &&Process| {
        // Times are told in hundredths of a second; within one, the older of two has the lower pid.
        let orphan = process.is_orphan() && (process.started, process.pid) >= (started, main);
        process.pid == main || (orphan && !commands.contains(&process.pid))
    };
    let mut pending: Vec<&Process> = entries.iter().filter(is_root).collect();
    let mut found = HashSet::new();
    let mut living = Vec::new();
    while let Some(process) = pending.pop() {
        if process.pid == 1 || !found.insert(process.pid) {
            continue;
        }
        pending.extend(children.remove(&process.pid).unwrap_or_default());
        if !process.dead {
            living.push(process.pid);
        }
    }
    living
}

/// Kills all that `find` finds, until it finds nothing; `false` when they outran it.
///
/// All are stopped before any is killed, so that none can start another that is not seen.
pub(crate) fn kill(find: impl Fn() -> Vec<i32>) -> bool {
    let end = Instant::now() + PATIENCE;
    let mut stopped = HashSet::new();
    while Instant::now() < end {
        let living = find();
        if living.is_empty() {
            return true;
        }
        let fresh: Vec<i32> = living.iter().copied().filter(|pid| stopped.insert(*pid)).collect();
        if fresh.is_empty() {
            signal(&living, Signal::KILL);
            sleep(PAUSE);
        } else {
            signal(&fresh, Signal::STOP);
        }
    }
    signal(&find(), Signal::KILL);
    find().is_empty()
}

/// Signals a command that was stopped before it became its program, for which somebody waits.
pub(crate) fn signal_stopped_orphans(commands: &HashSet<i32>, with: Signal) {
    let held_up =
        |process: &Process| process.stopped && process.is_orphan() && !commands.contains(&process.pid);
    let stopped = living().into_iter().filter(held_up);
    signal(&stopped.map(|process| process.pid).collect::<Vec<_>>(), with);
}

fn signal(pids: &[i32], signal: Signal) {
    for pid in pids.iter().filter_map(|pid| Pid::from_raw(*pid)) {
        // One that ended meanwhile needs no signal.
        let _ = kill_process(pid, signal);
    }
}

/// The first bytes of a process's command line, or its short name; empty when it is gone.
pub(crate) fn command_line(pid: i32) -> String {
    let mut text = [0; MAX_COMMAND_LINE];
    let read =
        |path: String, text: &mut [u8]| File::open(path).and_then(|mut file| file.read(text)).unwrap_or(0);
    let mut length = read(format!("/proc/{pid}/cmdline"), &mut text);
    if length == 0 {
        length = read(format!("/proc/{pid}/comm"), &mut text);
    }
    String::from_utf8_lossy(&text[..length]).replace('\0', " ").trim_end().to_owned()
}
