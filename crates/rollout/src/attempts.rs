//! Attempts of a model at container tasks, scored as a group: [`TaskRollouts::attempt`]. They run as a job.

use std::{
    collections::BTreeSet,
    fmt, mem,
    num::NonZeroU32,
    sync::{Arc, Mutex, PoisonError},
};

use futures_util::future::BoxFuture;
use tempfile::TempDir;
use tokio::sync::mpsc;

use crate::job::{Cancel, Collector, Job, JobError, Plan, PlanTask};
use rollout_core::{
    advantage::Advantage,
    result::{FailureCause, TrialError, TrialResult},
    row::RolloutOutput,
};
use rollout_env::{Provider, blocking::blocking};
use rollout_model::{
    Cause, Error, ErrorKind, Model, RolloutInput, Rubric, Share, State, output::state_to_output,
};

/// Tasks in containers for the training of models.
///
/// The tests of the task give the reward of an attempt. Only the returned row is kept.
///
/// ```no_run
/// # use std::{num::NonZeroU32, sync::Arc};
/// # use rollout::{environment::Provider, job::Plan, model::Model};
/// use rollout::model::{TaskAttempts, TaskRollouts};
///
/// # async fn train(plan: Plan, provider: Arc<dyn Provider>, model: Model) -> Result<(), Box<dyn std::error::Error>> {
/// let tasks = TaskRollouts::new(plan, provider);
/// for (place, task) in tasks.tasks().iter().enumerate() {
///     let four = TaskAttempts {
///         columns: vec!["advantage".to_owned(), "training_samples".to_owned()],
///         ..TaskAttempts::new(NonZeroU32::new(4).unwrap(), model.clone())
///     };
///     for row in tasks.attempt(place, four).await?.outputs {
///         println!("{}: {} {}", task.name(), row.reward, row.columns["advantage"]);
///     }
/// }
/// # Ok(())
/// # }
/// ```
pub struct TaskRollouts {
    plan: Plan,
    provider: Arc<dyn Provider>,
}

/// How a task is attempted.
#[derive(Debug, Clone)]
pub struct TaskAttempts {
    /// The number of attempts: the size of the group.
    pub attempts: NonZeroU32,
    /// The model.
    pub model: Arc<Model>,
    /// How advantages are computed from the rewards of the group.
    pub advantage: Advantage,
    /// Whether attempts that failed or timed out count in the baseline of the advantages, and give training samples.
    pub include_errors: bool,
    /// Fields of the state to include in the rows.
    pub columns: Vec<String>,
    /// Each attempt waits for a permit of this share, if other runs share a limit with it.
    pub share: Option<Share>,
    /// Secrets to mask, in addition to those of the job.
    pub secrets: Vec<String>,
    /// Cancels the attempts.
    pub cancel: Cancel,
}

impl TaskAttempts {
    /// This many attempts of a model, with the mean of the group as the baseline.
    pub fn new(attempts: NonZeroU32, model: impl Into<Arc<Model>>) -> Self {
        Self {
            attempts,
            model: model.into(),
            advantage: Advantage::default(),
            include_errors: false,
            columns: Vec::new(),
            share: None,
            secrets: Vec::new(),
            cancel: Cancel::default(),
        }
    }
}

/// The results of the attempts at a task.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskOutputs {
    /// A row for each attempt, in order.
    pub outputs: Vec<RolloutOutput>,
    /// Whether the attempts were cancelled, so that rows are missing.
    pub cancelled: bool,
}

impl TaskRollouts {
    /// The tasks of a plan whose first agent is a model, in environments of this provider.
    pub fn new(plan: Plan, provider: Arc<dyn Provider>) -> Self {
        Self { plan, provider }
    }

    /// The tasks.
    pub fn tasks(&self) -> &[PlanTask] {
        self.plan.tasks()
    }

