//! Trials of a model on an example: run one by one, scored in groups.
//!
//! The rollouts of one example in a run share a [`Group`]. Each adds its state when it ends, and the last one scores
//! them all while it still counts as running.

use std::{
    io,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use futures_util::FutureExt as _;
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::{
    JobError, Plan,
    earlier_rows::{EarlierMember, EarlierRows, JournaledParts},
    not_run::{crashed, unreadable},
};
use crate::{config::RetryConfig, rollouts::Rollouts, trial::Progress};
use rollout_core::{
    event::ModelProgress,
    name::{TrialId, TrialIndex},
    result::{AgentUsage, ErrorType, FailureCause, TrialError, TrialResult},
    row::{OutputError, RolloutOutput, TaskResult},
    text::seconds,
};
use rollout_model::output::question_row;
use rollout_model::{
    Error, ErrorKind, Halt, Model, Share, State, output::state_to_output, output_to_state, replace_scores,
    rollout_observed,
};
use rollout_record::causes::TrialCause;

/// The end of the note about a rubric function that failed.
pub(crate) const COUNTS_AS_ZERO: &str = "it counts as 0";

/// What happens to finished rollouts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Keep {
    /// They become rows of a file.
    pub(super) rows: bool,
    /// They are passed to the caller.
    pub(super) outputs: bool,
    /// Events contain the end of the conversations of unsolved trials.
    pub(super) evidence: bool,
}

/// A finished trial, with what is saved of it.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) index: TrialIndex,
    pub(super) result: Arc<TrialResult>,
    /// Its line in the file of its section.
    pub(super) row: Option<Vec<u8>>,
    pub(super) output: Option<RolloutOutput>,
    /// The conversation of a model in a container, if the caller wants it.
    pub(super) state: Option<Box<State>>,
    /// What a rollout that is not solved ended with.
    pub(super) evidence: Option<String>,
    /// Why an answer of a benchmark could not be scored, although the question itself has no error.
    pub(super) unscored: Option<TrialError>,
    /// Whether an earlier run finished it, and only its scores are new.
    pub(super) is_rescored: bool,
}

impl Finished {
    /// A trial with only a result.
    pub(super) fn new(index: TrialIndex, result: TrialResult) -> Self {
        let result = Arc::new(result);
        Self {
            index,
            result,
            row: None,
            output: None,
            state: None,
            evidence: None,
            unscored: None,
            is_rescored: false,
        }
    }
}

/// How the task of one rollout ended.
pub(super) struct RolloutEnd {
    /// How the rollout itself ended.
    pub(super) fate: Fate,
    /// What the rollout itself cost in US dollars with its failed tries, as far as that is known.
    pub(super) cost: f64,
    /// The trials that have ended now: all of a group, or none.
    pub(super) finished: Vec<Finished>,
}

/// How a rollout ended.
pub(super) enum Fate {
    /// It finished.
    Done,
    /// It was cancelled.
    Cancelled,
    /// The server rejects the key.
    Unauthorized(Error),
    /// The server of a scoring model rejects its key.
    Unscored(Error),
    /// Rows of earlier members of its group cannot be read.
    Lost(JobError),
}

/// Why a rollout has no state.
enum Interrupted {
    /// It was cancelled, or its key was rejected.
    Halt(Halt),
    /// Its example cannot be read from the plan's file.
    Unreadable(io::Error),
}

impl From<Halt> for Interrupted {
    fn from(halt: Halt) -> Self {
        Self::Halt(halt)
    }
}

/// Why finished members have no scores.
enum Unscored {
    /// A scoring model has the wrong key.
    Unauthorized(Error),
    /// The rows of earlier members cannot be read.
    Lost(JobError),
    /// Scoring was still running when the job had to stop. A resume repeats them.
    Stopped,
}

/// How long a job that stops waits for the scores of finished rollouts.
const SCORING_GRACE: Duration = Duration::from_secs(30);

/// The minimum interval between two reports of what a rollout used. Most rollouts are shorter, and report nothing.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// The rollouts of one example that are scored together.
pub(super) struct Group {
    plan: Arc<Plan>,
    rollouts: Arc<Rollouts>,
    model: Arc<Model>,
    keep: Keep,
    /// Rows of members that an earlier run finished, and which of them belong to this group.
    earlier: (Arc<EarlierRows>, Vec<TrialIndex>),
    seats: Mutex<Seats>,
}

struct Seats {
    /// Members that have not ended.
    open: u64,
    over: Vec<Member>,
}

