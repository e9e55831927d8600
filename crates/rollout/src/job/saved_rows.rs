//! Rows of earlier runs, matched with the trials of a plan.
//!
//! A rollout is done when its row is there: what the journal says of one without a row is done again, and a row that
//! came to the disk just before the process ended is put into the journal.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use super::{JobError, Plan, rollouts::trial_result, sections::Sections};
use rollout_core::{name::TrialIndex, result::TrialResult, row::RolloutOutput};
use rollout_record::rows;

/// What was found of earlier runs.
pub(super) struct SavedRows {
    trials: BTreeMap<TrialIndex, Saved>,
    /// Lines by section whose place a later line has taken.
    old: Vec<Vec<u64>>,
    warnings: Vec<String>,
}

struct Saved {
    line: u64,
    result: Arc<TrialResult>,
    output: Option<RolloutOutput>,
    in_journal: bool,
}

impl SavedRows {
    /// Reads the rows of all sections.
    pub(super) fn read(plan: &Plan, sections: &Sections, keep_outputs: bool) -> Result<Self, JobError> {
        let mut found = Self { trials: BTreeMap::new(), old: Vec::new(), warnings: Vec::new() };
        for section in sections.iter() {
            let Some(path) = section.rows() else { continue };
            let (agent, tasks) = section.parts();
            let by_id: HashMap<u64, usize> =
                tasks.filter_map(|task| Some((plan.tasks[task].example_id()?, task))).collect();
            let mut old = Vec::new();
            let mut unnumbered = Vec::new();
            let mut strange = 0;
            let mut add = |found: &mut Self, task: usize, attempt: u32, line: u64, output: RolloutOutput| {
                let index = plan.index(agent, task, attempt);
                let mut result = trial_result(&plan.trial(index), &output);
                result.pass_threshold = plan.tasks[task].pass_threshold;
                let result = Arc::new(result);
                let output = keep_outputs.then_some(output);
                let saved = Saved { line, result, output, in_journal: false };
                if let Some(earlier) = found.trials.insert(index, saved) {
                    old.push(earlier.line);
                }
            };
            let foreign =
                rows::read(&path, |line, output| match (by_id.get(&output.example_id), output.attempt) {
                    (Some(&task), Some(attempt)) if (1..=plan.tasks[task].attempts).contains(&attempt) => {
                        add(&mut found, task, attempt, line, output);
                    }
                    (Some(&task), None) => unnumbered.push((task, line, output)),
                    _ => strange += 1,
                })
                .map_err(|source| JobError::Rows { path: path.clone(), source })?;
            // Rows of programs that do not number the rollouts of an example take the numbers that are free.
            for (task, line, mut output) in unnumbered {
                let free = (1..=plan.tasks[task].attempts)
                    .find(|attempt| !found.trials.contains_key(&plan.index(agent, task, *attempt)));
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
                    "{} of the lines in {} are not rows of this job and are left alone",
                    foreign + strange,
                    path.display()
                ));
            }
            old.sort_unstable();
            found.old.push(old);
        }
        Ok(found)
    }

    /// Takes note of what the journal says of a rollout.
    pub(super) fn hear(&mut self, index: TrialIndex, result: Arc<TrialResult>) {
        if let Some(saved) = self.trials.get_mut(&index) {
            // The row tells the numbers; the journal knows how many tries it took.
            saved.in_journal = result.reward == saved.result.reward
                && result.timestamps.started_at == saved.result.timestamps.started_at;
            if saved.in_journal {
                saved.result = result;
            }
        }
    }

    /// Takes lines out whose place a later line has taken.
    pub(super) fn remove_old(&self, sections: &Sections) -> Result<(), JobError> {
        for (path, old) in sections.iter().filter_map(|section| section.rows()).zip(&self.old) {
            if !old.is_empty() {
                rows::remove_lines(&path, old)?;
            }
        }
        Ok(())
    }

    /// The trials that are done, each with whether the journal has it; their rows, if they were kept; and warnings.
    #[expect(clippy::type_complexity, reason = "taken apart at once by its only caller")]
    pub(super) fn into_parts(
        self,
    ) -> (Vec<(TrialIndex, Arc<TrialResult>, bool)>, Vec<RolloutOutput>, Vec<String>) {
        let mut trials = Vec::with_capacity(self.trials.len());
        let mut outputs = Vec::new();
        for (index, saved) in self.trials {
            trials.push((index, saved.result, saved.in_journal));
            outputs.extend(saved.output);
        }
        (trials, outputs, self.warnings)
    }
}
