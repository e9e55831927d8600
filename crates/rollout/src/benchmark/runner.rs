//! Asks single questions, for callers that decide which question is next.

use std::{path::PathBuf, sync::Arc};

use tokio_util::sync::CancellationToken;

#[cfg(doc)]
use super::DEFAULT_SYSTEM_PROMPT;
use super::{
    BenchmarkItem,
    auto_start::OwnServer,
    question,
    setup::{Setup, SetupError, Tools},
};
use rollout_core::row::{Kept, TaskResult, Trajectory};
use rollout_model::output::{ResultForm, question_row};

use crate::{
    config::{LoadedBenchmark, RetryConfig, RolloutConfig},
    rollouts::{RolloutError, Rollouts},
};
use rollout_core::message::Message;
use rollout_model::{Halt, Model, RubricError, rollout};

/// Asks questions one by one, or several at a time.
///
/// ```no_run
/// use rollout::benchmark::{AgentRunner, load_config, load_tasks};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let config = load_config("configs/my_benchmark.json".as_ref(), &|name| std::env::var(name).ok())?;
/// let tasks = load_tasks("benchmark/my_benchmark.jsonl".as_ref())?;
/// let runner = AgentRunner::new(config, "custom_runner").start().await?;
/// for task in &tasks {
///     let result = runner.run_task(task).await?;
///     println!("{}: {} ({:?})", result.task_id, result.predicted_answer, result.score);
/// }
/// runner.stop().await;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct AgentRunner {
    config: RolloutConfig,
    worker_id: String,
    program: PathBuf,
    no_system_prompt: bool,
    cancel: CancellationToken,
}

/// A started runner. Dropping it ends the processes that it started, without waiting for them.
#[derive(Debug)]
pub struct StartedRunner {
    rollouts: Rollouts,
    model: Arc<Model>,
    system: Option<Arc<Message>>,
    task: String,
    retry: RetryConfig,
    server: Option<OwnServer>,
    cancel: CancellationToken,
}

impl AgentRunner {
    /// A runner of questions with this configuration. `worker_id` identifies it for the tool server; each question adds
    /// its own id, so that no two of them share a session.
    pub fn new(config: RolloutConfig, worker_id: impl Into<String>) -> Self {
        Self {
            config,
            worker_id: worker_id.into(),
            program: PathBuf::from("rollout"),
            no_system_prompt: false,
            cancel: CancellationToken::new(),
        }
    }

    /// Sets the token that cancels its questions and closes their sessions.
    #[must_use]
    pub fn cancel(self, cancel: CancellationToken) -> Self {
        Self { cancel, ..self }
    }

    /// Sends no system prompt, instead of the default one, if the configuration has none.
    #[must_use]
    pub(crate) fn without_system_prompt(self) -> Self {
        Self { no_system_prompt: true, ..self }
    }

    /// The program that starts a tool server for `sandbox_auto_start`; `rollout` by default.
    #[must_use]
    pub fn program(self, program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), ..self }
    }

    /// Prepares the model, the metric, and the tools.
    pub async fn start(self) -> Result<StartedRunner, SetupError> {
        let Self { config, worker_id, program, no_system_prompt, cancel } = self;
        let loaded = LoadedBenchmark::new(config, &|_| None)?;
        let (config, retry) = (&loaded.config, loaded.job().config.retry.clone());
        let setup = Setup::new(config, Some(worker_id))?;
        let Tools { server, warnings, .. } = setup.tools(config, &program).await?;
        let Setup { rollouts, model, .. } = setup;
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        let is_silent = no_system_prompt && config.system_prompt.is_empty();
        let system = (!is_silent).then(|| question::system_message(&config.system_prompt));
        let task = config.name();
        Ok(StartedRunner { rollouts, model, system, task, retry, server, cancel })
    }
}

impl StartedRunner {
    /// Asks a question, and scores the answer if the correct one is known and scoring is on.
    ///
    /// Failures of the question are part of its result. Only a rejected key and a cancellation are errors.
    pub async fn run_task(&self, item: &BenchmarkItem) -> Result<TaskResult, RolloutError> {
        let input = item.clone().input(0, self.system.clone(), &self.task);
        let Rollouts { interaction, limits, .. } = &self.rollouts;
        let mut tries = 1;
        let mut state = loop {
            let model = Arc::clone(&self.model);
            let state = match rollout(&**interaction, limits, input.clone(), model, &self.cancel).await {
                Ok(state) => state,
                Err(halt @ (Halt::Unauthorized(_) | Halt::Cancelled)) => return Err(halt.into()),
            };
            let retried = state.error.as_ref().is_some_and(|error| error.kind.is_retried());
            let Some(delay) = self.retry.delay_after(tries).filter(|_| retried) else { break state };
            tokio::select! {
                () = tokio::time::sleep(delay) => tries += 1,
                () = self.cancel.cancelled() => return Err(Halt::Cancelled.into()),
            }
        };
        if self.rollouts.scores(&state) {
            let scored: Result<(), RubricError> = self.rollouts.rubric.score_rollout(&mut state).await;
            scored?;
        }
        if let Some(error) = state.refused_key() {
            return Err(RolloutError::Unauthorized(error.clone()));
        }
        let form = self.rollouts.results.unwrap_or(ResultForm { metric: None, kept: Kept::Everything });
        Ok(TaskResult { example_id: None, ..question_row(&state, form) })
    }

