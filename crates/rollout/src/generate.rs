//! Many rollouts: [`Rollouts::generate`] and [`Rollouts::evaluate`]. They run as a job.

use std::{
    fmt,
    future::ready,
    io,
    num::NonZeroU32,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use serde_json::json;
use tokio::sync::mpsc;

use super::rollouts::Unusable;
use crate::rollouts::Rollouts;
use crate::{
    config::{JobConfig, LoadedJob, RetryConfig},
    job::{self, Cancel, Collector, ExampleSet, Job, JobError, Plan, PlanError, ResumeError},
};
use rollout_core::name::{AgentName, DatasetName};
use rollout_core::row::RolloutOutput;
use rollout_env::blocking::blocking;
use rollout_model::{AsyncHook, BoxFuture, Model, RolloutInput, Share, dataset};
use rollout_record::hub::{Hub, HubError, Push, PushFile, Pushed, RepoName};
use rollout_record::metadata::GenerateMetadata;

/// Called after each group: with all rows, the new ones, and the totals.
type OnProgress = Box<
    dyn for<'a> Fn(&'a [RolloutOutput], &'a [RolloutOutput], &'a GenerateMetadata) -> BoxFuture<'a, ()>
        + Send
        + Sync,
>;

/// Called once before the first rollout: with the number of all rollouts, and of those that remain.
type OnStart = Box<dyn FnOnce(usize, usize) + Send>;

/// Options of a run: the model, the concurrency, and what is saved.
///
/// ```
/// # fn example(model: rollout::model::Model) {
/// use rollout::model::RunOptions;
///
/// let options = RunOptions::new(model).max_concurrent(10).save_to("results/experiment_1");
/// # }
/// ```
pub struct RunOptions {
    model: Arc<Model>,
    max_concurrent: Option<NonZeroU32>,
    share: Option<Share>,
    save: Save,
    state_columns: Option<Vec<String>>,
    independent_scoring: Option<bool>,
    retry: RetryConfig,
    on_start: Option<OnStart>,
    on_progress: Option<OnProgress>,
    cancel: Cancel,
    hub: Option<Hub>,
    hub_dataset: Option<RepoName>,
}

enum Save {
    No,
    Under(PathBuf),
    To(PathBuf),
}

impl RunOptions {
    /// A model. By default nothing is saved, nothing is retried, and all rollouts run at the same time.
    pub fn new(model: impl Into<Arc<Model>>) -> Self {
        Self {
            model: model.into(),
            max_concurrent: None,
            share: None,
            save: Save::No,
            state_columns: None,
            independent_scoring: None,
            retry: job::rollouts::retry_config(0),
            on_start: None,
            on_progress: None,
            cancel: Cancel::default(),
            hub: None,
            hub_dataset: None,
        }
    }

    /// How many rollouts run at the same time; 0 for no limit.
    #[must_use]
    pub fn max_concurrent(self, rollouts: u32) -> Self {
        Self { max_concurrent: NonZeroU32::new(rollouts), ..self }
    }

    /// Makes each rollout wait for a permit of a limit that several runs share.
    #[must_use]
    pub fn share(self, share: Share) -> Self {
        Self { share: Some(share), ..self }
    }

    /// Saves rows and averages in a new directory `outputs/evals/<env_id>--<model>/<8 hexadecimal digits>`.
    #[must_use]
    pub fn save_results(self) -> Self {
        Self { save: Save::Under(PathBuf::from("outputs")), ..self }
    }

    /// Saves rows and averages in this directory. Rows that exist there are not repeated.
    #[must_use]
    pub fn save_to(self, directory: impl Into<PathBuf>) -> Self {
        Self { save: Save::To(directory.into()), ..self }
    }

    /// Fields of the state to include in the rows, instead of those of the [`Rollouts`].
    #[must_use]
    pub fn state_columns<S: Into<String>>(self, columns: impl IntoIterator<Item = S>) -> Self {
        Self { state_columns: Some(columns.into_iter().map(Into::into).collect()), ..self }
    }

    /// Whether each rollout is scored separately, instead of the setting of the [`Rollouts`].
    #[must_use]
    pub fn independent_scoring(self, independent_scoring: bool) -> Self {
        Self { independent_scoring: Some(independent_scoring), ..self }
    }

    /// How often a rollout is retried after a temporary error: an infrastructure error or a malformed response. The
    /// first wait is one second, and each following wait is twice as long.
    #[must_use]
    pub fn max_retries(self, max_retries: u32) -> Self {
        self.retry(job::rollouts::retry_config(max_retries))
    }

