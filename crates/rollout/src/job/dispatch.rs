//! The dispatcher: starts trials, listens to them, and puts everything into one order.

use std::{collections::HashMap, sync::Arc};

use jiff::Timestamp;
use tokio::{
    sync::mpsc::{self, UnboundedReceiver, UnboundedSender},
    task::{Id, JoinError, JoinSet},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    Cancel, History, Job, JobError, Plan,
    recorder::{Recorded, Recorder},
    summary::{self, ResultFile, Rows, Times},
};
use crate::{
    environment::Provider,
    event::{Event, TrialIndex},
    record::{
        atomic,
        journal::{Entry, JournalError},
        layout::JobDir,
    },
    result::{ErrorType, JobResult, TrialError, TrialResult},
    trial::{self, Installs, Progress, Trial, TrialEnd},
};

impl Job {
    /// Runs the job to its end, telling `events` what happens.
    ///
    /// Every trial whose end was told is on the disk, whatever happens to this process later.
    pub async fn run(self, events: UnboundedSender<Event>, cancel: Cancel) -> Result<JobResult, JobError> {
        let Self { plan, provider, name, dir, mut journal, rows, todo, history, warnings } = self;
        let run_started_at = Timestamp::now();
        let clock = Instant::now();
        let journal = tokio::task::spawn_blocking(move || {
            journal.push(&Entry::RunStarted { at: run_started_at });
            journal.sync().map(|()| journal)
        })
        .await
        .map_err(panicked)??;
        let _ = events.send(Event::JobStarted {
            job: name.to_string(),
            directory: dir.path().to_owned(),
            provider: provider.description(),
            total_trials: plan.len(),
            resumed_trials: plan.len() - todo.len() as u64,
            concurrency: plan.config().n_concurrent_trials.get(),
            metrics: plan.config().metrics.clone(),
            earlier: summary::earlier(&plan, &rows, &todo),
        });
        for message in provider.notes().into_iter().chain(warnings) {
            let _ = events.send(Event::Warning { message });
        }

        let (recorder, mut recorded) = Recorder::start(Arc::clone(&plan), dir.clone(), journal);
        let (progress, reports) = mpsc::unbounded_channel();
        let mut dispatcher = Dispatcher {
            plan: Arc::clone(&plan),
            provider,
            installs: Arc::default(),
            name: Arc::clone(&name),
            dir: dir.clone(),
            events: events.clone(),
            rows,
            stop: cancel.graceful.child_token(),
            progress,
            running: JoinSet::new(),
            indexes: HashMap::new(),
            in_recorder: 0,
            cancelled: false,
            failure: None,
        };
        dispatcher.run(todo, &recorder, &mut recorded, reports, &cancel).await;
        // What still runs after a cancel at once ends with its environment's connection.
        dispatcher.running = JoinSet::new();
        let Some(mut journal) = recorder.finish().await else {
            return Err(panicked_recorder(&dir));
        };
        // Results that were on their way to the disk when the job was cancelled at once.
        while let Ok(done) = recorded.try_recv() {
            dispatcher.recorded(done);
        }
        let Dispatcher { rows, cancelled, failure, .. } = dispatcher;
        if let Some(error) = failure {
            return Err(error);
        }

        let ended_at = Timestamp::now();
        let times = Times {
            started_at: history.first_start.unwrap_or(run_started_at),
            ended_at,
            total_duration_sec: history.seconds + clock.elapsed().as_secs_f64(),
        };
        let result = tokio::task::spawn_blocking(move || {
            journal.push(&Entry::RunEnded { at: ended_at, cancelled });
            journal.sync()?;
            let result = summary::aggregate(&plan, &rows, &name, cancelled, times);
            atomic::write_json(&dir.result(), &ResultFile::new(&plan, &rows, &result))?;
            Ok::<_, JobError>(result)
        })
        .await
        .map_err(panicked)??;
        let _ = events.send(Event::JobFinished { result: Arc::new(result.clone()) });
        Ok(result)
    }
}

struct Dispatcher {
    plan: Arc<Plan>,
    provider: Arc<dyn Provider>,
    installs: Arc<Installs>,
    name: Arc<str>,
    dir: JobDir,
    events: UnboundedSender<Event>,
    rows: Rows,
    /// Cuts running trials off: by a cancel, or because results cannot be recorded.
    stop: CancellationToken,
    progress: UnboundedSender<(TrialIndex, Progress)>,
    running: JoinSet<TrialEnd>,
    indexes: HashMap<Id, TrialIndex>,
    in_recorder: u64,
    cancelled: bool,
    failure: Option<JobError>,
}

