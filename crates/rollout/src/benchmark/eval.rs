//! Runs a benchmark with one call.

use std::{fmt, path::PathBuf};

use tokio::sync::mpsc;

use super::{EvalError, EvalOutcome, Run};
use crate::{
    config::{LoadedBenchmark, Override, RolloutConfig, RolloutOverrides, load_benchmark},
    job::Cancel,
};
use rollout_core::{event::Event, result::EarlyStop, summary::RolloutSummary};
use rollout_model::metric::Metric;

/// A benchmark to run: its configuration, and overrides of its settings.
///
/// ```no_run
/// use rollout::{benchmark::{Eval, rollout}, model::metric::Metric};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let eval = Eval::new("configs/my_benchmark.json")
///     .vars(|name| std::env::var(name).ok())
///     .data_path("benchmark/another_dataset.jsonl")
///     .max_tasks(10)
///     .metric(Metric::F1Score);
/// let summary = rollout(eval).await?;
/// println!("{} of {} questions: {:?}", summary.successful_tasks, summary.total_tasks, summary.average_score);
/// # Ok(())
/// # }
/// ```
pub struct Eval {
    source: Source,
    overrides: RolloutOverrides,
    vars: Vars,
    program: PathBuf,
    cancel: Cancel,
    on_event: Option<OnEvent>,
}

enum Source {
    File(PathBuf),
    Config(Box<RolloutConfig>),
}

type Vars = Box<dyn Fn(&str) -> Option<String> + Send + Sync>;
type OnEvent = Box<dyn FnMut(Event) + Send>;

/// Runs a benchmark: loads its configuration and its questions, asks them, scores the answers, and writes the files.
///
/// An error of a question is part of its result; it is not returned here. If questions fail one after another with the
/// same cause, the run stops with [`EvalError::Stopped`].
pub async fn rollout(eval: impl Into<Eval>) -> Result<RolloutSummary, EvalError> {
    let Eval { source, overrides, vars, program, cancel, on_event } = eval.into();
    let settings = overrides.settings()?;
    let loaded = match source {
        Source::File(path) => load_benchmark(&path, &settings, &vars)?,
        Source::Config(config) => LoadedBenchmark::new(overridden(*config, overrides), &vars)?,
    };
    let overrides = settings.iter().map(|Override { key, value }| format!("{key}={value}")).collect();
    let mut run = Run::create(&loaded, overrides, &program).await?;
    let directory = run.job().directory().to_owned();
    let (events, mut heard) = mpsc::unbounded_channel();
    let listen = async move {
        let Some(mut on_event) = on_event else { return };
        while let Some(event) = heard.recv().await {
            on_event(event);
        }
    };
    let (outcome, ()) = tokio::join!(run.run(events, cancel), listen);
    let EvalOutcome { result, summary } = outcome?;
    summary.ok_or(match result.stopped {
        Some(EarlyStop::Failures { failures, error }) => {
            EvalError::Stopped { dir: directory, failures, error: Box::new(error) }
        }
        Some(EarlyStop::Budget { .. }) | None => EvalError::Cancelled(directory),
    })
}

impl Eval {
    /// The benchmark of a configuration file, JSON or YAML.
    pub fn new(config_path: impl Into<PathBuf>) -> Self {
        Self::of(Source::File(config_path.into()))
    }

    fn of(source: Source) -> Self {
        Self {
            source,
            // As documented for the call: this applies, whatever the file says.
            overrides: RolloutOverrides { evaluate: Some(true), ..RolloutOverrides::default() },
            vars: Box::new(|_| None),
            program: PathBuf::from("rollout"),
            cancel: Cancel::default(),
            on_event: None,
        }
    }

    /// Reads the questions from this file.
    #[must_use]
    pub fn data_path(mut self, path: impl Into<PathBuf>) -> Self {
        self.overrides.data_path = Some(path.into());
        self
    }

    /// Writes the results to this directory.
    #[must_use]
    pub fn output_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.overrides.output_dir = Some(dir.into());
        self
    }

    /// Uses this model.
    #[must_use]
    pub fn model_name(mut self, name: impl Into<String>) -> Self {
        self.overrides.model_name = Some(name.into());
        self
    }

    /// Asks at most this many questions.
    #[must_use]
    pub fn max_tasks(mut self, tasks: usize) -> Self {
        self.overrides.max_tasks = Some(tasks);
        self
    }

    /// Asks only these questions.
    #[must_use]
    pub fn task_ids<S: Into<String>>(mut self, ids: impl IntoIterator<Item = S>) -> Self {
        self.overrides.task_ids = Some(ids.into_iter().map(Into::into).collect());
        self
    }

    /// Whether answers are scored: true by default, whatever the configuration says.
    #[must_use]
    pub fn evaluate(mut self, evaluate: bool) -> Self {
        self.overrides.evaluate = Some(evaluate);
        self
    }

    /// Scores answers with this metric.
    #[must_use]
    pub fn metric(mut self, metric: Metric) -> Self {
        self.overrides.metric = Some(metric);
        self
    }

    /// The source of `${VAR}` and of keys that are not in the configuration. The library does not read the environment.
    #[must_use]
    pub fn vars(self, vars: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Self {
        Self { vars: Box::new(vars), ..self }
    }

    /// The program that starts a tool server for `sandbox_auto_start`; `rollout` by default.
    #[must_use]
    pub fn program(self, program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), ..self }
    }

    /// Sets the token that cancels the run.
    #[must_use]
    pub fn cancel(self, cancel: Cancel) -> Self {
        Self { cancel, ..self }
    }

    /// Calls this with every event.
    #[must_use]
    pub fn on_event(self, on_event: impl FnMut(Event) + Send + 'static) -> Self {
        Self { on_event: Some(Box::new(on_event)), ..self }
    }
}

/// Applies overrides to settings made in code.
fn overridden(config: RolloutConfig, overrides: RolloutOverrides) -> RolloutConfig {
    let RolloutOverrides { data_path, output_dir, model_name, max_tasks, task_ids, evaluate, metric } =
        overrides;
    RolloutConfig {
        data_path: data_path.or(config.data_path),
        output_dir: output_dir.or(config.output_dir),
        model_name: model_name.unwrap_or(config.model_name),
        number_of_tasks: max_tasks.or(config.number_of_tasks),
        task_ids: task_ids.or(config.task_ids),
        evaluate_results: evaluate.unwrap_or(config.evaluate_results),
        evaluation_metric: metric.unwrap_or(config.evaluation_metric),
        ..config
    }
}

impl From<&str> for Eval {
    fn from(config_path: &str) -> Self {
        Self::new(config_path)
    }
}

impl From<RolloutConfig> for Eval {
    /// The benchmark of a configuration made in code.
    fn from(config: RolloutConfig) -> Self {
        Self::of(Source::Config(Box::new(config)))
    }
}

impl fmt::Debug for Eval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Eval").field("overrides", &self.overrides).finish_non_exhaustive()
    }
}