    /// How often and after which waits a rollout is retried.
    #[must_use]
    pub fn retry(self, retry: RetryConfig) -> Self {
        Self { retry, ..self }
    }

    /// Calls this before the first rollout.
    #[must_use]
    pub fn on_start(self, on_start: impl FnOnce(usize, usize) + Send + 'static) -> Self {
        Self { on_start: Some(Box::new(on_start)), ..self }
    }

    /// Calls this after each group: with all rows, the new ones, and the totals. No group is recorded while it runs.
    ///
    /// ```
    /// # use rollout::model::{Model, RunOptions};
    /// # fn options(model: Model, sender: tokio::sync::mpsc::Sender<usize>) -> RunOptions {
    /// RunOptions::new(model).on_progress(async move |all, _, so_far| {
    ///     println!("{} rollouts, reward {}", all.len(), so_far.avg_reward);
    ///     sender.send(all.len()).await.ok();
    /// })
    /// # }
    /// ```
    #[must_use]
    pub fn on_progress<F>(self, call: F) -> Self
    where
        F: for<'a> AsyncFn(&'a [RolloutOutput], &'a [RolloutOutput], &'a GenerateMetadata)
            + for<'a> AsyncHook<'a, (&'a [RolloutOutput], &'a [RolloutOutput], &'a GenerateMetadata), ()>,
    {
        let on_progress: OnProgress = Box::new(move |all, new, so_far| call.run((all, new, so_far)));
        Self { on_progress: Some(on_progress), ..self }
    }

    /// Pushes rows and averages to a dataset of a hub at the end. They must be saved too.
    #[must_use]
    pub fn push_to_hf_hub(self, hub: Hub) -> Self {
        Self { hub: Some(hub), ..self }
    }

    /// The dataset to push to. By default `<env_id>_<model>_n<examples>_r<rollouts per example>` of the owner of the
    /// token.
    #[must_use]
    pub fn hf_hub_dataset_name(self, name: RepoName) -> Self {
        Self { hub_dataset: Some(name), ..self }
    }

    /// Sets the token that cancels the run.
    #[must_use]
    pub fn cancel(self, cancel: Cancel) -> Self {
        Self { cancel, ..self }
    }
}

impl fmt::Debug for RunOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunOptions")
            .field("model", &self.model.name)
            .field("max_concurrent", &self.max_concurrent)
            .finish_non_exhaustive()
    }
}

/// The examples of a dataset to evaluate, and how often.
///
/// ```
/// use rollout::model::Examples;
///
/// let some = Examples::first(100).rollouts(4);
/// let others = Examples::all().shuffle(7);
/// assert_eq!(others.rollouts_per_example.get(), 1);
/// # let _ = some;
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Examples {
    /// How many examples; none for all.
    pub num_examples: Option<usize>,
    /// The number of rollouts of each example.
    pub rollouts_per_example: NonZeroU32,
    /// The seed of the shuffle before the first examples are taken; none for the order of the dataset.
    pub shuffle_seed: Option<u64>,
}

impl Default for Examples {
    fn default() -> Self {
        Self { num_examples: None, rollouts_per_example: NonZeroU32::MIN, shuffle_seed: None }
    }
}

impl Examples {
    /// Every example, one rollout each.
    pub fn all() -> Self {
        Self::default()
    }

    /// The first `num_examples` examples, one rollout each.
    pub fn first(num_examples: usize) -> Self {
        Self { num_examples: Some(num_examples), ..Self::default() }
    }

    /// The same examples, with this many rollouts of each; at least one.
    #[must_use]
    pub fn rollouts(self, rollouts_per_example: u32) -> Self {
        let rollouts_per_example = NonZeroU32::new(rollouts_per_example).unwrap_or(NonZeroU32::MIN);
        Self { rollouts_per_example, ..self }
    }

    /// The same number of examples, from an order that depends only on the seed.
    #[must_use]
    pub fn shuffle(self, seed: u64) -> Self {
        Self { shuffle_seed: Some(seed), ..self }
    }

    /// The selected examples.
    fn of(self, dataset: &[RolloutInput]) -> Vec<RolloutInput> {
        let count = self.num_examples.unwrap_or(usize::MAX);
        match self.shuffle_seed {
            None => dataset.iter().take(count).cloned().collect(),
            Some(seed) => {
                let mut order: Vec<_> = dataset.iter().collect();
                dataset::shuffle(&mut order, seed);
                order.into_iter().take(count).cloned().collect()
            }
        }
    }
}

