//! The tasks of a plan in the form of the journal, with the hashes of their files.

use std::{borrow::Cow, io, sync::Arc};

use super::{Plan, PlanTask, Work, provenance::TaskHashes};
use rollout_env::blocking::blocking;
use rollout_record::{journal::PlannedTask, tasks::TaskRecord};

/// The data that was read for the journal: the files of container tasks, in order.
pub(super) struct Journaled {
    containers: Vec<(PlannedTask, Option<TaskRecord>)>,
}

impl Journaled {
    /// Reads the files of the tasks.
    pub(super) async fn read(plan: Arc<Plan>) -> io::Result<Self> {
        blocking(move || {
            let containers: Vec<&PlanTask> = plan.tasks().iter().filter(|task| is_container(task)).collect();
            let workers = std::thread::available_parallelism().map_or(1, usize::from);
            let chunk = containers.len().div_ceil(workers).max(1);
            let config = plan.config();
            std::thread::scope(|scope| {
                let read = |tasks: &[&PlanTask]| {
                    tasks.iter().map(|task| task.journaled(config)).collect::<io::Result<Vec<_>>>()
                };
                let handles: Vec<_> =
                    containers.chunks(chunk).map(|tasks| scope.spawn(move || read(tasks))).collect();
                let mut containers = Vec::with_capacity(containers.len());
                for handle in handles {
                    let read = handle.join().map_err(|_| io::Error::other("hashing a task panicked"))??;
                    containers.extend(read);
                }
                Ok(Self { containers })
            })
        })
        .await
    }

    /// The tasks of the plan, one by one, because there may be many examples. Blocks while it reads them.
    pub(super) fn tasks<'a>(&'a self, plan: &'a Plan) -> impl Iterator<Item = io::Result<PlannedTask>> + 'a {
        let mut containers = self.containers.iter();
        plan.tasks().iter().map(move |task| match is_container(task) {
            true => {
                let (task, _) = containers.next().expect("each task that is a container was read");
                Ok(task.clone())
            }
            false => task.journaled(plan.config()).map(|(task, _)| task),
        })
    }

    /// The records of the tasks: of runnable container tasks, and of the questions of a benchmark. Blocks while it
    /// reads them.
    pub(super) fn abouts<'a>(
        &'a self,
        plan: &'a Plan,
    ) -> impl Iterator<Item = io::Result<Cow<'a, TaskRecord>>> + 'a {
        let of_containers = self.containers.iter().filter_map(|(_, about)| about.as_ref());
        let of_examples = plan.tasks().iter().filter_map(|task| match &task.work {
            Work::Example { set, inputs } => set.examples.about(inputs).transpose(),
            Work::Container(_) => None,
        });
        of_containers
            .map(|about| Ok(Cow::Borrowed(about)))
            .chain(of_examples.map(|about| about.map(Cow::Owned)))
    }

    /// How many tasks have a record.
    pub(super) fn recorded(&self, plan: &Plan) -> usize {
        let has_about = |task: &&PlanTask| match &task.work {
            Work::Example { set, inputs } => set.examples.has_about(inputs),
            Work::Container(_) => false,
        };
        let containers = self.containers.iter().filter(|(_, about)| about.is_some());
        containers.count() + plan.tasks().iter().filter(has_about).count()
    }

    /// The hashes of the files of container tasks, by the number of the task. Examples have none.
    pub(super) fn hashes(&self, plan: &Plan) -> TaskHashes {
        if self.containers.is_empty() {
            return TaskHashes::default();
        }
        let mut containers = self.containers.iter();
        let hash = |task: &PlanTask| {
            let (task, _) = is_container(task).then(|| containers.next())??;
            task.content_hash.as_deref().map(Box::from)
        };
        plan.tasks().iter().map(hash).collect()
    }
}

fn is_container(task: &PlanTask) -> bool {
    matches!(task.work, Work::Container(_))
}