impl Dispatcher {
    async fn run(
        &mut self,
        todo: Vec<TrialIndex>,
        recorder: &Recorder,
        recorded: &mut UnboundedReceiver<Recorded>,
        mut reports: UnboundedReceiver<(TrialIndex, Progress)>,
        cancel: &Cancel,
    ) {
        let concurrency = self.plan.config().n_concurrent_trials.get() as usize;
        let mut queue = todo.into_iter();
        loop {
            while !self.stop.is_cancelled()
                && self.running.len() < concurrency
                && let Some(index) = queue.next()
            {
                self.start(index);
            }
            if self.running.is_empty() && self.in_recorder == 0 {
                self.cancelled |= queue.len() > 0 && cancel.graceful.is_cancelled();
                return;
            }
            // In this order, what a trial told is heard before its end.
            tokio::select! {
                biased;
                () = cancel.now.cancelled() => {
                    self.cancelled = true;
                    return;
                }
                () = cancel.graceful.cancelled(), if !self.cancelled => {
                    self.cancelled = true;
                    self.tell(Event::Cancelling);
                }
                Some((index, progress)) = reports.recv() => self.hear(index, progress),
                Some(done) = recorded.recv() => self.recorded(done),
                Some(ended) = self.running.join_next_with_id() => self.ended(ended, recorder),
            }
        }
    }

    fn tell(&self, event: Event) {
        // A reporter that went away is no reason to stop.
        let _ = self.events.send(event);
    }

    fn start(&mut self, index: TrialIndex) {
        let (agent, task, _) = self.plan.parts(index);
        let id = self.plan.trial(index);
        let progress = self.progress.clone();
        let trial = Trial {
            id: id.clone(),
            job_name: Arc::clone(&self.name),
            config: Arc::clone(self.plan.config()),
            agent: Arc::clone(agent),
            task: task.task.clone(),
            verifier_env: Arc::clone(&task.verifier_env),
            provider: Arc::clone(&self.provider),
            installs: Arc::clone(&self.installs),
            dir: self.dir.trial(&id),
            redactor: Arc::clone(self.plan.redactor()),
            progress: Box::new(move |report| {
                let _ = progress.send((index, report));
            }),
            cancel: self.stop.clone(),
        };
        tracing::info!(trial = %id, "trial starts");
        let handle = self.running.spawn(trial::run(trial));
        self.indexes.insert(handle.id(), index);
        self.tell(Event::TrialStarted { index, trial: id });
    }

    fn hear(&self, index: TrialIndex, progress: Progress) {
        let event = match progress {
            Progress::Phase(phase) => Event::PhaseStarted { index, phase },
            Progress::Retry { failed_try, mut error, delay } => {
                error.message = self.plan.redactor().text(&error.message).into_owned();
                tracing::warn!(trial = %self.plan.trial(index), failed_try, error = %error.message, "trial is tried again");
                Event::TrialRetried { index, failed_try, error, delay_ms: delay.as_millis() as u64 }
            }
        };
        self.tell(event);
    }

    fn ended(&mut self, ended: Result<(Id, TrialEnd), JoinError>, recorder: &Recorder) {
        let (id, end) = match ended {
            Ok((id, end)) => (id, Ok(end)),
            Err(error) => (error.id(), Err(error)),
        };
        let Some(index) = self.indexes.remove(&id) else { return };
        let result = match end {
            Ok(TrialEnd::Finished(result)) => *result,
            Ok(TrialEnd::Cancelled) => {
                self.tell(Event::TrialSkipped { index });
                return;
            }
            Err(error) => {
                tracing::error!(trial = %self.plan.trial(index), %error, "trial panicked");
                crashed(&self.plan, index)
            }
        };
        self.in_recorder += 1;
        recorder.record(index, result);
    }

    fn recorded(&mut self, done: Recorded) {
        self.in_recorder -= 1;
        match done {
            Recorded::Written(index, result) => {
                self.rows.set(index, &result);
                tracing::info!(trial = %self.plan.trial(index), reward = ?result.reward, error = ?result.error, "trial ended");
                self.tell(Event::TrialFinished { index, result });
            }
            Recorded::Lost(reason) => {
                // Nothing more can be recorded: what is under way would only be lost.
                self.stop.cancel();
                self.failure = self.failure.take().or(reason);
            }
        }
    }
}

/// The result of a trial whose code panicked.
fn crashed(plan: &Plan, index: TrialIndex) -> TrialResult {
    let error = TrialError {
        kind: ErrorType::InternalError,
        message: "Rollout itself failed in this trial: this is a bug, and rollout.log says where".to_owned(),
    };
    TrialResult { error: Some(error), ..TrialResult::empty(&plan.trial(index), Timestamp::now()) }
}

fn panicked(error: JoinError) -> JobError {
    JobError::Tasks(std::io::Error::other(error))
}

fn panicked_recorder(dir: &JobDir) -> JobError {
    JobError::Journal(JournalError::Io {
        action: "write",
        path: dir.journal(),
        source: std::io::Error::other("the thread that writes it panicked"),
    })
}

impl History {
    /// Takes note of an entry of an earlier run.
    pub(super) fn hear(&mut self, entry: &Entry, run: &mut Option<Timestamp>) {
        match entry {
            Entry::RunStarted { at } => {
                self.first_start.get_or_insert(*at);
                *run = Some(*at);
            }
            // A run that was killed lasted at least until its last trial ended.
            Entry::Trial { result, .. } => self.advance(run, result.timestamps.ended_at),
            Entry::RunEnded { at, .. } => {
                self.advance(run, *at);
                *run = None;
            }
            Entry::Job(_) => {}
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