/// The results of many rollouts.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerateOutputs {
    /// The rows by example, including those of earlier runs in the same directory.
    pub outputs: Vec<RolloutOutput>,
    /// Their totals.
    pub metadata: GenerateMetadata,
    /// Whether the run was cancelled, so that rows are missing.
    pub cancelled: bool,
    /// The result of the push, if one was requested and the run was not cancelled.
    pub pushed: Option<Pushed>,
}

/// Why rollouts could not be generated.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// There are no examples.
    #[error("no examples to run; set a dataset, or pass inputs to `generate`")]
    NoExamples,
    /// The examples cannot be stored for the run.
    #[error("cannot write the examples to a temporary file")]
    Store(#[source] io::Error),
    /// There are more rollouts than one run supports.
    #[error(transparent)]
    TooMany(PlanError),
    /// The rollouts could not be scored or saved.
    #[error(transparent)]
    Unusable(#[from] Unusable),
    /// The saved results in the directory cannot be continued.
    #[error(transparent)]
    Resume(#[from] ResumeError),
    /// The run failed.
    #[error(transparent)]
    Job(#[from] JobError),
    /// There are no files to push.
    #[error("cannot push results that are not saved; call `save_results` or `save_to` too")]
    Unsaved,
    /// The results are saved, but could not be pushed.
    #[error("cannot push the results; they are saved in {}", directory.display())]
    Push {
        /// The directory of the results.
        directory: PathBuf,
        /// The cause.
        source: HubError,
    },
}

impl GenerateError {
    /// A suggestion for the user.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Resume(error) => error.hint(),
            Self::Job(error) => error.hint(),
            Self::Push { source, .. } => source.hint().map(str::to_owned),
            Self::TooMany(error) => error.hint().map(str::to_owned),
            Self::NoExamples | Self::Store(_) | Self::Unusable(_) | Self::Unsaved => None,
        }
    }
}

impl Rollouts {
    /// Runs and scores a rollout for each input. Inputs with the same `example_id` form a group.
    pub fn generate(
        &self,
        inputs: Vec<RolloutInput>,
        options: RunOptions,
    ) -> BoxFuture<'_, Result<GenerateOutputs, GenerateError>> {
        Box::pin(async move { self.clone().run(inputs, NonZeroU32::MIN, options).await })
    }

    /// Runs and scores rollouts of examples of the dataset.
    pub fn evaluate(
        &self,
        sample: Examples,
        options: RunOptions,
    ) -> BoxFuture<'_, Result<GenerateOutputs, GenerateError>> {
        Box::pin(async move {
            let inputs = sample.of(&self.dataset);
            let rollouts = Self { shuffled: Some(sample.shuffle_seed), ..self.clone() };
            rollouts.run(inputs, sample.rollouts_per_example, options).await
        })
    }

    async fn run(
        mut self,
        inputs: Vec<RolloutInput>,
        attempts: NonZeroU32,
        options: RunOptions,
    ) -> Result<GenerateOutputs, GenerateError> {
        if let Some(columns) = options.state_columns {
            self.state_columns = columns.into();
        }
        if let Some(independent) = options.independent_scoring {
            self.independent_scoring = independent;
        }
        self.check()?;
        let model = options.model;
        let config = JobConfig {
            n_attempts: attempts,
            n_concurrent_trials: options.max_concurrent.unwrap_or(NonZeroU32::MAX),
            retry: options.retry,
            ..JobConfig::default()
        };
        let directory = match options.save {
            Save::No => None,
            Save::To(directory) => Some(directory),
            Save::Under(base) => Some(new_directory(&base, self.name(), &model.name)),
        };
        if options.hub.is_some() && directory.is_none() {
            return Err(GenerateError::Unsaved);
        }
        let (env_id, shuffled) = (self.name().to_owned(), self.shuffled);
        let (set, total) = (DatasetName::new(flat(&env_id)).unwrap_or_else(|_| default_name()), inputs.len());
        let rollouts = Arc::new(self);
        let examples =
            blocking(move || ExampleSet::new(set, rollouts, inputs)).await.map_err(GenerateError::Store)?;
        let agent = AgentName::new(flat(&model.name))
            .unwrap_or_else(|_| AgentName::new("model").expect("a word is a name"));
        let name = model.name.clone();
        let mut plan = Plan::of_examples(LoadedJob::unwritten(config), Vec::new(), agent, model, examples)
            .map_err(|error| match error {
                PlanError::Empty { .. } | PlanError::NoMatch { .. } | PlanError::DuplicateTask { .. } => {
                    GenerateError::NoExamples
                }
                PlanError::TooMany { .. } => GenerateError::TooMany(error),
            })?;
        let num_examples = plan.tasks().len();
        let per_example = if total > num_examples { total / num_examples } else { attempts.get() as usize };
        plan.describe(json!({
            "env_id": &env_id,
            "model": &name,
            "num_examples": num_examples,
            "rollouts_per_example": per_example,
            "shuffle": shuffled.map(|seed| seed.is_some()),
            "shuffle_seed": shuffled.flatten(),
        }));

        let all = plan.len() as usize;
        let mut job = match directory.clone() {
            None => Job::unrecorded(plan),
            Some(directory) => Job::in_directory(plan, directory).await?,
        };
        job.share = options.share;
        if let Some(on_start) = options.on_start {
            on_start(all, job.remaining());
        }
        let gathered = Arc::new(Mutex::new(None));
        let all = job.take_earlier();
        job.collect(Gather { all, on_progress: options.on_progress, gathered: Arc::clone(&gathered) });
        // Callers use `on_progress` instead of events.
        let (events, _) = mpsc::unbounded_channel();
        job.run(events, options.cancel).await?;
        let gathered = gathered.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut gathered: GenerateOutputs = gathered.expect("a job that succeeds reports its end");
        if let (Some(hub), Some(directory), false) = (options.hub, directory, gathered.cancelled) {
            let dataset = options.hub_dataset.unwrap_or_else(|| {
                RepoName::tidy(&format!("{env_id}_{}_n{num_examples}_r{per_example}", name.replace('/', "_")))
            });
            let pushed = push(&hub, dataset, &directory).await;
            gathered.pushed = Some(pushed.map_err(|source| GenerateError::Push { directory, source })?);
        }
        Ok(gathered)
    }
}

