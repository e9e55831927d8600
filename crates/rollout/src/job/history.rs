//! The times of earlier runs of a job, from its journal.

use jiff::Timestamp;

use super::History;
use rollout_record::journal::JournalEntry;

impl History {
    /// Adds an entry of an earlier run.
    pub(super) fn add(&mut self, entry: &JournalEntry, run: &mut Option<Timestamp>) {
        self.ended_at = match entry {
            JournalEntry::RunEnded { at, cancelled: false } => Some(*at),
            _ => None,
        };
        match entry {
            JournalEntry::RunStarted { at, provenance } => {
                let versions = provenance.iter().flat_map(|provenance| provenance.agent_versions.clone());
                self.agent_versions.extend(versions);
                self.first_start.get_or_insert(*at);
                *run = Some(*at);
            }
            // A killed run lasted at least until its last trial ended.
            JournalEntry::Trial { result, .. } => self.advance(run, result.timestamps.ended_at),
            JournalEntry::RunEnded { at, .. } => {
                self.advance(run, *at);
                *run = None;
            }
            JournalEntry::Job(_) => {}
        }
    }

    fn advance(&mut self, run: &mut Option<Timestamp>, to: Timestamp) {
        if let Some(from) = run
            && to > *from
        {
            self.seconds += to.duration_since(*from).as_secs_f64();
            *from = to;
        }
    }
}
