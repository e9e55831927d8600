//! The runtime of commands that wait for something.

use crate::exit::Failure;

/// Runs what waits for things. Commands that wait for nothing start faster without a runtime.
pub(crate) fn on_runtime<T>(command: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome = runtime.block_on(command);
    // A thread that reads the terminal cannot be waited for.
    runtime.shutdown_background();
    outcome
}
