//! The protocol between the first process of a container and the host.
//!
//! Both sides send frames: a length of four bytes, little-endian, and that many bytes of a message. The guest
//! starts with [`GuestReply::Hello`]. The host numbers its requests, and each reply has the number of its
//! request. Files are sent as a walk over a tree, see [`Item`], in both directions. Connections to offered
//! services are sent as steps, see [`TunnelStep`], in both directions.

use crate::{
    scope::KillScope,
    tunnel::{TunnelStep, read_step, write_step},
    wire::{Malformed, Reader, Writer},
};

/// The version of the protocol. Both sides come from one build, so any difference is an error.
pub const VERSION: u32 = 5;

/// The longest frame to a guest. It has room for a command's arguments and variables, which the kernel limits
/// too.
pub const MAX_REQUEST: usize = 4 << 20;

/// The longest frame from a guest.
pub const MAX_REPLY: usize = 128 << 10;

/// The deepest nesting of a tree: each level keeps descriptors open.
pub const MAX_DEPTH: usize = 200;

/// The most [`GuestReply::Output`]s of a command that wait for the host. More are sent when the host has
/// [taken](GuestRequest::Taken) some, so that a slow log holds up only its own command.
pub const OUTPUT_WINDOW: u32 = 8;

const HELLO: &[u8] = b"rollout-guest";

/// One step of a walk over a tree of files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// Enters a directory.
    Enter {
        /// Its name in its parent directory.
        name: Vec<u8>,
        /// Its permissions.
        mode: u32,
    },
    /// Leaves the current directory.
    Leave,
    /// A regular file, whose content follows.
    File {
        /// Its name in its parent directory.
        name: Vec<u8>,
        /// Its permissions.
        mode: u32,
        /// The seconds of its modification time.
        seconds: i64,
        /// The nanoseconds of its modification time.
        nanoseconds: u32,
    },
    /// The next bytes of the last file.
    Data(Vec<u8>),
    /// A symbolic link.
    Link {
        /// Its name in its parent directory.
        name: Vec<u8>,
        /// Its target.
        target: Vec<u8>,
    },
}

/// The limits of a copy out of an environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct CopyLimits {
    /// Bytes in total.
    pub bytes: u64,
    /// Files, directories and links in total.
    pub entries: u64,
    /// Bytes of one file.
    pub file_bytes: u64,
}

/// A request of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GuestRequest {
    /// Runs a command. Answered by [`GuestReply::Exited`], with [`GuestReply::Output`] before and after.
    Exec {
        /// The program and its arguments.
        argv: Vec<String>,
        /// Variables in addition to the guest's own.
        env: Vec<(String, String)>,
        /// The user, as `name|uid[:group|gid]`.
        user: Option<String>,
        /// Kills it and all its descendants after this many milliseconds.
        deadline: Option<u64>,
    },
    /// The host has taken this many outputs of a command.
    Taken(u32),
    /// Cancels a request: a command is killed with all its descendants, a transfer stops.
    Cancel,
    /// Starts a copy into the container. [`GuestRequest::Item`]s follow, then [`GuestRequest::PutEnd`].
    Put {
        /// The directory that receives the items, or the path of the single file.
        target: String,
        /// Whether the only item is a file that is written to the target.
        file: bool,
        /// Whether an existing target is removed first.
        replace: bool,
    },
    /// A step of the walk of the last [`GuestRequest::Put`] with this number.
    Item(Item),
    /// Ends a copy. Answered by [`GuestReply::Done`].
    PutEnd,
    /// Copies a directory's content, or a file, out. Answered by [`GuestReply::Item`] and [`GuestReply::Skipped`], then
    /// [`GuestReply::Done`].
    Get {
        /// The directory or file.
        source: String,
        /// A subdirectory that is copied before the rest, with its own limits.
        first: Option<String>,
        /// The limits of the copy.
        limits: CopyLimits,
    },
    /// Reads a regular file. Answered by [`GuestReply::Found`] and, if that is a file, its data and [`GuestReply::Done`].
    Read {
        /// The file.
        path: String,
        /// The largest accepted size.
        max_bytes: u64,
    },
    /// Creates directories. Answered by [`GuestReply::Done`].
    MakeDirs {
        /// The directories.
        paths: Vec<String>,
        /// Whether existing content is removed first.
        empty: bool,
    },
    /// Creates a link, unless a file or directory exists there. Answered by [`GuestReply::Done`].
    Link {
        /// Its target.
        target: String,
        /// The path of the link.
        link: String,
    },
    /// Lists all processes. Answered by [`GuestReply::Process`] for each, then [`GuestReply::Done`].
    Survivors,
    /// Kills all processes except the guest. Answered by [`GuestReply::Done`].
    KillAll,
    /// Keeps the guest running when its streams close. Answered by [`GuestReply::Done`].
    Stay,
    /// Stops all processes except the guest until [`GuestRequest::Watch`]. Answered by [`GuestReply::Done`].
    Hold,
    /// Watches files from now on, and continues the processes. Answered by [`GuestReply::Done`].
    Watch {
        /// A directory; the files that it contains now are watched.
        tree: String,
        /// Files, which may not exist yet.
        files: Vec<String>,
    },
    /// Ends a watch. Answered by [`GuestReply::Changed`] for each kind of change of each file, then
    /// [`GuestReply::Done`].
    Changes,
    /// Listens on a free port of the container's loopback. Answered by [`GuestReply::Offered`]. From then on,
    /// both sides send steps of connections with this number, until the stream closes.
    Offer,
    /// A step of a connection of a [`GuestRequest::Offer`] with this number.
    Tunnel {
        /// The connection.
        connection: u32,
        /// The step.
        step: TunnelStep,
    },
}

