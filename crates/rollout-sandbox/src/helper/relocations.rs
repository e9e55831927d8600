//! Makes forks of the helper cheaper.
//!
//! The loader writes addresses into the constants of a program, about 2 MB of a large one, and then makes them
//! read-only. These pages belong to the process alone, so every fork copies their page tables and every exit frees
//! them: 7 % of the CPU time of a short trial. Mapped from a file instead, they are shared and only looked up when they
//! are used.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    ops::Range,
    os::fd::AsRawFd as _,
};

use rustix::fs::{MemfdFlags, memfd_create};

/// A smaller mapping is not worth the calls.
const MIN_KILOBYTES: usize = 64;

/// Replaces the relocated constants of the calling program by a mapping of the same bytes.
///
/// A failure leaves the program as it was, only slower.
pub(super) fn share() {
    let (Ok(program), Ok(maps)) = (fs::read_link("/proc/self/exe"), fs::read_to_string("/proc/self/smaps"))
    else {
        return;
    };
    for range in relocated(&maps, &program.to_string_lossy()) {
        // The program works without it.
        let _ = share_range(range);
    }
}

/// The read-only mappings of a program whose pages were changed, from the text of `/proc/self/smaps`.
fn relocated(maps: &str, program: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut current = None;
    for line in maps.lines() {
        if let Some(size) = line.strip_prefix("Anonymous:") {
            let kilobytes: usize = size.trim().trim_end_matches("kB").trim().parse().unwrap_or(0);
            found.extend(current.take().filter(|_| kilobytes >= MIN_KILOBYTES));
        } else if let Some(range) = range(line) {
            let is_constant = line.split_whitespace().nth(1) == Some("r--p") && line.ends_with(program);
            current = is_constant.then_some(range);
        }
    }
    found
}

/// The addresses at the start of the first line of a mapping.
fn range(line: &str) -> Option<Range<usize>> {
    let (from, to) = line.split_once(' ')?.0.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    Some(address(from)?..address(to)?)
}

fn share_range(range: Range<usize>) -> io::Result<()> {
    let mut copy = File::from(memfd_create("constants", MemfdFlags::CLOEXEC)?);
    // SAFETY: the kernel has just listed the range as readable, and nothing unmaps or changes the constants of a
    // running program.
    let constants = unsafe { std::slice::from_raw_parts(range.start as *const u8, range.len()) };
    copy.write_all(constants)?;
    // SAFETY: one call replaces read-only pages by a private, read-only mapping of the same bytes at the same address,
    // so references into them stay valid. The file is not written again: its only descriptor is closed below.
    let mapped = unsafe {
        libc::mmap(
            range.start as *mut libc::c_void,
            range.len(),
            libc::PROT_READ,
            libc::MAP_PRIVATE | libc::MAP_FIXED,
            copy.as_raw_fd(),
            0,
        )
    };
    if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table that the loader has to relocate, large enough to be shared.
    static CONSTANTS: [&(u8, &str); 20_000] = [&(7, "seven"); 20_000];

    fn anonymous_kilobytes() -> usize {
        let rollup = fs::read_to_string("/proc/self/smaps_rollup").unwrap();
        let line = rollup.lines().find(|line| line.starts_with("Anonymous:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    #[test]
    fn constants_keep_their_values_and_are_no_longer_copied() {
        let before = anonymous_kilobytes();
        share();
        assert!(CONSTANTS.iter().all(|entry| **entry == (7, "seven")));
        let after = anonymous_kilobytes();
        assert!(after + MIN_KILOBYTES < before, "{before} kB before, {after} kB after");
    }

    #[test]
    fn only_changed_constants_of_the_program_are_found() {
        let maps = "55d000000000-55d000002000 r--p 00000000 fe:00 7  /bin/rollout\nSize: 8 kB\nAnonymous: 0 kB\n\
                    55d000002000-55d000102000 r-xp 00002000 fe:00 7  /bin/rollout\nAnonymous: 100 kB\n\
                    55d000102000-55d000202000 r--p 00102000 fe:00 7  /bin/rollout\nAnonymous:          1024 kB\n\
                    55d000202000-55d000302000 rw-p 00202000 fe:00 7  /bin/rollout\nAnonymous: 1024 kB\n\
                    7f0000000000-7f0000100000 r--p 00000000 fe:00 8  /lib/libc.so.6\nAnonymous: 1024 kB\n";
        assert_eq!(relocated(maps, "/bin/rollout"), vec![0x55d0_0010_2000..0x55d0_0020_2000]);
    }
}
