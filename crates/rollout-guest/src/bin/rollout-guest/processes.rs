//! The container's processes, by its /proc.

use std::{
    collections::{HashMap, HashSet},
    fs::{self, File},
    io::Read as _,
    thread::sleep,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

/// How long a set of processes may go on starting others before the hunt is given up.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_micros(500);

/// Enough for whoever shows a command line to find the secrets in it before it is cut.
const MAX_COMMAND_LINE: usize = 4096;

/// How many fields of a stat line lie between the parent and the number of threads,
const THREADS_AFTER_PARENT: usize = 15;
/// and between that and the time of the start.
const START_AFTER_THREADS: usize = 1;

/// A process as /proc shows it.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    parent: i32,
    /// When it started, in ticks since the machine did.
    pub(crate) started: u64,
    dead: bool,
    stopped: bool,
}

impl Process {
    pub(crate) fn find(pid: i32) -> Option<Self> {
        parse(pid, &fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Whether its parent ended, or is this process.
    fn is_orphan(&self) -> bool {
        self.parent == 1
    }
}

/// All living processes but this one.
pub(crate) fn living() -> Vec<Process> {
    everything().into_iter().filter(|process| process.pid != 1 && !process.dead).collect()
}

/// The living processes that a command started: its descendants, and orphans from its time on that are no
/// command and no descendants of one.
pub(crate) fn tree(main: i32, started: u64, commands: &HashSet<i32>) -> Vec<i32> {
    let entries = everything();
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

fn everything() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter_map(Process::find).collect()
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

/// Reads a stat line; the name at its start may hold anything, parentheses included.
///
/// A process whose first thread has ended shows that thread's state, while its other threads may still run.
fn parse(pid: i32, stat: &[u8]) -> Option<Process> {
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let mut fields = std::str::from_utf8(&stat[end + 1..]).ok()?.split_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let threads: u32 = fields.nth(THREADS_AFTER_PARENT)?.parse().ok()?;
    let started = fields.nth(START_AFTER_THREADS)?.parse().ok()?;
    let dead = matches!(state, "Z" | "X") && threads <= 1;
    Some(Process { pid, parent, started, dead, stopped: state == "T" })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stat(name: &[u8], state: char, parent: i32, threads: u32) -> Vec<u8> {
        let rest = format!(") {state} {parent} 7 7 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 {threads} 0 99 0");
        [b"7 (", name, rest.as_bytes()].concat()
    }

    #[test]
    fn a_name_cannot_forge_the_parent() {
        let process = parse(7, &stat(b"x) Z 1 (y", 'S', 42, 1)).unwrap();
        assert_eq!((process.parent, process.dead, process.started), (42, false, 99));
    }

    #[test]
    fn a_process_lives_until_its_last_thread_ends() {
        assert!(!parse(7, &stat(b"x", 'Z', 1, 2)).unwrap().dead);
        assert!(parse(7, &stat(b"x", 'Z', 1, 1)).unwrap().dead);
    }

    proptest! {
        #[test]
        fn any_name_leaves_state_and_parent_readable(name in prop::collection::vec(any::<u8>(), 0..15), parent in 0..100_000) {
            let process = parse(7, &stat(&name, 'T', parent, 1)).unwrap();
            prop_assert_eq!((process.parent, process.stopped), (parent, true));
        }
    }
}
