//! One command in a sandbox, run to its end while its output is read.

use std::io;
use std::os::fd::OwnedFd;

use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

use super::log::{Log, Tail};
use crate::image::ImageConfig;
use crate::process::{CommandExit, ExecError, ExitStatus, SandboxCommand, SandboxProcess, Stdio};
use crate::sandbox::RunningSandbox;

/// A command and where its output goes besides the tail that is kept.
pub(crate) struct Job {
    pub(crate) argv: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) cwd: String,
    pub(crate) user: Option<String>,
    pub(crate) stdin: Stdio,
    /// Takes the standard output, which is then not read here.
    pub(crate) stdout: Option<OwnedFd>,
}

/// How a job ended, and the last of what it printed.
pub(crate) struct Ended {
    pub(crate) exit: CommandExit,
    pub(crate) tail: Tail,
}

impl Ended {
    pub(crate) fn success(&self) -> bool {
        self.exit.status == ExitStatus::Code(0)
    }
}

/// Why a job could not be run to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JobError {
    #[error("the command could not be started")]
    Exec(#[from] ExecError),
    #[error("the output could not be passed on")]
    Output(#[from] io::Error),
}

impl Job {
    /// A shell script that root runs, with arguments `$1`, `$2` and so on.
    pub(crate) fn script(script: &str, arguments: &[&str]) -> Job {
        let mut argv: Vec<String> = ["/bin/sh", "-c", script, "sh"].map(str::to_owned).into();
        argv.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        let env = ImageConfig::default().env;
        Job { argv, env, cwd: "/".to_owned(), user: None, stdin: Stdio::Null, stdout: None }
    }

    /// Runs the job, passing its output to the log if there is one.
    ///
    /// What the command leaves running is killed, as the end of a container would: a layer holds files only.
    pub(crate) async fn run(
        self,
        sandbox: &RunningSandbox,
        log: Option<&mut Log>,
    ) -> Result<Ended, JobError> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(io::Error::from)?;
        let output = Output { reader: pipe::Receiver::from_owned_fd(reader)?, log, tail: Tail::default() };
        let stdout = match self.stdout {
            Some(stdout) => stdout,
            None => writer.try_clone()?,
        };
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

struct Output<'a> {
    reader: pipe::Receiver,
    log: Option<&'a mut Log>,
    tail: Tail,
}

impl Output<'_> {
    async fn follow(mut self, mut process: SandboxProcess) -> Result<Ended, JobError> {
        let mut buffer = vec![0; 64 << 10];
        let exit = loop {
            // The end first: a process left in the background that prints without end must not hide it.
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
        match &mut self.log {
            Some(log) => log.write(bytes).await,
            None => Ok(()),
        }
    }
}
