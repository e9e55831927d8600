//! The messages between engine, zygote and supervisors, and their framing.
//!
//! A frame is a length and a JSON value. Requests are sent over unix sockets, with descriptors attached to the
//! first byte. Every request includes the write end of a pipe for its answer, so answers need not be matched to
//! requests.

use std::{
    io::{self, IoSlice, IoSliceMut, Read, Write},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
};

use rollout_guest::CopyLimits;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::sys::RawStatus;

/// The longest accepted frame; the largest legitimate one contains a command's environment.
const MAX_FRAME: usize = 16 << 20;
const MAX_FDS: usize = 16;

/// The engine's first message to the zygote: where its sandboxes are. Includes the answer pipe and the engine's
/// lock.
#[derive(Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) run_dir: PathBuf,
    /// The parents of this engine's cgroups, for the removal after the engine's death.
    pub(crate) cgroup_parents: Vec<PathBuf>,
    pub(crate) engine_id: String,
}

/// The zygote's answer to [`Hello`].
#[derive(Serialize, Deserialize)]
pub(crate) enum HelloAnswer {
    Ready(Probe),
    Failed(SetupFailure),
}

/// What the zygote found to be supported on this machine.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(crate) struct Probe {
    pub(crate) root: bool,
    pub(crate) upper_on_disk: bool,
    pub(crate) hides_abstract_sockets: bool,
}

/// A setup step that failed.
#[derive(Serialize, Deserialize, Debug, Clone)]
pub(crate) struct SetupFailure {
    pub(crate) step: String,
    pub(crate) errno: i32,
}

impl SetupFailure {
    pub(crate) fn new(step: impl Into<String>, error: impl Into<io::Error>) -> SetupFailure {
        SetupFailure { step: step.into(), errno: error.into().raw_os_error().unwrap_or(0) }
    }

    pub(crate) fn into_io(self) -> (String, io::Error) {
        (self.step, io::Error::from_raw_os_error(self.errno))
    }
}

/// Asks the zygote for a sandbox. Includes the lifetime pipe, the supervisor's control socket and, if there are
/// private directories, the control socket of the nested supervisor.
#[derive(Serialize, Deserialize)]
pub(crate) struct Create {
    pub(crate) dir: PathBuf,
    pub(crate) hostname: String,
    pub(crate) own_network: bool,
    pub(crate) upper_on_disk: bool,
    pub(crate) parts: Vec<PartMount>,
    /// Directories that nested commands cannot reach.
    pub(crate) private_dirs: Vec<String>,
    /// What else is mounted, for a command of a build.
    pub(crate) mounts: Vec<ExtraMount>,
    /// Whether to resolve names as the host does.
    pub(crate) host_resolver: bool,
    /// The content of /etc/hosts; that of the image if there is none.
    pub(crate) hosts: Option<String>,
    pub(crate) cgroups: Vec<CgroupSpec>,
}

/// One overlay of a sandbox's root.
#[derive(Serialize, Deserialize)]
pub(crate) struct PartMount {
    pub(crate) name: String,
    /// Its mount point, relative to the root; empty for the root itself.
    pub(crate) target: String,
    /// The lower directories, uppermost first.
    pub(crate) lower: Vec<PathBuf>,
}

/// A mount for a command of a build.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(crate) struct ExtraMount {
    /// Where, as an absolute path inside.
    pub(crate) target: String,
    pub(crate) source: MountSource,
    /// Whether a file is mounted, not a directory.
    pub(crate) is_file: bool,
}

/// What is mounted.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(crate) enum MountSource {
    /// A file or directory of the host.
    Host { path: PathBuf, read_only: bool },
    /// A new directory in memory, of at most this many bytes.
    Memory { size: Option<u64> },
}

/// One cgroup to create for a sandbox.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub(crate) struct CgroupSpec {
    pub(crate) dir: PathBuf,
    /// The settings to write, each a file and its value.
    pub(crate) writes: Vec<(String, String)>,
    /// The file that a process writes "0" to in order to join.
    pub(crate) join: String,
    /// The file that counts out-of-memory kills.
    pub(crate) oom: Option<String>,
}

