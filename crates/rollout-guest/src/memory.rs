//! The kernel's count of processes killed because memory ran out.

use std::{fs::File, os::unix::fs::FileExt as _};

/// Reads the number of processes that the kernel has killed from the event file of a cgroup, or from `/proc/vmstat`.
pub fn oom_kills(file: &File) -> Option<u64> {
    // `/proc/vmstat` has about 4 KiB, and the line is in the middle.
    let mut text = [0; 16 << 10];
    let mut length = 0;
    loop {
        match file.read_at(&mut text[length..], length as u64).ok()? {
            0 => break,
            read => length += read,
        }
    }
    parse(std::str::from_utf8(&text[..length]).ok()?)
}

/// All these files have a line of this name.
fn parse(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")).and_then(|count| count.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn a_kernel_counts_all_kills() {
        let file = std::fs::File::open("/proc/vmstat").unwrap();
        assert!(super::oom_kills(&file).is_some());
    }

    #[test]
    fn the_count_is_found_in_either_version() {
        assert_eq!(parse("low 0\nhigh 0\nmax 7\noom 2\noom_kill 3\noom_group_kill 0\n"), Some(3));
        assert_eq!(parse("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"), Some(5));
        assert_eq!(parse("oom_kill_disable 0\nunder_oom 0\n"), None);
        assert_eq!(parse("drop_slab 1\noom_kill 7\nnuma_pte_updates 0\n"), Some(7));
    }
}
