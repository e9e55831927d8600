//! The host's side of a guest: the first process of a container, which serves all operations of an
//! [`Environment`](super::Environment) over one stream.
//!
//! A provider that starts containers puts [`PROGRAM`] at [`PROGRAM_PATH`] into the image, starts it as root
//! with the image's variables and directory, and passes its standard streams to [`Guest::connect`]. Nothing
//! that arrives over them is trusted.

mod connection;
mod ending;
mod output;
mod send;
mod session;
mod tunnel;
#[cfg(feature = "websocket")]
mod websocket;

use std::{
    net::SocketAddr,
    path::Path,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

pub use rollout_guest::KillScope;
use rollout_guest::{FileLookup, GuestReply, GuestRequest, Item, MAX_DATA};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
    time::timeout,
};

pub use self::{
    ending::ContainerEnd,
    session::{Dial, DialError, GuestSession, GuestStream},
};

use self::{
    connection::{Call, Connection},
    output::{End, Pumps},
    send::{SendError, Source},
};
use crate::{
    environment::{
        CommandRole, CommandUsers, CopyMode, CopyOut, CopyReport, EnvironmentError, Exec, Exit, FileChange,
        FileRead,
    },
    receive::{LOG_LIMITS, Receive, ReceiveError, Received, start_of},
};

/// The guest's executable. It is static, so it runs in any image of this architecture.
pub static PROGRAM: &[u8] = include_bytes!(env!("ROLLOUT_GUEST"));

/// The path of the executable in a container.
pub const PROGRAM_PATH: &str = "/.rollout/guest";

/// How long after a command's deadline a guest may take to kill its processes.
const KILL_PATIENCE: Duration = Duration::from_secs(60);

/// The timeout for requests without file operations.
const CONTROL_PATIENCE: Duration = Duration::from_secs(60);

/// How long the stream of a removed container may take to close.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// The mode of scripts.
const EXECUTABLE_MODE: u32 = 0o755;

/// The number of steps of a copy that wait to be sent.
const WAITING_ITEMS: usize = 8;

/// The most processes that are listed. An agent may leave more behind.
const MAX_SURVIVORS: usize = 1000;

/// The most changes of files that are listed. Each file has seven at most.
const MAX_CHANGES: usize = 1000;

/// The longest accepted path, in bytes. A guest sends shorter ones.
const MAX_PATH: usize = 16 << 10;

/// The longest accepted command line, in bytes. A guest sends shorter ones.
const MAX_COMMAND_LINE: usize = 16 << 10;

/// A connected guest.
///
/// After a broken stream or an invalid message, every call returns [`EnvironmentError::Lost`]. Dropping it
/// closes the stream, which ends the guest and everything in its container, unless it was asked to
/// [stay](Guest::stay).
pub struct Guest {
    connection: Connection,
    pumps: Pumps,
    user: Option<String>,
    users: Mutex<CommandUsers>,
    stays: AtomicBool,
    /// How long the stream may stand still without being lost.
    outage: Duration,
}

impl Guest {
    /// Waits for the guest at the other end of the streams. Commands run as `user`, given as
    /// `name|uid[:group|gid]`, or as root if `None`.
    pub async fn connect(
        reader: impl AsyncRead + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
        user: Option<String>,
    ) -> Result<Self, EnvironmentError> {
        let connection = Connection::open(reader, writer).await?;
        Ok(Self {
            connection,
            pumps: Pumps::default(),
            user,
            users: Mutex::default(),
            stays: false.into(),
            outage: Duration::ZERO,
        })
    }

    /// Waits longer for answers, because the stream may stand still for this long while a lost connection is replaced.
    #[must_use]
    pub fn with_outage(self, outage: Duration) -> Self {
        Self { outage, ..self }
    }

    /// Runs commands as this user, given as `name|uid[:group|gid]`, or as root if `None`.
    #[must_use]
    pub fn with_user(self, user: Option<String>) -> Self {
        Self { user, ..self }
    }

