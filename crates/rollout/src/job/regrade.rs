//! Plans that grade the trials of a finished job again.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{Plan, planned::Work};
use crate::trial::{self, Regrade};
use rollout_core::{
    name::{TrialId, TrialIndex},
    result::RegradeSource,
};
use rollout_record::{
    journal::{Header, RegradeRecord},
    layout::JobDir,
};

/// Why the trials of a job cannot be graded again.
#[derive(Debug, thiserror::Error)]
pub enum RegradeError {
    /// Only tasks in containers have tests.
    #[error("the job has no container tasks, so there are no tests to run again")]
    NoTasks,
    /// None of the tasks exists any more.
    #[error("the selected tasks of the job no longer exist")]
    Gone,
    /// The directory has tests for none of the tasks.
    #[error("{} has no tests for the selected tasks", .0.display())]
    NoTests(PathBuf),
}

impl RegradeError {
    /// A suggestion for the user.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NoTasks => Some("`rollout score` scores saved answers and model rollouts again"),
            Self::Gone => Some("restore the directories of the tasks"),
            Self::NoTests(_) => Some(
                "pass a directory with a test.sh for all tasks, or with <task>/tests/test.sh or <task>/test.sh for each",
            ),
        }
    }
}

impl Plan {
    /// The same plan without agents: its trials are those of a finished job, and only their tests run again. `known`
    /// describes the finished job, or the interrupted regrade of it; tasks that it does not have are left out.
    pub fn regrading(mut self, record: RegradeRecord, known: &Header) -> Result<Self, RegradeError> {
        let names: HashSet<_> = known.tasks.iter().map(|task| (&*task.dataset, &*task.name)).collect();
        let mut tasks = std::mem::take(&mut self.tasks);
        tasks.retain(|task| matches!(task.work, Work::Container(_)));
        if tasks.is_empty() {
            return Err(RegradeError::NoTasks);
        }
        tasks.retain(|task| names.contains(&(task.dataset().as_str(), task.name())));
        if tasks.is_empty() {
            return Err(RegradeError::Gone);
        }
        if let Some(dir) = &record.tests {
            let mut has_tests = false;
            for task in &mut tasks {
                let Work::Container(work) = &mut task.work else { continue };
                let found = find_tests(dir, work.dataset.as_str(), work.name.as_str());
                if let (Ok(task), Some(tests)) = (&mut work.task, found) {
                    has_tests = true;
                    let task = Arc::make_mut(task);
                    task.files.tests_dockerfile = tests.join("Dockerfile").is_file();
                    task.tests = tests;
                }
            }
            if !has_tests {
                return Err(RegradeError::NoTests(dir.clone()));
            }
        }
        let agents = std::mem::take(&mut self.agents);
        self.rearrange(agents, tasks);
        self.regrade = Some(record);
        Ok(self)
    }

    /// How a trial is graded again, if that is what the plan does.
    pub(super) fn regrade_of(&self, id: &TrialId) -> Option<Regrade> {
        let record = self.regrade.as_ref()?;
        let earlier = JobDir::new(&record.job).trial(id);
        Some(Regrade { earlier, ignores_processes: record.ignores_processes })
    }

    /// What the tests of a trial would run on again, with the reason if that is nothing. None if the plan does not
    /// grade again, or the task is invalid. Blocks.
    pub fn regrade_source(&self, index: TrialIndex) -> Option<(RegradeSource, Option<String>)> {
        let how = self.regrade_of(&self.trial(index))?;
        let (_, task, _) = self.parts(index);
        let Work::Container(work) = &task.work else { return None };
        let task = work.task.as_ref().ok()?;
        Some(trial::survey(self.config(), &work.env, task, &how))
    }
}

/// Finds the tests of a task in a directory.
fn find_tests(dir: &Path, dataset: &str, task: &str) -> Option<PathBuf> {
    let of_task = dir.join(task);
    let places = [dir.join(dataset).join(task).join("tests"), of_task.join("tests"), of_task, dir.to_owned()];
    places.into_iter().find(|place| place.join("test.sh").is_file())
}
