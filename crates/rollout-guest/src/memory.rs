//! The kernel's count of processes killed because of a memory limit.

use std::{fs::File, os::unix::fs::FileExt as _};

/// Reads the number of processes that the limit of a cgroup has killed from its event file.
pub fn oom_kills(file: &File) -> Option<u64> {
    let mut text = [0; 1024];
    let length = file.read_at(&mut text, 0).ok()?;
    parse(std::str::from_utf8(&text[..length]).ok()?)
}

/// Both cgroup versions have a line of this name.
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
