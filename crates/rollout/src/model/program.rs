//! Programs of this machine that read their input, write a result and end.

use std::{io, path::PathBuf, process::ExitStatus, process::Stdio, time::Duration};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    process,
    time::timeout,
};

/// As much of the end of what a program said to its standard error is kept.
const MAX_TAIL: usize = 4096;

/// A program with its arguments. There is no shell in between.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    /// The program and its arguments; never empty.
    pub(crate) command: Vec<String>,
    /// Where it runs.
    pub(crate) directory: PathBuf,
    /// How long it may take.
    pub(crate) timeout: Duration,
}

/// What a program wrote.
#[derive(Debug)]
pub(crate) struct Written {
    /// The start of its output.
    pub(crate) output: Vec<u8>,
    /// How many more bytes there were.
    pub(crate) left_out: u64,
}

/// Why a program gave nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProgramError {
    #[error("`{program}` does not start; is it installed, and executable?")]
    Start {
        program: String,
        #[source]
        source: io::Error,
    },
    #[error("the program cannot be talked to")]
    Talk(#[source] io::Error),
    #[error("the program did not end within {} s", .0.as_secs_f64())]
    Timeout(Duration),
    #[error("the program ended with {status}; it said: {stderr}")]
    Failed { status: ExitStatus, stderr: String },
}

impl Program {
    /// Runs the program. Of what it writes, the first `limit` bytes are kept; what it leaves running is killed.
    pub(crate) async fn run(&self, input: &[u8], limit: usize) -> Result<Written, ProgramError> {
        let (program, arguments) = self.command.split_first().expect("a command is never empty");
        let mut command = process::Command::new(program);
        command.args(arguments).current_dir(&self.directory).process_group(0).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child =
            command.spawn().map_err(|source| ProgramError::Start { program: program.clone(), source })?;
        // Declared after the child, so that the group is killed while its leader's id is still taken.
        let group = Group::of(&child);
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let talk = async {
            let write = async {
                if let Some(mut stdin) = stdin {
                    // A program need not read what it does not want to know.
                    let _ = stdin.write_all(input).await;
                }
                Ok(())
            };
            let end = async {
                let status = child.wait().await;
                drop(group);
                status
            };
            tokio::try_join!(write, end, head(stdout, limit), tail(stderr))
        };
        let talked = timeout(self.timeout, talk).await.map_err(|_| ProgramError::Timeout(self.timeout))?;
        let ((), status, written, stderr) = talked.map_err(ProgramError::Talk)?;
        if status.success() { Ok(written) } else { Err(ProgramError::Failed { status, stderr }) }
    }
}

/// The processes that a program started and did not move elsewhere. Dropping it ends them.
struct Group(Option<Pid>);

impl Group {
    fn of(leader: &process::Child) -> Self {
        Self(leader.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // It is usually gone already.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

async fn head(from: Option<impl AsyncRead + Unpin>, limit: usize) -> io::Result<Written> {
    let mut output = Vec::new();
    let Some(mut from) = from else { return Ok(Written { output, left_out: 0 }) };
    (&mut from).take(limit as u64).read_to_end(&mut output).await?;
    let left_out = tokio::io::copy(&mut from, &mut tokio::io::sink()).await?;
    Ok(Written { output, left_out })
}

async fn tail(from: Option<impl AsyncRead + Unpin>) -> io::Result<String> {
    let Some(mut from) = from else { return Ok(String::new()) };
    let mut end = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let length = from.read(&mut chunk).await?;
        if length == 0 {
            return Ok(String::from_utf8_lossy(&end).trim().to_owned());
        }
        end.extend_from_slice(&chunk[..length]);
        end.drain(..end.len().saturating_sub(MAX_TAIL));
    }
}
