//! The files of a push, with their hashes.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use sha1::Sha1;
use sha2::{Digest as _, Sha256};

use rollout_core::text::hex;

/// How many bytes of a file the hub sees before it chooses the upload mode.
const SAMPLE: usize = 512;

/// How many bytes are read at a time.
const BLOCK: usize = 256 << 10;

/// Names that are reserved by git or the hub.
const RESERVED: [&str; 2] = [".git", ".cache"];

/// A file, and its path in the repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PushFile {
    /// The path on disk.
    pub path: PathBuf,
    /// The path in the repository, with `/` between the parts.
    pub name: String,
}

/// Why a file cannot be pushed.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The path is neither a file nor a directory.
    #[error("{} is neither a file nor a directory, so it cannot be pushed", .0.display())]
    NotAFile(PathBuf),
    /// The name is invalid in a repository.
    #[error("{:?} is not a valid file name in a dataset", .0)]
    Name(String),
    /// The directory is empty.
    #[error("{} has no files to push", .0.display())]
    Empty(PathBuf),
}

/// A file with its hashes.
#[derive(Debug)]
pub(super) struct HashedFile {
    pub(super) path: PathBuf,
    pub(super) name: String,
    pub(super) size: u64,
    /// Its first bytes.
    pub(super) sample: Vec<u8>,
    pub(super) sha256: String,
    /// The git blob hash, by which the hub detects changes.
    pub(super) git_blob: String,
}

impl PushFile {
    /// Creates a file with a name in the repository.
    pub fn new(path: impl Into<PathBuf>, name: impl Into<String>) -> Result<Self, FileError> {
        let name = name.into();
        let is_part =
            |part: &str| !part.is_empty() && part != "." && part != ".." && !RESERVED.contains(&part);
        if name.split('/').all(is_part) && !name.contains(|char: char| char.is_control() || char == '\\') {
            Ok(Self { path: path.into(), name })
        } else {
            Err(FileError::Name(name))
        }
    }

    /// Returns all files below a directory, sorted by name. Links are not followed, because they may lead outside.
    pub(super) fn below(dir: &Path) -> Result<Vec<Self>, FileError> {
        let mut files = Vec::new();
        gather(dir, "", &mut files)?;
        files.sort_by(|one, other| one.name.cmp(&other.name));
        if files.is_empty() { Err(FileError::Empty(dir.to_owned())) } else { Ok(files) }
    }

    /// Reads the file, and computes its hashes.
    pub(super) fn hash(self) -> Result<HashedFile, FileError> {
        let Self { path, name } = self;
        let read = || {
            let mut file = File::open(&path)?;
            let size = file.metadata()?.len();
            let mut sha256 = Sha256::new();
            // Git uses SHA-1. It is not used for security here, because the user can change the file anyway.
            let mut git_blob = Sha1::new_with_prefix(format!("blob {size}\0"));
            let mut sample = Vec::new();
            let mut block = vec![0; BLOCK];
            let mut seen = 0;
            loop {
                let length = file.read(&mut block)?;
                if length == 0 {
                    break;
                }
                let bytes = &block[..length];
                sample.extend_from_slice(&bytes[..length.min(SAMPLE - sample.len())]);
                sha256.update(bytes);
                git_blob.update(bytes);
                seen += length as u64;
            }
            if seen != size {
                return Err(io::Error::other("the file changed while it was read"));
            }
            Ok((size, sample, hex(&sha256.finalize()), hex(&git_blob.finalize())))
        };
        match read() {
            Ok((size, sample, sha256, git_blob)) => {
                Ok(HashedFile { path, name, size, sample, sha256, git_blob })
            }
            Err(source) => Err(FileError::Read { path, source }),
        }
    }
}

/// Returns the total size of files.
pub(super) fn total<'a>(files: impl IntoIterator<Item = &'a HashedFile>) -> u64 {
    files.into_iter().map(|file| file.size).sum()
}

fn gather(dir: &Path, prefix: &str, files: &mut Vec<PushFile>) -> Result<(), FileError> {
    let failed = |source| FileError::Read { path: dir.to_owned(), source };
    for entry in fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let path = entry.path();
        let Ok(name) = entry.file_name().into_string() else {
            return Err(FileError::Name(entry.file_name().to_string_lossy().into_owned()));
        };
        let name = format!("{prefix}{name}");
        let kind = entry.file_type().map_err(failed)?;
        if kind.is_dir() {
            gather(&path, &format!("{name}/"), files)?;
        } else if kind.is_file() {
            files.push(PushFile::new(path, name)?);
        } else {
            return Err(FileError::NotAFile(path));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_files_below_a_directory_are_found_in_order() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("b/c")).unwrap();
        for name in ["z.csv", "b/c/x", "b/a"] {
            fs::write(dir.path().join(name), name).unwrap();
        }
        let names: Vec<_> = PushFile::below(dir.path()).unwrap().into_iter().map(|file| file.name).collect();
        assert_eq!(names, ["b/a", "b/c/x", "z.csv"]);
    }

    #[test]
    fn links_and_reserved_names_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(PushFile::below(dir.path()), Err(FileError::Empty(_))));
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("link")).unwrap();
        assert!(matches!(PushFile::below(dir.path()), Err(FileError::NotAFile(_))));
        for name in ["", "/a", "a//b", "../a", "a/..", ".git/config", "a/.cache/b", "a\nb", "a\\b"] {
            assert!(matches!(PushFile::new("x", name), Err(FileError::Name(_))), "{name:?}");
        }
    }

    #[test]
    fn contents_have_the_names_that_git_gives_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        // The expected values are those of `git hash-object --stdin`.
        for (content, name) in [
            (vec![], "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"),
            (vec![b'a'; 1000], "a50be72b20f0e3f078d252e8e56b11b4bec67509"),
            (vec![b'a'; 2 * BLOCK + 1], "550e67d0a0102593f5db44819f972a4e925db4b1"),
        ] {
            fs::write(&path, content).unwrap();
            assert_eq!(PushFile::new(&path, "file").unwrap().hash().unwrap().git_blob, name);
        }
    }

    #[test]
    fn all_hashes_are_computed_in_one_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "hello\n").unwrap();
        let content = PushFile::new(path, "file").unwrap().hash().unwrap();
        assert_eq!((content.size, content.sample.as_slice()), (6, b"hello\n".as_slice()));
        assert_eq!(content.git_blob, "ce013625030ba8dba906f756967f9e9ca394464a");
        assert_eq!(content.sha256, "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03");
    }
}
