//! The limit of open files.

use rustix::process::{Resource, getrlimit, setrlimit};

/// How many files this process may open. A system limit can be 10^9; child programs inherit it, and some of them close
/// every possible file descriptor when they start.
const OPEN_FILES: u64 = 1 << 16;

/// Raises the limit: every connection and every running trial needs files.
pub(crate) fn allow_connections() {
    let mut limit = getrlimit(Resource::Nofile);
    let enough = limit.maximum.map_or(OPEN_FILES, |most| most.min(OPEN_FILES));
    if limit.current.is_some_and(|now| now < enough) {
        limit.current = Some(enough);
        // On failure there can only be fewer of them at the same time.
        let _ = setrlimit(Resource::Nofile, limit);
    }
}