/// The kind of a change to a watched file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FileChangeKind {
    /// The file was created.
    Created,
    /// A new name appeared in a watched tree.
    Added,
    /// The file was open for writing and was closed.
    Written,
    /// The same, reported for the file itself and not for its name.
    WrittenByAnyName,
    /// The file was replaced by another.
    Replaced,
    /// The file was removed or moved away.
    Removed,
    /// The file has more than one name.
    Linked,
    /// There were more changes than could be recorded.
    Missed,
}

impl FileChangeKind {
    const ALL: [Self; 8] = [
        Self::Created,
        Self::Added,
        Self::Written,
        Self::WrittenByAnyName,
        Self::Replaced,
        Self::Removed,
        Self::Linked,
        Self::Missed,
    ];
}

/// A command's output stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The command exited with this code.
    Code(i32),
    /// The command was killed by this signal.
    Signal(i32),
    /// The deadline passed.
    TimedOut,
}

/// What was found at the path of a file to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum FileLookup<T> {
    /// A regular file.
    File(T),
    /// The path does not exist.
    Missing,
    /// Something other than a regular file.
    NotRegular,
    /// A regular file that is too large, with its size in bytes.
    TooLarge(u64),
}

impl<T> FileLookup<T> {
    /// Converts the file and keeps the other variants.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> FileLookup<U> {
        match self {
            Self::File(file) => FileLookup::File(change(file)),
            Self::Missing => FileLookup::Missing,
            Self::NotRegular => FileLookup::NotRegular,
            Self::TooLarge(size) => FileLookup::TooLarge(size),
        }
    }
}

/// A reply of the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GuestReply {
    /// The guest runs. Sent before any request.
    Hello {
        /// Its [`VERSION`].
        version: u32,
        /// The processes that it can kill.
        scope: KillScope,
    },
    /// Bytes written by a command or by a process that it left running.
    Output {
        /// The stream.
        stream: Stream,
        /// The bytes; empty at the end of the stream.
        bytes: Vec<u8>,
    },
    /// A command has ended. All its own output was sent before.
    Exited {
        /// How it ended.
        ending: Ending,
        /// Whether the memory limit killed a process meanwhile.
        oom_killed: bool,
    },
    /// A step of the walk of a [`GuestRequest::Get`], or data for a [`GuestRequest::Read`].
    Item(Item),
    /// An entry that was not copied.
    Skipped {
        /// Its path below the copied directory.
        path: String,
        /// The reason.
        reason: String,
    },
    /// The result of a [`GuestRequest::Read`]; the content of a file follows.
    Found(FileLookup<()>),
    /// The command line of a process.
    Process(String),
    /// A change to a watched file.
    Changed {
        /// The file.
        path: String,
        /// The kind of change.
        kind: FileChangeKind,
        /// How often it happened.
        count: u32,
    },
    /// The request succeeded.
    Done,
    /// The request failed for this reason.
    Failed(String),
    /// Connections to this port of the container's loopback are carried to the host.
    Offered {
        /// The port.
        port: u16,
    },
    /// A step of a connection to an offered port.
    Tunnel {
        /// The connection. The first is 1, and each [`TunnelStep::Open`] has the next number.
        connection: u32,
        /// The step.
        step: TunnelStep,
    },
}

