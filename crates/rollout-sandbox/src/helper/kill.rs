//! Finding and killing the processes of a sandbox, by its own /proc.

use std::{
    collections::{HashMap, HashSet},
    fs::{self, File},
    io::Read,
    time::Duration,
};

use crate::sys;

/// How often the tree is looked at again before everything is killed instead.
const MAX_ROUNDS: u32 = 2000;
/// Enough for whoever shows a command line to find the secrets in it before it is cut.
const MAX_COMMAND_LINE: usize = 4096;
const PAUSE: Duration = Duration::from_micros(500);

/// How many fields of a stat line lie between the parent and the number of threads.
const THREADS_AFTER_PARENT: usize = 15;

/// A process as /proc shows it.
struct Entry {
    pid: i32,
    parent: i32,
    dead: bool,
}

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
    let mut children: HashMap<i32, Vec<&Entry>> = HashMap::new();
    let entries = scan();
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
    scan().into_iter().filter(|entry| entry.pid != 1 && !entry.dead).map(|entry| entry.pid).collect()
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

fn scan() -> Vec<Entry> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(|pid| parse(pid, &fs::read(format!("/proc/{pid}/stat")).ok()?)).collect()
}

/// Reads what an [`Entry`] holds from a stat line; the name before it may hold anything, parentheses included.
///
/// A process whose first thread has ended shows that thread's state, while its other threads may still run.
fn parse(pid: i32, stat: &[u8]) -> Option<Entry> {
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let mut fields = std::str::from_utf8(&stat[end + 1..]).ok()?.split_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let threads: u32 = fields.nth(THREADS_AFTER_PARENT)?.parse().ok()?;
    Some(Entry { pid, parent, dead: matches!(state, "Z" | "X") && threads <= 1 })
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
        let entry = parse(7, &stat(b"x) Z 1 (y", 'S', 42, 1)).unwrap();
        assert_eq!((entry.parent, entry.dead), (42, false));
    }

    #[test]
    fn a_process_lives_until_its_last_thread_ends() {
        assert!(!parse(7, &stat(b"x", 'Z', 1, 2)).unwrap().dead);
        assert!(parse(7, &stat(b"x", 'Z', 1, 1)).unwrap().dead);
    }

    proptest! {
        #[test]
        fn any_name_leaves_state_and_parent_readable(name in prop::collection::vec(any::<u8>(), 0..15), parent in 0..100_000) {
            let entry = parse(7, &stat(&name, 'Z', parent, 1)).unwrap();
            prop_assert_eq!((entry.parent, entry.dead), (parent, true));
        }
    }
}
