//! The rows of the rollouts of one agent on one dataset.

use std::{collections::HashMap, path::Path};

use serde::Deserialize;

use super::{SavedError, lines::LineIndex};
use crate::rows;

/// Rows by example and attempt; the last row of a rollout counts.
pub(super) type RowIndex = LineIndex<(u64, u32)>;

/// What of a row says whose it is.
#[derive(Deserialize)]
struct Whose {
    example_id: u64,
    attempt: Option<u32>,
}

/// Finds the rows in a directory of a job. Lines that are no rows are passed over.
pub(super) fn index(job: &Path, dir: &Path) -> Result<RowIndex, SavedError> {
    let each = |seen: &mut Vec<(Whose, u64)>, at, line: &[u8]| {
        if let Ok(whose) = serde_json::from_slice(line) {
            seen.push((whose, at));
        }
    };
    LineIndex::read(job, rows::file_in(dir), each, places)
}

fn places(seen: Vec<(Whose, u64)>) -> HashMap<(u64, u32), u64> {
    let number = |(whose, at): &(Whose, u64)| Some(((whose.example_id, whose.attempt?), *at));
    let mut places: HashMap<_, _> = seen.iter().filter_map(number).collect();
    // Rows of programs that do not number the rollouts of an example take the numbers that are free.
    let mut next: HashMap<u64, u32> = HashMap::new();
    for (whose, at) in seen.iter().filter(|(whose, _)| whose.attempt.is_none()) {
        let attempt = next.entry(whose.example_id).or_insert(1);
        while places.contains_key(&(whose.example_id, *attempt)) {
            *attempt += 1;
        }
        places.insert((whose.example_id, *attempt), *at);
    }
    places
}
