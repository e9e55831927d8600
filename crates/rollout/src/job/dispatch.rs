//! The dispatcher: starts trials, listens to them, and puts everything into one order.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use futures_util::FutureExt as _;
use jiff::Timestamp;
use tokio::{
    sync::mpsc::{self, UnboundedReceiver, UnboundedSender},
    task::{Id, JoinError, JoinSet},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    Cancel, Collector, JUDGE, Job, JobError, Plan, Store,
    earlier_rows::EarlierRows,
    not_run::{crashed, no_model},
    planned::Work,
    provenance::Origin,
    recorder::{Panicked, Recorded, Recorder},
    rollouts::{Fate, Finished, Group, Keep, RolloutEnd},
    saved_rows::SavedRows,
    sections::Sections,
    streak::FailureStreak,
    summary::{self, ResultFile, Rows, Times},
};
use crate::trial::{self, Installs, Progress, Trial, TrialEnd};
use rollout_core::{
    event::{Event, JobKind, Phase},
    name::TrialIndex,
    result::{EarlyStop, JobResult, TrialResult},
};
use rollout_env::Provider;
use rollout_model as model;
use rollout_model::Share;
use rollout_record::{
    atomic,
    journal::{JournalEntry, JournalError},
    layout::JobDir,
};

/// Rows that wait for the disk before no more rollouts are started.
const MAX_WAITING_BYTES: usize = 8 << 20;

/// How often averages are written while a job runs, at most.
const METADATA_INTERVAL: Duration = Duration::from_secs(1);

