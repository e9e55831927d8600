//! A terminal with a person at it.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    process::Command,
};

use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};

/// Runs the command on a terminal, types, and returns what was on the screen once it ended.
#[track_caller]
pub(crate) fn typed(mut command: Command, keys: &str) -> String {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let outer = openpt(flags).unwrap();
    grantpt(&outer).unwrap();
    unlockpt(&outer).unwrap();
    let inner = ioctl_tiocgptpeer(&outer, flags).unwrap();
    let own = || inner.try_clone().unwrap();
    let mut child = command.stdin(own()).stdout(own()).stderr(own()).spawn().unwrap();
    // Both the command's copies and these must close before the screen can end.
    drop((command, inner));
    let mut screen = File::from(outer);
    screen.write_all(keys.as_bytes()).unwrap();
    let mut seen = Vec::new();
    // A terminal whose last user is gone reads as an error.
    let _ = screen.read_to_end(&mut seen);
    let seen = String::from_utf8_lossy(&seen).into_owned();
    assert!(child.wait().unwrap().success(), "{seen}");
    seen
}
