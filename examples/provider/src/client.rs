//! The docker command.

use std::{path::PathBuf, process::Stdio};

use rollout::record::log::{LogTail, LogWriter};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    process::Command,
};

/// How the docker command is called.
#[derive(Debug, Clone)]
pub struct DockerProgram {
    /// The command. Version 23 and newer need the plugin `buildx` beside it.
    pub program: PathBuf,
    /// The engine's address. None leaves the choice to the command.
    pub host: Option<String>,
}

impl DockerProgram {
    /// A call without input, which is killed when its future is dropped.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        if let Some(host) = &self.host {
            command.args(["--host", host]);
        }
        // The builder that makes the same thing once, however many ask for it at a time.
        command.env("DOCKER_BUILDKIT", "1").args(arguments).stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    /// Calls it, and returns what it printed; an error is what it complained about.
    pub(crate) async fn call(&self, arguments: &[&str]) -> Result<String, String> {
        let output = self.command(arguments).output().await.map_err(|error| self.not_started(&error))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    /// What is wrong when the command itself does not run.
    pub(crate) fn not_started(&self, error: &std::io::Error) -> String {
        format!("cannot run {}: {error}", self.program.display())
    }
}

/// Calls `docker` for as long as it writes, into a log that is capped. Returns whether all went well, and the
/// end of what was written.
pub(crate) async fn logged(mut command: Command, mut log: LogWriter) -> std::io::Result<(bool, LogTail)> {
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let tail = log.tail();
    if let Some(mut output) = child.stderr.take() {
        drain(&mut output, &mut log).await?;
    }
    log.finish().await?;
    Ok((child.wait().await?.success(), tail))
}

/// Takes what is written until the end.
pub(crate) async fn drain(output: &mut (impl AsyncRead + Unpin), log: &mut LogWriter) -> std::io::Result<()> {
    let mut chunk = vec![0; 8 << 10];
    loop {
        let count = output.read(&mut chunk).await?;
        if count == 0 {
            return Ok(());
        }
        log.write(&chunk[..count]).await?;
        log.flush().await?;
    }
}
