//! Reads what a running job has recorded since its directory was opened.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path};

use super::{Place, SavedError, SavedJob, add_run, rows};
use crate::journal::{self, JournalEntry, OutlinedEntry};
use rollout_core::name::TrialIndex;

/// How far a journal was read.
#[derive(Debug)]
pub(super) struct JournalEnd {
    /// The device and the inode of the file.
    pub(super) file: Option<(u64, u64)>,
    /// The length of whole lines.
    pub(super) whole: u64,
}

/// The device and the inode of a file.
pub(super) fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

impl SavedJob {
    /// Reads the results that were added since, and returns the indexes of their trials. If the job has grown, or its
    /// journal is another file, all of it is read again, and None is returned.
    pub fn update(&mut self) -> Result<Option<Vec<TrialIndex>>, SavedError> {
        let path = self.dir.journal();
        let length = fs::metadata(&path).map(|file| file.len()).unwrap_or_default();
        if identity(&path) != self.end.file || length < self.end.whole {
            return self.open_again();
        }
        if length == self.end.whole {
            return Ok(Some(Vec::new()));
        }
        let mut has_grown = false;
        let mut added: Vec<Place> = Vec::new();
        let Self { runs, header, tasks, plan, .. } = self;
        let whole = journal::read_appended(&path, self.end.whole, |offset, entry| match entry {
            OutlinedEntry::Trial(index, result) => {
                let agent = header.agents.iter().position(|agent| *agent == result.agent_name);
                let task = tasks.get(&result.dataset_name, &result.task_name);
                let index = match (agent, task) {
                    (Some(agent), Some(task)) => plan.index(agent, task, result.attempt),
                    _ => index,
                };
                added.push(Place { index, offset, run: runs.len().saturating_sub(1) as u32 });
            }
            OutlinedEntry::Other(JournalEntry::Job(_)) => has_grown = true,
            OutlinedEntry::Other(entry) => add_run(runs, entry),
        })?;
        if has_grown {
            return self.open_again();
        }
        self.end.whole = whole;
        let indexes = added.iter().map(|place| place.index).collect();
        for place in added {
            match self.places.binary_search_by_key(&place.index, |known| known.index) {
                Ok(known) => self.places[known] = place,
                Err(next) => self.places.insert(next, place),
            }
        }
        // New rows are not in the indexes of the files. A file that is another one is read again when it is needed.
        let dir = self.dir.path();
        for rows in self.rows.values_mut() {
            if rows.get_mut().is_some_and(|rows| !rows::extend(dir, rows)) {
                rows.take();
            }
        }
        Ok(Some(indexes))
    }

    fn open_again(&mut self) -> Result<Option<Vec<TrialIndex>>, SavedError> {
        *self = Self::open(self.path())?;
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

    use jiff::Timestamp;

    use super::*;
    use crate::journal::{Header, Journal, JournalError, PlannedTask, VERSION};
    use rollout_core::{
        event::JobKind,
        name::{AgentName, DatasetName, TaskName, TrialId},
        result::TrialResult,
    };

    fn header(tasks: &[&str]) -> Header {
        let task = |name: &&str| PlannedTask {
            dataset: "set".to_owned(),
            name: (*name).to_owned(),
            content_hash: None,
            git_commit_id: None,
            example_id: None,
            attempts: None,
            source: None,
        };
        Header {
            version: VERSION,
            kind: JobKind::Job,
            job_name: "job".to_owned(),
            directory: None,
            job_file: PathBuf::from("/job.yaml"),
            overrides: Vec::new(),
            config_hash: "sha256:0".to_owned(),
            config: None,
            provider: "native".to_owned(),
            agents: vec!["one".to_owned(), "two".to_owned()],
            attempts: 2,
            pins: BTreeMap::new(),
            selection: None,
            dataset_sizes: BTreeMap::new(),
            regrade: None,
            imported: None,
            tasks: tasks.iter().map(task).collect(),
        }
    }

    fn trial(agent: &str, task: &str, reward: f64) -> JournalEntry {
        let id = TrialId {
            agent: AgentName::new(agent).unwrap(),
            dataset: DatasetName::new("set").unwrap(),
            task: TaskName::new(task).unwrap(),
            attempt: 2,
        };
        let result = TrialResult { reward: Some(reward), ..TrialResult::empty(&id, Timestamp::UNIX_EPOCH) };
        JournalEntry::Trial { index: TrialIndex(99), result: Arc::new(result) }
    }

    #[test]
    fn results_that_are_added_are_read_in_the_order_of_the_plan() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal.jsonl");
        let mut journal =
            Journal::create(&path, header(&["a", "b"]), std::iter::empty::<Result<_, JournalError>>())
                .unwrap();
        let mut add = |entries: &[JournalEntry]| {
            entries.iter().for_each(|entry| journal.push(entry));
            journal.sync().unwrap();
        };
        add(&[trial("two", "a", 0.0)]);
        let mut job = SavedJob::open(dir.path()).unwrap();
        assert_eq!(job.update().unwrap(), Some(Vec::new()));
        let started = JournalEntry::RunStarted { at: Timestamp::UNIX_EPOCH, provenance: None };
        add(&[started, trial("one", "b", 1.0), trial("two", "a", 1.0)]);
        let updated = job.update().unwrap().unwrap();
        assert_eq!(updated, [TrialIndex(3), TrialIndex(5)]);
        let read = |job: &SavedJob| {
            job.trials()
                .unwrap()
                .map(|trial| (trial.as_ref().unwrap().index.0, trial.unwrap().result.reward))
                .collect::<Vec<_>>()
        };
        assert_eq!(read(&job), [(3, Some(1.0)), (5, Some(1.0))]);
        assert_eq!(read(&job), read(&SavedJob::open(dir.path()).unwrap()));
        assert_eq!(job.runs().len(), 1);
        for index in updated {
            let (id, trial) = (job.id(index).unwrap(), job.trial(index).unwrap().unwrap());
            assert_eq!(id, trial.id);
            assert_eq!(job.index(id.agent.as_str(), "set", id.task.as_str(), 2), Some(index));
        }

        // The job has grown, so that the indexes have moved.
        add(&[JournalEntry::Job(Box::new(header(&["new", "a", "b"])))]);
        assert_eq!(job.update().unwrap(), None);
        assert_eq!(read(&job), [(5, Some(1.0)), (9, Some(1.0))]);
        assert_eq!(job.index_of("one/set/b__2"), Some(TrialIndex(5)));
        let (_, outlined) = SavedJob::open_with(dir.path(), |outline| outline.summary().reward).unwrap();
        assert_eq!(outlined, [(TrialIndex(5), Some(1.0)), (TrialIndex(9), Some(1.0))]);
        assert_eq!((job.parts(TrialIndex(9)), job.index("one", "set", "a", 3)), (Some((1, 1, 2)), None));
    }
    #[test]
    fn a_trial_that_is_not_in_the_plan_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal.jsonl");
        let tasks = std::iter::empty::<Result<_, JournalError>>();
        let mut journal = Journal::create(&path, header(&["a"]), tasks).unwrap();
        journal.push(&trial("one", "a", 1.0));
        journal.push(&trial("one", "unknown", 1.0));
        journal.sync().unwrap();
        let problem = SavedJob::open_with(dir.path(), |_| ()).unwrap_err().to_string();
        assert_eq!(problem, "the journal contains one/set/unknown__2, which is not in the plan");
    }
}