/// A rollout that has ended and is not yet scored.
struct Member {
    index: TrialIndex,
    tries: u32,
    state: State,
}

impl Group {
    pub(super) fn new(
        plan: Arc<Plan>,
        rollouts: Arc<Rollouts>,
        model: Arc<Model>,
        keep: Keep,
        members: u64,
        (earlier, (agent, task)): (Arc<EarlierRows>, (usize, usize)),
    ) -> Self {
        let all = (1..=plan.tasks[task].attempts).map(|attempt| plan.index(agent, task, attempt));
        let ours = all.filter(|index| earlier.contains(*index)).collect();
        let over = Vec::with_capacity(members as usize);
        let model = match model.client.on_one_replica() {
            Some(client) => Arc::new(Model { client, ..(*model).clone() }),
            None => model,
        };
        let seats = Mutex::new(Seats { open: members, over });
        Self { plan, rollouts, model, keep, earlier: (earlier, ours), seats }
    }

    /// Runs one member to its end, and scores the group if it was the last.
    pub(super) async fn run(
        self: Arc<Self>,
        index: TrialIndex,
        progress: impl Fn(Progress) + Send + Sync,
        cancel: CancellationToken,
        share: Option<Share>,
    ) -> RolloutEnd {
        // Kept until the group is scored.
        let permit = tokio::select! {
            biased;
            () = cancel.cancelled() => Err(Halt::Cancelled),
            permit = Share::acquire_from(share.as_ref()) => Ok(permit),
        };
        let mut failed_tries = 0.0;
        let generated = match &permit {
            // A panic must not prevent the scoring of the other members.
            Ok(_) => {
                let generated = self.generate(index, &progress, &cancel, &mut failed_tries);
                AssertUnwindSafe(generated).catch_unwind().await
            }
            Err(halt) => Ok(Err(halt.clone().into())),
        };
        let mut finished = Vec::new();
        let (member, mut fate) = match generated {
            Ok(Ok((state, tries))) => (Some(Member { index, tries, state }), Fate::Done),
            Ok(Err(Interrupted::Halt(Halt::Cancelled))) => (None, Fate::Cancelled),
            Ok(Err(Interrupted::Halt(Halt::Unauthorized(error)))) => (None, Fate::Unauthorized(error)),
            Ok(Err(Interrupted::Unreadable(error))) => {
                finished.push(Finished::new(index, unreadable(&self.plan, index, &error)));
                (None, Fate::Done)
            }
            Err(_) => {
                finished.push(self.crashed(index));
                (None, Fate::Done)
            }
        };
        let last_try = member.as_ref().and_then(|member| member.state.usage.cost).unwrap_or_default();
        let cost = failed_tries + last_try;
        if let Some(members) = self.leave(member) {
            let stopped = async {
                cancel.cancelled().await;
                tokio::time::sleep(SCORING_GRACE).await;
            };
            match self.scored(members, stopped).await {
                Ok(scored) => finished.extend(scored),
                Err(Unscored::Unauthorized(error)) => fate = Fate::Unscored(error),
                Err(Unscored::Lost(error)) => fate = Fate::Lost(error),
                Err(Unscored::Stopped) => fate = Fate::Cancelled,
            }
        }
        RolloutEnd { fate, cost, finished }
    }

    /// Scores members. If the job has to stop, scoring is limited in time.
    async fn scored(
        &self,
        members: Vec<Member>,
        stopped: impl Future<Output = ()>,
    ) -> Result<Vec<Finished>, Unscored> {
        let indexes: Vec<_> = members.iter().map(|member| member.index).collect();
        let scored = AssertUnwindSafe(self.score(members)).catch_unwind();
        tokio::select! {
            biased;
            scored = scored => match scored {
                Ok(scored) => scored,
                Err(_) => Ok(indexes.into_iter().map(|index| self.crashed(index)).collect()),
            },
            () = stopped => Err(Unscored::Stopped),
        }
    }

    fn crashed(&self, index: TrialIndex) -> Finished {
        tracing::error!(trial = %self.plan.trial(index), "trial panicked");
        Finished::new(index, crashed(&self.plan, index))
    }

    /// Removes a member that was never started. If all others have ended, they are scored.
    pub(super) fn abandon(
        self: Arc<Self>,
        members: u64,
    ) -> Option<impl Future<Output = RolloutEnd> + Send + use<>> {
        let mut rest = None;
        for _ in 0..members {
            rest = self.leave(None);
        }
        let rest = rest?;
        // The job is about to stop, so a rejected key changes nothing.
        Some(async move {
            let scored = self.scored(rest, tokio::time::sleep(SCORING_GRACE)).await;
            RolloutEnd { fate: Fate::Done, cost: 0.0, finished: scored.unwrap_or_default() }
        })
    }

