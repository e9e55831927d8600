//! A process in a native sandbox, with pipes.

use std::io;

use rollout_sandbox::{ExitStatus, RunningSandbox, SandboxCommand, SandboxProcess, Stdio};
use tokio::net::unix::pipe;

/// A process with pipes.
pub(crate) struct Piped {
    pub(crate) process: SandboxProcess,
    pub(crate) stdin: Option<pipe::Sender>,
    pub(crate) stdout: pipe::Receiver,
    pub(crate) stderr: pipe::Receiver,
}

/// What a process needs from its surroundings.
pub(crate) struct ProcessSettings {
    pub(crate) env: Vec<(String, String)>,
    pub(crate) cwd: String,
    pub(crate) user: Option<String>,
}

/// Why a process could not be started: the exit code and a message.
pub(crate) type StartFailure = (i32, String);

/// Starts a process in a sandbox.
pub(crate) async fn start(
    sandbox: &RunningSandbox,
    argv: Vec<String>,
    settings: ProcessSettings,
    with_stdin: bool,
) -> Result<Piped, StartFailure> {
    let failed = |error: io::Error| (128, error.to_string());
    let (stdout, stdout_end) = pipes().map_err(failed)?;
    let (stderr, stderr_end) = pipes().map_err(failed)?;
    let (stdin, stdin_end) = if with_stdin {
        let (end, sender) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .map_err(|error| failed(error.into()))?;
        (Some(pipe::Sender::from_owned_fd(sender).map_err(failed)?), Stdio::Fd(end))
    } else {
        (None, Stdio::Null)
    };
    let command = SandboxCommand {
        argv,
        env: settings.env,
        cwd: settings.cwd,
        user: settings.user,
        stdin: stdin_end,
        stdout: stdout_end,
        stderr: stderr_end,
        tty: false,
        nested: false,
    };
    let process = sandbox.exec(command).await.map_err(|error| {
        let source =
            std::error::Error::source(&error).map(|source| format!(": {source}")).unwrap_or_default();
        (128, format!("{error}{source}"))
    })?;
    Ok(Piped { process, stdin, stdout, stderr })
}

fn pipes() -> io::Result<(pipe::Receiver, std::os::fd::OwnedFd)> {
    let (receiver, end) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    Ok((pipe::Receiver::from_owned_fd(receiver)?, end))
}

/// The exit code of a status, as container engines report it.
pub(crate) fn exit_code(status: ExitStatus) -> i32 {
    match status {
        ExitStatus::Code(code) => code,
        ExitStatus::Signal(signal) => 128 + signal,
    }
}
