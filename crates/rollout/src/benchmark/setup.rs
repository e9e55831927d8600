//! Prepares the model, the metric and the tools of a benchmark.

use std::{
    path::Path,
    sync::{Arc, OnceLock},
};

use indexmap::IndexSet;
use secrecy::SecretString;
use serde_json::{Map, Value};

use super::{
    auto_start::{AutoStartError, OwnServer},
    question::Question,
    seeds::{SeedPaths, beside_questions, session_config},
    tools::{ServerTool, ToolServer, ToolServerError, Toolbox},
};
use crate::{
    build::{self, BuildError},
    config::{Problems, RolloutConfig},
    rollouts::Rollouts,
};
use rollout_core::{address::is_loopback, row::Kept};
use rollout_model::{
    Model, Rubric,
    client::shown_url,
    metric::{LlmJudge, Metric, Scorer},
    output::ResultForm,
};

/// Why a benchmark cannot start.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] Problems),
    /// The model cannot be used.
    #[error(transparent)]
    Model(#[from] BuildError),
    /// The judge cannot be used.
    #[error("cannot set up the judge")]
    Judge(#[source] BuildError),
    /// The tool server cannot be used.
    #[error(transparent)]
    Tools(#[from] ToolServerError),
    /// The tool server could not be started.
    #[error(transparent)]
    AutoStart(#[from] AutoStartError),
}

impl SetupError {
    /// A suggestion for the user.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Tools(error) | Self::AutoStart(AutoStartError::Server(error)) => error.hint(),
            Self::AutoStart(AutoStartError::Elsewhere(_)) => {
                Some("leave out one of the two; on another machine, `rollout tools serve` starts a server")
            }
            Self::Config(_) | Self::Model(_) | Self::Judge(_) | Self::AutoStart(_) => None,
        }
    }
}

/// Everything that questions share.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) rollouts: Rollouts,
    pub(crate) model: Arc<Model>,
    toolbox: Arc<OnceLock<Arc<Toolbox>>>,
    /// The files that tools will read, as far as they are known.
    pub(crate) seeds: SeedPaths,
}

/// The prepared tools.
#[derive(Debug, Default)]
pub(crate) struct Tools {
    /// None if the tool server is not needed.
    pub(crate) toolbox: Option<Arc<Toolbox>>,
    /// The tool server, if it was started for these questions.
    pub(crate) server: Option<OwnServer>,
    /// Warnings for the user.
    pub(crate) warnings: Vec<String>,
}

impl Setup {
    /// Prepares everything except the tools. Sends no requests.
    pub(crate) fn new(config: &RolloutConfig, worker_id: Option<String>) -> Result<Self, SetupError> {
        let model = Arc::new(build::model(&config.model())?);
        let rubric = rubric(config)?;
        let toolbox = Arc::new(OnceLock::new());
        let question =
            Question { toolbox: Arc::clone(&toolbox), max_turns: config.max_turns.get(), worker_id };
        let mut rollouts = Rollouts::new(question, rubric)
            .env_id(config.name())
            .independent_scoring(true)
            .pass_threshold(config.pass_threshold);
        rollouts.results = Some(ResultForm {
            metric: config.evaluate_results.then_some(config.evaluation_metric),
            kept: match config {
                RolloutConfig { trajectory_only: true, .. } => Kept::Trajectories,
                RolloutConfig { save_trajectories: false, .. } => Kept::Answers,
                _ => Kept::Everything,
            },
        });
        Ok(Self { rollouts, model, toolbox, seeds: SeedPaths::default() })
    }

    /// Prepares the tools. `program` starts a tool server.
    pub(crate) async fn tools(&self, config: &RolloutConfig, program: &Path) -> Result<Tools, SetupError> {
        if config.available_tools.is_empty() && config.resource_types.is_empty() {
            return Ok(Tools::default());
        }
        let (toolbox, server, warnings) = tools(config, program, &self.seeds).await?;
        let toolbox = Arc::clone(self.toolbox.get_or_init(|| Arc::new(toolbox)));
        Ok(Tools { toolbox: Some(toolbox), server, warnings })
    }
}