impl Job {
    /// Runs the job to its end, telling `events` what happens.
    ///
    /// Every trial whose end was told is on the disk, whatever happens to this process later.
    pub async fn run(
        mut self,
        events: UnboundedSender<Event>,
        cancel: Cancel,
    ) -> Result<JobResult, JobError> {
        if let Some(ended_at) = self.settled_at {
            return self.report_again(ended_at, &events).await;
        }
        let started = self.started();
        let provenance = match &self.store {
            Some(_) => Some(self.provenance().await),
            None => None,
        };
        let Self {
            plan,
            provider,
            name,
            store,
            scratch,
            share,
            mut sections,
            rows,
            earlier_rows,
            todo,
            history,
            warnings,
            collector,
            ..
        } = self;
        let settling = Arc::clone(&provider);
        if let Some(provenance) = &provenance {
            sections.iter_mut().for_each(|section| section.provenance = Some(Arc::clone(provenance)));
        }
        let run_started_at = Timestamp::now();
        let clock = Instant::now();
        let files = sections.iter().filter_map(|section| section.rows()).collect();
        let (dir, recorder, mut recorded) = match store {
            None => {
                let (recorder, recorded) = Recorder::nowhere();
                (None, recorder, recorded)
            }
            Some(Store { dir, mut journal, task_hashes }) => {
                let started = JournalEntry::RunStarted { at: run_started_at, provenance: provenance.clone() };
                let journal = tokio::task::spawn_blocking(move || {
                    journal.push(&started);
                    journal.sync().map(|()| journal)
                })
                .await
                .map_err(panicked)??;
                let origin = Origin { run: provenance.clone(), task_hashes };
                let (recorder, recorded) =
                    Recorder::start(Arc::clone(&plan), dir.clone(), journal, files, origin);
                (Some(dir), recorder, recorded)
            }
        };
        let _ = events.send(started);
        for message in provider.notes().into_iter().chain(warnings) {
            let _ = events.send(Event::Warning { message });
        }

        let (progress, reports) = mpsc::unbounded_channel();
        let mut dispatcher = Dispatcher {
            plan: Arc::clone(&plan),
            provider,
            installs: Arc::default(),
            name: Arc::clone(&name),
            dir: dir.clone(),
            scratch,
            share,
            keep: Keep { rows: recorder.writes(), outputs: collector.is_some() },
            events: events.clone(),
            rows,
            earlier_rows,
            streak: FailureStreak::default(),
            stopped: None,
            sections,
            collector,
            clock,
            earlier_seconds: history.seconds,
            metadata_at: None,
            stop: cancel.graceful.child_token(),
            progress,
            running: JoinSet::new(),
            indexes: HashMap::new(),
            group: None,
            in_recorder: VecDeque::new(),
            waiting_bytes: 0,
            told_scoring: false,
            has_skipped: false,
            cancelled: false,
            failure: None,
        };
        dispatcher.run(todo, &recorder, &mut recorded, reports, &cancel).await;
        // What still runs after a cancel at once ends with its environment's connection.
        dispatcher.running = JoinSet::new();
        let journal = recorder.finish().await.map_err(|Panicked| panicked_recorder(dir.as_ref()))?;
        // Results that were on their way to the disk when the job was cancelled at once.
        while let Ok(done) = recorded.try_recv() {
            // A caller that is not ready for rows at once does not get these.
            let _ = dispatcher.recorded(done).now_or_never();
        }
        let Dispatcher { rows, sections, cancelled, stopped, failure, mut collector, .. } = dispatcher;

        let ended_at = Timestamp::now();
        let seconds = history.seconds + clock.elapsed().as_secs_f64();
        let times = Times {
            started_at: history.first_start.unwrap_or(run_started_at),
            ended_at,
            total_duration_sec: seconds,
        };
        let result = tokio::task::spawn_blocking(move || {
            let averages: Vec<_> = sections
                .iter()
                .map(|section| (section.metadata_file(), section.metadata(&plan, &rows, seconds)))
                .collect();
            let tidied = || -> Result<(), JobError> {
                if sections.have_old_rows() {
                    SavedRows::read(&plan, sections.files(), false, |_, _| ())?.remove_old()?;
                }
                for (path, metadata) in &averages {
                    if let Some(path) = path {
                        atomic::write_json(path, metadata)?;
                    }
                }
                Ok(())
            };
            // What stopped the job explains more than what failed after it.
            match (failure, tidied()) {
                (Some(error), _) | (None, Err(error)) => return Err(error),
                (None, Ok(())) => {}
            }
            if let (Some(collector), Some((_, metadata))) = (&mut collector, averages.into_iter().next()) {
                collector.end(metadata, cancelled || stopped.is_some());
            }
            let report = summary::report(&plan, &rows);
            let result = summary::aggregate(&plan, &rows, &report, &name, (cancelled, stopped), times);
            if let (Some(mut journal), Some(dir)) = (journal, dir) {
                journal.push(&JournalEntry::RunEnded { at: ended_at, cancelled });
                journal.sync()?;
                let file = ResultFile::new(&plan, &rows, &report, &result, provenance.as_deref());
                atomic::write_json(&dir.result(), &file)?;
            }
            Ok::<_, JobError>(result)
        })
        .await
        .map_err(panicked)??;
        let _ = events.send(Event::JobFinished { result: Arc::new(result.clone()) });
        settling.settle().await;
        Ok(result)
    }
}

/// How a task that the dispatcher started ended.
enum End {
    Trial(TrialEnd),
    Rollout(RolloutEnd),
}