    /// Attempts the task at this index, and scores the attempts as a group.
    ///
    /// Unless [errors are included](TaskAttempts::include_errors), an attempt that failed or timed out is excluded from
    /// the baseline of the advantages, and has no advantage. The `example_id` in its row is the index of the task.
    pub fn attempt(&self, task: usize, how: TaskAttempts) -> BoxFuture<'_, Result<TaskOutputs, JobError>> {
        Box::pin(async move {
            let TaskAttempts { attempts, model, advantage, include_errors, columns, share, secrets, cancel } =
                how;
            let baseline = Rubric::new().advantage(advantage).include_errors(include_errors);
            let plan = self.plan.of_task(task, attempts, Arc::clone(&model), &secrets);
            let scratch = blocking(TempDir::new).await;
            let scratch =
                scratch.map_err(|source| JobError::Directory { path: std::env::temp_dir(), source })?;
            let ended = Arc::new(Mutex::new(Vec::new()));
            let directory = scratch.path().to_owned();
            let mut job = Job::in_scratch(plan, Arc::clone(&self.provider), directory, share);
            job.collect(Gather(Arc::clone(&ended)));
            let (events, _) = mpsc::unbounded_channel();
            let run = job.run(events, cancel).await;
            if let Err(error) = blocking(move || scratch.close()).await {
                tracing::warn!(%error, "cannot remove the files of an attempt");
            }
            let cancelled = run?.cancelled;
            let ended = mem::take(&mut *ended.lock().unwrap_or_else(PoisonError::into_inner));
            let example = Example { id: task as u64, name: self.tasks()[task].name(), model };
            let outputs = example.rows(ended, baseline, &columns).await;
            Ok(TaskOutputs { outputs, cancelled })
        })
    }
}

impl fmt::Debug for TaskRollouts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TaskRollouts({} tasks on {})", self.tasks().len(), self.provider.name())
    }
}

/// A finished trial, with its conversation if there was one.
type Attempt = (Arc<TrialResult>, Option<Box<State>>);

/// Collects attempts when they end.
struct Gather(Arc<Mutex<Vec<Attempt>>>);

impl Collector for Gather {
    fn ended(&mut self, result: &Arc<TrialResult>, state: Option<Box<State>>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((Arc::clone(result), state));
    }
}

/// What the rows of a group have in common.
struct Example<'a> {
    id: u64,
    name: &'a str,
    model: Arc<Model>,
}

impl Example<'_> {
    /// The rows of attempts, with advantages over all of them. `baseline` is a rubric without functions.
    async fn rows(
        &self,
        mut attempts: Vec<Attempt>,
        baseline: Rubric,
        columns: &[String],
    ) -> Vec<RolloutOutput> {
        attempts.sort_by_key(|(result, _)| result.attempt);
        let (results, mut states): (Vec<_>, Vec<_>) = attempts
            .into_iter()
            .map(|(result, state)| {
                let state = self.state(&result, state);
                (result, state)
            })
            .unzip();
        // The rubric knows only the rewards of the tests.
        let rewards: Vec<f64> = results.iter().map(|result| result.reward.unwrap_or(0.0)).collect();
        let mut rubric = baseline.group_reward("reward", 1.0, move |_| rewards.clone());
        let names: BTreeSet<&String> = results.iter().flat_map(|result| result.rewards.keys()).collect();
        for name in names {
            let named = |result: &Arc<TrialResult>| result.rewards.get(name).copied().unwrap_or(0.0);
            let said: Vec<f64> = results.iter().map(named).collect();
            rubric = rubric.group_reward(name.as_str(), 0.0, move |_| said.clone());
        }
        rubric.score_group(&mut states).await;
        let rows = results.iter().zip(&mut states).map(|(result, state)| {
            state.timing.scoring_ms = result.durations.verifier_sec.unwrap_or(0.0) * 1e3;
            state.timing.total_ms = result.durations.total_sec * 1e3;
            let mut row = state_to_output(state, columns).expect("the columns are data of every state");
            row.attempt = Some(result.attempt);
            row
        });
        rows.collect()
    }

    /// The state of an attempt, even if it ended before its conversation.
    fn state(&self, result: &TrialResult, state: Option<Box<State>>) -> State {
        let mut state = match state {
            Some(state) => *state,
            None => {
                let mut state = State::new(RolloutInput::default(), Arc::clone(&self.model), Arc::new([]));
                state.timing.start_time = result.timestamps.started_at.as_microsecond() as f64 / 1e6;
                state
            }
        };
        state.input.example_id = self.id;
        state.input.task = self.name.to_owned();
        if let Some(error) = &result.error {
            state.error.get_or_insert_with(|| error_of(error));
        }
        state
    }
}

/// Converts the error of a trial to that of a rollout.
fn error_of(TrialError { kind, message }: &TrialError) -> Error {
    let of_rollout = match kind.fault() {
        FailureCause::Infrastructure => ErrorKind::Infra,
        _ => ErrorKind::Any,
    };
    Error::new(of_rollout, "the attempt failed").because(Cause::new(kind.as_str(), message.as_str()))
}
