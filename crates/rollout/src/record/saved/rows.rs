//! Where in a file of rows the row of each rollout is.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, BufRead as _, BufReader, Seek as _, SeekFrom},
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

use serde::Deserialize;

use super::SavedError;
use crate::{model::output::RolloutOutput, record::rows};

/// The rows of one agent on one dataset.
#[derive(Debug)]
pub(super) struct RowIndex {
    path: PathBuf,
    /// None if there are no rows.
    file: Option<Mutex<BufReader<File>>>,
    /// By example and attempt; the last row of a rollout counts.
    places: HashMap<(u64, u32), u64>,
}

/// What of a row says whose it is.
#[derive(Deserialize)]
struct Whose {
    example_id: u64,
    attempt: Option<u32>,
}

impl RowIndex {
    /// Finds the rows in a directory. Lines that are no rows are passed over.
    pub(super) fn read(dir: PathBuf) -> Result<Self, SavedError> {
        let path = rows::file_in(&dir);
        let mut reader = match File::open(&path) {
            Ok(file) => BufReader::with_capacity(1 << 18, file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Self { path, file: None, places: HashMap::new() });
            }
            Err(source) => return Err(SavedError::Read { path, source }),
        };
        let mut places = HashMap::new();
        let mut unnumbered = Vec::new();
        let (mut line, mut at) = (Vec::new(), 0);
        loop {
            line.clear();
            let length = match reader.read_until(b'\n', &mut line) {
                Ok(0) => break,
                Ok(length) => length as u64,
                Err(source) => return Err(SavedError::Read { path, source }),
            };
            match serde_json::from_slice(&line) {
                Ok(Whose { example_id, attempt: Some(attempt) }) => {
                    _ = places.insert((example_id, attempt), at)
                }
                Ok(Whose { example_id, attempt: None }) => unnumbered.push((example_id, at)),
                Err(_) => {}
            }
            at += length;
        }
        // Rows of programs that do not number the rollouts of an example take the numbers that are free.
        let mut next: HashMap<u64, u32> = HashMap::new();
        for (example, at) in unnumbered {
            let attempt = next.entry(example).or_insert(1);
            while places.contains_key(&(example, *attempt)) {
                *attempt += 1;
            }
            places.insert((example, *attempt), at);
        }
        Ok(Self { path, file: Some(Mutex::new(reader)), places })
    }

    /// Reads the row of a rollout, if it has one.
    pub(super) fn row(&self, example: u64, attempt: u32) -> Result<Option<RolloutOutput>, SavedError> {
        let (Some(file), Some(&at)) = (&self.file, self.places.get(&(example, attempt))) else {
            return Ok(None);
        };
        let failed = |source| SavedError::Read { path: self.path.clone(), source };
        let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
        let here = file.stream_position().map_err(failed)?;
        let moved = match i64::try_from(at).ok().zip(i64::try_from(here).ok()) {
            Some((at, here)) => file.seek_relative(at - here),
            None => file.seek(SeekFrom::Start(at)).map(|_| ()),
        };
        moved.map_err(failed)?;
        let mut line = Vec::new();
        file.read_until(b'\n', &mut line).map_err(failed)?;
        serde_json::from_slice(&line)
            .map(Some)
            .map_err(|source| SavedError::Damaged { path: self.path.clone(), source })
    }
}
