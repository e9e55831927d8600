//! The rows of the rollouts of one agent on one dataset.

use std::{
    collections::HashMap,
    io::{self, Seek as _, SeekFrom},
    path::{Path, PathBuf},
};

use serde::{Deserialize, de::DeserializeOwned};

use super::{SavedError, lines::LineIndex, update};
use crate::{layout::open_below, lines::Lines, rows};

/// Rows by example and attempt. If a rollout has several rows, the last one counts.
#[derive(Debug)]
pub(super) struct RowIndex {
    dir: PathBuf,
    lines: LineIndex<(u64, u32)>,
    /// The device and the inode of the file.
    file: Option<(u64, u64)>,
    /// The length of the whole lines that were read.
    whole: u64,
    /// Whether numbers were given to rows that have none.
    has_unnumbered: bool,
}

/// The columns of a row that identify its rollout.
#[derive(Deserialize)]
struct Whose {
    example_id: u64,
    attempt: Option<u32>,
}

/// The rows in a part of a file.
#[derive(Default)]
struct FoundRows {
    numbered: HashMap<(u64, u32), u64>,
    unnumbered: Vec<(u64, u64)>,
    whole: u64,
}

impl FoundRows {
    /// Reads the rest of a file, whose first line is at this offset. Lines that are not rows are skipped.
    fn read(lines: &mut Lines, start: u64) -> io::Result<Self> {
        let mut found = Self { whole: start, ..Self::default() };
        while let Some(line) = lines.next_line()? {
            let offset = start + line.offset;
            match serde_json::from_slice(line.bytes) {
                Ok(Whose { example_id, attempt: Some(attempt) }) => {
                    found.numbered.insert((example_id, attempt), offset);
                }
                Ok(Whose { example_id, attempt: None }) => found.unnumbered.push((example_id, offset)),
                Err(_) => {}
            }
            if line.bytes.ends_with(b"\n") {
                found.whole = offset + line.bytes.len() as u64;
            }
        }
        Ok(found)
    }
}

/// Indexes the rows in a directory of a job.
pub(super) fn index(job: &Path, dir: &Path) -> Result<RowIndex, SavedError> {
    let path = rows::file_in(dir);
    let file = update::identity(&path);
    let (mut whole, mut has_unnumbered) = (0, false);
    let lines = LineIndex::read(job, path, |lines| {
        let found = FoundRows::read(lines, 0)?;
        (whole, has_unnumbered) = (found.whole, !found.unnumbered.is_empty());
        let mut offsets = found.numbered;
        // Rows of programs that do not number the rollouts of an example get the free numbers.
        let mut next: HashMap<u64, u32> = HashMap::new();
        for (example_id, offset) in found.unnumbered {
            let attempt = next.entry(example_id).or_insert(1);
            while offsets.contains_key(&(example_id, *attempt)) {
                *attempt += 1;
            }
            offsets.insert((example_id, *attempt), offset);
        }
        Ok(offsets)
    })?;
    Ok(RowIndex { dir: dir.to_owned(), lines, file, whole, has_unnumbered })
}

/// Adds the rows that were appended since. Returns whether that is possible: otherwise, all have to be read again.
pub(super) fn extend(job: &Path, index: &mut RowIndex) -> bool {
    index.extend(job).unwrap_or(false)
}

impl RowIndex {
    fn extend(&mut self, job: &Path) -> io::Result<bool> {
        let path = self.lines.path();
        let is_same = self.file.is_some()
            && update::identity(path) == self.file
            && rows::file_in(&self.dir) == path
            && !self.has_unnumbered;
        if !is_same {
            return Ok(false);
        }
        let mut file = open_below(job, path)?;
        if file.metadata()?.len() < self.whole {
            return Ok(false);
        }
        file.seek(SeekFrom::Start(self.whole))?;
        let mut lines = Lines::from(file);
        let found = FoundRows::read(&mut lines, self.whole)?;
        if !found.unnumbered.is_empty() {
            return Ok(false);
        }
        self.whole = found.whole;
        self.lines.extend(lines, found.numbered);
        Ok(true)
    }

    /// Reads the row of a rollout, if there is one.
    pub(super) fn get<T: DeserializeOwned>(&self, key: &(u64, u32)) -> Result<Option<T>, SavedError> {
        self.lines.get(key)
    }

    /// Reads the line of a rollout without parsing it, with its offset.
    pub(super) fn line(&self, key: &(u64, u32)) -> Result<Option<(u64, Vec<u8>)>, SavedError> {
        self.lines.line(key)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write as _};

    use serde_json::Value;

    use super::*;

    fn row(example: u64, reward: f64) -> String {
        format!("{{\"example_id\":{example},\"attempt\":1,\"reward\":{reward}}}\n")
    }

    fn reward(index: &RowIndex, example: u64) -> Option<f64> {
        index.get::<Value>(&(example, 1)).unwrap().map(|row| row["reward"].as_f64().unwrap())
    }

    #[test]
    fn rows_that_are_appended_are_found_without_reading_the_others_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(rows::OUTPUTS);
        let (torn, rest) = ("{\"example_id\":2,\"attempt\":1", ",\"reward\":0.5}\n");
        fs::write(&path, row(0, 0.0) + &row(1, 1.0) + torn).unwrap();
        let mut index = index(dir.path(), dir.path()).unwrap();
        assert_eq!([0, 1, 2].map(|example| reward(&index, example)), [Some(0.0), Some(1.0), None]);
        // Nothing before the end is read again: this row is no longer found by its content.
        let mut changed = fs::read(&path).unwrap();
        changed[..row(0, 0.0).len()].copy_from_slice(row(9, 0.0).as_bytes());
        fs::write(&path, &changed).unwrap();
        let mut file = fs::File::options().append(true).open(&path).unwrap();
        write!(file, "{rest}{}", row(1, 0.25)).unwrap();
        assert!(extend(dir.path(), &mut index));
        let found = [1, 2, 9].map(|example| reward(&index, example));
        assert_eq!(found, [Some(0.25), Some(0.5), None]);
    }

    #[test]
    fn rows_are_read_again_if_the_file_is_another_one_or_has_rows_without_numbers() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(rows::OUTPUTS);
        let read = || index(dir.path(), dir.path()).unwrap();
        let mut missing = read();
        fs::write(&path, row(0, 0.0)).unwrap();
        assert!(!extend(dir.path(), &mut missing), "there was no file");
        let mut old = read();
        fs::write(dir.path().join("new"), row(0, 0.0) + &row(1, 1.0)).unwrap();
        fs::rename(dir.path().join("new"), &path).unwrap();
        assert!(!extend(dir.path(), &mut old), "another file");
        let mut shorter = read();
        fs::File::options().write(true).open(&path).unwrap().set_len(3).unwrap();
        assert!(!extend(dir.path(), &mut shorter), "a shorter file");
        fs::write(&path, "{\"example_id\":0}\n").unwrap();
        let mut unnumbered = read();
        assert!(!extend(dir.path(), &mut unnumbered), "rows without numbers");
    }
}