/// Encodes the frame of a numbered request.
pub fn encode_request(id: u32, request: &GuestRequest) -> Vec<u8> {
    let mut to = Writer::new(id);
    match request {
        GuestRequest::Exec { argv, env, user, deadline } => {
            to.byte(1);
            to.list(argv, |to, word| to.bytes(word.as_bytes()));
            to.list(env, |to, (name, value)| {
                to.bytes(name.as_bytes());
                to.bytes(value.as_bytes());
            });
            to.option(user.as_ref(), |to, user| to.bytes(user.as_bytes()));
            to.option(deadline.as_ref(), |to, deadline| to.long(*deadline));
        }
        GuestRequest::Cancel => to.byte(2),
        GuestRequest::Put { target, file, replace } => {
            to.byte(3);
            to.bytes(target.as_bytes());
            to.flag(*file);
            to.flag(*replace);
        }
        GuestRequest::Item(item) => {
            to.byte(4);
            write_item(&mut to, item);
        }
        GuestRequest::PutEnd => to.byte(5),
        GuestRequest::Get { source, first, limits } => {
            to.byte(6);
            to.bytes(source.as_bytes());
            to.option(first.as_ref(), |to, first| to.bytes(first.as_bytes()));
            to.long(limits.bytes);
            to.long(limits.entries);
            to.long(limits.file_bytes);
        }
        GuestRequest::Read { path, max_bytes } => {
            to.byte(7);
            to.bytes(path.as_bytes());
            to.long(*max_bytes);
        }
        GuestRequest::MakeDirs { paths, empty } => {
            to.byte(8);
            to.list(paths, |to, path| to.bytes(path.as_bytes()));
            to.flag(*empty);
        }
        GuestRequest::Link { target, link } => {
            to.byte(9);
            to.bytes(target.as_bytes());
            to.bytes(link.as_bytes());
        }
        GuestRequest::Survivors => to.byte(10),
        GuestRequest::KillAll => to.byte(11),
        GuestRequest::Stay => to.byte(12),
        GuestRequest::Hold => to.byte(13),
        GuestRequest::Watch { tree, files } => {
            to.byte(14);
            to.bytes(tree.as_bytes());
            to.list(files, |to, file| to.bytes(file.as_bytes()));
        }
        GuestRequest::Changes => to.byte(15),
        GuestRequest::Taken(count) => {
            to.byte(18);
            to.int(*count);
        }
        GuestRequest::Offer => to.byte(16),
        GuestRequest::Tunnel { connection, step } => {
            to.byte(17);
            to.int(*connection);
            write_step(&mut to, step);
        }
    }
    to.frame()
}

/// Decodes a numbered request from a frame's content.
pub fn decode_request(frame: &[u8]) -> Result<(u32, GuestRequest), Malformed> {
    let mut from = Reader::new(frame);
    let id = from.int()?;
    let request = match from.byte()? {
        1 => GuestRequest::Exec {
            argv: from.list(Reader::string)?,
            env: from.list(|from| Ok((from.string()?, from.string()?)))?,
            user: from.option(Reader::string)?,
            deadline: from.option(Reader::long)?,
        },
        2 => GuestRequest::Cancel,
        3 => GuestRequest::Put { target: from.string()?, file: from.flag()?, replace: from.flag()? },
        4 => GuestRequest::Item(read_item(&mut from)?),
        5 => GuestRequest::PutEnd,
        6 => GuestRequest::Get {
            source: from.string()?,
            first: from.option(Reader::string)?,
            limits: CopyLimits { bytes: from.long()?, entries: from.long()?, file_bytes: from.long()? },
        },
        7 => GuestRequest::Read { path: from.string()?, max_bytes: from.long()? },
        8 => GuestRequest::MakeDirs { paths: from.list(Reader::string)?, empty: from.flag()? },
        9 => GuestRequest::Link { target: from.string()?, link: from.string()? },
        10 => GuestRequest::Survivors,
        11 => GuestRequest::KillAll,
        12 => GuestRequest::Stay,
        13 => GuestRequest::Hold,
        14 => GuestRequest::Watch { tree: from.string()?, files: from.list(Reader::string)? },
        15 => GuestRequest::Changes,
        16 => GuestRequest::Offer,
        18 => GuestRequest::Taken(from.int()?),
        17 => GuestRequest::Tunnel { connection: from.int()?, step: read_step(&mut from)? },
        _ => return Err(Malformed),
    };
    from.end()?;
    Ok((id, request))
}