    /// Ends a member, with its state if it has one. Returns all members for the last one.
    fn leave(&self, member: Option<Member>) -> Option<Vec<Member>> {
        let mut seats = self.seats.lock().unwrap_or_else(PoisonError::into_inner);
        seats.open -= 1;
        seats.over.extend(member);
        if seats.open > 0 || seats.over.is_empty() {
            return None;
        }
        let mut over = std::mem::take(&mut seats.over);
        // Independent of the order in which they ended.
        over.sort_unstable_by_key(|member| member.index);
        Some(over)
    }

    /// Runs the tries of a rollout. Returns the last state and the number of tries. What the others cost is added to
    /// `failed_tries`, also if the rollout is cancelled.
    async fn generate(
        &self,
        index: TrialIndex,
        progress: &(impl Fn(Progress) + Send + Sync),
        cancel: &CancellationToken,
        failed_tries: &mut f64,
    ) -> Result<(State, u32), Interrupted> {
        let mut input = self.plan.input(index).await.map_err(Interrupted::Unreadable)?;
        let retry = &self.plan.config().retry;
        let mut tries = 1;
        loop {
            let Rollouts { interaction, limits, .. } = &*self.rollouts;
            let model = Arc::clone(&self.model);
            let reported = Mutex::new(Instant::now());
            let after_turn = |state: &State| {
                let mut reported = reported.lock().unwrap_or_else(PoisonError::into_inner);
                if reported.elapsed() >= PROGRESS_INTERVAL {
                    *reported = Instant::now();
                    progress(Progress::Model(used(state)));
                }
            };
            let input = match retry.delay_after(tries) {
                Some(_) => input.clone(),
                None => std::mem::take(&mut input),
            };
            let state = rollout_observed(&**interaction, limits, input, model, cancel, &after_turn).await?;
            let retried = state.error.as_ref().filter(|error| error.kind.is_retried());
            let delay = retried.and_then(|error| {
                let delay = retry.delay_after(tries)?;
                Some((trial_error(&error.into()), jittered(delay)))
            });
            let Some((error, delay)) = delay else { return Ok((state, tries)) };
            *failed_tries += state.usage.cost.unwrap_or_default();
            progress(Progress::Retry { failed_try: tries, error, delay });
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                () = cancel.cancelled() => return Err(Halt::Cancelled.into()),
            }
            tries += 1;
        }
    }

    /// Scores all members together, or each separately, and creates their results. Returns none if a scoring model has
    /// the wrong key, because zeros would look like scores.
    async fn score(&self, members: Vec<Member>) -> Result<Vec<Finished>, Unscored> {
        let mut numbers = Vec::with_capacity(members.len());
        let mut states = Vec::with_capacity(members.len());
        for Member { index, tries, state } in members {
            numbers.push((index, tries));
            states.push(state);
        }
        let rubric = &self.rollouts.rubric;
        if self.rollouts.independent_scoring {
            for state in states.iter_mut().filter(|state| self.rollouts.scores(state)) {
                if let Err(error) = rubric.score_rollout(state).await {
                    let error = Error::new(ErrorKind::Any, error.to_string());
                    state.error.get_or_insert(error);
                }
            }
        } else if self.earlier.1.is_empty() {
            rubric.score_group(&mut states).await;
        } else {
            return self.score_with_earlier(numbers, states).await;
        }
        if let Some(error) = states.iter().find_map(State::refused_key) {
            return Err(Unscored::Unauthorized(error.clone()));
        }
        let pairs = numbers.into_iter().zip(states);
        Ok(pairs.map(|((index, tries), state)| self.finish(index, tries, &state)).collect())
    }

    /// Scores members together with those of their group that an earlier run finished, which get new rows if their
    /// scores change. Their rows come first: if the process dies in between, a member of this run is missing, and the
    /// group is scored again.
    async fn score_with_earlier(
        &self,
        numbers: Vec<(TrialIndex, u32)>,
        fresh: Vec<State>,
    ) -> Result<Vec<Finished>, Unscored> {
        let (rows, ours) = (Arc::clone(&self.earlier.0), self.earlier.1.clone());
        let read = tokio::task::spawn_blocking(move || rows.read(&ours)).await;
        let read = read.unwrap_or_else(|error| Err(JobError::Tasks(std::io::Error::other(error))));
        let saved = read.map_err(Unscored::Lost)?;
        // Ordered by attempt, independent of the run.
        let mut members: Vec<(TrialIndex, JournaledParts, State, Option<RolloutOutput>)> = Vec::new();
        for EarlierMember { index, journaled, output } in saved {
            if let Some(state) = output_to_state(output.clone(), &self.model) {
                members.push((index, journaled, state, Some(output)));
            }
        }
        let fresh = numbers.into_iter().zip(fresh);
        members.extend(fresh.map(|((index, tries), state)| {
            let journaled = JournaledParts { tries, ..JournaledParts::default() };
            (index, journaled, state, None)
        }));
        members.sort_by_key(|(index, ..)| *index);
        let is_scored: Vec<bool> = members.iter().map(|(.., row)| row.is_some()).collect();
        let (mut states, rest): (Vec<State>, Vec<_>) =
            members.into_iter().map(|(index, parts, state, row)| (state, (index, parts, row))).unzip();
        self.rollouts.rubric.score_resumed_group(&mut states, &is_scored).await;
        if let Some(error) = states.iter().find_map(State::refused_key) {
            return Err(Unscored::Unauthorized(error.clone()));
        }
        let (mut finished, mut new) = (Vec::new(), Vec::new());
        for (state, (index, journaled, row)) in states.iter().zip(rest) {
            match row {
                None => new.push(self.finish(index, journaled.tries, state)),
                // A row of another program has no number that says which row replaces it, so it stays as it is.
                Some(before) if before.attempt.is_none() => {}
                Some(before) => finished.extend(self.rescore(index, journaled, state, before)),
            }
        }
        finished.extend(new);
        Ok(finished)
    }

    /// A rollout of an earlier run with its new scores in the whole group; none if they are the same. Its notes stay,
    /// because only the functions over the group run again.
    fn rescore(
        &self,
        index: TrialIndex,
        JournaledParts { tries, notes }: JournaledParts,
        state: &State,
        before: RolloutOutput,
    ) -> Option<Finished> {
        let mut output = before.clone();
        replace_scores(&mut output, state);
        if output == before {
            return None;
        }
        let mut result = trial_result(&self.plan.trial(index), &output);
        self.redact(&mut result.error);
        (result.tries, result.agent_starts) = (tries, tries);
        let new = self.scoring_notes(state).filter(|note| !notes.contains(note)).collect::<Vec<_>>();
        result.notes = [notes, new].concat();
        let row = self.keep.rows.then(|| self.line(&output));
        let output = self.keep.outputs.then_some(output);
        Some(Finished { row, output, is_rescored: true, ..Finished::new(index, result) })
    }

    fn finish(&self, index: TrialIndex, tries: u32, state: &State) -> Finished {
        let (_, _, attempt) = self.plan.parts(index);
        let trial = self.plan.trial(index);
        let answered = self.rollouts.results.map(|form| {
            let row = question_row(state, form);
            (form, TaskResult { attempt: Some(attempt), ..row })
        });
        let output = match &answered {
            Some((_, answered)) => {
                answered.clone().try_into().expect("the result of a rollout has the number of its example")
            }
            None => {
                let mut output = state_to_output(state, &self.rollouts.state_columns)
                    .expect("the columns were checked before the run");
                output.attempt = Some(attempt);
                output
            }
        };
        let mut result = trial_result(&trial, &output);
        (result.tries, result.agent_starts) = (tries, tries);
        result.notes = self.scoring_notes(state).collect();
        let cleanups = state.cleanup_errors.iter().map(ToString::to_string);
        result.notes.extend(cleanups.map(|note| self.plan.redactor().text(&note).into_owned()));
        self.redact(&mut result.error);
        let row = self.keep.rows.then(|| match &answered {
            Some((form, answered)) => self.line(&answered.kept(form.kept)),
            None => self.line(&output),
        });
        result.pass_threshold = self.plan.parts(index).1.pass_threshold();
        let is_unsolved = self.keep.evidence && result.is_solved() == Some(false) && result.error.is_none();
        let evidence =
            is_unsolved.then(|| TrialCause::of_ending(&(&output).into(), self.plan.redactor()).text);
        let output = self.keep.outputs.then_some(output);
        let unscored = state.scoring_failure().filter(|_| result.error.is_none());
        let mut unscored = unscored.map(|error| trial_error(&error.into()));
        self.redact(&mut unscored);
        Finished { row, output, evidence, unscored, ..Finished::new(index, result) }
    }

    /// The failures of scoring functions, without secrets. One that is the error of the rollout is not repeated.
    fn scoring_notes(&self, state: &State) -> impl Iterator<Item = String> {
        let reported = state.failure().filter(|_| self.rollouts.results.is_none());
        state
            .scoring_errors
            .iter()
            .filter(move |error| Some(*error) != reported)
            .map(|error| self.plan.redactor().text(&format!("{error}; {COUNTS_AS_ZERO}")).into_owned())
    }

    fn redact(&self, error: &mut Option<TrialError>) {
        if let Some(error) = error {
            error.message = self.plan.redactor().text(&error.message).into_owned();
        }
    }

    /// A row as a line of a file, without secrets.
    fn line(&self, row: &impl Serialize) -> Vec<u8> {
        let mut line = serde_json::to_vec(row).expect("a row is data with text for keys");
        let redactor = self.plan.redactor();
        if redactor.finds(&line) {
            let value = serde_json::to_value(row).expect("a row is data with text for keys");
            line = redactor.json(value).to_string().into_bytes();
        }
        line.push(b'\n');
        line
    }
}