/// The judge of a configuration. Settings that are not given are those of the model that answers.
pub fn judge(config: &RolloutConfig) -> Result<LlmJudge, BuildError> {
    let judge = LlmJudge::new(Arc::new(build::model(&config.evaluator())?));
    Ok(judge.include_question(config.evaluator_include_question).max_retries(config.evaluator_max_retries))
}

fn rubric(config: &RolloutConfig) -> Result<Rubric, SetupError> {
    if !config.evaluate_results {
        return Ok(Rubric::new());
    }
    let judge = match config.evaluation_metric {
        Metric::LlmJudgement => Some(judge(config).map_err(SetupError::Judge)?),
        _ => None,
    };
    let scorer = Scorer::new(config.evaluation_metric, judge).expect("the metric that needs a judge has one");
    Ok(scorer.rubric().without_monitors())
}

async fn tools(
    config: &RolloutConfig,
    program: &Path,
    seeds: &SeedPaths,
) -> Result<(Toolbox, Option<OwnServer>, Vec<String>), SetupError> {
    let url = &config.sandbox_server_url;
    let (server, own) = match config.sandbox_auto_start {
        true if !is_loopback(url) => return Err(AutoStartError::Elsewhere(shown_url(url)).into()),
        true => {
            let settings = config.sandbox_config_path.as_deref();
            let started = OwnServer::start(program, settings, &seeds.roots, config.sandbox_timeout).await;
            started.map(|(own, server)| (server, Some(own)))?
        }
        false => {
            let token = config.sandbox_token.as_ref().map(|token| SecretString::from(token.value.as_str()));
            let server = ToolServer::new(url, token, config.sandbox_timeout)?;
            server.health().await?;
            (server, None)
        }
    };
    let all = server.tools().await?;
    let mut warnings = match config.resource_types.as_slice() {
        [] => Vec::new(),
        kinds => server.warm_up(kinds, &all).await?,
    };
    let tools = server.chosen(&config.available_tools, all)?;
    warnings.extend(check(&server, config, &tools, seeds).await?);
    let beside = (own.is_some() || is_loopback(url)).then(|| beside_questions(config));
    let toolbox = Toolbox::new(server, tools, &config.resource_types, &config.resource_init_configs, beside);
    Ok((toolbox, own, warnings))
}

/// Rejects settings that would fail for every question, and returns warnings for the user.
async fn check(
    server: &ToolServer,
    config: &RolloutConfig,
    tools: &[ServerTool],
    seeds: &SeedPaths,
) -> Result<Vec<String>, ToolServerError> {
    let mut warnings = Vec::new();
    let kinds = config.resource_types.iter().chain(tools.iter().map(|tool| &tool.kind));
    for kind in kinds.collect::<IndexSet<_>>() {
        let has_sessions = config.resource_types.contains(kind);
        let session =
            if has_sessions { session_config(kind, &config.resource_init_configs) } else { Map::new() };
        let of_kind = tools.iter().filter(|tool| tool.kind == *kind);
        // A pattern may match tools that are not needed.
        let (named, matched): (Vec<_>, Vec<_>) =
            of_kind.partition(|tool| config.available_tools.iter().any(|wanted| tool.is_called(wanted)));
        let [named, matched] =
            [named, matched].map(|tools| tools.into_iter().map(ServerTool::own_name).collect::<Vec<_>>());
        if let Some(answer) = server.check(kind, &named, &session, &seeds.of_questions).await? {
            if answer.code != 0 {
                return Err(ToolServerError::Unusable { kind: kind.clone(), said: answer.message });
            }
            let texts = answer.data["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str);
            warnings.extend(texts.map(|text| format!("resource_init_configs.{kind}: {text}")));
            for tool in matched {
                let answer = server.check(kind, &[tool], &session, &[]).await?;
                warnings.extend(answer.filter(|answer| answer.code != 0).map(|answer| answer.message));
            }
        }
    }
    Ok(warnings)
}
