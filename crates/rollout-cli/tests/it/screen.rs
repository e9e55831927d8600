//! A terminal with a person at it.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    process::{Child, Command},
};

use rustix::{
    pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt},
    termios::{Winsize, tcsetwinsize},
};

/// Runs the command on a terminal, types, and returns what was on the screen once it ended.
#[track_caller]
pub(crate) fn typed(command: Command, keys: &str) -> String {
    let mut screen = Screen::start(command, None);
    screen.terminal.write_all(keys.as_bytes()).unwrap();
    screen.end()
}

/// A command that runs on a terminal.
pub(crate) struct Screen {
    terminal: File,
    child: Child,
    seen: Vec<u8>,
}

impl Screen {
    /// Starts it on a terminal with so many columns, or of unknown size.
    pub(crate) fn start(mut command: Command, columns: Option<u16>) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let outer = openpt(flags).unwrap();
        grantpt(&outer).unwrap();
        unlockpt(&outer).unwrap();
        let inner = ioctl_tiocgptpeer(&outer, flags).unwrap();
        if let Some(columns) = columns {
            tcsetwinsize(&outer, size(columns)).unwrap();
        }
        let own = || inner.try_clone().unwrap();
        let child = command.stdin(own()).stdout(own()).stderr(own()).spawn().unwrap();
        // Both the command's copies and these must close before the screen can end.
        drop((command, inner));
        Self { terminal: File::from(outer), child, seen: Vec::new() }
    }

    /// Changes the width.
    pub(crate) fn resize(&self, columns: u16) {
        tcsetwinsize(&self.terminal, size(columns)).unwrap();
    }

    /// Reads until the lines since the last call, without colours and movements, fulfil a condition. A live display is
    /// drawn again and again, so there is always something to read.
    #[track_caller]
    pub(crate) fn until(&mut self, condition: impl Fn(&[&str]) -> bool) {
        self.seen.clear();
        let mut part = [0; 4096];
        loop {
            let length = self.terminal.read(&mut part).expect("the command runs");
            self.seen.extend(&part[..length]);
            let text = String::from_utf8_lossy(&self.seen).into_owned();
            let text = anstream::adapter::strip_str(&text).to_string();
            let lines: Vec<&str> = text.split(['\r', '\n']).map(str::trim_end).collect();
            if condition(&lines) {
                return;
            }
        }
    }

    /// Waits for the end, and returns what was on the screen since the last look at it.
    #[track_caller]
    pub(crate) fn end(mut self) -> String {
        // A terminal whose last user is gone reads as an error.
        let _ = self.terminal.read_to_end(&mut self.seen);
        let seen = String::from_utf8_lossy(&self.seen).into_owned();
        assert!(self.child.wait().unwrap().success(), "{seen}");
        seen
    }
}

fn size(columns: u16) -> Winsize {
    Winsize { ws_row: 30, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}