    /// The processes that [`survivors`](Self::survivors), [`hold`](Self::hold) and [`kill_all`](Self::kill_all)
    /// reach.
    pub fn kill_scope(&self) -> KillScope {
        self.connection.scope()
    }

    /// Copies a host file, or the content of a host directory, to a path inside.
    pub async fn copy_to(&self, source: &Path, target: &str, mode: CopyMode) -> Result<(), EnvironmentError> {
        let path = source.to_owned();
        let source = file_work(move || Source::open(&path)).await?.map_err(send_error)?;
        let request = GuestRequest::Put {
            target: target.to_owned(),
            file: source.is_file,
            replace: mode == CopyMode::Replace,
        };
        let mut call = self.connection.call(&request)?;
        let (sender, mut items) = mpsc::channel(WAITING_ITEMS);
        let walk =
            tokio::task::spawn_blocking(move || source.walk(|item| sender.blocking_send(item).is_ok()));
        loop {
            tokio::select! {
                item = items.recv() => match item {
                    Some(item) => call.ticket.send(&GuestRequest::Item(item)).await?,
                    None => break,
                },
                // A guest replies before the end only to report a failure.
                reply = call.next() => {
                    reply?;
                    return Err(call.ticket.protocol_error());
                }
            }
        }
        walk.await.map_err(stopped)?.map_err(send_error)?;
        call.ticket.send(&GuestRequest::PutEnd).await?;
        call.done().await
    }

    /// Writes an executable file inside, and creates its directory.
    pub async fn write_file(&self, path: &str, content: &[u8]) -> Result<(), EnvironmentError> {
        let request = GuestRequest::Put { target: path.to_owned(), file: true, replace: true };
        self.put_file(request, "", content).await
    }

    /// Copies one executable file.
    async fn put_file(&self, put: GuestRequest, name: &str, content: &[u8]) -> Result<(), EnvironmentError> {
        let call = self.connection.call(&put)?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let file = Item::File {
            name: name.as_bytes().to_vec(),
            mode: EXECUTABLE_MODE,
            seconds: i64::try_from(now.as_secs()).unwrap_or(0),
            nanoseconds: now.subsec_nanos(),
        };
        call.ticket.send(&GuestRequest::Item(file)).await?;
        for bytes in content.chunks(MAX_DATA) {
            call.ticket.send(&GuestRequest::Item(Item::Data(bytes.to_vec()))).await?;
        }
        call.ticket.send(&GuestRequest::PutEnd).await?;
        call.done().await
    }

    /// Copies the content of a directory inside into a host directory. Existing files are not overwritten.
    pub async fn copy_from(&self, copy: CopyOut<'_>) -> Result<CopyReport, EnvironmentError> {
        let request = GuestRequest::Get {
            source: copy.source.to_owned(),
            first: copy.first.map(str::to_owned),
            limits: LOG_LIMITS,
        };
        let Call { ticket, mut replies } = self.connection.call(&request)?;
        let receive = Receive::new(&copy, LOG_LIMITS);
        let received = file_work(move || receive.all(|| replies.blocking_recv()));
        match received.await? {
            Ok(Received::Whole(skipped)) => {
                ticket.done();
                Ok(CopyReport { skipped })
            }
            Ok(Received::Failed(reason)) => {
                ticket.done();
                Err(EnvironmentError::Command(reason))
            }
            Ok(Received::Lost) => Err(ticket.lost()),
            Err(ReceiveError::Protocol) => Err(ticket.protocol_error()),
            Err(ReceiveError::Host { path, source }) => {
                Err(EnvironmentError::Lost(format!("cannot write {} on the host: {source}", path.display())))
            }
        }
    }

