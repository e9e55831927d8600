//! A model investigates finished episodes: how hard they were, and why they failed.
//!
//! Its answers become the findings in the job's eval log, which is created if needed. Each answer is saved before the
//! next request takes its place, so an interrupted investigation continues where it stopped.

mod answer;
mod evidence;
mod prompt;

use std::{
    collections::HashSet,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    pin::pin,
    sync::Arc,
    time::Instant,
};

use futures_util::{StreamExt as _, stream};
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

use self::evidence::Evidence;
use rollout_core::{message::Message, redact::Redactor, response::TokenUsage};
use rollout_model::{Error, ErrorKind, Model};
use rollout_record::{
    export::{
        ExportError,
        eval_log::{self, EpisodeRecord, ExperimentRecord, Findings, InvestigatorLlmConfig},
    },
    saved::{SavedError, SavedJob},
};

/// The options of an investigation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvestigateOptions {
    /// The episodes.
    pub which: Which,
    /// The maximum number of episodes.
    pub limit: Option<u64>,
    /// How many run at the same time.
    pub concurrency: NonZeroUsize,
    /// Whether episodes with findings are investigated again.
    pub again: bool,
}

/// The episodes to investigate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Which {
    /// Episodes with a reward below the `pass_threshold` of their dataset, or without a reward.
    #[default]
    Unsolved,
    /// All.
    All,
}

/// The result of an investigation.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Investigated {
    /// The eval log with the findings.
    pub log: PathBuf,
    /// The number of episodes with new findings.
    pub found: u64,
    /// The number of episodes for which the model gave two invalid answers.
    pub refused: u64,
    /// The number of episodes for which the model's server failed.
    pub failed: u64,
    /// The number of episodes that already had findings.
    pub skipped: u64,
    /// The usage of the model.
    pub usage: Spent,
}

/// The usage of the model in an investigation.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Spent {
    /// The number of requests.
    pub calls: u64,
    /// Tokens of prompts.
    pub input_tokens: u64,
    /// Tokens of completions.
    pub output_tokens: u64,
    /// US dollars, if every response reported its cost.
    pub cost: Option<f64>,
}

impl Spent {
    fn add(&mut self, usage: TokenUsage) {
        self.calls += 1;
        self.input_tokens += usage.input_tokens();
        self.output_tokens += usage.completion_tokens;
        self.cost = self.cost.zip(usage.cost).map(|(sum, cost)| sum + cost);
    }
}

/// The result for one episode.
#[derive(Debug)]
pub enum Investigation {
    /// The findings.
    Found(Findings),
    /// The model gave two invalid answers: the problem of the second.
    Refused(String),
    /// The server failed.
    Failed(Error),
}

