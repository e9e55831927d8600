//! Rows of earlier runs whose groups get new members in this run: they are scored together.

use std::{
    collections::{BTreeMap, HashMap, HashSet, hash_map::Entry},
    io,
    path::PathBuf,
};

use serde::Deserialize;

use super::{JobError, Plan, sections::Sections};
use rollout_core::{name::TrialIndex, row::RolloutOutput};
use rollout_record::lines::Lines;

/// The positions of the rows of members from earlier runs. Rows are read when their group is scored.
#[derive(Debug, Default)]
pub(super) struct EarlierRows {
    members: BTreeMap<TrialIndex, Place>,
    files: Vec<PathBuf>,
}

#[derive(Debug)]
struct Place {
    file: usize,
    offset: u64,
    journaled: JournaledParts,
}

/// What only the journal has of a rollout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct JournaledParts {
    pub(super) tries: u32,
    pub(super) notes: Vec<String>,
}

impl Default for JournaledParts {
    fn default() -> Self {
        Self { tries: 1, notes: Vec::new() }
    }
}

/// A rollout that an earlier run finished and scored.
#[derive(Debug)]
pub(super) struct EarlierMember {
    pub(super) index: TrialIndex,
    pub(super) journaled: JournaledParts,
    pub(super) output: RolloutOutput,
}

/// The fields that identify a row. Rows of other programs have no attempt: they count in the baseline of their group,
/// but they are never replaced.
#[derive(Deserialize)]
struct Key {
    example_id: u64,
    attempt: Option<u32>,
}

impl EarlierRows {
    /// Finds the rows of groups that are partly done, in the order of the plan. `journaled` has the trials with more
    /// than one try or with notes.
    pub(super) fn find(
        plan: &Plan,
        sections: &Sections,
        todo: &[TrialIndex],
        journaled: &HashMap<TrialIndex, JournaledParts>,
    ) -> Result<Self, JobError> {
        // Whether the group of a trial has members to run.
        let is_open = |index: TrialIndex| -> bool {
            let (agent, task, _) = plan.place(index);
            let first = plan.index(agent, task, 1);
            let last = plan.index(agent, task, plan.tasks[task].attempts);
            todo.get(todo.partition_point(|other| *other < first)).is_some_and(|next| *next <= last)
        };
        let mut found = Self::default();
        for section in sections.iter().filter(|section| section.scores_groups()) {
            let wanted = |index: TrialIndex| is_open(index) && todo.binary_search(&index).is_err();
            if !section.trials().any(wanted) {
                continue;
            }
            let Some(file) = section.rows_file() else { continue };
            let failed = |source| JobError::Rows { path: file.path.clone(), source };
            let by_id = file.examples(plan);
            // Every numbered row of an open group, and every other row.
            let (mut numbered, mut unnumbered) = (HashSet::new(), Vec::new());
            let mut lines = Lines::open(&file.path).map_err(failed)?;
            while let Some(line) = lines.next_line().map_err(failed)? {
                let Ok(Key { example_id, attempt }) = serde_json::from_slice(line.bytes) else { continue };
                let Some(task) = by_id.task(example_id) else { continue };
                if !is_open(plan.index(file.agent, task, 1)) {
                    continue;
                }
                match attempt {
                    Some(attempt) if (1..=plan.tasks[task].attempts).contains(&attempt) => {
                        let index = plan.index(file.agent, task, attempt);
                        numbered.insert(index);
                        if wanted(index) {
                            // Of two rows of one rollout, the later one counts.
                            found.add(index, line.offset, journaled);
                        }
                    }
                    Some(_) => {}
                    None => unnumbered.push((task, line.offset)),
                }
            }
            // They get the free numbers, as when the rows of the job are read.
            for (task, offset) in unnumbered {
                let attempts = 1..=plan.tasks[task].attempts;
                let mut indexes = attempts.map(|attempt| plan.index(file.agent, task, attempt));
                let Some(free) = indexes.find(|index| numbered.insert(*index)) else { continue };
                if wanted(free) {
                    found.add(free, offset, journaled);
                }
            }
            found.files.push(file.path);
        }
        Ok(found)
    }

    /// Adds a row of the file that is being read.
    fn add(&mut self, index: TrialIndex, offset: u64, journaled: &HashMap<TrialIndex, JournaledParts>) {
        let journaled = journaled.get(&index).cloned().unwrap_or_default();
        self.members.insert(index, Place { file: self.files.len(), offset, journaled });
    }

    /// Whether a member is among them.
    pub(super) fn contains(&self, index: TrialIndex) -> bool {
        self.members.contains_key(&index)
    }

    /// Reads the rows of these members. The files only grow while a job runs, so the positions stay valid.
    pub(super) fn read(&self, members: &[TrialIndex]) -> Result<Vec<EarlierMember>, JobError> {
        let mut files: HashMap<usize, Lines> = HashMap::new();
        let mut found = Vec::with_capacity(members.len());
        for index in members {
            let Some(Place { file, offset, journaled }) = self.members.get(index) else { continue };
            let path = &self.files[*file];
            let failed = |source| JobError::Rows { path: path.clone(), source };
            let lines = match files.entry(*file) {
                Entry::Occupied(open) => open.into_mut(),
                Entry::Vacant(new) => new.insert(Lines::open(path).map_err(failed)?),
            };
            let row = lines.at(*offset).map_err(failed)?;
            let output = serde_json::from_slice(row).map_err(|error| failed(io::Error::other(error)))?;
            found.push(EarlierMember { index: *index, journaled: journaled.clone(), output });
        }
        Ok(found)
    }
}
