//! File operations on a sandbox, from the engine's side: copying in and out, reading, creating, removing.

use std::{
    fs,
    io::{self, Seek, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::{OpenOptionsExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};

use rollout_guest::{
    CopyLimits, FileLookup,
    files::{FileCause, FileFailure, FileResult},
};
use serde::de::DeserializeOwned;

use crate::{
    answer::AnswerPipe,
    blocking::blocking_io,
    process::call,
    sandbox::RunningSandbox,
    wire::{FileRequest, FoundFile, Request, UnpackRequest},
};

/// How files are copied into a sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CopyIn {
    /// Whether an existing target is removed first.
    pub replace: bool,
}

/// Why files could not be copied, read or changed.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// A file or directory of the host cannot be used.
    #[error("cannot use {path} on the host")]
    Host {
        /// The path on the host.
        path: PathBuf,
        /// The system error.
        #[source]
        source: io::Error,
    },
    /// A step inside the sandbox failed.
    #[error("{step} {path} in the environment failed")]
    Inside {
        /// The step.
        step: String,
        /// The path, as requested or relative to the copied directory.
        path: String,
        /// The system error.
        #[source]
        source: io::Error,
    },
    /// The path is in a kernel file system.
    #[error("{path} is in a kernel file system, which is not part of the environment")]
    Forbidden {
        /// The path as requested.
        path: String,
    },
    /// A FIFO, socket or device cannot be copied in.
    #[error("{path} is not a file, directory or link, and cannot be copied into an environment")]
    Special {
        /// The path, relative to the copied directory.
        path: String,
    },
    /// The worker process was killed from inside. The sandbox still runs.
    #[error("a process in the environment killed the worker of a file operation")]
    Interrupted,
    /// The sandbox has ended.
    #[error("the sandbox stopped while its files were being used")]
    Gone(#[source] io::Error),
}

impl From<FileFailure> for CopyError {
    fn from(failure: FileFailure) -> CopyError {
        let path = failure.path;
        match failure.cause {
            FileCause::Os { step, errno } => {
                CopyError::Inside { step, path, source: io::Error::from_raw_os_error(errno) }
            }
            FileCause::Forbidden => CopyError::Forbidden { path },
            FileCause::Special => CopyError::Special { path },
        }
    }
}

/// An in-memory file with this content, positioned at its start.
fn memory_file(content: &[u8], mode: u32) -> io::Result<OwnedFd> {
    let mut file = fs::File::from(rustix::fs::memfd_create("file", rustix::fs::MemfdFlags::CLOEXEC)?);
    file.write_all(content)?;
    file.rewind()?;
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    Ok(file.into())
}

impl RunningSandbox {
    /// Copies a file to `target`, or the content of a directory into `target`. Missing parents are created.
    ///
    /// A link as `source` is rejected; links inside a directory are copied as links. Files belong to root
    /// inside and keep their modes.
    pub async fn copy_in(&self, source: &Path, target: &str, options: CopyIn) -> Result<(), CopyError> {
        let opened = open_host(source).await?;
        let request = FileRequest::CopyIn { target: target.to_owned(), replace: options.replace };
        self.file_request(request, Some(opened)).await.map(|((), _)| ())
    }

    /// Writes a file with this content and mode, and replaces whatever exists at the path. Missing parents are
    /// created.
    pub async fn write_file(&self, path: &str, content: &[u8], mode: u32) -> Result<(), CopyError> {
        let opened =
            memory_file(content, mode).map_err(|source| CopyError::Host { path: "memory".into(), source })?;
        let request = FileRequest::CopyIn { target: path.to_owned(), replace: true };
        self.file_request(request, Some(opened)).await.map(|((), _)| ())
    }

    /// Sends the content of the directory `source`, or the file `source`, to `stream` in the guest's reply
    /// format. `stream` is the write end of a pipe that the caller reads meanwhile. The subdirectory `first` is
    /// sent before the rest, with its own limits.
    ///
    /// Links that leave the copied directory, FIFOs, sockets, devices, and everything beyond the limits are
    /// skipped and reported. The content is not trusted, because commands inside wrote it.
    pub async fn copy_out(
        &self,
        source: &str,
        first: Option<&str>,
        limits: CopyLimits,
        stream: OwnedFd,
    ) -> Result<(), CopyError> {
        let request =
            FileRequest::CopyOut { source: source.to_owned(), first: first.map(str::to_owned), limits };
        self.file_request(request, Some(stream)).await.map(|((), _)| ())
    }

    /// Reads a whole regular file of at most `max_bytes`; a link as the last component is not followed.
    pub async fn read_file(&self, path: &str, max_bytes: u64) -> Result<FileLookup<Vec<u8>>, CopyError> {
        let request = FileRequest::Read { path: path.to_owned(), max_bytes };
        let (found, mut answers) = self.file_request::<FileLookup<u64>>(request, None).await?;
        let FileLookup::File(length) = found else { return Ok(found.map(|_| Vec::new())) };
        match answers.bytes(length.min(max_bytes)).await {
            Ok(content) => Ok(FileLookup::File(content)),
            Err(error) => Err(self.unanswered(error).await),
        }
    }

    /// Creates a directory and its parents. With `empty`, an existing directory, file or link is removed first.
    pub async fn make_dir(&self, path: &str, mode: u32, empty: bool) -> Result<(), CopyError> {
        self.change(FileRequest::MakeDir { path: path.to_owned(), mode, empty }).await
    }

    /// Creates a link and replaces an existing link. An existing file or directory at `link` is left unchanged.
    pub async fn symlink(&self, target: &str, link: &str) -> Result<(), CopyError> {
        self.change(FileRequest::Symlink { target: target.to_owned(), link: link.to_owned() }).await
    }

    /// Removes a file or tree. A missing path is not an error.
    pub async fn remove(&self, path: &str) -> Result<(), CopyError> {
        self.change(FileRequest::Remove { path: path.to_owned() }).await
    }

    /// Creates a directory and its parents for a build. New ones belong to the owner.
    pub(crate) async fn make_dirs(&self, path: &str, owner: Option<&str>) -> Result<(), CopyError> {
        let (path, owner) = (path.to_owned(), owner.map(str::to_owned));
        self.change(FileRequest::MakeDirs { path, owner }).await
    }

    /// Unpacks the archive that is written to the other end of a pipe.
    pub(crate) async fn unpack(&self, request: UnpackRequest, archive: OwnedFd) -> Result<(), CopyError> {
        self.file_request(FileRequest::Unpack(request), Some(archive)).await.map(|((), _)| ())
    }

    /// Writes the content of a directory, or one file, as an archive to a pipe.
    pub(crate) async fn pack(&self, source: &str, stream: OwnedFd) -> Result<(), CopyError> {
        let request = FileRequest::Pack { source: source.to_owned() };
        self.file_request(request, Some(stream)).await.map(|((), _)| ())
    }

    /// Finds the files that a path names, which may be a pattern.
    pub(crate) async fn find(&self, pattern: &str) -> Result<Vec<FoundFile>, CopyError> {
        let request = FileRequest::Find { pattern: pattern.to_owned() };
        self.file_request(request, None).await.map(|(found, _)| found)
    }

    async fn change(&self, request: FileRequest) -> Result<(), CopyError> {
        self.file_request(request, None).await.map(|((), _)| ())
    }

    async fn file_request<T: DeserializeOwned>(
        &self,
        request: FileRequest,
        host: Option<OwnedFd>,
    ) -> Result<(T, AnswerPipe), CopyError> {
        let (mut answers, answer) = AnswerPipe::new().map_err(CopyError::Gone)?;
        let mut fds = vec![answer.as_fd()];
        fds.extend(host.as_ref().map(AsFd::as_fd));
        self.control().send(&Request::Files(request), &fds).await.map_err(CopyError::Gone)?;
        drop((answer, host));
        match answers.expect::<FileResult<T>>().await {
            Ok(result) => Ok((result?, answers)),
            Err(error) => Err(self.unanswered(error).await),
        }
    }

    /// Distinguishes a lost worker, which commands may kill, from a lost sandbox, whose supervisor no longer
    /// answers.
    async fn unanswered(&self, error: io::Error) -> CopyError {
        match call::<u64>(self.control(), &Request::OomKills).await {
            Ok(_) => CopyError::Interrupted,
            Err(_) => CopyError::Gone(error),
        }
    }
}

fn open_source(path: &Path) -> io::Result<fs::File> {
    fs::OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
}

async fn open_host(path: &Path) -> Result<OwnedFd, CopyError> {
    let owned = path.to_owned();
    let opened = blocking_io(move || open_source(&owned)).await;
    opened.map(OwnedFd::from).map_err(|source| CopyError::Host { path: path.to_owned(), source })
}