/// Pushes the rows and averages of a directory.
async fn push(hub: &Hub, dataset: RepoName, directory: &Path) -> Result<Pushed, HubError> {
    let mut files = Vec::new();
    // A directory of another program keeps its own name for the rows.
    for name in ["outputs.jsonl", "results.jsonl", "metadata.json"] {
        let path = directory.join(name);
        if tokio::fs::try_exists(&path).await.unwrap_or(false) {
            files.push(PushFile::new(path, name)?);
        }
    }
    hub.push(&Push::files(dataset, files), &mut |_| {}).await
}

/// Collects rows when they are finished.
struct Gather {
    all: Vec<RolloutOutput>,
    on_progress: Option<OnProgress>,
    gathered: Arc<Mutex<Option<GenerateOutputs>>>,
}

impl Collector for Gather {
    fn group<'a>(
        &'a mut self,
        outputs: Vec<RolloutOutput>,
        metadata: &dyn Fn() -> GenerateMetadata,
    ) -> BoxFuture<'a, ()> {
        let before = self.all.len();
        self.all.extend(outputs);
        let Some(on_progress) = &self.on_progress else { return Box::pin(ready(())) };
        let (all, so_far) = (&self.all, metadata());
        Box::pin(async move { on_progress(all, &all[before..], &so_far).await })
    }

    fn rescored(&mut self, output: RolloutOutput) {
        let key = |output: &RolloutOutput| (output.example_id, output.attempt);
        if let Some(earlier) = self.all.iter_mut().find(|earlier| key(earlier) == key(&output)) {
            *earlier = output;
        }
    }

    fn end(&mut self, metadata: GenerateMetadata, cancelled: bool) {
        let mut outputs = std::mem::take(&mut self.all);
        outputs.sort_by_key(|output| (output.example_id, output.attempt));
        let mut gathered = self.gathered.lock().unwrap_or_else(PoisonError::into_inner);
        *gathered = Some(GenerateOutputs { outputs, metadata, cancelled, pushed: None });
    }
}

/// A directory for one run, next to those of the same environment and model.
fn new_directory(base: &Path, env_id: &str, model: &str) -> PathBuf {
    let pair = format!("{}--{}", flat(env_id), flat(model));
    base.join("evals").join(pair).join(format!("{:08x}", fastrand::u32(..)))
}

/// A name without directories.
fn flat(name: &str) -> String {
    name.replace(['/', '\\'], "--")
}

fn default_name() -> DatasetName {
    DatasetName::new("default").expect("a word is a name")
}
