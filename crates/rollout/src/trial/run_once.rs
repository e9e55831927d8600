//! One try of a trial: its phases in order, teardown in any case, and the record of their results.

use std::future::Future;

use tokio::time::Instant;

use super::{
    clock::{Clock, PhaseSpan},
    context::{Progress, Trial, TrialContext},
    converse::save_trajectory,
    execute::execute,
    failure::Failure,
    install_cache::InstallPlan,
    network::{self, Egress},
    reward::Reward,
    script::LeftRunning,
    separate::SeparateEnvironment,
    services::Services,
    setup::{self, Started},
    step::Step,
    step_rewards::{combine, shortfall},
    teardown::{LogCopy, abandon, collect, is_preserved, tear_down},
    verify::{Graded, is_verified, verify},
};
use crate::agent::trajectory::TurnLog;
use rollout_core::result::{
    AgentUsage, EnvironmentRecord, ErrorType, ModelCalls, StepResult, TrialError, TrialResult,
};
use rollout_env::{Environment, PreparedImage};
use rollout_model as model;
use rollout_model::State;

/// How a try ended.
pub(super) enum TryEnd {
    Finished(Box<TryRecord>),
    Cancelled,
    /// The server of the model rejects the key, which ends more than this trial.
    Unauthorized(model::Error),
}

/// Runs a trial's task once, in a new environment.
pub(super) async fn run_once(context: &TrialContext<'_>, steps: &[Step]) -> TryEnd {
    let mut record = Box::<TryRecord>::default();
    record.notes.extend(context.unsupported.iter().map(|what| format!("{what}; the job allows that")));
    let began = Instant::now();
    let started = match until_cancelled(context, setup::start(context, &mut record.notes)).await {
        Err(Cut) => return TryEnd::Cancelled,
        Ok(Err(failure)) => {
            record.setup = Some(PhaseSpan::since(began));
            record.failure = Some(failure);
            return TryEnd::Finished(record);
        }
        Ok(Ok(started)) => started,
    };
    let Started { environment, services, image, plan, turn } = started;

    // The conversation is kept here, so that it is available even if the agent is stopped.
    let turns = TurnLog::default();
    // The environment of the tests is kept here too, so that it is removed even if they are stopped.
    let mut separate = None;
    let inside = async {
        let ready = make_ready(context, &*environment, &services, &plan, began, &mut record).await;
        // Trials that wait for this install continue, whether it succeeded or not.
        drop(turn);
        match ready {
            // The entrypoint runs until the end of this block.
            Ok(_entrypoint) => {
                let tested =
                    Tested { environment: &*environment, services: &services, image: &image, turns: &turns };
                attempt_steps(context, steps, tested, &mut separate, &mut record).await
            }
            Err(failure) => {
                record.failure = Some(failure);
                Ok(())
            }
        }
    };
    match until_cancelled(context, inside).await {
        Ok(Ok(())) => {}
        Ok(Err(refused)) => {
            abandon(environment).await;
            services.remove().await;
            return TryEnd::Unauthorized(refused);
        }
        Err(Cut) => {
            if let Some(separate) = separate {
                separate.abandon().await;
            }
            // The trial has no result that could note a failure here.
            let _ = save_trajectory(context, &turns).await;
            abandon(environment).await;
            services.remove().await;
            return TryEnd::Cancelled;
        }
    }
    // The logs of steps were collected after each.
    if record.steps.is_empty() {
        match until_cancelled(context, collect(context, &*environment, &mut record.notes)).await {
            Ok(logs) => record.logs = record.logs.and(logs),
            Err(Cut) => {
                abandon(environment).await;
                services.remove().await;
                return TryEnd::Cancelled;
            }
        }
    }

    let policy = context.trial.config.environment.preserve;
    let preserve = is_preserved(policy, record.failure.as_ref(), record.reward.as_ref());
    record.notes.extend(services.notes());
    record.notes.extend(context.egress.and_then(Egress::note));
    let mut torn_down = tear_down(context, environment, &image, &plan, preserve).await;
    match torn_down.environment.preserved.is_some() {
        true => {
            let (places, problems) = services.preserve().await;
            torn_down.environment.preserved_services = places;
            record.notes.extend(problems);
        }
        false => record.notes.extend(services.remove().await),
    }
    record.environment = Some(torn_down.environment);
    if let Some(message) = torn_down.problem {
        match &record.failure {
            None => record.failure = Some(Failure::new(ErrorType::EnvironmentTeardownFailed, message)),
            Some(_) => record.notes.push(message),
        }
    }
    TryEnd::Finished(record)
}

/// Prepares everything that the agent needs. Returns the entrypoint of the image, if it was started.
async fn make_ready<'e>(
    context: &TrialContext<'_>,
    environment: &'e dyn Environment,
    services: &Services,
    plan: &InstallPlan,
    began: Instant,
    record: &mut TryRecord,
) -> Result<Option<LeftRunning<'e>>, Failure> {
    let prepared = setup::before_install(context, environment, services, plan).await;
    record.setup = Some(PhaseSpan::since(began));
    let entrypoint = prepared?;
    let installed = setup::install(context, environment, plan, &mut record.notes).await;
    record.install = Some(installed.span);
    installed.result?;
    setup::after_install(context, environment, plan, entrypoint).await
}