/// Why an investigation failed.
#[derive(Debug, thiserror::Error)]
pub enum InvestigateError {
    /// The job cannot be read, or its eval log cannot be written.
    #[error(transparent)]
    Log(#[from] ExportError),
    /// The server rejects the key of the model.
    #[error("the server rejected the API key of the investigating model")]
    Unauthorized(#[source] Error),
}

/// An episode to investigate.
struct Case {
    /// Its name for messages.
    trial: String,
    /// The directory of its experiment.
    experiment: PathBuf,
    trajectory_id: String,
    prompt: String,
}

/// Investigates the episodes of a job with a model, and calls `each` with every result.
///
/// Secrets are masked in findings. Only findings and the description of the model are overwritten.
pub async fn investigate(
    job: &Path,
    model: Arc<Model>,
    secrets: &Redactor,
    options: InvestigateOptions,
    mut each: impl FnMut(&str, &Investigation),
) -> Result<Investigated, InvestigateError> {
    let (sender, cases) = mpsc::channel(options.concurrency.get());
    let job = job.to_owned();
    let reader = tokio::task::spawn_blocking(move || gather(&job, options, &sender));
    let config = InvestigatorLlmConfig {
        model: model.name.clone(),
        prompt_version: prompt::version(),
        investigated_at: None,
        unknown: Map::new(),
    };
    let mut investigated = Investigated::default();
    let mut cost = Some(0.0);
    let mut described = HashSet::new();
    let cases = stream::unfold(cases, |mut cases| async { Some((cases.recv().await?, cases)) });
    let asked = cases.map(|case| {
        let model = Arc::clone(&model);
        async move {
            let clock = Instant::now();
            let asked = ask(&model, &case).await;
            (case, asked, clock.elapsed())
        }
    });
    let mut asked = pin!(asked.buffer_unordered(options.concurrency.get()));
    while let Some((case, (outcome, usage), took)) = asked.next().await {
        let mut own = Spent { cost: Some(0.0), ..Spent::default() };
        usage.into_iter().for_each(|usage| own.add(usage.unwrap_or_default()));
        investigated.usage.calls += own.calls;
        investigated.usage.input_tokens += own.input_tokens;
        investigated.usage.output_tokens += own.output_tokens;
        cost = cost.zip(own.cost).map(|(sum, cost)| sum + cost);
        let outcome = match outcome {
            Investigation::Failed(error) if error.is(ErrorKind::Unauthorized) => {
                return Err(InvestigateError::Unauthorized(error));
            }
            Investigation::Found(findings) => {
                let findings = clean(findings, secrets);
                let config = described.insert(case.experiment.clone()).then(|| config.clone());
                let metadata = json!({
                    "model": model.name, "prompt_tokens": own.input_tokens, "completion_tokens": own.output_tokens,
                    "cost_usd": own.cost, "duration_s": took.as_secs_f64(),
                    "timestamp": Timestamp::now().as_microsecond() as f64 / 1e6, "findings_schema_version": "v1",
                });
                save(&case, findings.clone(), metadata, config).await?;
                investigated.found += 1;
                Investigation::Found(findings)
            }
            Investigation::Refused(reason) => {
                investigated.refused += 1;
                Investigation::Refused(secrets.text(&reason).into_owned())
            }
            Investigation::Failed(error) => {
                investigated.failed += 1;
                Investigation::Failed(error)
            }
        };
        each(&case.trial, &outcome);
    }
    let (log, skipped) = reader.await.map_err(|error| unreadable(error.into()))??;
    investigated.usage.cost = cost.filter(|_| investigated.usage.calls > 0);
    Ok(Investigated { log, skipped, ..investigated })
}

/// Reads the episodes to investigate one by one. Returns the path of the eval log, and how many episodes already have
/// findings.
fn gather(
    path: &Path,
    options: InvestigateOptions,
    cases: &mpsc::Sender<Case>,
) -> Result<(PathBuf, u64), ExportError> {
    let job = SavedJob::open(path)?;
    let log = eval_log::complete(&job)?;
    let (mut taken, mut skipped) = (0, 0);
    for trial in job.trials()? {
        let trial = trial?;
        if options.limit.is_some_and(|limit| taken >= limit) {
            break;
        }
        let experiment = log.join(trial.id.agent.as_str()).join(trial.id.dataset.as_str());
        let trajectory_id = trial.name();
        let record = EpisodeRecord::load(&experiment, &trajectory_id)?;
        if trial.result.is_solved() == Some(true) && options.which == Which::Unsolved {
            continue;
        }
        if record.findings.is_some() && !options.again {
            skipped += 1;
            continue;
        }
        let prompt = prompt::prompt(&Evidence::gather(&job, &trial)?);
        taken += 1;
        let case = Case { trial: trial.id.to_string(), experiment, trajectory_id, prompt };
        if cases.blocking_send(case).is_err() {
            // The receiver is gone.
            break;
        }
    }
    Ok((log, skipped))
}

/// Asks about an episode, and once more if the answer is invalid. Also returns the usage of each response.
async fn ask(model: &Model, case: &Case) -> (Investigation, Vec<Option<TokenUsage>>) {
    let mut messages = vec![Arc::new(Message::user(case.prompt.as_str()))];
    let mut usage = Vec::new();
    loop {
        let is_last = !usage.is_empty();
        let (reply, problem) = match model.client.respond(model, &messages, &[], &case.trial).await {
            Ok(response) => {
                usage.push(response.usage);
                let reply = response.message.text().into_owned();
                match answer::read(&reply) {
                    Ok(findings) => return (Investigation::Found(findings), usage),
                    Err(problem) => (reply, problem.to_string()),
                }
            }
            Err(error) if error.is(ErrorKind::InvalidModelResponse) && !is_last => {
                usage.push(None);
                continue;
            }
            Err(error) => return (Investigation::Failed(error), usage),
        };
        if is_last {
            return (Investigation::Refused(problem), usage);
        }
        messages.push(Arc::new(Message::assistant(prompt::clip(&reply, answer::MAX_CHARS).as_str())));
        messages.push(Arc::new(Message::user(prompt::correction(&problem).as_str())));
    }
}

fn clean(findings: Findings, secrets: &Redactor) -> Findings {
    let text = |text: Option<String>| text.map(|text| secrets.text(&text).into_owned());
    Findings {
        difficulty: text(findings.difficulty),
        failure_root_cause: text(findings.failure_root_cause),
        unknown: match secrets.json(findings.unknown.into()) {
            Value::Object(fields) => fields,
            _ => Map::new(),
        },
        ..findings
    }
}

/// Saves findings in the record of their episode, and the model in that of the experiment if it is missing.
async fn save(
    case: &Case,
    findings: Findings,
    metadata: Value,
    config: Option<InvestigatorLlmConfig>,
) -> Result<(), InvestigateError> {
    let (dir, trajectory_id) = (case.experiment.clone(), case.trajectory_id.clone());
    let saved = tokio::task::spawn_blocking(move || {
        if let Some(config) = config {
            let mut record = ExperimentRecord::load(&dir)?;
            let investigated_at = Some(Timestamp::now().to_string());
            record.investigator_llm_config = Some(InvestigatorLlmConfig { investigated_at, ..config });
            record.save(&dir)?;
        }
        let mut record = EpisodeRecord::load(&dir, &trajectory_id)?;
        record.findings = Some(findings);
        record.unknown.insert(eval_log::INVESTIGATION.to_owned(), metadata);
        record.save(&dir)?;
        Ok::<_, ExportError>(())
    });
    Ok(saved.await.map_err(|error| unreadable(error.into()))??)
}

/// A thread that reads or writes has panicked.
fn unreadable(source: std::io::Error) -> ExportError {
    ExportError::Job(SavedError::Read { path: eval_log::DIRECTORY.into(), source })
}
