//! The model of an agent behind the gateway: how the agent reaches it, and what its calls came to.

use std::{iter, path::PathBuf, time::Duration};

use indexmap::IndexMap;

use super::{calls::required, context::TrialContext, failure::Failure};
use crate::{
    agent::{
        calls::{Calls, LastError},
        own_log::OwnLog,
        trajectory::TurnLog,
    },
    config::{ModelConfig, PresetAgentConfig, dialect_name},
};
use rollout_core::{
    event::{ModelProgress, Phase},
    result::{AgentUsage, ErrorType, ModelCalls},
};
use rollout_env::{Environment, blocking::blocking};
use rollout_gateway::{
    Budget, CallErrorKind, Dialect, GatewaySession, ModelRoute, SessionSpec, SessionSummary, Upstream,
};
use rollout_model as model;

/// What an agent gets to end by itself after it was refused for its budget.
const GRACE: Duration = Duration::from_secs(10);

/// An agent's way to its model.
pub(super) struct Line {
    session: GatewaySession,
    record: PathBuf,
    /// The variables about the model in the agent's scripts.
    pub(super) variables: Vec<(String, String)>,
}

/// What came of the calls.
pub(super) struct Answered {
    pub(super) usage: AgentUsage,
    pub(super) calls: ModelCalls,
    /// What the calls say about the end of the agent, which may not know it.
    pub(super) verdict: Verdict,
}

/// What the calls of an agent say about its end.
pub(super) enum Verdict {
    /// The agent had its model.
    Fine,
    /// It never asked its model.
    Silent,
    /// It used up what it may use of the model, or the model did not take the rest of its conversation. Most agents then
    /// end as if something had failed, but what they did is graded.
    UsedUp,
    /// It failed for want of a model.
    Failed(Failure),
    /// The last call failed, but was not part of the conversation. That only explains the end of an agent that failed.
    FailedAside(Failure),
    /// The server of the model refuses the key, which ends more than this trial.
    Unauthorized(model::Error),
}

/// Opens the route to the model. None if the agent has its own model.
pub(super) async fn open(
    context: &TrialContext<'_>,
    environment: &dyn Environment,
    agent: &PresetAgentConfig,
) -> Result<Option<Line>, Failure> {
    let Some(model) = &agent.model else { return Ok(None) };
    let internal = |message: String| Failure::new(ErrorType::InternalError, message);
    let trial = context.trial;
    let gateway = trial.gateway.as_deref();
    let gateway = gateway.ok_or_else(|| internal("the job has no gateway".to_owned()))?;
    let record = context.step.dir.calls();
    let dir = record.parent().map(PathBuf::from).unwrap_or_default();
    blocking(move || std::fs::create_dir_all(dir))
        .await
        .map_err(|error| internal(format!("cannot write the record of model calls: {error}")))?;
    let server = upstream(model, trial.id.attempt);
    let route = |pattern: String, name: &str| ModelRoute {
        pattern,
        model: Some(name.to_owned()),
        upstream: server.clone(),
        price: trial.config.price_at(model, name),
    };
    let mut spec = SessionSpec {
        budget: Budget {
            tokens: agent.limits.max_total_tokens,
            dollars: agent.limits.max_cost,
            calls: agent.limits.max_turns.map(u64::from),
        },
        token_ids: model.token_ids,
        provider_tools: trial.config.gateway.provider_tools,
        // Attempts at the same task are different samples.
        cache_scope: trial.id.to_string(),
        secrets: (*trial.redactor).clone(),
        ..SessionSpec::new(&record, route("*".to_owned(), &model.name))
    };
    let models = &trial.config.gateway.models;
    if !models.is_empty() {
        spec.routes = routes(&model.name, models, route);
    }
    let session = gateway.open(spec).map_err(|error| internal(error.to_string()))?;
    let port = required(Phase::Execute, environment.offer(gateway.address())).await?;
    let dialect = spoken(&agent.preset.dialects, model.dialect);
    let variables = [
        ("ROLLOUT_MODEL", model.name.clone()),
        ("ROLLOUT_MODEL_URL", format!("http://127.0.0.1:{port}")),
        ("ROLLOUT_MODEL_TOKEN", session.token().to_owned()),
        ("ROLLOUT_MODEL_DIALECT", dialect_name(dialect).to_owned()),
    ];
    let variables = variables.map(|(name, value)| (name.to_owned(), value)).to_vec();
    Ok(Some(Line { session, record, variables }))
}

/// The protocol that the agent speaks: that of the model if it can, because then nothing is translated.
fn spoken(known: &[Dialect], of_model: Dialect) -> Dialect {
    let same = known.contains(&of_model).then_some(of_model);
    same.or(known.first().copied()).unwrap_or(of_model)
}

fn upstream(model: &ModelConfig, attempt: u32) -> Upstream {
    let urls = &model.base_urls;
    let url = urls.get(attempt as usize % urls.len().max(1)).cloned().unwrap_or_default();
    Upstream {
        key: model.api_key.as_ref().map(|key| key.value.as_str().into()),
        headers: model
            .headers
            .iter()
            .map(|(name, value)| (name.clone(), value.value.as_str().into()))
            .collect(),
        ..Upstream::new(url, model.dialect)
    }
}

/// Which model answers which name. The agent's own model answers to its own name, whatever the patterns are.
fn routes(
    own: &str,
    models: &IndexMap<String, Option<String>>,
    route: impl Fn(String, &str) -> ModelRoute,
) -> Vec<ModelRoute> {
    let others =
        models.iter().map(|(pattern, model)| route(pattern.clone(), model.as_deref().unwrap_or(own)));
    iter::once(route(globset::escape(own), own)).chain(others).collect()
}

