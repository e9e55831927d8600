//! Errors of operations on an environment's files.

use std::{fmt, io};

use rustix::io::Errno;

/// Why an operation failed, and at which path.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct FileFailure {
    /// The path as requested, or relative to the copied directory.
    pub path: String,
    /// The cause.
    pub cause: FileCause,
}

/// The kind of a [`FileFailure`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum FileCause {
    /// A system call failed.
    Os {
        /// The step that failed.
        step: String,
        /// The error number.
        errno: i32,
    },
    /// The path is in /proc, /sys or another file system that is not part of the environment's files.
    Forbidden,
    /// A FIFO, socket or device, which cannot be copied in.
    Special,
}

impl FileFailure {
    /// A failure at a path.
    pub fn new(path: &str, cause: FileCause) -> Self {
        Self { path: path.to_owned(), cause }
    }

    /// The error number, if a system call failed.
    pub(crate) fn errno(&self) -> Option<Errno> {
        match self.cause {
            FileCause::Os { errno, .. } => Some(Errno::from_raw_os_error(errno)),
            FileCause::Forbidden | FileCause::Special => None,
        }
    }
}

/// Converts a failed system call on `path` to a [`FileFailure`].
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
            FileCause::Forbidden => {
                write!(f, "{path} is in a kernel file system, which is not part of the environment")
            }
            FileCause::Special => {
                write!(f, "{path} is not a file, directory or link, and cannot be copied into an environment")
            }
        }
    }
}

impl From<FileFailure> for String {
    fn from(failure: FileFailure) -> String {
        failure.to_string()
    }
}
