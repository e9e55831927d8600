//! What a job has left on the machine besides its results.

use std::{
    fs,
    time::{Duration, Instant},
};

use crate::TestJob;

/// How long the kernel may take to end what it has to end.
const PATIENCE: Duration = Duration::from_secs(30);

impl TestJob {
    /// The command lines of its processes, and its mounts.
    pub fn processes_and_mounts(&self) -> Vec<String> {
        let root = self.root().to_string_lossy().into_owned();
        let entries = fs::read_dir("/proc").expect("list processes").flatten();
        let lines = entries.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
        let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("list mounts");
        let mounts = mounts.lines().map(str::to_owned);
        lines.chain(mounts).filter(|line| line.contains(&root)).collect()
    }

    /// Its processes, mounts, and the directories of its runs and environments.
    pub fn leftovers(&self) -> Vec<String> {
        let runs = fs::read_dir(self.state_dir().join("run")).into_iter().flatten().flatten();
        let runs = runs.map(|entry| entry.path()).filter(|path| path.is_dir());
        let directories = runs.chain(self.environments()).map(|path| path.display().to_string());
        self.processes_and_mounts().into_iter().chain(directories).collect()
    }

    /// Waits until nothing is left, and fails the test if something stays.
    #[track_caller]
    pub fn expect_nothing_left(&self) {
        until_empty(|| self.leftovers());
    }

    /// Waits until no process and no mount is left, and fails the test if one stays.
    #[track_caller]
    pub fn expect_nothing_running(&self) {
        until_empty(|| self.processes_and_mounts());
    }
}

#[track_caller]
fn until_empty(find: impl Fn() -> Vec<String>) {
    let deadline = Instant::now() + PATIENCE;
    while !find().is_empty() {
        assert!(Instant::now() < deadline, "left behind: {:#?}", find());
        std::thread::sleep(Duration::from_millis(10));
    }
}
