//! What copying files in and out of a sandbox takes and gives.

use std::io;

use serde::{Deserialize, Serialize};

/// How files are copied into a sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CopyIn {
    /// Whether whatever is at the target is removed first.
    pub replace: bool,
}

/// How much may be copied out of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyLimits {
    /// Bytes in all.
    pub max_bytes: u64,
    /// Files, directories and links in all.
    pub max_entries: u64,
    /// Bytes of one file.
    pub max_file_bytes: u64,
}

/// What was copied out of a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyReport {
    /// How many files, directories and links were made.
    pub files: u64,
    /// How many bytes the files hold.
    pub bytes: u64,
    /// What was left out, and why.
    pub skipped: Vec<Skipped>,
}

/// An entry that was not copied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// Its path, relative to the copied directory; bytes that are not UTF-8 are replaced.
    pub path: String,
    /// Why it was left out.
    pub reason: String,
}

/// What reading a file found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileRead {
    /// The whole content.
    Content(Vec<u8>),
    /// Nothing is there.
    Missing,
    /// Something is there that is no regular file.
    NotRegular,
    /// The file has this many bytes, more than allowed.
    TooLarge(u64),
}

/// Why files could not be copied, read or changed.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The sandbox ended, or the process that did the work was killed from inside.
    #[error("the sandbox stopped while its files were being used")]
    Gone(#[source] io::Error),
}
