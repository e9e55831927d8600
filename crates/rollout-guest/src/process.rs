//! Finds and kills the processes of an environment through its /proc.

use std::{
    collections::{HashMap, HashSet},
    fs::{self, File},
    io::Read as _,
    thread::sleep,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

/// The number of fields of a stat line between the process group and the number of threads.
const THREADS_AFTER_GROUP: usize = 14;
/// The number of fields between the number of threads and the start time.
const START_AFTER_THREADS: usize = 1;

/// How long killed processes get to end before the next check.
const PAUSE: Duration = Duration::from_micros(500);

/// Long enough that secrets in a command line can be found and masked before it is shortened.
const MAX_COMMAND_LINE: usize = 4096;

/// A process in /proc.
#[derive(Debug)]
pub struct ProcessEntry {
    /// Its pid.
    pub pid: i32,
    /// The pid of its parent.
    pub parent: i32,
    /// The id of its process group.
    pub group: i32,
    /// Its start time, in ticks since the boot of the machine.
    pub started: u64,
    /// Whether all its threads have ended and its parent has not reaped it yet.
    pub dead: bool,
    /// Whether it is stopped by a signal.
    pub stopped: bool,
}

impl ProcessEntry {
    /// Finds a process by its pid; `None` if there is none.
    pub fn find(pid: i32) -> Option<Self> {
        parse(pid, &fs::read(format!("/proc/{pid}/stat")).ok()?)
    }
}

/// All processes in /proc.
fn all() -> Vec<ProcessEntry> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter_map(ProcessEntry::find).collect()
}

/// All living processes except the first.
pub fn living() -> Vec<ProcessEntry> {
    all().into_iter().filter(|process| process.pid != 1 && !process.dead).collect()
}

/// The pids of the living processes that are roots or descendants of a root, except the first process.
pub fn living_below(is_root: impl Fn(&ProcessEntry) -> bool) -> Vec<i32> {
    select(all(), is_root).into_iter().map(|process| process.pid).collect()
}

/// The living descendants of a process.
pub fn living_descendants(pid: i32) -> Vec<ProcessEntry> {
    select(all(), |process| process.parent == pid)
}

/// The living roots and descendants of roots.
fn select(entries: Vec<ProcessEntry>, is_root: impl Fn(&ProcessEntry) -> bool) -> Vec<ProcessEntry> {
    let mut children: HashMap<i32, Vec<ProcessEntry>> = HashMap::new();
    let mut pending = Vec::new();
    for entry in entries.into_iter().filter(|entry| entry.pid != 1) {
        match is_root(&entry) {
            true => pending.push(entry),
            false => children.entry(entry.parent).or_default().push(entry),
        }
    }
    let mut living = Vec::new();
    while let Some(process) = pending.pop() {
        pending.extend(children.remove(&process.pid).unwrap_or_default());
        if !process.dead {
            living.push(process);
        }
    }
    living
}

/// Kills all processes that `find` returns until it returns none; `false` if `goes_on` returns `false` before.
///
/// All are stopped before any is killed, so that none can start another unnoticed.
pub fn kill_all(find: impl Fn() -> Vec<i32>, mut goes_on: impl FnMut() -> bool) -> bool {
    let mut stopped = HashSet::new();
    while goes_on() {
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
    false
}

/// Signals processes.
pub fn signal(pids: &[i32], signal: Signal) {
    for pid in pids.iter().filter_map(|pid| Pid::from_raw(*pid)) {
        // A process that has ended ignores the signal.
        let _ = kill_process(pid, signal);
    }
}

/// The first bytes of a process's command line, or its short name if the line is blank; never empty. A process chooses
/// both itself.
pub fn command_line(pid: i32) -> String {
    let mut text = [0; MAX_COMMAND_LINE];
    let read = File::open(format!("/proc/{pid}/cmdline")).and_then(|mut file| file.read(&mut text));
    let line = String::from_utf8_lossy(&text[..read.unwrap_or(0)]).replace('\0', " ");
    match line.trim() {
        "" => name(pid),
        _ => line.trim_end().to_owned(),
    }
}

/// A process's short name in brackets, or its pid if the name is blank or the process is gone.
pub fn name(pid: i32) -> String {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    match String::from_utf8_lossy(&name).trim() {
        "" => format!("[{pid}]"),
        name => format!("[{name}]"),
    }
}

/// Parses a stat line. The name at its start may contain anything, also parentheses.
///
/// A process whose first thread has ended shows that thread's state, while its other threads may still run.
fn parse(pid: i32, stat: &[u8]) -> Option<ProcessEntry> {
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let mut fields = std::str::from_utf8(&stat[end + 1..]).ok()?.split_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    let threads: u32 = fields.nth(THREADS_AFTER_GROUP)?.parse().ok()?;
    let started = fields.nth(START_AFTER_THREADS)?.parse().ok()?;
    let dead = matches!(state, "Z" | "X") && threads <= 1;
    Some(ProcessEntry { pid, parent, group, started, dead, stopped: state == "T" })
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write as _,
        os::unix::process::CommandExt as _,
        process::{Command, Stdio},
    };

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_process_with_a_blank_command_line_is_shown_by_its_name() {
        let (stdin, stdout) = (Stdio::piped(), Stdio::piped());
        let mut cat = Command::new("cat").arg0("").stdin(stdin).stdout(stdout).spawn().unwrap();
        let (mut input, mut output) = (cat.stdin.take().unwrap(), cat.stdout.take().unwrap());
        // When it answers, the new program has replaced the old one.
        input.write_all(b"x").unwrap();
        output.read_exact(&mut [0]).unwrap();
        let shown = command_line(cat.id().cast_signed());
        drop(input);
        cat.wait().unwrap();
        assert_eq!(shown, "[cat]");
        assert_eq!(command_line(-1), "[-1]");
    }

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

    #[test]
    fn descendants_are_found_through_dead_parents_and_in_any_order() {
        let entry =
            |pid, parent, dead| ProcessEntry { pid, parent, group: pid, started: 0, dead, stopped: false };
        let entries = vec![
            entry(9, 8, false),
            entry(1, 0, false),
            entry(8, 5, true),
            entry(5, 2, false),
            entry(6, 1, false),
            entry(2, 1, false),
        ];
        let mut found: Vec<i32> =
            select(entries, |process| process.parent == 2).iter().map(|process| process.pid).collect();
        found.sort_unstable();
        assert_eq!(found, [5, 9]);
    }

    proptest! {
        #[test]
        fn any_name_leaves_state_and_parent_readable(name in prop::collection::vec(any::<u8>(), 0..15), parent in 0..100_000) {
            let process = parse(7, &stat(&name, 'T', parent, 1)).unwrap();
            prop_assert_eq!((process.parent, process.group, process.stopped), (parent, 7, true));
        }
    }
}
