//! The dispatcher: starts trials, receives their events, and decides their order.

mod progress;
mod stop;

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
    gateway,
    image_uses::ImageUses,
    not_run::{crashed, no_model},
    planned::Work,
    provenance::Origin,
    recorder::{Panicked, Recorded, Recorder},
    rollouts::{Fate, Finished, Group, Keep, RolloutEnd},
    saved_rows::SavedRows,
    sections::Sections,
    spending::Spending,
    streak::FailureStreak,
    summary::{self, ResultFile, Rows, Times},
};
use crate::trial::{self, Installs, Progress, Trial, TrialCosts, TrialEnd};
use rollout_core::{
    event::{Event, JobKind, Phase},
    name::TrialIndex,
    result::{EarlyStop, JobResult},
};
use rollout_env::Provider;
use rollout_gateway::Gateway;
use rollout_model::Share;
use rollout_record::{atomic, journal::JournalEntry, layout::JobDir};

/// If more bytes of rows wait to be written, no more rollouts are started.
const MAX_WAITING_BYTES: usize = 8 << 20;

/// The minimum interval between two writes of averages.
const METADATA_INTERVAL: Duration = Duration::from_secs(1);

impl Job {
    /// Runs the trials, and writes their results.
    pub(super) async fn dispatch(
        mut self,
        events: &UnboundedSender<Event>,
        cancel: Cancel,
    ) -> Result<JobResult, JobError> {
        if let Some(ended_at) = self.settled_at {
            return self.report_again(ended_at, events).await;
        }
        let gateway = gateway::start(&self.plan).await?;
        let installs = Arc::new(self.installs(&cancel).await);
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
                .map_err(JobError::panicked)??;
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

        let spending = Spending::new(plan.config().budget.usd, rows.costs());
        let (progress, reports) = mpsc::unbounded_channel();
        let mut dispatcher = Dispatcher {
            plan: Arc::clone(&plan),
            provider,
            installs,
            images: ImageUses::new(&plan, &todo),
            gateway,
            name: Arc::clone(&name),
            dir: dir.clone(),
            scratch,
            share,
            keep: Keep {
                rows: recorder.writes(),
                outputs: collector.is_some(),
                evidence: !events.is_closed(),
            },
            events: events.clone(),
            rows,
            earlier_rows,
            streak: FailureStreak::default(),
            spending,
            reported_unknown_cost: false,
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
            reported_scoring: false,
            has_skipped: false,
            cancelled: false,
            failure: None,
        };
        dispatcher.run(todo, &recorder, &mut recorded, reports, &cancel).await;
        dispatcher.images.finish().await;
        // Trials that still run after an immediate cancel end with the connection of their environment.
        dispatcher.running = JoinSet::new();
        let journal =
            recorder.finish().await.map_err(|Panicked| JobError::recorder_panicked(dir.as_ref()))?;
        // Results that were being written when the job was cancelled immediately.
        while let Ok(done) = recorded.try_recv() {
            // A caller that is not ready to receive rows does not get these.
            let _ = dispatcher.recorded(done).now_or_never();
        }
        let Dispatcher { rows, sections, cancelled, stopped, failure, mut collector, .. } = dispatcher;

        let ended_at = Timestamp::now();
        let seconds = history.seconds + clock.elapsed().as_secs_f64();
        // After an immediate cancel, the result is written first.
        let teardown_warnings = tokio::select! {
            biased;
            () = cancel.now.cancelled() => Vec::new(),
            left = settle(&*settling, events) => left,
        };
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
            // The reason for stopping explains more than a later failure.
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
                let file = ResultFile::new(
                    &plan,
                    &rows,
                    &report,
                    &result,
                    provenance.as_deref(),
                    &teardown_warnings,
                );
                atomic::write_json(&dir.result(), &file)?;
            }
            Ok::<_, JobError>(result)
        })
        .await
        .map_err(JobError::panicked)??;
        let _ = events.send(Event::JobFinished { result: Arc::new(result.clone()) });
        Ok(result)
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

/// How a task of the dispatcher ended.
enum End {
    Trial(TrialEnd),
    Rollout(RolloutEnd),
}