/// The environment of a try, for the agent and for the tests.
#[derive(Clone, Copy)]
struct Tested<'e> {
    environment: &'e dyn Environment,
    services: &'e Services,
    image: &'e PreparedImage,
    turns: &'e TurnLog,
}

/// Lets the agent attempt each step, and grades it. Returns an error if the server of the model rejects the key.
async fn attempt_steps(
    context: &TrialContext<'_>,
    steps: &[Step],
    tested: Tested<'_>,
    separate: &mut Option<SeparateEnvironment>,
    record: &mut TryRecord,
) -> Result<(), model::Error> {
    // The agent's commands that keep running are killed when this is dropped.
    let mut left = Vec::new();
    let mut rewards = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        let context = context.at(step);
        let mut own = TryRecord::default();
        match setup::before_step(&context, tested.environment, tested.services, number).await {
            Ok(()) => {
                left.extend(execute_and_verify(&context, tested, separate, &mut own).await?);
            }
            Err(failure) => own.failure = Some(failure),
        }
        let is_last = number + 1 == steps.len();
        let is_graded = own.reward.is_some();
        let ends = own.failure.is_some() && !is_graded;
        let shortfall =
            shortfall(&step.min_reward, own.reward.as_ref()).filter(|_| own.verification.is_some());
        if step.name.is_some() {
            own.logs = own.logs.and(collect(&context, tested.environment, &mut own.notes).await);
        }
        rewards.push(own.reward.take());
        record.add_step(step, own, rewards.last().and_then(Option::as_ref));
        (context.trial.progress)(Progress::StepEnded);
        if let (Some(shortfall), false) = (shortfall, is_last) {
            record
                .notes
                .push(format!("the steps after {} were not attempted: {shortfall}", step.shown_name()));
            break;
        }
        if ends {
            break;
        }
    }
    record.reward = match context.task.config.steps.is_empty() {
        true => rewards.pop().flatten(),
        false => record.combined(context, &rewards),
    };
    Ok(())
}

/// Lets the agent attempt a step, then grades it. Returns the agent's command, if it was left running, or an error if
/// the server of the model rejects the key.
async fn execute_and_verify<'e>(
    context: &TrialContext<'_>,
    tested: Tested<'e>,
    separate: &mut Option<SeparateEnvironment>,
    record: &mut TryRecord,
) -> Result<Option<LeftRunning<'e>>, model::Error> {
    let Tested { environment, services, image, turns } = tested;
    if let Err(failure) =
        network::enter(context, environment, services, context.step.agent_network.as_ref()).await
    {
        record.failure = Some(failure);
        return Ok(None);
    }
    let executed = execute(context, environment, turns, &mut record.notes).await?;
    record.execution = Some(executed.span);
    record.usage = executed.usage;
    record.reported_usage = executed.reported_usage;
    record.model_calls = executed.model_calls;
    record.state = executed.state;
    record.failure = executed.result.err();
    let is_harbor = context.task.is_harbor;
    if !is_verified(&context.trial.config.verifier, is_harbor, record.failure.as_ref()) {
        return Ok(executed.left);
    }
    // What is collected for the tests does not belong to a phase.
    let verified = match network::enter(context, environment, services, None).await {
        Ok(()) => {
            let graded = Graded { agent: environment, services, image: Some(image) };
            verify(context, graded, separate, &mut record.notes).await
        }
        Err(failure) => {
            _ = record.failure.get_or_insert(failure);
            return Ok(executed.left);
        }
    };
    record.verification = Some(verified.span);
    record.survivors = verified.survivors;
    record.tampering = verified.tampering;
    record.logs = verified.logs;
    match verified.reward {
        Ok(reward) => record.reward = Some(reward),
        // The agent's own error came first, and explains more than a failure of the tests.
        Err(failure) => _ = record.failure.get_or_insert(failure),
    }
    Ok(executed.left)
}

/// A phase was cancelled.
pub(super) struct Cut;

pub(super) async fn until_cancelled<T>(
    context: &TrialContext<'_>,
    work: impl Future<Output = T>,
) -> Result<T, Cut> {
    tokio::select! {
        biased;
        () = context.trial.cancel.cancelled() => Err(Cut),
        done = work => Ok(done),
    }
}

/// The data of a try so far.
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

    /// The reward of a trial whose steps have these rewards. If the infrastructure failed in the last one, the trial has
    /// no reward, because the missing one says nothing about the agent; Harbor leaves it out.
    pub(super) fn combined(&self, context: &TrialContext<'_>, rewards: &[Option<Reward>]) -> Option<Reward> {
        let is_harbor = context.task.is_harbor;
        let last = self.steps.last().filter(|step| step.reward.is_none());
        let error = last.and_then(|step| step.error.as_ref());
        if !is_harbor && error.is_some_and(|error| !error.kind.fault().is_counted()) {
            return None;
        }
        combine(context.task.config.step_rewards, is_harbor, rewards)
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
        result.environment_cost = trial.costs.environments();
        result.model_cost = trial.costs.models(self.usage.and_then(|usage| usage.cost_usd));
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
        let is_harbor = trial.task.as_ref().is_ok_and(|task| task.is_harbor);
        let has_ungraded = self.steps.iter().any(|step| step.reward.is_none());
        result.leaves_out_step = is_harbor && has_ungraded && result.reward.is_some();
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
