//! Lists the files of paths, including those in folders.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Dir, FileType, Stat};

use super::roots::{OpenError, beneath};
use super::{Roots, SeedError};

/// The most files of a folder; a larger one is not a folder of documents.
const MOST_FILES: usize = 10_000;
/// The most files and folders that are visited, including unwanted ones.
const MOST_ENTRIES: usize = 200_000;
/// The deepest visited level of folders.
const DEEPEST: usize = 32;

/// Identifies a version of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Stamp {
    device: u64,
    inode: u64,
    /// The size in bytes.
    pub(crate) size: u64,
    changed: (i64, i64),
}

impl Stamp {
    pub(super) fn of(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            size: stat.st_size.try_into().unwrap_or_default(),
            changed: (stat.st_mtime, stat.st_mtime_nsec as i64),
        }
    }
}

/// A file that a client may read.
#[derive(Debug, Clone)]
pub(crate) struct SeedFile {
    /// Its path as shown to clients and models.
    pub(crate) path: String,
    /// Its version when it was listed.
    pub(crate) stamp: Stamp,
    root: Arc<OwnedFd>,
    relative: PathBuf,
}

impl SeedFile {
    /// Opens it, with its current version.
    pub(crate) fn open(&self) -> Result<(File, Stamp), SeedError> {
        let path = || self.path.clone();
        let unreadable = |source| SeedError::Unreadable { path: path(), source };
        match beneath(&self.root, &self.relative) {
            Ok(entry) if !entry.is_folder => Ok((entry.open().map_err(unreadable)?, entry.stamp)),
            Ok(_) | Err(OpenError::NotAFile | OpenError::Outside) => {
                Err(SeedError::NotAFile { path: path() })
            }
            Err(OpenError::Missing) => Err(SeedError::Missing { path: path() }),
            Err(OpenError::Io(source)) => Err(unreadable(source)),
        }
    }
}

/// The files of these paths. A path of a file is always included; of a folder, the files whose names match
/// `wanted`.
pub(super) fn list(
    roots: &Roots,
    seeds: &[String],
    wanted: fn(&str) -> bool,
) -> Result<Vec<SeedFile>, SeedError> {
    let (mut files, mut looked_at) = (Vec::new(), 0);
    for seed in seeds {
        let found = roots.find(seed)?;
        // A single seed needs no prefix; several are distinguished by theirs.
        let shown = if seeds.len() > 1 { seed.trim_end_matches('/') } else { "" };
        if found.entry.is_folder {
            let mut walk =
                Walk { root: found.root, seed, wanted, files: &mut files, looked_at: &mut looked_at };
            walk.folder(&found.relative, shown, 0)?;
        } else {
            let name = found.relative.file_name().unwrap_or_default().to_string_lossy();
            files.push(SeedFile {
                path: if shown.is_empty() { name.into_owned() } else { shown.to_owned() },
                stamp: found.entry.stamp,
                root: found.root,
                relative: found.relative,
            });
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files.dedup_by(|a, b| a.path == b.path);
    Ok(files)
}

struct Walk<'a> {
    root: Arc<OwnedFd>,
    seed: &'a str,
    wanted: fn(&str) -> bool,
    files: &'a mut Vec<SeedFile>,
    looked_at: &'a mut usize,
}

impl Walk<'_> {
    fn folder(&mut self, relative: &Path, shown: &str, depth: usize) -> Result<(), SeedError> {
        let unreadable = |source: std::io::Error| SeedError::Unreadable { path: shown.to_owned(), source };
        // An entry that was removed or replaced since it was listed is skipped.
        let Ok(entry) = beneath(&self.root, relative) else { return Ok(()) };
        if !entry.is_folder {
            return Ok(());
        }
        let folder = entry.open().map_err(unreadable)?;
        for entry in Dir::new(folder).map_err(|errno| unreadable(errno.into()))? {
            let entry = entry.map_err(|errno| unreadable(errno.into()))?;
            *self.looked_at += 1;
            if *self.looked_at > MOST_ENTRIES {
                return Err(SeedError::TooMuch { path: self.seed.to_owned(), most: MOST_ENTRIES });
            }
            let Ok(name) = entry.file_name().to_str() else { continue };
            if name.starts_with('.') {
                continue;
            }
            let relative = relative.join(name);
            let shown = if shown.is_empty() { name.to_owned() } else { format!("{shown}/{name}") };
            match entry.file_type() {
                FileType::Directory if depth < DEEPEST => self.folder(&relative, &shown, depth + 1)?,
                // A link to a file beneath the root is followed, but not a link to a folder: folders could form
                // a cycle.
                FileType::RegularFile | FileType::Symlink | FileType::Unknown if (self.wanted)(name) => {
                    self.file(relative, shown)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn file(&mut self, relative: PathBuf, shown: String) -> Result<(), SeedError> {
        let Ok(entry) = beneath(&self.root, &relative) else { return Ok(()) };
        if entry.is_folder {
            return Ok(());
        }
        if self.files.len() == MOST_FILES {
            return Err(SeedError::TooMany { path: self.seed.to_owned(), most: MOST_FILES });
        }
        let root = Arc::clone(&self.root);
        self.files.push(SeedFile { path: shown, stamp: entry.stamp, root, relative });
        Ok(())
    }
}
