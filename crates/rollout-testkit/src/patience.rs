//! Timeouts that are long enough on a busy machine.
//!
//! Something that times out has often to begin before a test can learn anything from it, and on a busy machine it may
//! get no CPU time for many seconds. A longer timeout would make the test slow everywhere.

use std::time::Duration;

/// The longest timeout that is tried.
const LONGEST: Duration = Duration::from_secs(300);

/// Longer and longer timeouts, the first one first.
fn timeouts(first: Duration) -> impl Iterator<Item = Duration> {
    std::iter::successors(Some(first), |timeout| Some(*timeout * 4)).take_while(|timeout| *timeout < LONGEST)
}

/// Tries with longer and longer timeouts, until one was long enough for what has to happen before it ends. The attempt
/// returns `None` if it was not, and checks everything else itself.
#[track_caller]
pub fn long_enough<T>(first: Duration, attempt: impl FnMut(Duration) -> Option<T>) -> T {
    timeouts(first).find_map(attempt).expect("one of the timeouts is long enough")
}

/// The same for attempts that wait.
pub async fn long_enough_async<T>(first: Duration, mut attempt: impl AsyncFnMut(Duration) -> Option<T>) -> T {
    for timeout in timeouts(first) {
        if let Some(found) = attempt(timeout).await {
            return found;
        }
    }
    panic!("none of the timeouts was long enough");
}