struct Dispatcher {
    plan: Arc<Plan>,
    provider: Arc<dyn Provider>,
    installs: Arc<Installs>,
    name: Arc<str>,
    dir: Option<JobDir>,
    scratch: Option<JobDir>,
    share: Option<Share>,
    keep: Keep,
    events: UnboundedSender<Event>,
    rows: Rows,
    earlier_rows: Arc<EarlierRows>,
    streak: FailureStreak,
    /// Why the job stops though trials are left.
    stopped: Option<EarlyStop>,
    sections: Sections,
    collector: Option<Box<dyn Collector>>,
    clock: Instant,
    earlier_seconds: f64,
    /// When averages were last handed over to be written.
    metadata_at: Option<Instant>,
    /// Cuts running trials off: by a cancel, or because results cannot be recorded.
    stop: CancellationToken,
    progress: UnboundedSender<(TrialIndex, Progress)>,
    running: JoinSet<End>,
    indexes: HashMap<Id, TrialIndex>,
    /// The group that rollouts are started of, and how many of them are still to be started.
    group: Option<(Arc<Group>, u64)>,
    /// The bytes of the rows of each group that is not recorded yet, in the order in which they were handed over.
    in_recorder: VecDeque<usize>,
    /// All of these bytes.
    waiting_bytes: usize,
    /// Whether it was told that a function of a rubric fails.
    told_scoring: bool,
    /// Whether a trial that ran was cut off.
    has_skipped: bool,
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
        let mut queue = todo.as_slice();
        loop {
            while !self.stop.is_cancelled()
                && self.running.len() < concurrency
                && self.has_room()
                && let Some((index, rest)) = queue.split_first()
            {
                self.start(*index, rest, recorder);
                queue = rest;
            }
            if self.stop.is_cancelled() {
                self.abandon_group();
            }
            if self.running.is_empty() && self.in_recorder.is_empty() {
                self.cancelled |= !queue.is_empty() && cancel.graceful.is_cancelled();
                // If the last trials failed, there was nothing left to stop.
                self.stopped = self.stopped.take().filter(|_| !queue.is_empty() || self.has_skipped);
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
                Some(done) = recorded.recv() => {
                    tokio::select! {
                        biased;
                        () = self.recorded(done) => self.write_metadata(recorder),
                        // A caller that is slow to take rows does not keep the job from stopping.
                        () = cancel.now.cancelled() => {}
                    }
                }
                Some(ended) = self.running.join_next_with_id() => self.ended(ended, recorder),
            }
        }
    }

    fn tell(&self, event: Event) {
        // A reporter that went away is no reason to stop.
        let _ = self.events.send(event);
    }

    /// Whether the disk keeps up with the rows, which are in memory until they are on it.
    fn has_room(&self) -> bool {
        self.waiting_bytes < MAX_WAITING_BYTES
    }

    /// Starts a trial. Those after it in the queue tell how large its group is.
    fn start(&mut self, index: TrialIndex, rest: &[TrialIndex], recorder: &Recorder) {
        let plan = Arc::clone(&self.plan);
        let (agent, task, _) = plan.parts(index);
        let id = plan.trial(index);
        let progress = self.progress.clone();
        let progress = move |report| {
            let _ = progress.send((index, report));
        };
        tracing::info!(trial = %id, "trial starts");
        let handle = match &task.work {
            Work::Container(work) => {
                let dir = self.dir.as_ref().or(self.scratch.as_ref());
                let dir = dir.expect("only plans without containers are run without a directory");
                let trial = Trial {
                    id: id.clone(),
                    job_name: Arc::clone(&self.name),
                    config: Arc::clone(plan.config()),
                    agent: Arc::clone(agent.config.as_ref().expect("plans with containers have a job file")),
                    model: agent.model.clone(),
                    task: work.task.clone(),
                    verifier_env: Arc::clone(&work.verifier_env),
                    provider: Arc::clone(&self.provider),
                    installs: Arc::clone(&self.installs),
                    dir: dir.trial(&id),
                    redactor: Arc::clone(plan.redactor()),
                    progress: Box::new(progress),
                    cancel: self.stop.clone(),
                    share: self.share.clone(),
                    keeps_state: self.keep.outputs,
                };
                self.running.spawn(async { End::Trial(trial::run(trial).await) })
            }
            Work::Example { set, .. } => {
                let rollouts = &set.rollouts;
                let Some(model) = &agent.model else {
                    self.tell(Event::TrialStarted { index, trial: id });
                    self.hand_over(vec![Finished::new(index, no_model(&plan, index))], recorder);
                    return;
                };
                let (group, left) = self.group.take().unwrap_or_else(|| {
                    let place = |index: &TrialIndex| {
                        let (agent, task, _) = plan.place(*index);
                        (agent, task)
                    };
                    let others = match rollouts.independent_scoring {
                        true => 0,
                        false => rest.iter().take_while(|other| place(other) == place(&index)).count() as u64,
                    };
                    let (rollouts, model) = (Arc::clone(rollouts), Arc::clone(model));
                    let earlier = (Arc::clone(&self.earlier_rows), place(&index));
                    let group =
                        Group::new(Arc::clone(&plan), rollouts, model, self.keep, others + 1, earlier);
                    (Arc::new(group), others + 1)
                });
                if left > 1 {
                    self.group = Some((Arc::clone(&group), left - 1));
                }
                let (cancel, share) = (self.stop.clone(), self.share.clone());
                self.running
                    .spawn(async move { End::Rollout(group.run(index, progress, cancel, share).await) })
            }
        };
        self.indexes.insert(handle.id(), index);
        self.tell(Event::TrialStarted { index, trial: id });
        if matches!(task.work, Work::Example { .. }) {
            self.tell(Event::PhaseStarted { index, phase: Phase::Execute });
        }
    }

    /// Gives up on the members of a group that will not be started. If the others are over, they are scored.
    fn abandon_group(&mut self) {
        let Some((group, left)) = self.group.take() else { return };
        if let Some(scoring) = group.abandon(left) {
            self.running.spawn(async { End::Rollout(scoring.await) });
        }
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

    fn ended(&mut self, ended: Result<(Id, End), JoinError>, recorder: &Recorder) {
        let (id, end) = match ended {
            Ok((id, end)) => (id, Ok(end)),
            Err(error) => (error.id(), Err(error)),
        };
        let index = self.indexes.remove(&id);
        let finished = match (end, index) {
            (Ok(End::Trial(TrialEnd::Finished { result, state })), Some(index)) => {
                vec![Finished { state, ..Finished::new(index, *result) }]
            }
            (Ok(End::Trial(TrialEnd::Cancelled)), Some(index)) => {
                self.has_skipped = true;
                self.tell(Event::TrialSkipped { index });
                return;
            }
            (Ok(End::Trial(TrialEnd::Unauthorized(error))), Some(index)) => {
                self.unauthorized(index, error);
                return;
            }
            (Ok(End::Rollout(RolloutEnd { fate, finished })), index) => {
                match (fate, index) {
                    (Fate::Cancelled, Some(index)) => {
                        self.has_skipped = true;
                        self.tell(Event::TrialSkipped { index });
                    }
                    (Fate::Lost(error), Some(index)) => {
                        self.tell(Event::TrialSkipped { index });
                        self.failure.get_or_insert(error);
                        self.stop.cancel();
                    }
                    (Fate::Unauthorized(error), Some(index)) => self.unauthorized(index, error),
                    (Fate::Unscored(error), Some(index)) => {
                        self.tell(Event::TrialSkipped { index });
                        let who = match self.plan.kind() {
                            JobKind::Benchmark => JUDGE,
                            JobKind::Job => "a model of the rubric",
                        };
                        self.refused(who.to_owned(), error);
                    }
                    _ => {}
                }
                finished
            }
            (Err(error), Some(index)) => {
                tracing::error!(trial = %self.plan.trial(index), %error, "trial panicked");
                vec![Finished::new(index, crashed(&self.plan, index))]
            }
            (_, None) => return,
        };
        self.hand_over(finished, recorder);
    }

    /// Ends the job: no other trial of the model can do better.
    fn unauthorized(&mut self, index: TrialIndex, error: model::Error) {
        let agent = self.plan.parts(index).0;
        let model = agent.model.as_ref().map_or(agent.name.as_str(), |model| &model.name);
        let who = format!("model {model}");
        self.tell(Event::TrialSkipped { index });
        self.refused(who, error);
    }

    /// Stops the job: no other trial can do better with this key.
    fn refused(&mut self, who: String, error: model::Error) {
        self.failure.get_or_insert(match error.kind {
            model::ErrorKind::Unsupported => JobError::Unsupported { who, source: error },
            _ => JobError::Unauthorized { who, source: error },
        });
        self.stop.cancel();
    }

    /// Gives trials that are over together to the recorder.
    fn hand_over(&mut self, mut finished: Vec<Finished>, recorder: &Recorder) {
        if !finished.is_empty() {
            for trial in &mut finished {
                let threshold = self.plan.parts(trial.index).1.pass_threshold();
                Arc::make_mut(&mut trial.result).pass_threshold = threshold;
                if !trial.is_rescored {
                    self.stop_early(trial.index, &trial.result);
                }
            }
            let bytes = finished.iter().filter_map(|trial| trial.row.as_ref()).map(Vec::len).sum::<usize>();
            self.in_recorder.push_back(bytes);
            self.waiting_bytes += bytes;
            let trials = finished.into_iter().map(|trial| (self.sections.of(trial.index), trial));
            recorder.record(trials.collect());
        }
    }

    /// Takes note of a group that is no longer in the recorder. They come back in the order in which they went.
    fn left_recorder(&mut self) {
        self.waiting_bytes -= self.in_recorder.pop_front().unwrap_or_default();
    }

    async fn recorded(&mut self, done: Recorded) {
        let trials = match done {
            Recorded::Written(trials) => {
                self.left_recorder();
                trials
            }
            Recorded::Lost(reason) => {
                self.left_recorder();
                // Nothing more can be recorded: what is under way would only be lost.
                self.stop.cancel();
                self.failure = self.failure.take().or(reason);
                return;
            }
            Recorded::Warning(message) => return self.tell(Event::Warning { message }),
        };
        let mut outputs = Vec::new();
        for Finished { index, result, output, state, is_rescored, .. } in trials {
            self.rows.set(index, &result);
            self.sections.set(&self.plan, index, &result);
            if is_rescored {
                if let (Some(collector), Some(output)) = (&mut self.collector, output) {
                    collector.rescored(output);
                }
                continue;
            }
            tracing::info!(trial = %self.plan.trial(index), reward = ?result.reward, error = ?result.error, "trial ended");
            if let (false, Work::Example { .. }, Some(note)) =
                (self.told_scoring, &self.plan.parts(index).1.work, result.notes.first())
            {
                self.told_scoring = true;
                let message = format!("{note}. The notes of results tell of others");
                self.tell(Event::Warning { message });
            }
            if let Some(collector) = &mut self.collector {
                collector.ended(&result, state);
            }
            self.tell(Event::TrialFinished { index, result });
            outputs.extend(output);
        }
        if let (Some(collector), false) = (&mut self.collector, outputs.is_empty()) {
            let section = self.sections.get(0);
            let seconds = || self.earlier_seconds + self.clock.elapsed().as_secs_f64();
            let metadata = || section.so_far(&self.plan, &self.rows, seconds());
            collector.group(outputs, &metadata).await;
        }
    }

    /// Stops a job whose trials fail one after the other with one cause. One of which nothing is kept goes on: it could
    /// not be resumed.
    fn stop_early(&mut self, index: TrialIndex, result: &TrialResult) {
        let (_, task, _) = self.plan.place(index);
        let stop = self.streak.add(result, task, self.plan.tasks().len());
        if self.dir.is_some() && self.stopped.is_none() && !self.stop.is_cancelled() {
            self.stopped = stop;
            if self.stopped.is_some() {
                self.stop.cancel();
            }
        }
    }

    /// Has averages written that changed, though not too often.
    fn write_metadata(&mut self, recorder: &Recorder) {
        let now = Instant::now();
        if !recorder.writes() || self.metadata_at.is_some_and(|at| now - at < METADATA_INTERVAL) {
            return;
        }
        let seconds = self.earlier_seconds + self.clock.elapsed().as_secs_f64();
        for section in self.sections.iter_mut().filter(|section| section.stale) {
            self.metadata_at = Some(now);
            section.stale = false;
            if let Some(path) = section.metadata_file() {
                recorder.metadata(path, section.so_far(&self.plan, &self.rows, seconds));
            }
        }
    }
}

pub(super) fn panicked(error: JoinError) -> JobError {
    JobError::Tasks(std::io::Error::other(error))
}

fn panicked_recorder(dir: Option<&JobDir>) -> JobError {
    JobError::Journal(JournalError::Io {
        action: "write",
        path: dir.map(JobDir::journal).unwrap_or_default(),
        source: std::io::Error::other("the thread that writes it panicked"),
    })
}
