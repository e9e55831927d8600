//! The async runtime of commands that need one.

use crate::exit::Failure;

/// Runs an async command. Other commands start faster without a runtime.
pub(crate) fn on_runtime<T>(command: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome = runtime.block_on(command);
    // A thread that reads the terminal never ends, so it is not waited for.
    runtime.shutdown_background();
    outcome
}
