//! Commands inside a sandbox, from the engine's side.

use std::{io, os::fd::OwnedFd};

use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};

use crate::{
    answer::{AnswerPipe, RequestSocket},
    sys::RawStatus,
    wire::{self, Done, ExecAnswer, ExecFailure, Request},
};

/// A command to run inside a sandbox.
#[derive(Debug)]
pub struct SandboxCommand {
    /// The program and its arguments; a program without a slash is looked up in PATH.
    pub argv: Vec<String>,
    /// The whole environment. Nothing is inherited from the host; HOME is added if missing.
    pub env: Vec<(String, String)>,
    /// The directory to start in.
    pub cwd: String,
    /// `name|uid[:group|gid]`, looked up in the sandbox's own /etc/passwd and /etc/group; root if absent.
    pub user: Option<String>,
    /// The standard input.
    pub stdin: Stdio,
    /// The standard output. Prefer a pipe: a command can reopen a file and overwrite it.
    pub stdout: OwnedFd,
    /// The standard error.
    pub stderr: OwnedFd,
    /// Whether stdin is a terminal that becomes the command's controlling terminal.
    pub tty: bool,
    /// Whether the command cannot reach the sandbox's private directories and the processes that are not
    /// nested. Ignored in a sandbox without private directories.
    pub nested: bool,
}

/// A command's standard input.
#[derive(Debug)]
pub enum Stdio {
    /// Nothing to read.
    Null,
    /// This file, pipe or terminal.
    Fd(OwnedFd),
}

/// A terminal for an interactive command: pass `command_end` as all three of its streams, with `tty`.
#[derive(Debug)]
pub struct Terminal {
    /// The user's end, for typing and reading.
    pub person_end: OwnedFd,
    /// The command's end.
    pub command_end: OwnedFd,
}

impl Terminal {
    /// Makes a new pseudo-terminal.
    pub fn open() -> io::Result<Terminal> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let person_end = openpt(flags)?;
        grantpt(&person_end)?;
        unlockpt(&person_end)?;
        let command_end = ioctl_tiocgptpeer(&person_end, flags)?;
        Ok(Terminal { person_end, command_end })
    }
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandExit {
    /// Its exit code or signal.
    pub status: ExitStatus,
    /// Whether any process of the sandbox was killed because of the memory limit while the command ran.
    pub oom_killed: bool,
}

/// A command's exit code, or the signal that killed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitStatus {
    /// The command exited with this code.
    Code(i32),
    /// The command was killed by this signal.
    Signal(i32),
}

impl From<RawStatus> for ExitStatus {
    fn from(status: RawStatus) -> ExitStatus {
        status.signal().map_or_else(|| ExitStatus::Code(status.code()), ExitStatus::Signal)
    }
}

/// A process that still runs inside a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survivor {
    /// Its pid inside the sandbox.
    pub pid: i32,
    /// The first 4096 bytes of its command line, or only its name if very many processes run. Bytes that are
    /// not UTF-8 are replaced.
    pub command: String,
}

/// Why a command could not be run.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// The program was not found.
    #[error("{program}: no such program in the environment")]
    NotFound {
        /// The program as requested.
        program: String,
    },
    /// The file exists, but cannot be executed.
    #[error("{program} cannot be executed")]
    NotExecutable {
        /// The program as requested.
        program: String,
        /// The system error.
        #[source]
        source: io::Error,
    },
    /// The working directory is missing or not usable.
    #[error("cannot start in the directory {directory}")]
    BadDirectory {
        /// The directory as requested.
        directory: String,
        /// The system error.
        #[source]
        source: io::Error,
    },
    /// The user or group is unknown in the environment.
    #[error("the environment has no user {user}")]
    UnknownUser {
        /// The user as requested.
        user: String,
    },
    /// Without root, a sandbox has only the user root.
    #[error(
        "cannot run as {user}: without root privileges, an environment has only the user root; run rollout as root to use other users"
    )]
    UserNotMapped {
        /// The user as requested.
        user: String,
    },
    /// A step before the start of the program failed.
    #[error("cannot start the command: {step}")]
    Setup {
        /// The step.
        step: String,
        /// The system error.
        #[source]
        source: io::Error,
    },
    /// The sandbox has ended.
    #[error("the sandbox has stopped")]
    Gone(#[source] io::Error),
}

impl ExecError {
    fn new(failure: ExecFailure, program: String, directory: String, user: Option<String>) -> ExecError {
        let os = io::Error::from_raw_os_error;
        let user = user.unwrap_or_else(|| "root".into());
        match failure {
            ExecFailure::Program { errno: libc::ENOENT | libc::ENOTDIR } => ExecError::NotFound { program },
            ExecFailure::Program { errno } => ExecError::NotExecutable { program, source: os(errno) },
            ExecFailure::Directory { errno } => ExecError::BadDirectory { directory, source: os(errno) },
            ExecFailure::UnknownUser => ExecError::UnknownUser { user },
            ExecFailure::UserNotMapped => ExecError::UserNotMapped { user },
            ExecFailure::Setup { step, errno } => ExecError::Setup { step, source: os(errno) },
        }
    }
}

