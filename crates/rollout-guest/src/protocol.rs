//! What the first process of a container and the host say to each other.
//!
//! Both sides send frames: a length of four bytes, little-endian, and that many bytes of a message. The guest
//! starts with [`Reply::Hello`]; the host numbers its requests, and replies bear the number of what they
//! answer. Files travel as a walk over a tree, see [`Item`], in both directions.

use crate::wire::{Malformed, Reader, Writer};

/// The version of everything here. Both sides come from one build, so any difference is an error.
pub const VERSION: u32 = 1;

/// The longest frame to a guest: a command's arguments and variables fit, which the kernel bounds too.
pub const MAX_REQUEST: usize = 4 << 20;

/// The longest frame from a guest.
pub const MAX_REPLY: usize = 128 << 10;

/// How deep a tree may be nested: each level holds descriptors.
pub const MAX_DEPTH: usize = 200;

const HELLO: &[u8] = b"rollout-guest";

/// One step of a walk over a tree of files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// Steps into a directory.
    Enter {
        /// Its name in the directory around it.
        name: Vec<u8>,
        /// Its permissions.
        mode: u32,
    },
    /// Steps back out.
    Leave,
    /// A regular file, whose content follows.
    File {
        /// Its name in the directory around it.
        name: Vec<u8>,
        /// Its permissions.
        mode: u32,
        /// Seconds of its modification time,
        seconds: i64,
        /// and nanoseconds.
        nanoseconds: u32,
    },
    /// The next bytes of the last file.
    Data(Vec<u8>),
    /// A symbolic link.
    Link {
        /// Its name in the directory around it.
        name: Vec<u8>,
        /// Where it leads.
        target: Vec<u8>,
    },
}

/// How much may be copied out of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes in all.
    pub bytes: u64,
    /// Files, directories and links in all.
    pub entries: u64,
    /// Bytes of one file.
    pub file_bytes: u64,
}

/// What the host asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Runs a command. Answered by [`Reply::Exited`], with [`Reply::Output`] before and after.
    Exec {
        /// The program and its arguments.
        argv: Vec<String>,
        /// Variables beside the guest's own.
        env: Vec<(String, String)>,
        /// Who runs it, as `name|uid[:group|gid]`.
        user: Option<String>,
        /// Ends it and everything it started, after this many milliseconds.
        deadline: Option<u64>,
    },
    /// Takes a request back: a command is killed with all it started, a transfer stops.
    Cancel,
    /// Starts a copy into the container. [`Request::Item`]s follow, then [`Request::PutEnd`].
    Put {
        /// Where to: the directory that the items go into, or the one file that they are.
        target: String,
        /// Whether the one item is a file that becomes the target.
        file: bool,
        /// Whether what is there is removed first.
        replace: bool,
    },
    /// A step of the walk that the last [`Request::Put`] of this number started.
    Item(Item),
    /// Ends a copy. Answered by [`Reply::Done`].
    PutEnd,
    /// Copies a directory's content, or a file, out. Answered by [`Reply::Item`] and [`Reply::Skipped`], then
    /// [`Reply::Done`].
    Get {
        /// The directory or file.
        source: String,
        /// What is copied at most.
        limits: Limits,
    },
    /// Reads a regular file. Answered by [`Reply::Found`] and, if that is a file, its data and [`Reply::Done`].
    Read {
        /// The file.
        path: String,
        /// What it may hold.
        max_bytes: u64,
    },
    /// Makes directories. Answered by [`Reply::Done`].
    MakeDirs {
        /// The directories.
        paths: Vec<String>,
        /// Whether what is there goes first.
        empty: bool,
    },
    /// Makes a link, unless a file or directory is there. Answered by [`Reply::Done`].
    Link {
        /// Where it leads.
        target: String,
        /// The link itself.
        link: String,
    },
    /// Asks for all processes. Answered by [`Reply::Process`] for each, then [`Reply::Done`].
    Survivors,
    /// Ends all processes but the guest. Answered by [`Reply::Done`].
    KillAll,
    /// Keeps the guest running when its streams end. Answered by [`Reply::Done`].
    Stay,
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
    /// It exited with this code.
    Code(i32),
    /// This signal killed it.
    Signal(i32),
    /// Its deadline passed.
    TimedOut,
}

/// What is where a file was to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// A regular file, whose content follows.
    File,
    /// Nothing.
    Missing,
    /// Something else.
    NotRegular,
    /// A regular file of so many bytes, which are too many.
    TooLarge(u64),
}

/// What the guest answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// Says that the guest runs, before anything is asked.
    Hello {
        /// Its [`VERSION`].
        version: u32,
    },
    /// Bytes that a command, or what it left running, has written.
    Output {
        /// Where to.
        stream: Stream,
        /// The bytes; none at the stream's end.
        bytes: Vec<u8>,
    },
    /// A command has ended. All that it wrote itself was sent before.
    Exited {
        /// How.
        ending: Ending,
        /// Whether the memory limit killed something meanwhile.
        oom_killed: bool,
    },
    /// A step of the walk that a [`Request::Get`] asked for, or data that a [`Request::Read`] did.
    Item(Item),
    /// Something that was not copied.
    Skipped {
        /// Its path below what was to be copied.
        path: String,
        /// Why.
        reason: String,
    },
    /// What a [`Request::Read`] found.
    Found(Found),
    /// The command line of a process.
    Process(String),
    /// The request is carried out.
    Done,
    /// The request cannot be carried out, for this reason.
    Failed(String),
}

