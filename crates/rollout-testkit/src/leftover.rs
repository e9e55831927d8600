//! Finds what a job has left on the machine besides its results.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use crate::TestJob;

/// The timeout for the kernel to end processes and mounts.
const PATIENCE: Duration = Duration::from_secs(600);

/// The command lines of processes and the mounts that name a path below a directory.
pub fn processes_and_mounts_below(dir: &Path) -> Vec<String> {
    let dir = dir.to_string_lossy();
    let entries = fs::read_dir("/proc").expect("list processes").flatten();
    let lines = entries.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("list mounts");
    let mounts = mounts.lines().map(str::to_owned);
    lines.chain(mounts).filter(|line| line.contains(&*dir)).collect()
}

/// The directories of runs in a state directory of the native environment.
pub fn runs_in(state_dir: &Path) -> Vec<String> {
    let runs = fs::read_dir(state_dir.join("run")).into_iter().flatten().flatten();
    runs.map(|entry| entry.path())
        .filter(|path| path.is_dir())
        .map(|path| path.display().to_string())
        .collect()
}

impl TestJob {
    /// The command lines of its processes, and its mounts.
    pub fn processes_and_mounts(&self) -> Vec<String> {
        processes_and_mounts_below(self.root())
    }

    /// Its processes, mounts, and the directories of its runs and environments.
    pub fn leftovers(&self) -> Vec<String> {
        let environments = self.environments().into_iter().map(|path| path.display().to_string());
        let runs = runs_in(&self.state_dir()).into_iter();
        self.processes_and_mounts().into_iter().chain(runs).chain(environments).collect()
    }

    /// Waits until nothing is left, and fails the test if something remains.
    #[track_caller]
    pub fn expect_nothing_left(&self) {
        until_empty(|| self.leftovers());
    }

    /// Waits until no process and no mount is left, and fails the test if one remains.
    #[track_caller]
    pub fn expect_nothing_running(&self) {
        until_empty(|| self.processes_and_mounts());
    }
}

/// Waits until a condition is true, and fails the test if it never is. The timeout suits a busy machine.
///
/// # Panics
///
/// If the condition is not true after ten minutes.
#[track_caller]
pub fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: timed out");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[track_caller]
pub(crate) fn until_empty(find: impl Fn() -> Vec<String>) {
    let deadline = Instant::now() + PATIENCE;
    while !find().is_empty() {
        assert!(Instant::now() < deadline, "left behind: {:#?}", find());
        std::thread::sleep(Duration::from_millis(10));
    }
}
