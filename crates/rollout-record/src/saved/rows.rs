//! The rows of the rollouts of one agent on one dataset.

use std::{collections::HashMap, path::Path};

use serde::Deserialize;

use super::{SavedError, lines::LineIndex};
use crate::rows;

/// Rows by example and attempt. If a rollout has several rows, the last one counts.
pub(super) type RowIndex = LineIndex<(u64, u32)>;

/// The columns of a row that identify its rollout.
#[derive(Deserialize)]
struct Whose {
    example_id: u64,
    attempt: Option<u32>,
}

/// Indexes the rows in a directory of a job. Lines that are not rows are skipped.
pub(super) fn index(job: &Path, dir: &Path) -> Result<RowIndex, SavedError> {
    LineIndex::read(job, rows::file_in(dir), |lines| {
        let mut offsets = HashMap::new();
        let mut unnumbered = Vec::new();
        while let Some(line) = lines.next_line()? {
            match serde_json::from_slice(line.bytes) {
                Ok(Whose { example_id, attempt: Some(attempt) }) => {
                    offsets.insert((example_id, attempt), line.offset);
                }
                Ok(Whose { example_id, attempt: None }) => unnumbered.push((example_id, line.offset)),
                Err(_) => {}
            }
        }
        // Rows of programs that do not number the rollouts of an example get the free numbers.
        let mut next: HashMap<u64, u32> = HashMap::new();
        for (example_id, offset) in unnumbered {
            let attempt = next.entry(example_id).or_insert(1);
            while offsets.contains_key(&(example_id, *attempt)) {
                *attempt += 1;
            }
            offsets.insert((example_id, *attempt), offset);
        }
        Ok(offsets)
    })
}
