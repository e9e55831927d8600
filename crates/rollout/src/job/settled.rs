//! A finished job: a resume reports its result, and changes nothing.

use std::{fs::File, io::BufReader, sync::Arc};

use jiff::Timestamp;
use serde::Deserialize;
use tokio::sync::mpsc::UnboundedSender;

use super::{
    History, Job, JobError,
    summary::{self, Times},
};
use rollout_core::{event::Event, result::JobResult};
use rollout_record::layout::JobDir;

impl Job {
    /// Whether nothing is left to do or to write.
    pub fn is_settled(&self) -> bool {
        self.settled_at.is_some()
    }

    /// Reports the result of the job.
    pub(super) async fn report_again(
        mut self,
        ended_at: Timestamp,
        events: &UnboundedSender<Event>,
    ) -> Result<JobResult, JobError> {
        let _ = events.send(self.started());
        for message in std::mem::take(&mut self.warnings) {
            let _ = events.send(Event::Warning { message });
        }
        let Self { plan, name, sections, rows, history, mut collector, .. } = self;
        let result = tokio::task::spawn_blocking(move || {
            let seconds = history.seconds;
            if let (Some(collector), Some(section)) = (&mut collector, sections.iter().next()) {
                collector.end(section.metadata(&plan, &rows, seconds), false);
            }
            let started_at = history.first_start.unwrap_or(ended_at);
            let times = Times { started_at, ended_at, total_duration_sec: seconds };
            summary::aggregate(&plan, &rows, &summary::report(&plan, &rows), &name, (false, None), times)
        })
        .await
        .map_err(JobError::panicked)?;
        let _ = events.send(Event::JobFinished { result: Arc::new(result.clone()) });
        Ok(result)
    }
}

impl History {
    /// When the job ended, if the last run ended properly and wrote the result of this many trials.
    pub(super) fn settled_at(&self, dir: &JobDir, trials: u64) -> Option<Timestamp> {
        let file = BufReader::new(File::open(dir.result()).ok()?);
        let written: Written = serde_json::from_reader(file).ok()?;
        self.ended_at.filter(|at| *at == written.ended_at && trials == written.total_trials)
    }
}

/// The fields of a result.json that are needed.
#[derive(Deserialize)]
struct Written {
    total_trials: u64,
    #[serde(with = "rollout_core::moment")]
    ended_at: Timestamp,
}
