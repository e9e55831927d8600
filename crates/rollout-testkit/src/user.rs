//! Commands run by a user other than root.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, chown, lchown},
    path::Path,
    process::{Command, Stdio},
};

use crate::{TestJob, link_program, subject::USER_PROGRAM};

/// The id of an ordinary user and group that every Debian has.
const ORDINARY_USER: u32 = 65534;

/// Runs a test of the running test program again, as an ordinary user with readable links of both programs.
pub(crate) fn run_test_as_user(test: &str, program: &Path) {
    let dir = tempfile::tempdir_in("/var/tmp").expect("make a temporary directory");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("let others read it");
    let [tests, command, home] = ["tests", "rollout", "home"].map(|name| dir.path().join(name));
    link_program(&std::env::current_exe().expect("the test program has a path"), &tests);
    link_program(program, &command);
    fs::create_dir(&home).expect("make a home directory");
    chown(&home, Some(ORDINARY_USER), Some(ORDINARY_USER)).expect("give it away, which needs root");
    // The name of a test has no crate in it.
    let (_, name) = test.split_once("::").expect("a test is in a module");
    let output = lowered(&tests)
        .args([name, "--exact", "--nocapture"])
        .env(USER_PROGRAM, &command)
        .env("HOME", &home)
        .env("TMPDIR", &home)
        .current_dir("/")
        .output()
        .expect("run the test program");
    let printed = String::from_utf8_lossy(&output.stdout);
    // A wrong name would run no test, and succeed.
    let is_passed = output.status.success() && printed.contains("1 passed");
    assert!(is_passed, "{printed}{}", String::from_utf8_lossy(&output.stderr));
}

/// A command that runs a program as the ordinary user.
fn lowered(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    let [user, group] = ["--reuid", "--regid"].map(|option| format!("{option}={ORDINARY_USER}"));
    command.args([&user, &group, "--clear-groups", "--"]).arg(program);
    command
}

impl TestJob {
    /// The command run by an ordinary user who owns everything of the job except for the command itself.
    pub fn command_as_user(&self, arguments: &[&str]) -> Command {
        let command = self.command(arguments);
        let mut pending = vec![self.root().to_owned()];
        while let Some(path) = pending.pop() {
            lchown(&path, Some(ORDINARY_USER), Some(ORDINARY_USER))
                .expect("give the job away, which needs root");
            if path.symlink_metadata().expect("look at a file of the job").is_dir() {
                let entries = fs::read_dir(&path).expect("list a directory of the job").flatten();
                // The command is a link to the one that all tests run.
                pending.extend(entries.map(|entry| entry.path()).filter(|path| !path.ends_with("rollout")));
            }
        }
        let mut lowered = lowered(command.get_program());
        lowered
            .args(command.get_args())
            .current_dir(self.root())
            .env_clear()
            .envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))))
            .stdin(Stdio::null());
        lowered
    }
}
