//! A terminal for a command inside an environment, joined to this process's own.

use std::{
    fs::File,
    io::{self, IsTerminal as _, Read, Write},
    os::fd::OwnedFd,
    thread::JoinHandle,
};

use rustix::{
    pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt},
    termios::{self, LocalModes, OptionalActions, Termios},
};
use tokio::signal::unix::{SignalKind, signal};

/// Ends the input of a terminal: Ctrl-D.
const END_OF_INPUT: u8 = 4;

/// A terminal could not be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot open a terminal for the shell")]
pub(crate) struct TerminalError(#[from] io::Error);

/// A terminal in use. It stays joined until it is closed.
pub(crate) struct Session {
    outer: OwnedFd,
    output: JoinHandle<()>,
    _raw: Option<Raw>,
}

impl Session {
    /// Opens a terminal and joins it to this process's input and output. The second value is its inner side.
    pub(crate) fn open() -> Result<(Self, OwnedFd), TerminalError> {
        let (outer, inner) = open_pty()?;
        let raw = if io::stdin().is_terminal() {
            Some(Raw::set()?)
        } else {
            // What is piped in would be shown a second time.
            let mut settings = termios::tcgetattr(&inner).map_err(io::Error::from)?;
            settings.local_modes.remove(LocalModes::ECHO);
            termios::tcsetattr(&inner, OptionalActions::Now, &settings).map_err(io::Error::from)?;
            None
        };
        copy_size(&outer);
        let output = pump(File::from(outer.try_clone()?), io::stdout(), None);
        // Reading this process's input cannot be interrupted, so that thread is left to end with the process.
        drop(pump(io::stdin(), File::from(outer.try_clone()?), Some(END_OF_INPUT)));
        Ok((Self { outer, output, _raw: raw }, inner))
    }

    /// Waits for a command that uses the terminal, keeping its size true. A hangup ends the wait.
    pub(crate) async fn during<T, E>(&self, command: impl Future<Output = Result<T, E>>) -> Result<(), E> {
        let mut resized = signal(SignalKind::window_change()).ok();
        let mut hangup = signal(SignalKind::hangup()).ok();
        let mut terminate = signal(SignalKind::terminate()).ok();
        let mut command = std::pin::pin!(command);
        loop {
            tokio::select! {
                ended = &mut command => return ended.map(drop),
                () = received(&mut resized) => copy_size(&self.outer),
                () = received(&mut hangup) => return Ok(()),
                () = received(&mut terminate) => return Ok(()),
            }
        }
    }

    /// Shows the last output. Everything that used the terminal must have ended.
    pub(crate) fn close(self) {
        // The thread only copies bytes; if it panicked, the message has been printed.
        let _ = self.output.join();
    }
}

async fn received(signal: &mut Option<tokio::signal::unix::Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

fn open_pty() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let outer = openpt(flags)?;
    grantpt(&outer)?;
    unlockpt(&outer)?;
    let inner = ioctl_tiocgptpeer(&outer, flags)?;
    Ok((outer, inner))
}

fn copy_size(outer: &OwnedFd) {
    // A terminal without a size keeps the default one.
    if let Ok(size) = termios::tcgetwinsize(io::stdout()) {
        let _ = termios::tcsetwinsize(outer, size);
    }
}

/// Copies bytes until either side ends, and `last` when there are no more.
fn pump(
    mut from: impl Read + Send + 'static,
    mut to: impl Write + Send + 'static,
    last: Option<u8>,
) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut buffer = [0; 8192];
        let mut send = |bytes: &[u8]| to.write_all(bytes).and_then(|()| to.flush());
        loop {
            match from.read(&mut buffer) {
                Ok(0) => {
                    // A terminal that is gone needs no end.
                    let _ = send(last.as_slice());
                    return;
                }
                Ok(read) if send(&buffer[..read]).is_ok() => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // A terminal whose last user is gone reads as an error.
                Ok(_) | Err(_) => return,
            }
        }
    })
}

/// Keeps this process's terminal raw, so that every key reaches the inner one, and puts it back.
struct Raw(Termios);

impl Raw {
    fn set() -> io::Result<Self> {
        let before = termios::tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        termios::tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        Ok(Self(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // There is nobody to tell: the terminal is what failed.
        let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}