/// Makes the frame of a numbered request.
pub fn encode_request(id: u32, request: &Request) -> Vec<u8> {
    let mut to = Writer::new(id);
    match request {
        Request::Exec { argv, env, user, deadline } => {
            to.byte(1);
            to.list(argv, |to, word| to.bytes(word.as_bytes()));
            to.list(env, |to, (name, value)| {
                to.bytes(name.as_bytes());
                to.bytes(value.as_bytes());
            });
            to.option(user.as_ref(), |to, user| to.bytes(user.as_bytes()));
            to.option(deadline.as_ref(), |to, deadline| to.long(*deadline));
        }
        Request::Cancel => to.byte(2),
        Request::Put { target, file, replace } => {
            to.byte(3);
            to.bytes(target.as_bytes());
            to.flag(*file);
            to.flag(*replace);
        }
        Request::Item(item) => {
            to.byte(4);
            write_item(&mut to, item);
        }
        Request::PutEnd => to.byte(5),
        Request::Get { source, limits } => {
            to.byte(6);
            to.bytes(source.as_bytes());
            to.long(limits.bytes);
            to.long(limits.entries);
            to.long(limits.file_bytes);
        }
        Request::Read { path, max_bytes } => {
            to.byte(7);
            to.bytes(path.as_bytes());
            to.long(*max_bytes);
        }
        Request::MakeDirs { paths, empty } => {
            to.byte(8);
            to.list(paths, |to, path| to.bytes(path.as_bytes()));
            to.flag(*empty);
        }
        Request::Link { target, link } => {
            to.byte(9);
            to.bytes(target.as_bytes());
            to.bytes(link.as_bytes());
        }
        Request::Survivors => to.byte(10),
        Request::KillAll => to.byte(11),
        Request::Stay => to.byte(12),
    }
    to.frame()
}

/// Reads a numbered request from a frame's content.
pub fn decode_request(frame: &[u8]) -> Result<(u32, Request), Malformed> {
    let mut from = Reader::new(frame);
    let id = from.int()?;
    let request = match from.byte()? {
        1 => Request::Exec {
            argv: from.list(Reader::string)?,
            env: from.list(|from| Ok((from.string()?, from.string()?)))?,
            user: from.option(Reader::string)?,
            deadline: from.option(Reader::long)?,
        },
        2 => Request::Cancel,
        3 => Request::Put { target: from.string()?, file: from.flag()?, replace: from.flag()? },
        4 => Request::Item(read_item(&mut from)?),
        5 => Request::PutEnd,
        6 => Request::Get {
            source: from.string()?,
            limits: Limits { bytes: from.long()?, entries: from.long()?, file_bytes: from.long()? },
        },
        7 => Request::Read { path: from.string()?, max_bytes: from.long()? },
        8 => Request::MakeDirs { paths: from.list(Reader::string)?, empty: from.flag()? },
        9 => Request::Link { target: from.string()?, link: from.string()? },
        10 => Request::Survivors,
        11 => Request::KillAll,
        12 => Request::Stay,
        _ => return Err(Malformed),
    };
    from.end()?;
    Ok((id, request))
}

/// Makes the frame of a reply to the request of a number.
pub fn encode_reply(id: u32, reply: &Reply) -> Vec<u8> {
    let mut to = Writer::new(id);
    match reply {
        Reply::Hello { version } => {
            to.byte(1);
            to.bytes(HELLO);
            to.int(*version);
        }
        Reply::Output { stream, bytes } => {
            to.byte(2);
            to.flag(*stream == Stream::Stderr);
            to.bytes(bytes);
        }
        Reply::Exited { ending, oom_killed } => {
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
        Reply::Item(item) => {
            to.byte(4);
            write_item(&mut to, item);
        }
        Reply::Skipped { path, reason } => {
            to.byte(5);
            to.bytes(path.as_bytes());
            to.bytes(reason.as_bytes());
        }
        Reply::Found(found) => {
            to.byte(6);
            let (kind, size) = match found {
                Found::File => (0, 0),
                Found::Missing => (1, 0),
                Found::NotRegular => (2, 0),
                Found::TooLarge(size) => (3, *size),
            };
            to.byte(kind);
            to.long(size);
        }
        Reply::Process(command) => {
            to.byte(7);
            to.bytes(command.as_bytes());
        }
        Reply::Done => to.byte(8),
        Reply::Failed(reason) => {
            to.byte(9);
            to.bytes(reason.as_bytes());
        }
    }
    to.frame()
}

/// Reads a numbered reply from a frame's content.
pub fn decode_reply(frame: &[u8]) -> Result<(u32, Reply), Malformed> {
    let mut from = Reader::new(frame);
    let id = from.int()?;
    let reply = match from.byte()? {
        1 if from.slice()? == HELLO => Reply::Hello { version: from.int()? },
        2 => {
            let stream = if from.flag()? { Stream::Stderr } else { Stream::Stdout };
            Reply::Output { stream, bytes: from.data()? }
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
            Reply::Exited { ending, oom_killed: from.flag()? }
        }
        4 => Reply::Item(read_item(&mut from)?),
        5 => Reply::Skipped { path: from.string()?, reason: from.string()? },
        6 => {
            let kind = from.byte()?;
            let size = from.long()?;
            Reply::Found(match kind {
                0 => Found::File,
                1 => Found::Missing,
                2 => Found::NotRegular,
                3 => Found::TooLarge(size),
                _ => return Err(Malformed),
            })
        }
        7 => Reply::Process(from.string()?),
        8 => Reply::Done,
        9 => Reply::Failed(from.string()?),
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
