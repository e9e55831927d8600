//! An index of the lines in a file of JSON lines.

use std::{
    collections::HashMap,
    hash::Hash,
    io,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use serde::de::DeserializeOwned;

use super::SavedError;
use crate::{layout::open_below, lines::Lines};

/// The lines of a file by key, read on demand.
#[derive(Debug)]
pub(super) struct LineIndex<K> {
    path: PathBuf,
    /// None if the file does not exist.
    lines: Option<Mutex<Lines>>,
    offsets: HashMap<K, u64>,
}

impl<K: Eq + Hash> LineIndex<K> {
    /// Opens a file of a job. `find` returns the offsets of its lines.
    pub(super) fn read(
        job: &Path,
        path: PathBuf,
        find: impl FnOnce(&mut Lines) -> io::Result<HashMap<K, u64>>,
    ) -> Result<Self, SavedError> {
        let read =
            open_below(job, &path).map(Lines::from).and_then(|mut lines| Ok((find(&mut lines)?, lines)));
        match read {
            Ok((offsets, lines)) => Ok(Self { path, lines: Some(Mutex::new(lines)), offsets }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Ok(Self { path, lines: None, offsets: HashMap::new() })
            }
            Err(source) => Err(SavedError::Read { path, source }),
        }
    }

    /// The file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Adds lines that were appended. The reader has the file as it is now.
    pub(super) fn extend(&mut self, lines: Lines, offsets: impl IntoIterator<Item = (K, u64)>) {
        self.lines = Some(Mutex::new(lines));
        self.offsets.extend(offsets);
    }

    /// Reads the line of a key, if there is one.
    pub(super) fn get<T: DeserializeOwned>(&self, key: &K) -> Result<Option<T>, SavedError> {
        let (Some(lines), Some(&offset)) = (&self.lines, self.offsets.get(key)) else { return Ok(None) };
        let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
        let line = lines.at(offset).map_err(|source| SavedError::Read { path: self.path.clone(), source })?;
        serde_json::from_slice(line)
            .map(Some)
            .map_err(|source| SavedError::Damaged { path: self.path.clone(), source })
    }

    /// Reads the line of a key without parsing it, with its offset.
    pub(super) fn line(&self, key: &K) -> Result<Option<(u64, Vec<u8>)>, SavedError> {
        let (Some(lines), Some(&offset)) = (&self.lines, self.offsets.get(key)) else { return Ok(None) };
        let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
        let line = lines.at(offset).map_err(|source| SavedError::Read { path: self.path.clone(), source })?;
        Ok(Some((offset, line.to_vec())))
    }
}
