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
    /// The program and its arguments; a program without a slash is looked up along PATH.
    pub argv: Vec<String>,
    /// The whole environment. Nothing is inherited from the host; HOME is added when it is missing.
    pub env: Vec<(String, String)>,
    /// The directory to start in.
    pub cwd: String,
    /// `name|uid[:group|gid]`, as the sandbox's own /etc/passwd and /etc/group know them; root when there is none.
    pub user: Option<String>,
    /// The standard input.
    pub stdin: Stdio,
    /// The standard output. A pipe is best: a command can reopen a file and overwrite it.
    pub stdout: OwnedFd,
    /// The standard error.
    pub stderr: OwnedFd,
    /// Whether the standard input is a terminal that becomes the command's own.
    pub tty: bool,
    /// Whether it is kept away from the sandbox's private directories and from all processes that are not nested.
    /// Means nothing in a sandbox without private directories.
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
    /// The end at which a person, or what stands for one, types and reads.
    pub person_end: OwnedFd,
    /// The end that the command gets.
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
    /// Its code or signal.
    pub status: ExitStatus,
    /// Whether any process of the sandbox was killed for its memory limit while the command ran.
    pub oom_killed: bool,
}

/// A command's exit code, or the signal that ended it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitStatus {
    /// It exited with this code.
    Code(i32),
    /// This signal ended it.
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
    /// The first 4096 bytes of its command line, or just its name when very many run; bytes that are not
    /// UTF-8 are replaced.
    pub command: String,
}

/// Why a command could not be run.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// No such program.
    #[error("{program}: no such program in the environment")]
    NotFound {
        /// The program as it was asked for.
        program: String,
    },
    /// There is such a file, but it cannot be executed.
    #[error("{program} cannot be executed")]
    NotExecutable {
        /// The program as it was asked for.
        program: String,
        /// What the kernel says.
        #[source]
        source: io::Error,
    },
    /// The directory to start in is not there or not usable.
    #[error("cannot start in the directory {directory}")]
    BadDirectory {
        /// The directory as it was asked for.
        directory: String,
        /// What the kernel says.
        #[source]
        source: io::Error,
    },
    /// The environment knows no such user or group.
    #[error("the environment has no user {user}")]
    UnknownUser {
        /// The user as it was asked for.
        user: String,
    },
    /// Only root exists in sandboxes that an ordinary user makes.
    #[error(
        "cannot run as {user}: started without root, an environment has no user but root; run as root to use others"
    )]
    UserNotMapped {
        /// The user as it was asked for.
        user: String,
    },
    /// A step before the program could be started failed.
    #[error("cannot start the command: {step}")]
    Setup {
        /// What was being done.
        step: String,
        /// What the kernel says.
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
    /// The command's supervisor, and for a nested one that of the whole sandbox.
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
        let unheld = Unheld(Some((control.clone(), id)));
        {
            use std::os::fd::AsFd;
            let mut fds = vec![answer.as_fd(), command.stdout.as_fd(), command.stderr.as_fd()];
            fds.extend(stdin.as_ref().map(AsFd::as_fd));
            control.send(&request, &fds).await.map_err(ExecError::Gone)?;
        }
        // Only the command may hold these now: its readers wait for their end.
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

    /// Waits until the command's main process ends. Processes that it left behind do not count.
    ///
    /// Cancel-safe: a wait that is dropped can be begun again. When the sandbox ends first, the answer
    /// is [`ExecError::Gone`].
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

    /// Tells a command that was killed from one that died with its sandbox, of which the kernel kills everything when
    /// a supervisor ends. A supervisor's socket closes before that.
    async fn check_alive(&self, exit: CommandExit) -> io::Result<()> {
        if exit.status == ExitStatus::Signal(libc::SIGKILL) {
            for supervisor in [Some(&self.control), self.outer.as_ref()].into_iter().flatten() {
                call::<u64>(supervisor, &Request::OomKills).await?;
            }
        }
        Ok(())
    }

    /// Kills the command and every process it started, however deep, detached or re-parented.
    pub async fn kill_tree(&self) -> Result<(), ExecError> {
        let Done = call(&self.control, &Request::KillTree(self.id)).await.map_err(ExecError::Gone)?;
        Ok(())
    }
}

/// A command that may have started and that nobody could wait for or kill: it is killed when whoever asked for it
/// goes away.
struct Unheld(Option<(RequestSocket, u64)>);

impl Unheld {
    fn release(mut self) {
        self.0 = None;
    }
}

impl Drop for Unheld {
    fn drop(&mut self) {
        let Some((control, id)) = self.0.take() else { return };
        // Without a runtime everything ends with the engine.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let _: io::Result<Done> = call(&control, &Request::KillTree(id)).await;
            });
        }
    }
}

/// Sends a request that brings nothing along and reads its one answer.
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
