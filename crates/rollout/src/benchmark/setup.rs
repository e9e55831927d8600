//! What the questions of a benchmark need before the first one is asked: model, metric and tools.

use std::{path::Path, sync::Arc};

use secrecy::SecretString;

use super::{
    auto_start::{AutoStartError, OwnServer},
    question::Question,
    row::{Kept, ResultForm},
    tools::{ToolServer, ToolServerError, Toolbox},
};
use crate::{
    config::RolloutConfig,
    model::{
        Model, Rollouts, Rubric,
        build::{self, BuildError},
        client::ClientError,
        metric::{JudgeMissing, LlmJudge, Metric, Scorer},
    },
};

/// Why a benchmark cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The model cannot be asked.
    #[error(transparent)]
    Model(#[from] BuildError),
    /// The judge cannot be asked.
    #[error("the model that judges cannot be used")]
    Judge(#[from] ClientError),
    /// There is no judge.
    #[error(transparent)]
    NoJudge(#[from] JudgeMissing),
    /// The tool server cannot be used.
    #[error(transparent)]
    Tools(#[from] ToolServerError),
    /// The tool server could not be started.
    #[error(transparent)]
    AutoStart(#[from] AutoStartError),
}

impl SetupError {
    /// What the reader can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Tools(error) | Self::AutoStart(AutoStartError::Server(error)) => error.hint(),
            Self::AutoStart(AutoStartError::Elsewhere(_)) => Some(
                "start it there with `rollout tools serve`, or set `sandbox_server_url` to an address of this machine",
            ),
            Self::Model(_) | Self::Judge(_) | Self::NoJudge(_) | Self::AutoStart(_) => None,
        }
    }
}

/// Everything that questions share.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) rollouts: Rollouts,
    pub(crate) model: Arc<Model>,
    /// The tool server, if it was started for these questions.
    pub(crate) server: Option<OwnServer>,
    /// What a reader should know.
    pub(crate) warnings: Vec<String>,
}

impl Setup {
    /// Makes everything ready. `program` is what starts a tool server.
    pub(crate) async fn new(
        config: &RolloutConfig,
        program: &Path,
        worker_id: Option<String>,
    ) -> Result<Self, SetupError> {
        let model = Arc::new(build::model(&config.model())?);
        let rubric = rubric(config)?;
        let mut warnings = Vec::new();
        let needs_tools = !config.available_tools.is_empty() || !config.resource_types.is_empty();
        let (toolbox, server) = match needs_tools {
            true => {
                let (toolbox, server) = tools(config, program, &mut warnings).await?;
                (Some(Arc::new(toolbox)), server)
            }
            false => (None, None),
        };
        let question = Question { toolbox, max_turns: config.max_turns.get(), worker_id };
        let mut rollouts = Rollouts::new(question, rubric).env_id(config.name()).independent_scoring(true);
        rollouts.results = Some(ResultForm {
            metric: config.evaluate_results.then_some(config.evaluation_metric),
            kept: match config {
                RolloutConfig { trajectory_only: true, .. } => Kept::Trajectories,
                RolloutConfig { save_trajectories: false, .. } => Kept::Answers,
                _ => Kept::Everything,
            },
        });
        Ok(Self { rollouts, model, server, warnings })
    }
}

fn rubric(config: &RolloutConfig) -> Result<Rubric, SetupError> {
    if !config.evaluate_results {
        return Ok(Rubric::new());
    }
    let judge = match config.evaluation_metric {
        Metric::LlmJudgement => Some(LlmJudge::configured(config)?),
        _ => None,
    };
    Ok(Scorer::new(config.evaluation_metric, judge)?.rubric().without_monitors())
}

async fn tools(
    config: &RolloutConfig,
    program: &Path,
    warnings: &mut Vec<String>,
) -> Result<(Toolbox, Option<OwnServer>), SetupError> {
    let token = config.sandbox_token.as_ref().map(|token| SecretString::from(token.value.as_str()));
    let server = ToolServer::new(&config.sandbox_server_url, token, config.sandbox_timeout)?;
    let own = match server.health().await {
        Ok(()) => None,
        Err(ToolServerError::Unreachable { .. }) if config.sandbox_auto_start => {
            Some(OwnServer::start(program, config.sandbox_config_path.as_deref(), &server).await?)
        }
        Err(error) => return Err(error.into()),
    };
    let tools = match config.available_tools.as_slice() {
        [] => Vec::new(),
        wanted => server.tools(wanted).await?,
    };
    if !config.resource_types.is_empty() {
        match server.warm_up(&config.resource_types).await {
            Ok(answer) if answer.code == 0 => {}
            Ok(answer) => warnings
                .push(format!("the tool server is not ready for all of its tools: {}", answer.message)),
            // Not every server has this; a session that cannot be opened is told where it is missed.
            Err(error) => tracing::debug!(%error, "the tool server was not warmed up"),
        }
    }
    Ok((Toolbox::new(server, tools, &config.resource_types, &config.resource_init_configs), own))
}
