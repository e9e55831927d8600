//! How far a command is that reads much and shows nothing else meanwhile.

use std::{
    io::Write as _,
    time::{Duration, Instant},
};

use crate::report::text::{DIM, count, paint};

const TOLD_EVERY: Duration = Duration::from_secs(2);

/// Tells on standard error how far it is, if it takes long.
pub(super) fn progress(done: &str, noun: &str) -> impl FnMut(u64) {
    let mut told = Instant::now();
    move |number| {
        if told.elapsed() >= TOLD_EVERY {
            told = Instant::now();
            // Only for whoever waits.
            let text = paint(DIM, &format!("{done} {}", count(number, noun)));
            let _ = writeln!(anstream::stderr().lock(), "{text}");
        }
    }
}
