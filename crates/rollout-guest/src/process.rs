//! A process as /proc shows it.

use std::fs;

/// How many fields of a stat line lie between the parent and the number of threads,
const THREADS_AFTER_PARENT: usize = 15;
/// and between that and the time of the start.
const START_AFTER_THREADS: usize = 1;

/// A process as /proc shows it.
#[derive(Debug)]
pub struct Process {
    /// Its number.
    pub pid: i32,
    /// That of its parent.
    pub parent: i32,
    /// When it started, in ticks since the machine did.
    pub started: u64,
    /// Whether all of it has ended, and only its parent's look at it is missing.
    pub dead: bool,
    /// Whether a signal holds it.
    pub stopped: bool,
}

impl Process {
    /// Looks at one; none if there is none of this number.
    pub fn find(pid: i32) -> Option<Self> {
        parse(pid, &fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Whether the first process is its parent, also because its own has ended.
    pub fn is_orphan(&self) -> bool {
        self.parent == 1
    }
}

/// All processes that /proc shows.
pub fn all() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter_map(Process::find).collect()
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