    /// Reads a regular file inside, without following a link as the last component.
    pub async fn read_file(&self, path: &str, max_bytes: u64) -> Result<FileRead, EnvironmentError> {
        let mut call = self.connection.call(&GuestRequest::Read { path: path.to_owned(), max_bytes })?;
        let mut content = Vec::new();
        let mut read = match call.next().await? {
            GuestReply::Found(FileLookup::File(())) => None,
            GuestReply::Found(FileLookup::Missing) => Some(FileRead::Missing),
            GuestReply::Found(FileLookup::NotRegular) => Some(FileRead::NotRegular),
            GuestReply::Found(FileLookup::TooLarge(size)) => Some(FileRead::TooLarge(size)),
            _ => return Err(call.ticket.protocol_error()),
        };
        loop {
            match call.next().await? {
                GuestReply::Item(Item::Data(bytes)) if read.is_none() => content.extend(bytes),
                GuestReply::Done => {
                    call.ticket.done();
                    break;
                }
                _ => return Err(call.ticket.protocol_error()),
            }
            // The file has grown since the guest checked its size.
            let size = content.len() as u64;
            if size > max_bytes {
                read = Some(FileRead::TooLarge(size));
                break;
            }
        }
        Ok(read.unwrap_or(FileRead::Content(content)))
    }

    /// Creates missing directories. With `empty`, existing content is removed first.
    pub async fn make_dirs(&self, paths: &[&str], empty: bool) -> Result<(), EnvironmentError> {
        let paths = paths.iter().map(|path| (*path).to_owned()).collect();
        self.connection.call(&GuestRequest::MakeDirs { paths, empty })?.done().await
    }

    /// Creates a link inside, unless a file or directory exists there.
    pub async fn link(&self, target: &str, link: &str) -> Result<(), EnvironmentError> {
        let request = GuestRequest::Link { target: target.to_owned(), link: link.to_owned() };
        self.connection.call(&request)?.done().await
    }

    /// Sets the users of later commands.
    pub fn set_users(&self, users: CommandUsers) {
        *self.users.lock().unwrap_or_else(PoisonError::into_inner) = users;
    }

    async fn in_time<T>(
        &self,
        answer: impl Future<Output = Result<T, EnvironmentError>>,
    ) -> Result<T, EnvironmentError> {
        timeout(CONTROL_PATIENCE + self.outage, answer)
            .await
            .unwrap_or_else(|_| Err(EnvironmentError::Lost("the environment does not answer in time".into())))
    }

    fn user_of(&self, role: CommandRole) -> Option<String> {
        let users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        users.of(role).map(str::to_owned).or_else(|| self.user.clone())
    }

    /// Runs a command to its end or its deadline. At the deadline, or when the future is dropped, all its
    /// processes are killed.
    pub async fn exec(&self, command: Exec<'_>) -> Result<Exit, EnvironmentError> {
        let request = GuestRequest::Exec {
            argv: command.argv.iter().map(|word| (*word).to_owned()).collect(),
            env: command.env.to_vec(),
            user: self.user_of(command.role),
            deadline: command.deadline.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
        };
        let (Call { mut ticket, replies }, taken) = self.connection.command(&request)?;
        ticket.last();
        let end = self.pumps.start(replies, taken, command.stdout, command.stderr);
        let end = match command.deadline.and_then(|time| time.checked_add(KILL_PATIENCE + self.outage)) {
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
            Ok(End::Invalid) => Err(ticket.protocol_error()),
            Err(_) => Err(ticket.lost()),
        }
    }

    /// Carries connections to the returned port of the loopback inside to a service of the host, until the
    /// stream closes.
    pub async fn offer(&self, service: SocketAddr) -> Result<u16, EnvironmentError> {
        self.in_time(self.connection.offer(service)).await
    }

    /// The commands of the processes running inside.
    pub async fn survivors(&self) -> Result<Vec<String>, EnvironmentError> {
        self.in_time(self.list_processes()).await
    }

