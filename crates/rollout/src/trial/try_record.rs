//! The record of a try: the results of its phases, and the result of the trial.

use tokio::time::Instant;

use super::{
    clock::{Clock, PhaseSpan},
    collect::LogCopy,
    context::Trial,
    failure::Failure,
    reward::Reward,
    step::Step,
};
use rollout_core::result::{AgentUsage, EnvironmentRecord, ModelCalls, StepResult, TrialError, TrialResult};
use rollout_model::State;

/// The data of a try so far. Only `run_once` fills it in.
#[derive(Debug, Default)]
pub(super) struct TryRecord {
    pub(super) setup: Option<PhaseSpan>,
    pub(super) install: Option<PhaseSpan>,
    pub(super) execution: Option<PhaseSpan>,
    pub(super) verification: Option<PhaseSpan>,
    pub(super) usage: Option<AgentUsage>,
    pub(super) reported_usage: Option<AgentUsage>,
    pub(super) model_calls: Option<ModelCalls>,
    /// The conversation of a model, if the trial keeps it.
    pub(super) state: Option<Box<State>>,
    pub(super) survivors: Vec<String>,
    pub(super) tampering: Vec<String>,
    pub(super) reward: Option<Reward>,
    /// The steps that ran, if the task has some.
    pub(super) steps: Vec<StepResult>,
    pub(super) environment: Option<EnvironmentRecord>,
    pub(super) environment_cost: f64,
    /// The first failure.
    pub(super) failure: Option<Failure>,
    pub(super) notes: Vec<String>,
    pub(super) logs: LogCopy,
}

impl TryRecord {
    /// Adds the record of a step. The first failure is that of the try.
    pub(super) fn add_step(&mut self, step: &Step, own: TryRecord, reward: Option<&Reward>) {
        if let Some(name) = &step.name {
            self.steps.push(StepResult {
                name: name.clone(),
                reward: reward.map(|reward| reward.reward),
                rewards: reward.map(|reward| reward.named.clone()).unwrap_or_default(),
                agent_execution_sec: own.execution.map(|span| span.seconds()),
                verifier_sec: own.verification.map(|span| span.seconds()),
                error: own.failure.as_ref().map(|failure| failure.error.clone()),
            });
        }
        self.execution = joined(self.execution, own.execution);
        self.verification = joined(self.verification, own.verification);
        self.usage = added(self.usage, own.usage);
        self.reported_usage = added(self.reported_usage, own.reported_usage);
        self.model_calls = match (self.model_calls.take(), own.model_calls) {
            (Some(first), Some(second)) => Some(all_calls(first, second)),
            (first, second) => first.or(second),
        };
        if own.state.is_some() {
            self.state = own.state;
        }
        self.survivors = own.survivors;
        self.tampering.extend(own.tampering);
        self.failure = self.failure.take().or(own.failure);
        self.notes.extend(own.notes);
        self.logs = self.logs.and(own.logs);
    }

    /// The result of a trial that ends now with this try, without secrets.
    pub(super) fn into_result(self, trial: &Trial, clock: Clock) -> TrialResult {
        let ended = Instant::now();
        let began = |span: Option<PhaseSpan>| span.map(|span| clock.at(span.began));
        let end = |span: Option<PhaseSpan>| span.map(|span| clock.at(span.ended));
        let took = |span: Option<PhaseSpan>| span.map(|span| span.seconds());
        let redact = |text: String| trial.redactor.text(&text).into_owned();

        let mut result = TrialResult::empty(&trial.id, clock.started_at);
        result.task_git_commit_id = trial.task.as_ref().ok().and_then(|task| task.git_commit_id.clone());
        if let Some(Reward { reward, named, .. }) = self.reward {
            result.reward = Some(reward);
            result.rewards = named;
        }
        result.environment_cost = self.environment_cost;
        result.model_cost = self.usage.and_then(|usage| usage.cost_usd);
        result.cost = result.environment_cost + result.model_cost.unwrap_or(0.0);
        result.usage = self.usage;
        result.reported_usage = self.reported_usage;
        result.model_calls = self.model_calls;
        result.durations.total_sec = clock.seconds_to(ended);
        result.durations.environment_setup_sec = took(self.setup);
        result.durations.agent_setup_sec = took(self.install);
        result.durations.agent_execution_sec = took(self.execution);
        result.durations.verifier_sec = took(self.verification);
        result.timestamps.environment_setup_started_at = began(self.setup);
        result.timestamps.environment_setup_ended_at = end(self.setup);
        result.timestamps.agent_setup_started_at = began(self.install);
        result.timestamps.agent_setup_ended_at = end(self.install);
        result.timestamps.agent_execution_started_at = began(self.execution);
        result.timestamps.agent_execution_ended_at = end(self.execution);
        result.timestamps.verifier_started_at = began(self.verification);
        result.timestamps.verifier_ended_at = end(self.verification);
        result.timestamps.ended_at = clock.at(ended);
        result.steps = self.steps;
        for error in result.steps.iter_mut().filter_map(|step| step.error.as_mut()) {
            error.message = trial.redactor.text(&error.message).into_owned();
        }
        result.environment = self.environment;
        result.survivors = self.survivors;
        result.tampering = self.tampering.into_iter().map(redact).collect();
        result.notes = self.notes.into_iter().map(redact).collect();
        result.incomplete_logs = self.logs == LogCopy::Incomplete;
        result.error = self
            .failure
            .map(|Failure { error, .. }| TrialError { kind: error.kind, message: redact(error.message) });
        result
    }
}

/// The time from the start of the first to the end of the second.
fn joined(first: Option<PhaseSpan>, second: Option<PhaseSpan>) -> Option<PhaseSpan> {
    match (first, second) {
        (Some(first), Some(second)) => Some(PhaseSpan { began: first.began, ended: second.ended }),
        (first, second) => first.or(second),
    }
}

/// The calls of two steps.
fn all_calls(mut first: ModelCalls, second: ModelCalls) -> ModelCalls {
    first.calls += second.calls;
    first.turns += second.turns;
    first.tool_calls += second.tool_calls;
    for model in second.models {
        if !first.models.contains(&model) {
            first.models.push(model);
        }
    }
    for (kind, count) in second.errors {
        *first.errors.entry(kind).or_default() += count;
    }
    first
}

fn added(first: Option<AgentUsage>, second: Option<AgentUsage>) -> Option<AgentUsage> {
    let (Some(one), Some(other)) = (first, second) else { return first.or(second) };
    let sum = |one: Option<u64>, other: Option<u64>| match (one, other) {
        (Some(one), Some(other)) => Some(one.saturating_add(other)),
        (one, other) => one.or(other),
    };
    Some(AgentUsage {
        input_tokens: sum(one.input_tokens, other.input_tokens),
        output_tokens: sum(one.output_tokens, other.output_tokens),
        cached_tokens: sum(one.cached_tokens, other.cached_tokens),
        cost_usd: match (one.cost_usd, other.cost_usd) {
            (Some(one), Some(other)) => Some(one + other),
            (one, other) => one.or(other),
        },
    })
}
