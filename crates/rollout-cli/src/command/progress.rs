//! Progress messages of commands that print nothing else while they work.

use std::{
    io::Write as _,
    time::{Duration, Instant},
};

use crate::report::text::{DIM, count, paint};

const INTERVAL: Duration = Duration::from_secs(2);

/// Prints the progress to stderr every [`INTERVAL`].
pub(super) fn progress(done: &str, noun: &str) -> impl FnMut(u64) {
    let mut last = Instant::now();
    move |number| {
        if last.elapsed() >= INTERVAL {
            last = Instant::now();
            // The command works without progress messages, so write errors are ignored.
            let text = paint(DIM, &format!("{done} {}", count(number, noun)));
            let _ = writeln!(anstream::stderr().lock(), "{text}");
        }
    }
}
