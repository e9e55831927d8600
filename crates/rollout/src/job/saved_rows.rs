//! Matches rows of earlier runs with the trials of a plan.
//!
//! A rollout is done if its row exists: an entry of the journal without a row is repeated, and a row that was written
//! just before the process ended is added to the journal. A few numbers of each row are in memory.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;

use super::{JobError, Plan, rollouts::trial_result, sections::SectionRows};
use rollout_core::{name::TrialIndex, result::TrialResult, row::RolloutOutput};
use rollout_record::rows;

/// The rows of earlier runs.
pub(super) struct SavedRows {
    /// By the index of the trial.
    trials: Vec<Option<Saved>>,
    /// The rows themselves, if the caller wants them.
    outputs: Option<BTreeMap<TrialIndex, RolloutOutput>>,
    /// The files, each with the lines that a later line replaces.
    files: Vec<(SectionRows, Vec<u64>)>,
    warnings: Vec<String>,
}

/// The part of a row that is in memory.
#[derive(Debug, Clone, Copy)]
struct Saved {
    line: u64,
    started_at: Timestamp,
    in_journal: bool,
}

impl SavedRows {
    /// Reads the rows of sections, and calls `each` with the result of each row. Of several rows of a trial, the last
    /// one counts.
    pub(super) fn read(
        plan: &Plan,
        files: Vec<SectionRows>,
        keep_outputs: bool,
        mut each: impl FnMut(TrialIndex, &TrialResult),
    ) -> Result<Self, JobError> {
        let outputs = keep_outputs.then(BTreeMap::new);
        let trials = vec![None; plan.len() as usize];
        let mut found = Self { trials, outputs, files: Vec::new(), warnings: Vec::new() };
        for file in files {
            let mut old = Vec::new();
            let mut unnumbered = Vec::new();
            let mut strange = 0;
            let by_id = file.examples(plan);
            let mut add = |found: &mut Self, task: usize, attempt: u32, line: u64, output: RolloutOutput| {
                let index = plan.index(file.agent, task, attempt);
                let result = result(plan, index, &output);
                each(index, &result);
                let earlier = found.trials[index.0 as usize].replace(Saved {
                    line,
                    started_at: result.timestamps.started_at,
                    in_journal: false,
                });
                old.extend(earlier.map(|earlier| earlier.line));
                if let Some(outputs) = &mut found.outputs {
                    outputs.insert(index, output);
                }
            };
            let foreign = rows::read(&file.path, |line, output| {
                match (by_id.task(output.example_id), output.attempt) {
                    (Some(task), Some(attempt)) if (1..=plan.tasks[task].attempts).contains(&attempt) => {
                        add(&mut found, task, attempt, line, output);
                    }
                    (Some(task), None) => unnumbered.push((task, line, output)),
                    _ => strange += 1,
                }
            })
            .map_err(|source| JobError::Rows { path: file.path.clone(), source })?;
            // Rows of programs that do not number the rollouts of an example get the free numbers.
            for (task, line, mut output) in unnumbered {
                let free = (1..=plan.tasks[task].attempts)
                    .find(|attempt| !found.has(plan.index(file.agent, task, *attempt)));
                match free {
                    Some(attempt) => {
                        output.attempt = Some(attempt);
                        add(&mut found, task, attempt, line, output);
                    }
                    None => strange += 1,
                }
            }
            if foreign + strange > 0 {
                found.warnings.push(format!(
                    "{} of the lines in {} are not rows of this job and are ignored",
                    foreign + strange,
                    file.path.display()
                ));
            }
            old.sort_unstable();
            found.files.push((file, old));
        }
        Ok(found)
    }

    fn has(&self, index: TrialIndex) -> bool {
        self.trials[index.0 as usize].is_some()
    }

    /// Compares an entry of the journal with the row of a rollout, which has this reward. True if they agree.
    pub(super) fn compare(&mut self, index: TrialIndex, result: &TrialResult, reward: Option<f64>) -> bool {
        let Some(saved) = &mut self.trials[index.0 as usize] else { return false };
        // The row has the numbers; the journal has the number of tries.
        saved.in_journal = result.reward == reward && result.timestamps.started_at == saved.started_at;
        saved.in_journal
    }

    /// Reads the rows again that are not in the journal, and calls `each` with them.
    pub(super) fn missing(
        &self,
        plan: &Plan,
        mut each: impl FnMut(TrialIndex, TrialResult),
    ) -> Result<(), JobError> {
        let missing = |saved: &Option<Saved>| saved.filter(|saved| !saved.in_journal);
        for (file, _) in &self.files {
            let trials = file.trials.start as usize..file.trials.end as usize;
            let places = trials.clone().map(|place| TrialIndex(place as u64));
            let saved = places.zip(&self.trials[trials]);
            let lines: HashMap<u64, TrialIndex> =
                saved.filter_map(|(index, saved)| Some((missing(saved)?.line, index))).collect();
            if lines.is_empty() {
                continue;
            }
            rows::read(&file.path, |line, output| {
                if let Some(index) = lines.get(&line) {
                    each(*index, result(plan, *index, &output));
                }
            })
            .map_err(|source| JobError::Rows { path: file.path.clone(), source })?;
        }
        Ok(())
    }

    /// Removes lines that a later line replaces.
    pub(super) fn remove_old(&self) -> Result<(), JobError> {
        for (file, old) in self.files.iter().filter(|(_, old)| !old.is_empty()) {
            rows::remove_lines(&file.path, old)?;
        }
        Ok(())
    }

    /// The rows by trial, if they were kept, and warnings.
    pub(super) fn into_parts(self) -> (Vec<RolloutOutput>, Vec<String>) {
        (self.outputs.into_iter().flat_map(BTreeMap::into_values).collect(), self.warnings)
    }
}

/// The result of a trial from its row.
fn result(plan: &Plan, index: TrialIndex, output: &RolloutOutput) -> TrialResult {
    let mut result = trial_result(&plan.trial(index), output);
    result.pass_threshold = plan.parts(index).1.pass_threshold();
    result
}