/// What a rollout used of its model so far.
fn used(state: &State) -> ModelProgress {
    ModelProgress {
        turns: state.trajectory.len() as u64,
        input_tokens: state.usage.input_tokens as u64,
        output_tokens: state.usage.output_tokens as u64,
        cost: state.usage.cost,
    }
}

/// A delay with up to one second of jitter, so that rollouts that failed together are not retried together.
fn jittered(delay: Duration) -> Duration {
    delay + delay.min(Duration::from_secs(1)).mul_f64(fastrand::f64())
}

/// Converts an error of a rollout to that of a trial.
fn trial_error(error: &OutputError) -> TrialError {
    let kind = match ErrorKind::of_row(error) {
        Some(ErrorKind::Custom { is_infrastructure: true, .. }) => ErrorType::InteractionFailed,
        Some(kind) if kind.is(ErrorKind::Infra) => ErrorType::EnvironmentStartFailed,
        Some(kind) if kind.fault() != FailureCause::Infrastructure => ErrorType::AgentExecutionFailed,
        Some(ErrorKind::Any | ErrorKind::Tool | ErrorKind::ToolCall) => ErrorType::InteractionFailed,
        Some(_) => ErrorType::ModelFailed,
        // An error of another program.
        None => ErrorType::AgentExecutionFailed,
    };
    TrialError { kind, message: format!("{}: {}", error.error_chain_str, error.message) }
}

