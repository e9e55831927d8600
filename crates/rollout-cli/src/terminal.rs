//! A terminal for a command inside an environment, connected to the terminal of this process.

use std::{
    fs::File,
    io::{self, IsTerminal as _, Read, Write},
    os::fd::OwnedFd,
    thread::JoinHandle,
};

use rollout_sandbox::Terminal;
use rustix::termios::{self, LocalModes, OptionalActions, Termios};
use tokio::signal::unix::{SignalKind, signal};

/// Why a session cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TerminalError {
    /// stdin is not a terminal.
    #[error("a shell needs a terminal, but stdin is not a terminal")]
    NoTerminal,
    /// The system cannot open a pseudo-terminal.
    #[error("cannot open a terminal for the shell")]
    Open(#[from] io::Error),
}

/// Checks that stdin is a terminal, before anything is created for the session.
pub(crate) fn require() -> Result<(), TerminalError> {
    if io::stdin().is_terminal() { Ok(()) } else { Err(TerminalError::NoTerminal) }
}

/// An open terminal, connected until it is closed.
pub(crate) struct Session {
    outer: OwnedFd,
    output: JoinHandle<()>,
    _raw: Mode,
}

impl Session {
    /// Opens a terminal, and connects it to stdin and stdout. The second value is the end for the command.
    pub(crate) fn open() -> Result<(Self, OwnedFd), TerminalError> {
        let Terminal { person_end: outer, command_end: inner } = Terminal::open()?;
        let raw = Mode::raw()?;
        copy_size(&outer);
        let output = pump(File::from(outer.try_clone()?), io::stdout());
        // Reading stdin cannot be interrupted, so this thread ends with the process.
        drop(pump(io::stdin(), File::from(outer.try_clone()?)));
        Ok((Self { outer, output, _raw: raw }, inner))
    }

    /// Waits for a command that uses the terminal, and forwards changes of the terminal's size. A hangup ends the wait.
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

    /// Prints the remaining output. All users of the terminal must have ended.
    pub(crate) fn close(self) {
        // The thread only copies bytes. If it panicked, the message was printed already.
        let _ = self.output.join();
    }
}

async fn received(signal: &mut Option<tokio::signal::unix::Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

fn copy_size(outer: &OwnedFd) {
    // A terminal without a size keeps the default size.
    if let Ok(size) = termios::tcgetwinsize(io::stdout()) {
        let _ = termios::tcsetwinsize(outer, size);
    }
}

/// Copies bytes until either side ends.
fn pump(mut from: impl Read + Send + 'static, mut to: impl Write + Send + 'static) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut buffer = [0; 8192];
        loop {
            match from.read(&mut buffer) {
                Ok(read) if read > 0 && to.write_all(&buffer[..read]).and_then(|()| to.flush()).is_ok() => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Reading a terminal fails when its last user has closed it.
                Ok(_) | Err(_) => return,
            }
        }
    })
}

/// Switches the terminal of this process to another mode, and restores the mode when dropped.
pub(crate) struct Mode(Termios);

impl Mode {
    /// Raw mode, so that every key reaches the inner terminal.
    fn raw() -> io::Result<Self> {
        Self::set(Termios::make_raw)
    }

    /// Mode without the `^C` that Ctrl-C prints, which would shift the lines of a live display.
    pub(crate) fn quiet() -> io::Result<Self> {
        Self::set(|mode| mode.local_modes.remove(LocalModes::ECHOCTL))
    }

    fn set(change: impl FnOnce(&mut Termios)) -> io::Result<Self> {
        let before = termios::tcgetattr(io::stdin())?;
        let mut after = before.clone();
        change(&mut after);
        termios::tcsetattr(io::stdin(), OptionalActions::Now, &after)?;
        Ok(Self(before))
    }
}

impl Drop for Mode {
    fn drop(&mut self) {
        // The error cannot be reported, because the terminal itself failed.
        let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}