/// The answer of the supervisor (or, on failure, of the zygote) to [`Create`]. Later, the pipe's end of file
/// means that the sandbox has ended.
#[derive(Serialize, Deserialize)]
pub(crate) enum CreateAnswer {
    Ready,
    Failed(SetupFailure),
}

/// A request to a supervisor. Includes the answer pipe, then the descriptors listed for the variant.
#[derive(Serialize, Deserialize)]
pub(crate) enum Request {
    /// Includes stdout, stderr and, unless it is the sandbox's own /dev/null, stdin. Answered by
    /// [`ExecAnswer`]s.
    Exec(ExecRequest),
    /// Kills the processes of the command with that id. Answered by [`Done`].
    KillTree(u64),
    /// Kills everything but the supervisor. Answered by [`Done`].
    KillAll,
    /// Answered by a list of [`WireSurvivor`].
    Survivors,
    /// Answered by a number.
    OomKills,
    /// Listens on this port of the loopback interface, or on any with 0. The answer pipe is a socket. Answered
    /// by a [`ListenAnswer`], which includes the listening socket.
    Listen(u16),
    /// Includes the descriptors of the operation. Answered by the operation's own type.
    Files(FileRequest),
}

/// A command to run.
#[derive(Serialize, Deserialize)]
pub(crate) struct ExecRequest {
    pub(crate) id: u64,
    pub(crate) argv: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) cwd: String,
    pub(crate) user: Option<String>,
    pub(crate) tty: bool,
}

/// The progress of a command.
#[derive(Serialize, Deserialize)]
pub(crate) enum ExecAnswer {
    Started,
    Failed(ExecFailure),
    Exited { status: RawStatus, oom_killed: bool },
}

/// Why a command did not start.
#[derive(Serialize, Deserialize, Debug, Clone)]
pub(crate) enum ExecFailure {
    Program { errno: i32 },
    Directory { errno: i32 },
    UnknownUser,
    UserNotMapped,
    Setup { step: String, errno: i32 },
}

/// A process found inside a sandbox.
#[derive(Serialize, Deserialize)]
pub(crate) struct WireSurvivor {
    pub(crate) pid: i32,
    pub(crate) command: String,
}

/// Whether a socket listens, or the error of the system.
#[derive(Serialize, Deserialize)]
pub(crate) enum ListenAnswer {
    Listening,
    Failed(i32),
}

/// The answer to a request that cannot fail.
#[derive(Serialize, Deserialize)]
pub(crate) struct Done;

/// A file operation inside a sandbox.
#[derive(Serialize, Deserialize)]
pub(crate) enum FileRequest {
    /// Includes the host's file or directory. Answered by `FileResult<()>`.
    CopyIn {
        target: String,
        replace: bool,
    },
    /// Includes the write end of a pipe for the content, in the guest's reply format. Answered by
    /// `FileResult<()>`.
    CopyOut {
        source: String,
        first: Option<String>,
        limits: CopyLimits,
    },
    /// Answered by `FileResult<FileLookup<u64>>` and then that many bytes.
    Read {
        path: String,
        max_bytes: u64,
    },
    /// Answered by `FileResult<()>`, like the following requests.
    MakeDir {
        path: String,
        mode: u32,
        empty: bool,
    },
    Symlink {
        target: String,
        link: String,
    },
    Remove {
        path: String,
    },
    /// Creates directories for a build. New ones belong to the owner, `user[:group]`.
    MakeDirs {
        path: String,
        owner: Option<String>,
    },
    /// Includes the read end of a pipe with a tar archive.
    Unpack(UnpackRequest),
    /// Includes the write end of a pipe for a tar archive: the content of a directory, or one file.
    Pack {
        source: String,
    },
    /// Answered by `FileResult<Vec<FoundFile>>`.
    Find {
        pattern: String,
    },
}

/// How an archive is unpacked.
#[derive(Serialize, Deserialize, Debug, Clone)]
pub(crate) struct UnpackRequest {
    pub(crate) target: String,
    /// Whether the target is a directory also if it does not exist. Otherwise the archive has one file.
    pub(crate) into_dir: bool,
    /// The owner, `user[:group]`, of directories that are created on the way.
    pub(crate) owner: Option<String>,
    pub(crate) owners: EntryOwners,
    /// The mode of all entries.
    pub(crate) chmod: Option<u32>,
}

