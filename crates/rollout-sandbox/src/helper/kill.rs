//! Finding and killing the processes of a sandbox, by its own /proc.

use std::{
    collections::{HashMap, HashSet},
    fs::{self, File},
    io::Read,
    time::Duration,
};

use rollout_guest::process::{self, Process};

use crate::sys;

/// How often the tree is looked at again before everything is killed instead.
const MAX_ROUNDS: u32 = 2000;
/// Enough for whoever shows a command line to find the secrets in it before it is cut.
const MAX_COMMAND_LINE: usize = 4096;
const PAUSE: Duration = Duration::from_micros(500);

/// Kills every descendant of `ancestor` and waits until they are dead; `false` when they outran it.
///
/// All are stopped before any is killed, so that none can start another that is not seen.
pub(super) fn descendants(ancestor: i32) -> bool {
    let mut stopped = HashSet::new();
    for _ in 0..MAX_ROUNDS {
        let living = living_descendants(ancestor);
        if living.is_empty() {
            return true;
        }
        let fresh: Vec<i32> = living.iter().copied().filter(|pid| stopped.insert(*pid)).collect();
        let signal = if fresh.is_empty() { libc::SIGKILL } else { libc::SIGSTOP };
        for pid in if fresh.is_empty() { &living } else { &fresh } {
            // One that ended meanwhile needs no signal.
            let _ = sys::kill(*pid, signal);
        }
        if fresh.is_empty() {
            std::thread::sleep(PAUSE);
        }
    }
    false
}

fn living_descendants(ancestor: i32) -> Vec<i32> {
    let mut children: HashMap<i32, Vec<&Process>> = HashMap::new();
    let entries = process::all();
    for entry in &entries {
        children.entry(entry.parent).or_default().push(entry);
    }
    let mut living = Vec::new();
    let mut pending = vec![ancestor];
    while let Some(parent) = pending.pop() {
        for entry in children.remove(&parent).unwrap_or_default() {
            pending.push(entry.pid);
            if !entry.dead {
                living.push(entry.pid);
            }
        }
    }
    living
}

/// The pids of all living processes but the supervisor.
pub(super) fn living() -> Vec<i32> {
    process::all().into_iter().filter(|entry| entry.pid != 1 && !entry.dead).map(|entry| entry.pid).collect()
}

/// The first bytes of a process's command line, at most [`MAX_COMMAND_LINE`]; empty when it is gone.
pub(super) fn command_line(pid: i32) -> String {
    let mut text = [0; MAX_COMMAND_LINE];
    let read =
        |path: String, text: &mut [u8]| File::open(path).and_then(|mut file| file.read(text)).unwrap_or(0);
    match read(format!("/proc/{pid}/cmdline"), &mut text) {
        0 => name(pid),
        length => String::from_utf8_lossy(&text[..length]).replace('\0', " ").trim_end().to_owned(),
    }
}

/// A process's short name; empty when it is gone.
pub(super) fn name(pid: i32) -> String {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(&name).trim_end().to_owned()
}