    /// Ends the tool server, if it was started for this runner, and waits until it has exited.
    pub async fn stop(self) {
        if let Some(server) = self.server {
            server.stop().await;
        }
    }
}

/// Options for a single question.
#[derive(Debug, Clone)]
pub struct QuickOptions {
    /// The tools that the model may use.
    pub tools: Vec<String>,
    /// The name of the model on its server.
    pub model_name: String,
    /// The API key of the model.
    pub api_key: String,
    /// The base URL of the model's server.
    pub base_url: String,
    /// The maximum number of turns.
    pub max_turns: std::num::NonZeroU32,
    /// The URL of the tool server.
    pub sandbox_url: String,
    /// The token of the tool server; empty if it requires none.
    pub sandbox_token: String,
    /// The system prompt; none for [the default](DEFAULT_SYSTEM_PROMPT), empty for no system prompt.
    pub system_prompt: Option<String>,
    /// Cancels the question.
    pub cancel: CancellationToken,
}

impl Default for QuickOptions {
    fn default() -> Self {
        let RolloutConfig { model_name, sandbox_server_url, .. } = RolloutConfig::default();
        Self {
            tools: Vec::new(),
            model_name,
            api_key: String::new(),
            base_url: String::new(),
            max_turns: std::num::NonZeroU32::new(10).expect("it is not 0"),
            sandbox_url: sandbox_server_url,
            sandbox_token: String::new(),
            system_prompt: None,
            cancel: CancellationToken::new(),
        }
    }
}

/// The result of a single question.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct QuickResult {
    /// The question.
    pub question: String,
    /// The answer that was found in the model's last message.
    pub answer: String,
    /// Whether the question was answered without an error.
    pub success: bool,
    /// The error.
    pub error: Option<String>,
    /// The whole conversation.
    pub trajectory: Option<Trajectory>,
}

/// Why a single question failed.
#[derive(Debug, thiserror::Error)]
pub enum QuickError {
    /// The model or the tools cannot be used.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The server rejects the key, or the question was cancelled.
    #[error(transparent)]
    Rollout(#[from] RolloutError),
}

/// Asks one question, without a configuration and without files.
///
/// ```
/// # use rollout_testkit::{ModelServer, ModelReply};
/// use rollout::benchmark::{QuickOptions, quick_rollout};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = ModelServer::always(ModelReply::text("Final answer: Paris."));
/// # let base_url = server.url();
/// let options = QuickOptions { base_url, api_key: "sk-…".to_owned(), ..QuickOptions::default() };
/// let result = quick_rollout("What is the capital of France?", options).await?;
/// assert_eq!((result.answer.as_str(), result.success), ("Paris", true));
/// # Ok(())
/// # }
/// ```
pub async fn quick_rollout(question: &str, options: QuickOptions) -> Result<QuickResult, QuickError> {
    let QuickOptions { tools, model_name, api_key, base_url, max_turns, .. } = options;
    let QuickOptions { sandbox_url, sandbox_token, system_prompt, cancel, .. } = options;
    let mut resource_types: Vec<String> = Vec::new();
    for (kind, _) in tools.iter().filter_map(|tool| tool.split_once(':')) {
        if !resource_types.iter().any(|known| known == kind) {
            resource_types.push(kind.to_owned());
        }
    }
    let secret =
        |value: String| (!value.is_empty()).then_some(crate::config::EnvValue { value, secret: true });
    let is_silent = system_prompt.as_ref().is_some_and(String::is_empty);
    let config = RolloutConfig {
        model_name,
        api_key: secret(api_key),
        base_url,
        max_turns,
        system_prompt: system_prompt.unwrap_or_default(),
        sandbox_token: secret(sandbox_token),
        available_tools: tools,
        resource_types,
        sandbox_server_url: sandbox_url,
        evaluate_results: false,
        ..RolloutConfig::default()
    };
    let item = BenchmarkItem {
        id: "quick_task".to_owned(),
        question: question.to_owned(),
        ..BenchmarkItem::default()
    };
    let runner = AgentRunner::new(config, "quick").cancel(cancel.clone());
    let runner = if is_silent { runner.without_system_prompt() } else { runner };
    let runner = tokio::select! {
        biased;
        () = cancel.cancelled() => return Err(RolloutError::Cancelled.into()),
        runner = runner.start() => runner?,
    };
    let result = runner.run_task(&item).await;
    runner.stop().await;
    let TaskResult { question, predicted_answer, success, error, trajectory, .. } = result?;
    Ok(QuickResult { question, answer: predicted_answer, success, error, trajectory })
}
