//! Tests that run in a separate process.

use std::{env, process::Command};

/// Whether a test runs in its own process. If not, the test is rerun in a separate process, and the caller
/// returns. Tests that change the current directory or measure memory need this if all tests share one process.
///
/// `test` is the full name of the calling test.
///
/// # Panics
///
/// If the test fails in its process.
#[track_caller]
pub fn in_own_process(test: &str) -> bool {
    const MARK: &str = "ROLLOUT_TEST_IN_OWN_PROCESS";
    if env::var_os(MARK).is_some() {
        return true;
    }
    let program = env::current_exe().expect("find this program");
    let output = Command::new(program).args(["--exact", test]).env(MARK, "1").output().expect("run the test");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    false
}