/// The owners of unpacked files.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EntryOwners {
    /// Those of the archive.
    Archive,
    /// The owner of the request.
    Given,
    /// Root.
    Root,
}

/// A file that a pattern names.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
pub(crate) struct FoundFile {
    pub(crate) path: String,
    pub(crate) is_dir: bool,
}

/// Encodes one frame.
pub(crate) fn encode<T: Serialize>(value: &T) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, value)?;
    let length = frame.len() - 4;
    if length > MAX_FRAME {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the request is too large"));
    }
    let length = u32::try_from(length).expect("MAX_FRAME fits in 32 bits");
    frame[..4].copy_from_slice(&length.to_le_bytes());
    Ok(frame)
}

/// Checks a frame's announced length.
pub(crate) fn frame_length(header: [u8; 4]) -> io::Result<usize> {
    let length = rollout_guest::frame_length(header, MAX_FRAME);
    length.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "a frame is too large"))
}

/// Sends the start of a frame with descriptors; returns how many bytes went out.
pub(crate) fn send_with_fds(socket: impl AsFd, frame: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)), "the buffer holds MAX_FDS descriptors");
    }
    Ok(sendmsg(socket, &[IoSlice::new(frame)], &mut control, SendFlags::NOSIGNAL)?)
}

/// Receives one frame and the descriptors that came with it; `None` at the end of the stream.
pub(crate) fn receive<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let socket = socket.as_fd();
    let mut fds = Vec::new();
    let mut header = [0; 4];
    if !receive_exact(socket, &mut header, &mut fds)? {
        return Ok(None);
    }
    let mut body = vec![0; frame_length(header)?];
    if !receive_exact(socket, &mut body, &mut fds)? {
        return Ok(None);
    }
    Ok(Some((serde_json::from_slice(&body)?, fds)))
}

fn receive_exact(socket: BorrowedFd<'_>, mut buffer: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<bool> {
    while !buffer.is_empty() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = rustix::io::retry_on_intr(|| {
            recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, RecvFlags::CMSG_CLOEXEC)
        })?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                fds.extend(received);
            }
        }
        if got.bytes == 0 {
            return Ok(false);
        }
        buffer = &mut buffer[got.bytes..];
    }
    Ok(true)
}

/// Writes one frame to an answer pipe.
pub(crate) fn answer<T: Serialize>(mut pipe: impl Write, value: &T) -> io::Result<()> {
    pipe.write_all(&encode(value)?)
}

/// Reads one frame from an answer pipe.
pub(crate) fn read_answer<T: DeserializeOwned>(pipe: impl Read) -> io::Result<T> {
    let body = rollout_guest::read_frame(pipe, MAX_FRAME)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok(serde_json::from_slice(&body)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_request_arrives_with_its_descriptors() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (reading, writing) = std::io::pipe().unwrap();
        let frame = encode(&Request::KillTree(7)).unwrap();
        assert_eq!(send_with_fds(&ours, &frame, &[writing.as_fd()]).unwrap(), frame.len());
        drop((ours, writing));
        let (request, mut fds) = receive::<Request>(&theirs).unwrap().unwrap();
        assert!(matches!(request, Request::KillTree(7)));
        answer(std::fs::File::from(fds.pop().unwrap()), &Done).unwrap();
        let Done = read_answer(&reading).unwrap();
        assert!(receive::<Request>(&theirs).unwrap().is_none(), "the stream has ended");
    }

    #[test]
    fn a_frame_that_announces_too_much_is_rejected_unread() {
        let announced = u32::MAX.to_le_bytes();
        assert!(read_answer::<Done>(&announced[..]).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_value_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let mut frame = u32::try_from(bytes.len()).unwrap().to_le_bytes().to_vec();
            frame.extend(bytes);
            // The property is that this does not panic.
            let _ = read_answer::<ExecAnswer>(&frame[..]);
        }

        #[test]
        fn what_is_encoded_is_read_back(program in ".{0,40}", id in any::<u64>()) {
            let request = ExecRequest { id, argv: vec![program.clone()], env: vec![], cwd: "/".into(), user: None, tty: false };
            let read: ExecRequest = read_answer(&encode(&request).unwrap()[..]).unwrap();
            prop_assert_eq!((read.id, &read.argv[0]), (id, &program));
        }
    }
}
