//! Why a step on an environment's files failed.

use std::{fmt, io};

use rustix::io::Errno;

/// Why a step failed, and at which path.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct FileFailure {
    /// The path as it was asked for, or relative to what is copied.
    pub path: String,
    /// What happened there.
    pub cause: FileCause,
}

/// The kind of a [`FileFailure`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum FileCause {
    /// A system call failed.
    Os {
        /// What was being done.
        step: String,
        /// What the kernel says.
        errno: i32,
    },
    /// The path leads into /proc, /sys or another file system that is no part of the environment's files.
    Forbidden,
    /// A FIFO, socket or device, which is not copied in.
    Special,
}

impl FileFailure {
    /// A failure at a path.
    pub fn new(path: &str, cause: FileCause) -> Self {
        Self { path: path.to_owned(), cause }
    }

    /// What the kernel said, if it was its answer.
    pub(crate) fn errno(&self) -> Option<Errno> {
        match self.cause {
            FileCause::Os { errno, .. } => Some(Errno::from_raw_os_error(errno)),
            FileCause::Forbidden | FileCause::Special => None,
        }
    }
}

/// Makes a failed system call on `path` a [`FileFailure`].
pub fn os<E: Into<io::Error>>(step: &'static str, path: &str) -> impl FnOnce(E) -> FileFailure {
    move |error| {
        let errno = error.into().raw_os_error().unwrap_or(Errno::IO.raw_os_error());
        FileFailure::new(path, FileCause::Os { step: step.to_owned(), errno })
    }
}

impl fmt::Display for FileFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = &self.path;
        match &self.cause {
            FileCause::Os { step, errno } => {
                write!(f, "{step} {path} in the environment failed: {}", io::Error::from_raw_os_error(*errno))
            }
            FileCause::Forbidden => write!(
                f,
                "{path} leads into a file system of the kernel, whose files are no part of the environment"
            ),
            FileCause::Special => {
                write!(f, "{path} is no file, directory or link, and cannot be copied into an environment")
            }
        }
    }
}

impl From<FileFailure> for String {
    fn from(failure: FileFailure) -> String {
        failure.to_string()
    }
}