    async fn list_processes(&self) -> Result<Vec<String>, EnvironmentError> {
        let mut call = self.connection.call(&GuestRequest::Survivors)?;
        let mut commands = Vec::new();
        loop {
            match call.next().await? {
                GuestReply::Process(command) if commands.len() < MAX_SURVIVORS => {
                    commands.push(start_of(&command, MAX_COMMAND_LINE));
                }
                GuestReply::Process(_) => {}
                GuestReply::Done => {
                    call.ticket.done();
                    return Ok(commands);
                }
                _ => return Err(call.ticket.protocol_error()),
            }
        }
    }

    /// Kills every process inside.
    pub async fn kill_all(&self) -> Result<(), EnvironmentError> {
        self.in_time(self.connection.call(&GuestRequest::KillAll)?.done()).await
    }

    /// Stops every process inside until [`watch`](Self::watch) continues them.
    pub async fn hold(&self) -> Result<(), EnvironmentError> {
        self.in_time(self.connection.call(&GuestRequest::Hold)?.done()).await
    }

    /// Watches the files that are in a directory now, and others that may appear, and continues processes that
    /// were [held](Self::hold).
    pub async fn watch(&self, tree: &str, files: &[&str]) -> Result<(), EnvironmentError> {
        let files = files.iter().map(|file| (*file).to_owned()).collect();
        let request = GuestRequest::Watch { tree: tree.to_owned(), files };
        self.in_time(self.connection.call(&request)?.done()).await
    }

    /// Returns the changes to the watched files by any process. Ends the watch.
    pub async fn changes(&self) -> Result<Vec<FileChange>, EnvironmentError> {
        self.in_time(self.list_changes()).await
    }

    async fn list_changes(&self) -> Result<Vec<FileChange>, EnvironmentError> {
        let mut call = self.connection.call(&GuestRequest::Changes)?;
        let mut changes = Vec::new();
        loop {
            match call.next().await? {
                GuestReply::Changed { path, kind, count } if changes.len() < MAX_CHANGES => {
                    changes.push(FileChange { path: start_of(&path, MAX_PATH), kind, count });
                }
                GuestReply::Changed { .. } => {}
                GuestReply::Done => {
                    call.ticket.done();
                    return Ok(changes);
                }
                _ => return Err(call.ticket.protocol_error()),
            }
        }
    }

    /// Writes the guest's program to its path again and removes everything else there, whatever was changed
    /// meanwhile.
    ///
    /// Must be called before the files of a container are stored as an image, in which the program is started
    /// again.
    pub async fn restore_program(&self) -> Result<(), EnvironmentError> {
        let (directory, name) = PROGRAM_PATH.rsplit_once('/').unwrap_or(("/", PROGRAM_PATH));
        let request = GuestRequest::Put { target: directory.to_owned(), file: false, replace: true };
        self.put_file(request, name, PROGRAM).await
    }

    /// Keeps the guest, and everything inside, running after its stream closes.
    pub async fn stay(&self) -> Result<(), EnvironmentError> {
        self.in_time(self.connection.call(&GuestRequest::Stay)?.done()).await?;
        self.stays.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Waits until all output is written to its files. Must be called after the container was removed or asked
    /// to stay.
    pub async fn finish(self) {
        let Self { mut connection, pumps, stays, .. } = self;
        if !stays.into_inner() {
            connection.ended(END_PATIENCE).await;
        }
        connection.close();
        pumps.finish().await;
    }
}

async fn file_work<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, EnvironmentError> {
    tokio::task::spawn_blocking(work).await.map_err(stopped)
}

fn stopped(error: tokio::task::JoinError) -> EnvironmentError {
    EnvironmentError::Lost(format!("a file operation on the host was stopped: {error}"))
}

/// A device in a task is an error of the task; an unreadable file is an error of the host.
fn send_error(error: SendError) -> EnvironmentError {
    match error {
        SendError::Host { path, source } => {
            EnvironmentError::Lost(format!("cannot use {} on the host: {source}", path.display()))
        }
        error => EnvironmentError::Command(error.to_string()),
    }
}
