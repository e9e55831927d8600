//! Runs a job, and waits until its environments are removed.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::sync::mpsc::UnboundedSender;

use super::{Cancel, Job, JobError};
use rollout_core::{event::Event, result::JobResult};
use rollout_env::Provider;

impl Job {
    /// Runs the job to its end, and sends events to `events`.
    ///
    /// Every trial whose end is reported is saved on disk.
    pub fn run(
        self,
        events: UnboundedSender<Event>,
        cancel: Cancel,
    ) -> BoxFuture<'static, Result<JobResult, JobError>> {
        Box::pin(async move {
            let provider = Arc::clone(&self.provider);
            let outcome = self.dispatch(&events, cancel).await;
            // A job that failed must not end either while its environments are being removed.
            settle(&*provider, &events).await;
            outcome
        })
    }
}

/// Waits until the environments of a job are removed. Reports and returns what could not be removed.
pub(super) async fn settle(provider: &dyn Provider, events: &UnboundedSender<Event>) -> Vec<String> {
    let left = provider.settle().await;
    for message in &left {
        let _ = events.send(Event::Warning { message: message.clone() });
    }
    left
}