/// A command that was started. Dropping it leaves the command running.
pub struct SandboxProcess {
    id: u64,
    /// The command's supervisor, and for a nested command also that of the whole sandbox.
    control: RequestSocket,
    outer: Option<RequestSocket>,
    answers: AnswerPipe,
    exit: Option<CommandExit>,
}

impl SandboxProcess {
    /// Sends a command to a supervisor and waits until it runs.
    pub(crate) async fn start(
        (outer, nested): (&RequestSocket, Option<&RequestSocket>),
        id: u64,
        command: SandboxCommand,
    ) -> Result<SandboxProcess, ExecError> {
        let control = nested.unwrap_or(outer);
        let (mut answers, answer) = AnswerPipe::new().map_err(ExecError::Gone)?;
        let stdin = match command.stdin {
            Stdio::Fd(fd) => Some(fd),
            Stdio::Null => None,
        };
        let request = wire::ExecRequest {
            id,
            argv: command.argv,
            env: command.env,
            cwd: command.cwd,
            user: command.user,
            tty: command.tty,
        };
        let request = Request::Exec(request);
        let unheld = Unclaimed(Some((control.clone(), id)));
        {
            use std::os::fd::AsFd;
            let mut fds = vec![answer.as_fd(), command.stdout.as_fd(), command.stderr.as_fd()];
            fds.extend(stdin.as_ref().map(AsFd::as_fd));
            control.send(&request, &fds).await.map_err(ExecError::Gone)?;
        }
        // Only the command may hold these now: readers wait for their end of file.
        drop((answer, stdin, command.stdout, command.stderr));
        let answer = answers.expect().await;
        unheld.release();
        let outer = nested.map(|_| outer.clone());
        match answer.map_err(ExecError::Gone)? {
            ExecAnswer::Started => {
                Ok(SandboxProcess { id, control: control.clone(), outer, answers, exit: None })
            }
            ExecAnswer::Exited { status, oom_killed } => {
                let exit = Some(CommandExit { status: status.into(), oom_killed });
                Ok(SandboxProcess { id, control: control.clone(), outer, answers, exit })
            }
            ExecAnswer::Failed(failure) => {
                let Request::Exec(request) = request else {
                    unreachable!("the request was built as an exec")
                };
                let program = request.argv.into_iter().next().unwrap_or_default();
                Err(ExecError::new(failure, program, request.cwd, request.user))
            }
        }
    }

    /// Waits until the command's main process ends. Processes that it left behind are not waited for.
    ///
    /// Cancel-safe: a dropped wait can be repeated. If the sandbox ends first, the result is
    /// [`ExecError::Gone`].
    pub async fn wait(&mut self) -> Result<CommandExit, ExecError> {
        loop {
            if let Some(exit) = self.exit {
                self.check_alive(exit).await.map_err(ExecError::Gone)?;
                return Ok(exit);
            }
            match self.answers.expect().await.map_err(ExecError::Gone)? {
                ExecAnswer::Exited { status, oom_killed } => {
                    self.exit = Some(CommandExit { status: status.into(), oom_killed });
                }
                ExecAnswer::Started | ExecAnswer::Failed(_) => {}
            }
        }
    }

    /// Distinguishes a command that was killed from one that ended with its sandbox: the kernel kills
    /// everything when a supervisor ends. The supervisor's socket closes before that.
    async fn check_alive(&self, exit: CommandExit) -> io::Result<()> {
        if exit.status == ExitStatus::Signal(libc::SIGKILL) {
            for supervisor in [Some(&self.control), self.outer.as_ref()].into_iter().flatten() {
                call::<u64>(supervisor, &Request::OomKills).await?;
            }
        }
        Ok(())
    }

    /// Kills the command and all its descendants, also detached and re-parented ones.
    pub async fn kill_tree(&self) -> Result<(), ExecError> {
        let Done = call(&self.control, &Request::KillTree(self.id)).await.map_err(ExecError::Gone)?;
        Ok(())
    }
}

/// A command that may have started, but has no handle yet: it is killed when the caller stops waiting.
struct Unclaimed(Option<(RequestSocket, u64)>);

impl Unclaimed {
    fn release(mut self) {
        self.0 = None;
    }
}

impl Drop for Unclaimed {
    fn drop(&mut self) {
        let Some((control, id)) = self.0.take() else { return };
        // Without a runtime, everything ends with the engine.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let _: io::Result<Done> = call(&control, &Request::KillTree(id)).await;
            });
        }
    }
}

/// Sends a request without descriptors and reads its only answer.
pub(crate) async fn call<T: serde::de::DeserializeOwned>(
    control: &RequestSocket,
    request: &Request,
) -> io::Result<T> {
    use std::os::fd::AsFd;
    let (mut answers, answer) = AnswerPipe::new()?;
    control.send(request, &[answer.as_fd()]).await?;
    drop(answer);
    answers.expect().await
}
