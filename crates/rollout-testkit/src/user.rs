//! Commands run by a user other than root.

use std::{
    fs,
    os::unix::fs::lchown,
    process::{Command, Stdio},
};

use crate::TestJob;

/// The id of an ordinary user and group that every Debian has.
const ORDINARY_USER: u32 = 65534;

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
        let mut lowered = Command::new("setpriv");
        lowered
            .args([
                &format!("--reuid={ORDINARY_USER}"),
                &format!("--regid={ORDINARY_USER}"),
                "--clear-groups",
                "--",
            ])
            .arg(command.get_program())
            .args(command.get_args())
            .current_dir(self.root())
            .env_clear()
            .envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))))
            .stdin(Stdio::null());
        lowered
    }
}
