//! Counts the processes killed because memory ran out.

use std::fs::{self, File};

use rollout_guest::memory::oom_kills;

/// The kernel's counter, in a file that was opened before any process could replace it.
pub(crate) struct OomKills(Option<File>);

impl OomKills {
    pub(crate) fn open() -> Self {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let path_of = |controller: &str| {
            let mut lines = own.lines().filter_map(|line| {
                let mut fields = line.splitn(3, ':').skip(1);
                Some((fields.next()?, fields.next()?))
            });
            lines.find(|(names, _)| names.split(',').any(|name| name == controller)).map(|(_, path)| path)
        };
        // The container's own cgroup is at the root of the mount, unless the host's hierarchy is visible.
        let unified = path_of("").map(|path| format!("/sys/fs/cgroup{path}/memory.events"));
        let memory = path_of("memory").map(|path| format!("/sys/fs/cgroup/memory{path}/memory.oom_control"));
        let roots = ["/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"];
        // Some cloud sandboxes are machines without a cgroup of the guest. All kills of their kernel are in them.
        let of_kernel = "/proc/vmstat".to_owned();
        let candidates = memory.into_iter().chain(unified).chain(roots.map(str::to_owned)).chain([of_kernel]);
        Self(candidates.filter_map(|path| File::open(path).ok()).find(|file| oom_kills(file).is_some()))
    }

    /// The number of kills since the container was created.
    pub(crate) fn count(&self) -> u64 {
        self.0.as_ref().and_then(oom_kills).unwrap_or(0)
    }
}
