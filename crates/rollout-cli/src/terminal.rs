//! A command inside a sandbox on this process's terminal.

use std::{
    fs::File,
    io::{self, IsTerminal as _, Read, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    thread::JoinHandle,
};

use rollout_sandbox::{Command, ExecError, ExitStatus, Sandbox, Stdio};
use rustix::{
    pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt},
    termios::{self, OptionalActions, Termios},
};
use tokio::signal::unix::{SignalKind, signal};

/// Why the command could not be run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TerminalError {
    /// A terminal for the command could not be made.
    #[error("cannot open a terminal for the shell")]
    Open(#[source] io::Error),
    /// The command did not start.
    #[error("cannot start the shell")]
    Exec(#[from] ExecError),
}

/// What to run.
#[derive(Debug)]
pub(crate) struct Interactive {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// The whole environment.
    pub env: Vec<(String, String)>,
    /// The directory to start in.
    pub cwd: String,
    /// The user, as the image names it.
    pub user: Option<String>,
}

/// A session that ended. What still writes to its terminal must end before it can be closed.
pub(crate) struct Session {
    output: Option<JoinHandle<()>>,
    restore: Option<Restore>,
    /// How the command ended.
    pub status: ExitStatus,
}

impl Session {
    /// Waits for the last output, once everything inside has ended.
    pub(crate) fn close(mut self) {
        if let Some(output) = self.output.take() {
            // The thread only copies bytes; a panic there has been printed by now.
            let _ = output.join();
        }
        drop(self.restore.take());
    }
}

/// Runs a command: on a terminal of its own where there is one here, else on this process's own streams.
pub(crate) async fn interact(sandbox: &Sandbox, what: Interactive) -> Result<Session, TerminalError> {
    if io::stdin().is_terminal() && io::stdout().is_terminal() {
        on_terminal(sandbox, what).await
    } else {
        on_streams(sandbox, what).await
    }
}

async fn on_streams(sandbox: &Sandbox, what: Interactive) -> Result<Session, TerminalError> {
    let own = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().map_err(TerminalError::Open);
    let stdin = Stdio::Fd(own(io::stdin().as_fd())?);
    let (stdout, stderr) = (own(io::stdout().as_fd())?, own(io::stderr().as_fd())?);
    let mut process = sandbox.exec(command(what, stdin, stdout, stderr, false)).await?;
    let status = process.wait().await.status;
    Ok(Session { output: None, restore: None, status })
}

async fn on_terminal(sandbox: &Sandbox, what: Interactive) -> Result<Session, TerminalError> {
    let (master, slave) = open_pty().map_err(TerminalError::Open)?;
    let copy = |fd: &OwnedFd| fd.try_clone().map_err(TerminalError::Open);
    copy_size(&master);
    let mut resized = signal(SignalKind::window_change()).map_err(TerminalError::Open)?;
    let mut hangup = signal(SignalKind::hangup()).map_err(TerminalError::Open)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(TerminalError::Open)?;
    let command = command(what, Stdio::Fd(copy(&slave)?), copy(&slave)?, slave, true);
    let mut process = sandbox.exec(command).await?;
    let restore = Restore::raw().map_err(TerminalError::Open)?;
    let output = pump(File::from(copy(&master)?), io::stdout());
    // Reading a terminal cannot be interrupted, so this thread is left to end with the process.
    drop(pump(io::stdin(), File::from(copy(&master)?)));
    let status = loop {
        tokio::select! {
            exit = process.wait() => break exit.status,
            _ = resized.recv() => copy_size(&master),
            _ = hangup.recv() => break ExitStatus::Signal(1),
            _ = terminate.recv() => break ExitStatus::Signal(15),
        }
    };
    Ok(Session { output: Some(output), restore: Some(restore), status })
}

fn command(what: Interactive, stdin: Stdio, stdout: OwnedFd, stderr: OwnedFd, tty: bool) -> Command {
    Command { argv: what.argv, env: what.env, cwd: what.cwd, user: what.user, stdin, stdout, stderr, tty }
}

fn open_pty() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = openpt(flags)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    let slave = ioctl_tiocgptpeer(&master, flags)?;
    Ok((master, slave))
}

fn copy_size(master: &OwnedFd) {
    // A terminal without a size keeps the default one.
    if let Ok(size) = termios::tcgetwinsize(io::stdout()) {
        let _ = termios::tcsetwinsize(master, size);
    }
}

/// Copies bytes until either side ends.
fn pump(mut from: impl Read + Send + 'static, mut to: impl Write + Send + 'static) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut buffer = [0; 8192];
        loop {
            match from.read(&mut buffer) {
                Ok(0) => return,
                Ok(read) => {
                    if to.write_all(&buffer[..read]).and_then(|()| to.flush()).is_err() {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // A terminal whose last user is gone reads as an error.
                Err(_) => return,
            }
        }
    })
}

/// Keeps this process's terminal raw, and puts it back.
struct Restore(Termios);

impl Restore {
    fn raw() -> io::Result<Self> {
        let before = termios::tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        termios::tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        Ok(Self(before))
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        // There is nobody to tell: the terminal is what failed.
        let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}