/// The result of a trial, derived only from its row, so that it is the same when the row is read again.
pub(super) fn trial_result(trial: &TrialId, output: &RolloutOutput) -> TrialResult {
    let timing = output.timing;
    let started_at = moment(timing.start_time);
    let after = |millis: f64| started_at.saturating_add(SignedDuration::from_micros((millis * 1e3) as i64));
    let mut result = TrialResult::empty(trial, started_at);
    result.reward = (!output.is_unscored).then_some(output.reward);
    result.rewards = output.metrics.clone();
    if let Some(usage) = output.token_usage {
        result.usage = Some(AgentUsage {
            input_tokens: Some(usage.input_tokens as u64),
            output_tokens: Some(usage.output_tokens as u64),
            cached_tokens: (usage.cached_tokens > 0.0).then_some(usage.cached_tokens as u64),
            cost_usd: usage.cost,
        });
        result.model_cost = usage.cost;
        result.cost = usage.cost.unwrap_or_default();
    }
    result.agent_starts = 1;
    result.error = output.error.as_ref().map(trial_error);
    let sec = |millis: f64| seconds(Duration::try_from_secs_f64(millis / 1e3).unwrap_or_default());
    result.durations.total_sec = sec(timing.total_ms);
    result.durations.agent_execution_sec = Some(sec(timing.generation_ms));
    result.durations.verifier_sec = Some(sec(timing.scoring_ms));
    result.timestamps.agent_execution_started_at = Some(started_at);
    result.timestamps.agent_execution_ended_at = after(timing.generation_ms).ok();
    result.timestamps.ended_at = after(timing.total_ms).unwrap_or(started_at);
    result
}

fn moment(seconds: f64) -> Timestamp {
    Timestamp::from_microsecond((seconds * 1e6) as i64).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// The default retries of rollouts: none.
pub(crate) fn retry_config(max_retries: u32) -> RetryConfig {
    RetryConfig {
        max_attempts: std::num::NonZeroU32::MIN.saturating_add(max_retries),
        initial_delay_ms: 1000,
        max_delay_ms: 60_000,
        multiplier: 2.0,
    }
}
