//! Where in a file of JSON lines the line of each thing is.

use std::{
    collections::HashMap,
    fs::File,
    hash::Hash,
    io::{self, BufRead as _, BufReader, Seek as _},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use serde::de::DeserializeOwned;

use super::SavedError;
use crate::layout::open_below;

/// The lines of a file by what they are about, read when they are asked for.
#[derive(Debug)]
pub(super) struct LineIndex<K> {
    path: PathBuf,
    /// None if there is no such file.
    reader: Option<Mutex<BufReader<File>>>,
    places: HashMap<K, u64>,
}

impl<K: Eq + Hash> LineIndex<K> {
    /// Reads a file of a job from the first line to the last, each with the place where it begins. What `each` makes of them is
    /// `places`.
    pub(super) fn read<S: Default>(
        job: &Path,
        path: PathBuf,
        mut each: impl FnMut(&mut S, u64, &[u8]),
        places: impl FnOnce(S) -> HashMap<K, u64>,
    ) -> Result<Self, SavedError> {
        let mut reader = match open_below(job, &path) {
            Ok(file) => BufReader::with_capacity(1 << 18, file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Self { path, reader: None, places: HashMap::new() });
            }
            Err(source) => return Err(SavedError::Read { path, source }),
        };
        let mut seen = S::default();
        let (mut line, mut at) = (Vec::new(), 0);
        loop {
            line.clear();
            match reader.read_until(b'\n', &mut line) {
                Ok(0) => break,
                Ok(length) => {
                    each(&mut seen, at, &line);
                    at += length as u64;
                }
                Err(source) => return Err(SavedError::Read { path, source }),
            }
        }
        Ok(Self { path, reader: Some(Mutex::new(reader)), places: places(seen) })
    }

    /// Reads the line of a thing, if it has one.
    pub(super) fn get<T: DeserializeOwned>(&self, key: &K) -> Result<Option<T>, SavedError> {
        let (Some(reader), Some(&at)) = (&self.reader, self.places.get(key)) else { return Ok(None) };
        let mut line = Vec::new();
        let mut read = || {
            let mut reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
            let here = reader.stream_position()?;
            // Lines are mostly asked for one after the other: the buffer is kept where it reaches.
            reader.seek_relative(at as i64 - here as i64)?;
            reader.read_until(b'\n', &mut line)
        };
        read().map_err(|source| SavedError::Read { path: self.path.clone(), source })?;
        serde_json::from_slice(&line)
            .map(Some)
            .map_err(|source| SavedError::Damaged { path: self.path.clone(), source })
    }
}
