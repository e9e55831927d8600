//! Runs one command in a sandbox to its end while reading its output.

use std::io;

use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

use super::log::{StageLog, Tail};
use crate::process::{CommandExit, ExecError, ExitStatus, SandboxCommand, SandboxProcess, Stdio};
use crate::sandbox::RunningSandbox;

/// A command.
pub(crate) struct Job {
    pub(crate) argv: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) cwd: String,
    pub(crate) user: Option<String>,
    pub(crate) stdin: Stdio,
}

/// How a job ended, and the last part of its output.
pub(crate) struct Ended {
    pub(crate) exit: CommandExit,
    pub(crate) tail: Tail,
}

impl Ended {
    pub(crate) fn success(&self) -> bool {
        self.exit.status == ExitStatus::Code(0)
    }
}

/// Why a job could not be completed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JobError {
    #[error("the command could not be started")]
    Exec(#[from] ExecError),
    #[error("cannot write the output")]
    Output(#[from] io::Error),
}

impl Job {
    /// Runs the job and writes its output to the log.
    ///
    /// Processes that the command leaves running are killed, as at the end of a container: a layer stores only
    /// files.
    pub(crate) async fn run(
        self,
        sandbox: &RunningSandbox,
        log: &mut StageLog<'_>,
    ) -> Result<Ended, JobError> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(io::Error::from)?;
        let output = Output { reader: pipe::Receiver::from_owned_fd(reader)?, log, tail: Tail::default() };
        let stdout = writer.try_clone()?;
        let command = SandboxCommand {
            argv: self.argv,
            env: self.env,
            cwd: self.cwd,
            user: self.user,
            stdin: self.stdin,
            stdout,
            stderr: writer,
            tty: false,
            nested: false,
        };
        let process = sandbox.exec(command).await?;
        output.follow(process).await
    }
}

struct Output<'a, 'l> {
    reader: pipe::Receiver,
    log: &'a mut StageLog<'l>,
    tail: Tail,
}

impl Output<'_, '_> {
    async fn follow(mut self, mut process: SandboxProcess) -> Result<Ended, JobError> {
        let mut buffer = vec![0; 64 << 10];
        let exit = loop {
            // Check for the end first: a background process that prints endlessly must not hide it.
            tokio::select! {
                biased;
                exit = process.wait() => break exit,
                read = self.reader.read(&mut buffer) => match read? {
                    0 => break process.wait().await,
                    count => self.take(&buffer[..count]).await?,
                },
            }
        };
        let exit = exit?;
        process.kill_tree().await?;
        while let Ok(count @ 1..) = self.reader.try_read(&mut buffer) {
            self.take(&buffer[..count]).await?;
        }
        Ok(Ended { exit, tail: self.tail })
    }

    async fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.tail.push(bytes);
        self.log.write(bytes).await
    }
}
