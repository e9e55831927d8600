//! Removes the images of tasks when no trial of the job needs them any more.

use std::{collections::HashMap, sync::Arc};

use tokio::task::JoinSet;

use super::Plan;
use crate::config::KeepImages;
use rollout_core::name::TrialIndex;
use rollout_env::Provider;

/// Datasets with more tasks do not keep their images, unless the job says so.
const MANY_TASKS: usize = 50;

/// The trials that need the images of each task. Tasks whose images are kept are not included.
pub(super) struct ImageUses {
    tasks: HashMap<usize, Uses>,
    removals: JoinSet<()>,
}

struct Uses {
    policy: KeepImages,
    /// Trials that have not ended.
    left: usize,
    /// Trials that run.
    running: usize,
}

impl ImageUses {
    /// Counts the trials that will run.
    pub(super) fn new(plan: &Plan, todo: &[TrialIndex]) -> Self {
        let chosen = plan.config().environment.keep_images;
        let mut sizes = HashMap::new();
        for task in plan.tasks().iter().filter(|task| task.container().is_some()) {
            *sizes.entry(task.dataset().clone()).or_insert(0_usize) += 1;
        }
        let mut tasks: HashMap<usize, Uses> = HashMap::new();
        for index in todo {
            let (_, number, _) = plan.place(*index);
            let task = &plan.tasks()[number];
            let size = sizes.get(task.dataset()).copied().unwrap_or_default();
            let policy = policy(chosen, size);
            if policy != KeepImages::Always && task.container().is_some() {
                tasks.entry(number).or_insert(Uses { policy, left: 0, running: 0 }).left += 1;
            }
        }
        Self { tasks, removals: JoinSet::new() }
    }

    /// Notes that a trial was started.
    pub(super) fn started(&mut self, plan: &Plan, index: TrialIndex) {
        if let Some(uses) = self.tasks.get_mut(&plan.place(index).1) {
            uses.running += 1;
        }
    }

    /// Notes that a trial ended, and removes the images of its task if they are no longer needed.
    pub(super) fn ended(&mut self, plan: &Plan, provider: &Arc<dyn Provider>, index: TrialIndex) {
        let number = plan.place(index).1;
        let Some(uses) = self.tasks.get_mut(&number) else { return };
        uses.left = uses.left.saturating_sub(1);
        uses.running = uses.running.saturating_sub(1);
        let is_unused = match uses.policy {
            KeepImages::Always => false,
            KeepImages::UntilDone => uses.left == 0,
            KeepImages::Never => uses.running == 0,
        };
        if let (true, Some(task)) = (is_unused, plan.tasks()[number].container()) {
            let (provider, dir) = (Arc::clone(provider), task.dir.clone());
            self.removals.spawn(async move { provider.discard_images(&dir).await });
        }
    }

    /// Waits until all images are removed.
    pub(super) async fn finish(&mut self) {
        while self.removals.join_next().await.is_some() {}
    }
}

fn policy(chosen: Option<KeepImages>, tasks: usize) -> KeepImages {
    chosen.unwrap_or(if tasks > MANY_TASKS { KeepImages::UntilDone } else { KeepImages::Always })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_datasets_do_not_keep_their_images_unless_the_job_says_so() {
        assert_eq!(policy(None, 50), KeepImages::Always);
        assert_eq!(policy(None, 51), KeepImages::UntilDone);
        assert_eq!(policy(Some(KeepImages::Always), 5000), KeepImages::Always);
        assert_eq!(policy(Some(KeepImages::Never), 1), KeepImages::Never);
    }
}
