//! Counts the processes that the container's memory limit has killed.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt as _,
};

/// The kernel's count, by a file that was opened before anything could take its place.
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
        // The container's own cgroup is at the root of the mount, unless the host's hierarchy is shown.
        let unified = path_of("").map(|path| format!("/sys/fs/cgroup{path}/memory.events"));
        let memory = path_of("memory").map(|path| format!("/sys/fs/cgroup/memory{path}/memory.oom_control"));
        let roots = ["/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"];
        let candidates = memory.into_iter().chain(unified).chain(roots.map(str::to_owned));
        Self(candidates.filter_map(|path| File::open(path).ok()).find(|file| read(file).is_some()))
    }

    /// How many there were since the container was made.
    pub(crate) fn count(&self) -> u64 {
        self.0.as_ref().and_then(read).unwrap_or(0)
    }
}

fn read(file: &File) -> Option<u64> {
    let mut text = [0; 1024];
    let length = file.read_at(&mut text, 0).ok()?;
    parse(std::str::from_utf8(&text[..length]).ok()?)
}

/// Both versions of cgroups have a line of this name.
fn parse(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")).and_then(|count| count.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn the_count_is_found_in_either_version() {
        assert_eq!(parse("low 0\nhigh 0\nmax 7\noom 2\noom_kill 3\noom_group_kill 0\n"), Some(3));
        assert_eq!(parse("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"), Some(5));
        assert_eq!(parse("oom_kill_disable 0\nunder_oom 0\n"), None);
    }
}