struct Dispatcher {
    plan: Arc<Plan>,
    provider: Arc<dyn Provider>,
    installs: Arc<Installs>,
    images: ImageUses,
    gateway: Option<Arc<Gateway>>,
    name: Arc<str>,
    dir: Option<JobDir>,
    scratch: Option<JobDir>,
    share: Option<Share>,
    keep: Keep,
    events: UnboundedSender<Event>,
    rows: Rows,
    earlier_rows: Arc<EarlierRows>,
    streak: FailureStreak,
    spending: Spending,
    /// Whether a trial whose cost is unknown was reported.
    reported_unknown_cost: bool,
    /// Why the job stops before all trials have run.
    stopped: Option<EarlyStop>,
    sections: Sections,
    collector: Option<Box<dyn Collector>>,
    clock: Instant,
    earlier_seconds: f64,
    /// When averages were last sent to the recorder.
    metadata_at: Option<Instant>,
    /// Stops running trials: on a cancel, or if results cannot be recorded.
    stop: CancellationToken,
    progress: UnboundedSender<(TrialIndex, Progress)>,
    running: JoinSet<End>,
    indexes: HashMap<Id, TrialIndex>,
    /// The group whose rollouts are being started, and how many are left.
    group: Option<(Arc<Group>, u64)>,
    /// The bytes of the rows of each group in the recorder, in order.
    in_recorder: VecDeque<usize>,
    /// The sum of these bytes.
    waiting_bytes: usize,
    /// Whether a failing function of a rubric was reported.
    reported_scoring: bool,
    /// Whether a running trial was stopped.
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
                && self.stopped.is_none()
                && self.running.len() < concurrency
                && self.has_room()
                && self.spending.may_start()
                && let Some((index, rest)) = queue.split_first()
            {
                self.start(*index, rest, recorder);
                queue = rest;
            }
            if self.running.is_empty() && self.in_recorder.is_empty() && !queue.is_empty() {
                self.stop_at_budget();
            }
            if self.stop.is_cancelled() || self.stopped.is_some() {
                self.abandon_group();
            }
            if self.running.is_empty() && self.in_recorder.is_empty() {
                self.cancelled |= !queue.is_empty() && cancel.graceful.is_cancelled();
                // If the last trials failed, there was nothing left to stop.
                self.stopped = self.stopped.take().filter(|_| !queue.is_empty() || self.has_skipped);
                return;
            }
            // In this order, events of a trial are received before its end.
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
                Some((index, progress)) = reports.recv() => self.on_progress(index, progress),
                Some(done) = recorded.recv() => {
                    tokio::select! {
                        biased;
                        () = self.recorded(done) => self.write_metadata(recorder),
                        // A slow receiver of rows does not keep the job from stopping.
                        () = cancel.now.cancelled() => {}
                    }
                }
                Some(ended) = self.running.join_next_with_id() => self.ended(ended, recorder),
            }
        }
    }

    fn tell(&self, event: Event) {
        // The job continues without a receiver of its events.
        let _ = self.events.send(event);
    }

    /// Whether few enough rows are waiting to be written; they are in memory until then.
    fn has_room(&self) -> bool {
        self.waiting_bytes < MAX_WAITING_BYTES
    }

    /// Starts a trial. `rest` shows how large its group is.
    fn start(&mut self, index: TrialIndex, rest: &[TrialIndex], recorder: &Recorder) {
        let plan = Arc::clone(&self.plan);
        let (agent, task, _) = plan.parts(index);
        let id = plan.trial(index);
        self.images.started(&plan, index);
        self.spending.started(index);
        let progress = self.progress.clone();
        let costs = self.progress.clone();
        let costs = move |dollars| {
            let _ = costs.send((index, Progress::EnvironmentCost(dollars)));
        };
        let progress = move |report| {
            let _ = progress.send((index, report));
        };
        tracing::info!(trial = %id, "trial started");
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
                    env: Arc::clone(&work.env),
                    provider: Arc::clone(&self.provider),
                    installs: Arc::clone(&self.installs),
                    packages: plan.packages.clone(),
                    gateway: self.gateway.clone(),
                    dir: dir.trial(&id),
                    redactor: Arc::clone(plan.redactor()),
                    progress: Box::new(progress),
                    costs: TrialCosts::new(costs),
                    cancel: self.stop.clone(),
                    share: self.share.clone(),
                    keeps_state: self.keep.outputs,
                    regrade: plan.regrade_of(&id),
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

    fn ended(&mut self, ended: Result<(Id, End), JoinError>, recorder: &Recorder) {
        let (id, end) = match ended {
            Ok((id, end)) => (id, Ok(end)),
            Err(error) => (error.id(), Err(error)),
        };
        let index = self.indexes.remove(&id);
        if let Some(index) = index {
            self.images.ended(&self.plan, &self.provider, index);
        }
        let finished = match (end, index) {
            (Ok(End::Trial(TrialEnd::Finished { result, state })), Some(index)) => {
                vec![Finished { state, ..Finished::new(index, *result) }]
            }
            (Ok(End::Trial(TrialEnd::Cancelled)), Some(index)) => {
                self.has_skipped = true;
                self.spending.abandoned(index);
                self.tell(Event::TrialSkipped { index });
                return;
            }
            (Ok(End::Trial(TrialEnd::Unauthorized(error))), Some(index)) => {
                self.spending.abandoned(index);
                self.unauthorized(index, error);
                return;
            }
            (Ok(End::Rollout(RolloutEnd { fate, cost, finished })), index) => {
                // The result comes with those of its group, and the next trial starts before.
                match (&fate, index) {
                    (Fate::Cancelled | Fate::Unauthorized(_), Some(index)) => {
                        self.spending.abandoned_at(index, cost);
                    }
                    (_, Some(index)) => self.spending.ended(index, cost),
                    (_, None) => {}
                }
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
                // Its result has no cost.
                self.spending.abandoned(index);
                vec![Finished::new(index, crashed(&self.plan, index))]
            }
            (_, None) => return,
        };
        self.hand_over(finished, recorder);
    }

    /// Sends trials that ended together to the recorder.
    fn hand_over(&mut self, mut finished: Vec<Finished>, recorder: &Recorder) {
        if !finished.is_empty() {
            for trial in &mut finished {
                let threshold = self.plan.parts(trial.index).1.pass_threshold();
                Arc::make_mut(&mut trial.result).pass_threshold = threshold;
                if !trial.is_rescored {
                    self.spend(trial.index, &trial.result);
                    self.stop_early(trial);
                }
            }
            let bytes = finished.iter().filter_map(|trial| trial.row.as_ref()).map(Vec::len).sum::<usize>();
            self.in_recorder.push_back(bytes);
            self.waiting_bytes += bytes;
            let trials = finished.into_iter().map(|trial| (self.sections.of(trial.index), trial));
            recorder.record(trials.collect());
        }
    }

    /// Updates the counts for a group that has left the recorder. Groups leave in order.
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
                // Nothing more can be recorded, so running trials would be lost.
                self.stop.cancel();
                self.failure = self.failure.take().or(reason);
                return;
            }
            Recorded::Warning(message) => return self.tell(Event::Warning { message }),
        };
        let mut outputs = Vec::new();
        for Finished { index, result, output, state, evidence, is_rescored, .. } in trials {
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
                (self.reported_scoring, &self.plan.parts(index).1.work, result.notes.first())
            {
                self.reported_scoring = true;
                let message = format!("{note}. Others are in the notes of results");
                self.tell(Event::Warning { message });
            }
            if let Some(collector) = &mut self.collector {
                collector.ended(&result, state);
            }
            self.tell(Event::TrialFinished { index, result, evidence });
            outputs.extend(output);
        }
        if let (Some(collector), false) = (&mut self.collector, outputs.is_empty()) {
            let section = self.sections.get(0);
            let seconds = || self.earlier_seconds + self.clock.elapsed().as_secs_f64();
            let metadata = || section.so_far(&self.plan, &self.rows, seconds());
            collector.group(outputs, &metadata).await;
        }
    }

    /// Writes changed averages, at most once per interval.
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
