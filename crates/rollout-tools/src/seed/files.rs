//! The files that paths lead to, those in folders included.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Dir, FileType, Stat};

use super::roots::{OpenError, beneath};
use super::{Roots, SeedError};

/// How many files a folder may have; more than this is no folder of documents.
const MOST_FILES: usize = 10_000;
/// How deep folders are looked into.
const DEEPEST: usize = 32;

/// What tells one state of a file from another.
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

/// A file that a client may have.
#[derive(Debug, Clone)]
pub(crate) struct SeedFile {
    /// Its path as clients and models see it.
    pub(crate) path: String,
    /// Its state when it was listed.
    pub(crate) stamp: Stamp,
    root: Arc<OwnedFd>,
    relative: PathBuf,
}

impl SeedFile {
    /// Opens it, with its state now.
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

/// The files that these paths lead to. A path that leads to a file is taken as it is; of a folder, the files for
/// whose names `wanted` holds.
pub(super) fn list(
    roots: &Roots,
    seeds: &[String],
    wanted: fn(&str) -> bool,
) -> Result<Vec<SeedFile>, SeedError> {
    let mut files = Vec::new();
    for seed in seeds {
        let found = roots.find(seed)?;
        // One seed needs no name of its own; several are told apart by theirs.
        let shown = if seeds.len() > 1 { seed.trim_end_matches('/') } else { "" };
        if found.entry.is_folder {
            let mut walk = Walk { root: found.root, seed, wanted, files: &mut files };
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
}

impl Walk<'_> {
    fn folder(&mut self, relative: &Path, shown: &str, depth: usize) -> Result<(), SeedError> {
        let unreadable = |source: std::io::Error| SeedError::Unreadable { path: shown.to_owned(), source };
        // What was taken away or is no longer a folder since it was listed has nothing in it.
        let Ok(entry) = beneath(&self.root, relative) else { return Ok(()) };
        if !entry.is_folder {
            return Ok(());
        }
        let folder = entry.open().map_err(unreadable)?;
        for entry in Dir::new(folder).map_err(|errno| unreadable(errno.into()))? {
            let entry = entry.map_err(|errno| unreadable(errno.into()))?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if name.starts_with('.') {
                continue;
            }
            let relative = relative.join(name);
            let shown = if shown.is_empty() { name.to_owned() } else { format!("{shown}/{name}") };
            match entry.file_type() {
                FileType::Directory if depth < DEEPEST => self.folder(&relative, &shown, depth + 1)?,
                // A link is followed to a file beneath the root, not to a folder: folders could link in a ring.
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
