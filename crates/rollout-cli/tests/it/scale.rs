//! Very many trials in a row in the native environment: nothing grows while they run, and nothing is left.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

use rollout_sandbox::disk_use;
use rollout_testkit::{Running, TestJob, TestTask};
use serde_json::json;

const CONCURRENCY: usize = 8;

/// The most processes of one environment: two supervisors, a shepherd, a shell and a command, and one of each that ends.
const PROCESSES: usize = 10;

/// The most descriptors of one environment in `rollout`: sockets, pipes and the files of its output.
const DESCRIPTORS: usize = 16;

/// The most directories of environments: those that run, and those that are being removed.
const DIRECTORIES: usize = 3 * CONCURRENCY + 16;

/// What `rollout` may keep of a trial in memory until the job ends.
const KEPT_BYTES: u64 = 1 << 10;

fn trials() -> u64 {
    if std::env::var_os("ROLLOUT_TEST_FULL").is_some() { 10_000 } else { 300 }
}

/// What a job uses at one moment.
#[derive(Debug, Clone, Copy, Default)]
struct Use {
    processes: usize,
    /// Of `rollout` and of its helper.
    descriptors: [usize; 2],
    /// In kilobytes, of `rollout` and of its helper.
    memory: [u64; 2],
    /// In the helper's namespace, from which environments get copies.
    mounts: usize,
    /// The directories of environments.
    directories: usize,
    cgroups: usize,
}

/// The processes below another one, with their parents.
fn descendants(root: u32) -> HashMap<u32, u32> {
    let mut parents = HashMap::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        let Some((_, fields)) = stat.rsplit_once(')') else { continue };
        let parent = fields.split_whitespace().nth(1).and_then(|field| field.parse().ok());
        parents.extend(parent.map(|parent| (pid, parent)));
    }
    let is_below = |mut pid: u32| {
        while let Some(parent) = parents.get(&pid) {
            if *parent == root {
                return true;
            }
            pid = *parent;
        }
        false
    };
    parents.iter().filter(|(pid, _)| is_below(**pid)).map(|(pid, parent)| (*pid, *parent)).collect()
}

fn entries(dir: impl AsRef<Path>) -> usize {
    fs::read_dir(dir).map_or(0, Iterator::count)
}

fn memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse().unwrap_or(0)
}

/// The cgroups whose names contain one of these ids.
fn cgroups(ids: &[String]) -> usize {
    let (mut found, mut waiting) = (0, vec![PathBuf::from("/sys/fs/cgroup")]);
    while let Some(dir) = waiting.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                let name = entry.file_name().to_string_lossy().into_owned();
                found += usize::from(ids.iter().any(|id| name.contains(id.as_str())));
                waiting.push(entry.path());
            }
        }
    }
    found
}

/// The ids of the engines of a state directory.
fn engines(state_dir: &Path) -> Vec<String> {
    let runs = fs::read_dir(state_dir.join("run")).into_iter().flatten().flatten();
    runs.filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

fn measure(rollout: u32, state_dir: &Path, ids: &[String]) -> Use {
    let below = descendants(rollout);
    let helper = below.iter().find(|(_, parent)| **parent == rollout).map_or(0, |(pid, _)| *pid);
    let mounts = fs::read_to_string(format!("/proc/{helper}/mountinfo")).unwrap_or_default();
    Use {
        processes: below.len(),
        descriptors: [rollout, helper].map(|pid| entries(format!("/proc/{pid}/fd"))),
        memory: [rollout, helper].map(memory),
        mounts: mounts.lines().count(),
        directories: ids.iter().map(|id| entries(state_dir.join("run").join(id))).sum(),
        cgroups: cgroups(ids),
    }
}

/// Measures a job until it ends.
fn watch(running: &mut Running, state_dir: &Path, ids: &mut Vec<String>) -> Vec<Use> {
    let mut seen = Vec::new();
    while running.is_running() {
        if ids.is_empty() {
            *ids = engines(state_dir);
        }
        seen.push(measure(running.child.id(), state_dir, ids));
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    // In the last moments the helper has ended, and its figures are those of no process.
    seen.retain(|seen| seen.mounts > 0);
    seen
}

#[test]
fn native_trials_in_a_row_leave_nothing_and_do_not_grow() {
    let task = TestTask::new("task")
        .dockerfile("FROM test\nWORKDIR /app\nRUN touch /one\nRUN touch /two\nRUN touch /three\n")
        .tests("test -e /app/done && echo 1 > /logs/verifier/reward.txt\n");
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .task(task)
        .script("(sleep 1000 &) ; touch /app/done")
        .set("n_concurrent_trials", json!(CONCURRENCY));
    // Builds the image, so that the store has its size.
    job.rollout(&["run", "job.yaml", "--set", "name=first"]).expect(0);
    job.expect_nothing_left();
    let store = disk_use(&job.state_dir());

    let trials = trials();
    let job = job.set("n_attempts", json!(trials));
    let mut running = job.start();
    let mut ids = Vec::new();
    let seen = watch(&mut running, &job.state_dir(), &mut ids);
    let finished = running.finish().expect(0);
    assert_eq!(finished.result()["completed_trials"], json!(trials));
    assert_eq!(finished.result()["mean_reward"], json!(1.0));

    let most = |of: fn(&Use) -> usize| seen.iter().map(of).max().unwrap_or(0);
    let base = &seen[0];
    assert!(most(|seen| seen.processes) <= 1 + PROCESSES * CONCURRENCY, "{seen:#?}");
    for (index, name) in ["rollout", "the helper"].into_iter().enumerate() {
        let descriptors = seen.iter().map(|seen| seen.descriptors[index]).max().unwrap_or(0);
        assert!(descriptors <= 64 + DESCRIPTORS * CONCURRENCY, "{name} has {descriptors} descriptors");
    }
    assert!(most(|seen| seen.mounts) <= base.mounts + 4, "{} mounts", most(|seen| seen.mounts));
    assert!(most(|seen| seen.directories) <= DIRECTORIES, "{} directories", most(|seen| seen.directories));
    let cgroups_each = 3;
    assert!(most(|seen| seen.cgroups) <= cgroups_each * DIRECTORIES, "{} cgroups", most(|seen| seen.cgroups));

    // Memory is compared with that after a third of the time, when all caches are filled.
    let (early, late) = (seen[seen.len() / 3].memory, seen[seen.len() - 1].memory);
    let grown = |index: usize| late[index].saturating_sub(early[index]) << 10;
    assert!(grown(0) <= (16 << 20) + KEPT_BYTES * trials, "rollout grew by {} bytes", grown(0));
    assert!(grown(1) <= 2 << 20, "the helper grew by {} bytes", grown(1));

    job.expect_nothing_left();
    assert_eq!(cgroups(&ids), 0);
    let now = disk_use(&job.state_dir());
    assert!(now <= store + (1 << 20), "the store grew from {store} to {now} bytes");
}