/// Encodes the frame of a reply to the request with this number.
pub fn encode_reply(id: u32, reply: &GuestReply) -> Vec<u8> {
    let mut to = Writer::new(id);
    match reply {
        GuestReply::Hello { version, scope } => {
            to.byte(1);
            to.bytes(HELLO);
            to.int(*version);
            to.flag(*scope == KillScope::Descendants);
        }
        GuestReply::Output { stream, bytes } => {
            to.byte(2);
            to.flag(*stream == Stream::Stderr);
            to.bytes(bytes);
        }
        GuestReply::Exited { ending, oom_killed } => {
            to.byte(3);
            let (kind, number) = match ending {
                Ending::Code(code) => (0, *code),
                Ending::Signal(signal) => (1, *signal),
                Ending::TimedOut => (2, 0),
            };
            to.byte(kind);
            to.int(number.cast_unsigned());
            to.flag(*oom_killed);
        }
        GuestReply::Item(item) => {
            to.byte(4);
            write_item(&mut to, item);
        }
        GuestReply::Skipped { path, reason } => {
            to.byte(5);
            to.bytes(path.as_bytes());
            to.bytes(reason.as_bytes());
        }
        GuestReply::Found(found) => {
            to.byte(6);
            let (kind, size) = match found {
                FileLookup::File(()) => (0, 0),
                FileLookup::Missing => (1, 0),
                FileLookup::NotRegular => (2, 0),
                FileLookup::TooLarge(size) => (3, *size),
            };
            to.byte(kind);
            to.long(size);
        }
        GuestReply::Process(command) => {
            to.byte(7);
            to.bytes(command.as_bytes());
        }
        GuestReply::Done => to.byte(8),
        GuestReply::Failed(reason) => {
            to.byte(9);
            to.bytes(reason.as_bytes());
        }
        GuestReply::Changed { path, kind, count } => {
            to.byte(10);
            to.bytes(path.as_bytes());
            to.byte(*kind as u8);
            to.int(*count);
        }
        GuestReply::Offered { port } => {
            to.byte(11);
            to.int(u32::from(*port));
        }
        GuestReply::Tunnel { connection, step } => {
            to.byte(12);
            to.int(*connection);
            write_step(&mut to, step);
        }
    }
    to.frame()
}

/// Decodes a numbered reply from a frame's content.
pub fn decode_reply(frame: &[u8]) -> Result<(u32, GuestReply), Malformed> {
    let mut from = Reader::new(frame);
    let id = from.int()?;
    let reply = match from.byte()? {
        1 if from.slice()? == HELLO => {
            let version = from.int()?;
            let scope = if from.flag()? { KillScope::Descendants } else { KillScope::Namespace };
            GuestReply::Hello { version, scope }
        }
        2 => {
            let stream = if from.flag()? { Stream::Stderr } else { Stream::Stdout };
            GuestReply::Output { stream, bytes: from.data()? }
        }
        3 => {
            let kind = from.byte()?;
            let number = from.int()?.cast_signed();
            let ending = match kind {
                0 => Ending::Code(number),
                1 => Ending::Signal(number),
                2 => Ending::TimedOut,
                _ => return Err(Malformed),
            };
            GuestReply::Exited { ending, oom_killed: from.flag()? }
        }
        4 => GuestReply::Item(read_item(&mut from)?),
        5 => GuestReply::Skipped { path: from.string()?, reason: from.string()? },
        6 => {
            let kind = from.byte()?;
            let size = from.long()?;
            GuestReply::Found(match kind {
                0 => FileLookup::File(()),
                1 => FileLookup::Missing,
                2 => FileLookup::NotRegular,
                3 => FileLookup::TooLarge(size),
                _ => return Err(Malformed),
            })
        }
        7 => GuestReply::Process(from.string()?),
        8 => GuestReply::Done,
        9 => GuestReply::Failed(from.string()?),
        10 => {
            let path = from.string()?;
            let kind = *FileChangeKind::ALL.get(usize::from(from.byte()?)).ok_or(Malformed)?;
            GuestReply::Changed { path, kind, count: from.int()? }
        }
        11 => GuestReply::Offered { port: u16::try_from(from.int()?).map_err(|_| Malformed)? },
        12 => GuestReply::Tunnel { connection: from.int()?, step: read_step(&mut from)? },
        _ => return Err(Malformed),
    };
    from.end()?;
    Ok((id, reply))
}

fn write_item(to: &mut Writer, item: &Item) {
    match item {
        Item::Enter { name, mode } => {
            to.byte(1);
            to.bytes(name);
            to.int(*mode);
        }
        Item::Leave => to.byte(2),
        Item::File { name, mode, seconds, nanoseconds } => {
            to.byte(3);
            to.bytes(name);
            to.int(*mode);
            to.long(seconds.cast_unsigned());
            to.int(*nanoseconds);
        }
        Item::Data(bytes) => {
            to.byte(4);
            to.bytes(bytes);
        }
        Item::Link { name, target } => {
            to.byte(5);
            to.bytes(name);
            to.bytes(target);
        }
    }
}

fn read_item(from: &mut Reader<'_>) -> Result<Item, Malformed> {
    Ok(match from.byte()? {
        1 => Item::Enter { name: from.data()?, mode: from.int()? },
        2 => Item::Leave,
        3 => Item::File {
            name: from.data()?,
            mode: from.int()?,
            seconds: from.long()?.cast_signed(),
            nanoseconds: from.int()?,
        },
        4 => Item::Data(from.data()?),
        5 => Item::Link { name: from.data()?, target: from.data()? },
        _ => return Err(Malformed),
    })
}

#[cfg(test)]
mod tests;