impl Line {
    /// Waits until the agent was refused for its budget and had time to end by itself.
    pub(super) async fn used_up(&self) {
        self.session.exhausted().await;
        tokio::time::sleep(GRACE).await;
    }

    /// What the agent used so far.
    pub(super) fn used(&self) -> ModelProgress {
        let SessionSummary { turns, usage, cost, .. } = self.session.summary();
        ModelProgress {
            turns,
            input_tokens: usage.input_tokens(),
            output_tokens: usage.completion_tokens,
            cost,
        }
    }

    /// Closes the way to the model. The conversation goes to `turns`, with what only the agent's own log has.
    pub(super) async fn close(
        self,
        turns: &TurnLog,
        own: Option<&OwnLog>,
        notes: &mut Vec<String>,
    ) -> Answered {
        let summary = self.session.close().await;
        let record = self.record;
        let calls = blocking(move || Calls::read(&record)).await.unwrap_or_else(|error| {
            notes.push(format!("the record of model calls cannot be read: {error}"));
            Calls::default()
        });
        let verdict = verdict(&summary, &calls, notes);
        let tool_calls = calls.tool_calls();
        if summary.succeeded() && summary.errors.contains_key(&CallErrorKind::BudgetExhausted) {
            notes.push(
                "the agent reached its limit of model calls, tokens or cost; its work until then is graded"
                    .to_owned(),
            );
        }
        if let Some(mut trajectory) = calls.into_trajectory() {
            own.into_iter().for_each(|own| trajectory.complete(own));
            turns.put(trajectory);
        }
        Answered { usage: usage(&summary), calls: model_calls(summary, tool_calls), verdict }
    }
}

/// Several agents end in good order after every call failed, so their exit code is not enough.
fn verdict(summary: &SessionSummary, calls: &Calls, notes: &mut Vec<String>) -> Verdict {
    let (error, is_answered, is_aside) = match calls.last_error() {
        Some(LastError::Conversation { error, is_answered }) => (error, is_answered, false),
        Some(LastError::Aside(error)) => (error, true, true),
        None if summary.calls == 0 => return Verdict::Silent,
        None => return Verdict::Fine,
    };
    let answered = summary.succeeded();
    let failed = |transient: bool| {
        let what = if answered {
            "the agent's last call of its model failed"
        } else {
            "every call of the model failed"
        };
        let message = format!("{what}: {}. agent/calls.jsonl has all calls", error.message);
        // What an agent did with its model is its attempt, and it has one.
        let failure =
            Failure { transient: transient && !answered, ..Failure::new(ErrorType::ModelFailed, message) };
        if is_aside { Verdict::FailedAside(failure) } else { Verdict::Failed(failure) }
    };
    match error.kind {
        CallErrorKind::BudgetExhausted if answered => Verdict::UsedUp,
        CallErrorKind::ClientGone | CallErrorKind::Closed => Verdict::Fine,
        CallErrorKind::Unauthorized if !answered => {
            Verdict::Unauthorized(model::Error::new(model::ErrorKind::Unauthorized, error.message.clone()))
        }
        CallErrorKind::RateLimited
        | CallErrorKind::UpstreamFailed
        | CallErrorKind::Unreachable
        | CallErrorKind::Cut => failed(true),
        // An agent decides what it asks, and when. If such a failure took its trial out of the results, it could choose
        // which of its trials count.
        kind if depends_on_request(kind) && is_answered => {
            if is_aside {
                return Verdict::Fine;
            }
            let what = match kind {
                CallErrorKind::ContextLength => "the conversation is longer than the context of the model",
                _ => "the last call of the conversation was rejected",
            };
            notes.push(format!("{what}; the agent's work until then is graded: {}", error.message));
            Verdict::UsedUp
        }
        // It never had a model: its other calls failed, or other trials used up what the job may use.
        _ => failed(false),
    }
}

/// Whether a call fails because of what the agent sent.
fn depends_on_request(kind: CallErrorKind) -> bool {
    match kind {
        CallErrorKind::ContextLength
        | CallErrorKind::InvalidRequest
        | CallErrorKind::ModelNotAllowed
        | CallErrorKind::NotTranslatable
        | CallErrorKind::Refused => true,
        CallErrorKind::BudgetExhausted
        | CallErrorKind::Unauthorized
        | CallErrorKind::RateLimited
        | CallErrorKind::UpstreamFailed
        | CallErrorKind::Unreachable
        | CallErrorKind::Cut
        | CallErrorKind::ClientGone
        | CallErrorKind::Closed => false,
    }
}

fn usage(summary: &SessionSummary) -> AgentUsage {
    AgentUsage {
        input_tokens: Some(summary.usage.input_tokens()),
        output_tokens: Some(summary.usage.completion_tokens),
        cached_tokens: Some(summary.usage.cached_tokens).filter(|tokens| *tokens > 0),
        cost_usd: summary.cost,
    }
}

fn model_calls(summary: SessionSummary, tool_calls: u64) -> ModelCalls {
    let name = |kind: CallErrorKind| match serde_json::to_value(kind) {
        Ok(serde_json::Value::String(name)) => name,
        _ => "other".to_owned(),
    };
    ModelCalls {
        calls: summary.calls,
        turns: summary.turns,
        tool_calls,
        models: summary.models.into_iter().collect(),
        errors: summary.errors.into_iter().map(|(kind, count)| (name(kind), count)).collect(),
    }
}
