//! The host's side of a guest: the first process of a container, which does all that an
//! [`Environment`](super::Environment) asks for, over one stream.
//!
//! Whoever starts containers puts [`PROGRAM`] at [`PROGRAM_PATH`] into the image, starts it there as the
//! super-user with the image's variables and directory, and hands its standard streams to
//! [`Guest::connect`]. Nothing that comes over them is trusted.

mod connection;
mod output;

use std::{path::Path, time::Duration};

use rollout_guest::{Reply, Request};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout,
};

use self::{
    connection::{Call, Connection},
    output::{End, Pumps},
};
use super::{CopyMode, CopyReport, EnvironmentError, Exec, Exit, FileRead};

/// The guest's executable: static, so that it runs in any image of this architecture.
pub static PROGRAM: &[u8] = include_bytes!(env!("ROLLOUT_GUEST"));

/// Where the executable belongs in a container.
pub const PROGRAM_PATH: &str = "/.rollout/guest";

/// How long after a command's deadline a guest may take to kill what it started.
const KILL_PATIENCE: Duration = Duration::from_secs(60);

/// How long the stream of a container that is gone may take to end.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// Processes that are named. An agent may leave more behind than anybody reads.
const MAX_SURVIVORS: usize = 1000;

/// A guest that answers.
///
/// A stream that breaks, or that carries what no guest says, makes every call [`EnvironmentError::Lost`].
/// Dropped, it ends the stream, and with it the guest and everything in its container, unless that was asked
/// to [stay](Guest::stay).
pub struct Guest {
    connection: Connection,
    pumps: Pumps,
    user: Option<String>,
    stays: std::sync::atomic::AtomicBool,
}

impl Guest {
    /// Waits for the guest at the other end of the streams. Commands run as `user`, given as
    /// `name|uid[:group|gid]`; none is the super-user.
    pub async fn connect(
        reader: impl AsyncRead + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
        user: Option<String>,
    ) -> Result<Self, EnvironmentError> {
        let connection = Connection::open(reader, writer).await?;
        Ok(Self { connection, pumps: Pumps::default(), user, stays: false.into() })
    }

    /// Copies a host file, or the content of a host directory, to a path inside.
    pub async fn copy_to(
        &self,
        _source: &Path,
        _target: &str,
        _mode: CopyMode,
    ) -> Result<(), EnvironmentError> {
        Err(missing())
    }

    /// Writes an executable file inside, making its directory.
    pub async fn write_file(&self, _path: &str, _content: &[u8]) -> Result<(), EnvironmentError> {
        Err(missing())
    }

    /// Copies the content of a directory inside into a host directory, in which nothing is overwritten.
    pub async fn copy_from(&self, _source: &str, _target: &Path) -> Result<CopyReport, EnvironmentError> {
        Err(missing())
    }

    /// Reads a regular file inside, without following a link at its end.
    pub async fn read_file(&self, _path: &str, _max_bytes: u64) -> Result<FileRead, EnvironmentError> {
        Err(missing())
    }

    /// Makes sure that these directories exist. With `empty`, whatever was there before is gone.
    pub async fn make_dirs(&self, paths: &[&str], empty: bool) -> Result<(), EnvironmentError> {
        let paths = paths.iter().map(|path| (*path).to_owned()).collect();
        self.connection.call(&Request::MakeDirs { paths, empty })?.done().await
    }

    /// Makes a link inside, unless a file or directory is there already.
    pub async fn link(&self, target: &str, link: &str) -> Result<(), EnvironmentError> {
        let request = Request::Link { target: target.to_owned(), link: link.to_owned() };
        self.connection.call(&request)?.done().await
    }

    /// Runs a command to its end or its deadline, at which every process it started is killed. So they are
    /// when the future is dropped.
    pub async fn exec(&self, command: Exec<'_>) -> Result<Exit, EnvironmentError> {
        let request = Request::Exec {
            argv: command.argv.iter().map(|word| (*word).to_owned()).collect(),
            env: command.env.to_vec(),
            user: self.user.clone(),
            deadline: command.deadline.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
        };
        let Call { mut ticket, replies } = self.connection.call(&request)?;
        ticket.last();
        let end = self.pumps.start(replies, command.stdout, command.stderr);
        let end = match command.deadline.and_then(|time| time.checked_add(KILL_PATIENCE)) {
            Some(patience) => timeout(patience, end).await.map_err(|_| {
                EnvironmentError::Lost(
                    "a command did not end at its deadline, and could not be killed".into(),
                )
            })?,
            None => end.await,
        };
        match end {
            Ok(End::Exited(exit)) => {
                ticket.done();
                Ok(exit)
            }
            Ok(End::Failed(reason)) => {
                ticket.done();
                Err(EnvironmentError::Command(reason))
            }
            Ok(End::Nonsense) => Err(ticket.nonsense()),
            Err(_) => Err(ticket.lost()),
        }
    }

    /// The commands of the processes running inside.
    pub async fn survivors(&self) -> Result<Vec<String>, EnvironmentError> {
        let mut call = self.connection.call(&Request::Survivors)?;
        let mut commands = Vec::new();
        loop {
            match call.next().await? {
                Reply::Process(command) if commands.len() < MAX_SURVIVORS => commands.push(command),
                Reply::Process(_) => {}
                Reply::Done => {
                    call.ticket.done();
                    return Ok(commands);
                }
                _ => return Err(call.ticket.nonsense()),
            }
        }
    }

    /// Ends every process inside.
    pub async fn kill_all(&self) -> Result<(), EnvironmentError> {
        self.connection.call(&Request::KillAll)?.done().await
    }

    /// Makes the guest outlive its stream, and everything inside with it.
    pub async fn stay(&self) -> Result<(), EnvironmentError> {
        self.connection.call(&Request::Stay)?.done().await?;
        self.stays.store(true, std::sync::atomic::Ordering::SeqCst);
        Ok(())
    }

    /// Waits until all output is in its files; to be called when the container is gone or was asked to stay.
    pub async fn finish(self) {
        let Self { mut connection, pumps, stays, .. } = self;
        if !stays.into_inner() {
            connection.ended(END_PATIENCE).await;
        }
        connection.close();
        pumps.finish().await;
    }
}

fn missing() -> EnvironmentError {
    EnvironmentError::Lost("the guest is not reached yet".to_owned())
}
