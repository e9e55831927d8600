//! Converts results of Harbor. What Harbor did not record is absent.

use indexmap::IndexMap;
use jiff::Timestamp;

use super::{
    format::{
        HarborException, HarborResult, HarborRewards, HarborStep, HarborTiming, HarborTrial, HarborUsage,
    },
    names::Named,
};
use rollout_core::result::{AgentUsage, ErrorType, StepResult, TrialError, TrialResult};

/// The result of a trial.
pub(super) fn result(trial: &HarborTrial, named: &Named) -> TrialResult {
    let harbor = &trial.result;
    let known = [
        harbor.started_at,
        harbor.finished_at,
        harbor.exception_info.as_ref().and_then(|error| error.occurred_at),
    ];
    let started_at = known.into_iter().flatten().next().unwrap_or(Timestamp::UNIX_EPOCH);
    let mut result = TrialResult::empty(&named.id, started_at);
    result.task_git_commit_id = harbor.task_id.git_commit_id.clone();
    result.notes.push(format!("imported from the trial {} of Harbor", named.original));
    let (reward, rewards, is_mean) = reward(harbor.verifier_result.as_ref());
    if is_mean {
        result.notes.push("Harbor recorded no `reward`: the reward is the mean of its numbers".to_owned());
    }
    (result.reward, result.rewards) = (reward, rewards);
    result.steps = harbor.step_results.iter().flatten().map(|step| self::step(step, harbor)).collect();
    let usage = usage(harbor);
    result.usage = usage;
    result.model_cost = usage.and_then(|usage| usage.cost_usd);
    result.cost = result.model_cost.unwrap_or(0.0);
    result.error = harbor.exception_info.as_ref().map(|error| self::error(error, harbor));
    times(harbor, &mut result);
    result.agent_starts = u32::from(result.timestamps.agent_execution_started_at.is_some());
    result
}

/// The reward, the others by name, and whether the reward is their mean, as for tasks of Harbor that run here.
fn reward(found: Option<&HarborRewards>) -> (Option<f64>, IndexMap<String, f64>, bool) {
    let Some(rewards) = found.and_then(|found| found.rewards.clone()) else {
        return (None, IndexMap::new(), false);
    };
    let mut rewards: IndexMap<String, f64> =
        rewards.into_iter().filter(|(_, reward)| reward.is_finite()).collect();
    match rewards.shift_remove("reward") {
        Some(reward) => (Some(reward), rewards, false),
        None if rewards.is_empty() => (None, rewards, false),
        None => {
            let mean = rewards.values().sum::<f64>() / rewards.len() as f64;
            (Some(mean), rewards, true)
        }
    }
}

fn step(step: &HarborStep, trial: &HarborResult) -> StepResult {
    let (reward, rewards, _) = reward(step.verifier_result.as_ref());
    StepResult {
        name: step.step_name.clone(),
        reward,
        rewards,
        agent_execution_sec: step.agent_execution.and_then(seconds),
        verifier_sec: step.verifier.and_then(seconds),
        error: step.exception_info.as_ref().map(|error| self::error(error, trial)),
    }
}

/// What the agent used: of the trial, or of its steps together.
fn usage(trial: &HarborResult) -> Option<AgentUsage> {
    let steps = || trial.step_results.iter().flatten().filter_map(|step| step.agent_result).collect();
    let used: Vec<HarborUsage> = trial.agent_result.map_or_else(steps, |used| vec![used]);
    let tokens = |of: fn(&HarborUsage) -> Option<u64>| used.iter().filter_map(of).reduce(u64::saturating_add);
    let usage = AgentUsage {
        input_tokens: tokens(|used| used.n_input_tokens),
        output_tokens: tokens(|used| used.n_output_tokens),
        cached_tokens: tokens(|used| used.n_cache_tokens),
        cost_usd: used
            .iter()
            .filter_map(|used| used.cost_usd)
            .filter(|cost| cost.is_finite())
            .reduce(|a, b| a + b),
    };
    (usage != AgentUsage::default() && usage.problem().is_none()).then_some(usage)
}

fn times(trial: &HarborResult, result: &mut TrialResult) {
    let timing = |timing: Option<HarborTiming>| timing.unwrap_or_default();
    let steps = || trial.step_results.iter().flatten();
    // The phases of steps, from the first to the last.
    let over = |own: Option<HarborTiming>, of: fn(&HarborStep) -> Option<HarborTiming>| match own {
        Some(own) => own,
        None => HarborTiming {
            started_at: steps().filter_map(of).filter_map(|timing| timing.started_at).min(),
            finished_at: steps().filter_map(of).filter_map(|timing| timing.finished_at).max(),
        },
    };
    let setup = timing(trial.environment_setup);
    let install = timing(trial.agent_setup);
    let execution = over(trial.agent_execution, |step| step.agent_execution);
    let verifier = over(trial.verifier, |step| step.verifier);
    let at = &mut result.timestamps;
    (at.environment_setup_started_at, at.environment_setup_ended_at) = (setup.started_at, setup.finished_at);
    (at.agent_setup_started_at, at.agent_setup_ended_at) = (install.started_at, install.finished_at);
    (at.agent_execution_started_at, at.agent_execution_ended_at) =
        (execution.started_at, execution.finished_at);
    (at.verifier_started_at, at.verifier_ended_at) = (verifier.started_at, verifier.finished_at);
    let phases = [setup, install, execution, verifier];
    let last = phases.iter().filter_map(|phase| phase.finished_at).max();
    at.ended_at = trial.finished_at.or(last).unwrap_or(at.started_at);
    let whole = HarborTiming { started_at: Some(at.started_at), finished_at: Some(at.ended_at) };
    result.durations.total_sec = seconds(whole).unwrap_or(0.0);
    result.durations.environment_setup_sec = seconds(setup);
    result.durations.agent_setup_sec = seconds(install);
    result.durations.agent_execution_sec = seconds(execution);
    result.durations.verifier_sec = seconds(verifier);
}

fn seconds(timing: HarborTiming) -> Option<f64> {
    let taken = timing.finished_at?.duration_since(timing.started_at?);
    Some(taken.as_secs_f64().max(0.0))
}

fn error(error: &HarborException, trial: &HarborResult) -> TrialError {
    let HarborException { exception_type, exception_message, .. } = error;
    let message = format!("{exception_type}: {exception_message}").trim_end_matches([':', ' ']).to_owned();
    TrialError { kind: kind(error, trial), message }
}

/// The type of an error: by its name if that is specific, else by the phase in which it occurred.
fn kind(error: &HarborException, trial: &HarborResult) -> ErrorType {
    match error.exception_type.as_str() {
        "AgentTimeoutError" => ErrorType::AgentExecutionTimeout,
        "AgentSetupTimeoutError" => ErrorType::AgentInstallTimeout,
        "VerifierTimeoutError" => ErrorType::VerifierTimeout,
        "RewardFileNotFoundError" => ErrorType::VerifierRewardMissing,
        "RewardFileEmptyError" | "VerifierOutputParseError" => ErrorType::VerifierRewardInvalid,
        "EnvironmentStartTimeoutError" => ErrorType::EnvironmentBuildTimeout,
        "SandboxBuildFailedError" => ErrorType::EnvironmentBuildFailed,
        "HealthcheckError" => ErrorType::EnvironmentStartFailed,
        "ApiRateLimitError"
        | "ApiUsageLimitError"
        | "ApiInternalServerError"
        | "ApiOverloadedError"
        | "ApiConnectionClosedError"
        | "ApiResponseStalledError"
        | "ApiConnectionError"
        | "AgentAuthenticationError"
        | "ModelNotFoundError"
        | "NetworkConnectionError" => ErrorType::ModelFailed,
        _ => by_phase(error.occurred_at, trial),
    }
}

fn by_phase(at: Option<Timestamp>, trial: &HarborResult) -> ErrorType {
    let started = |timing: Option<HarborTiming>| {
        let started = timing.and_then(|timing| timing.started_at);
        started.is_some_and(|started| at.is_none_or(|at| started <= at))
    };
    let steps = || trial.step_results.iter().flatten();
    if started(trial.verifier) || steps().any(|step| started(step.verifier)) {
        ErrorType::VerifierFailed
    } else if started(trial.agent_execution) || steps().any(|step| started(step.agent_execution)) {
        ErrorType::AgentExecutionFailed
    } else if started(trial.agent_setup) {
        ErrorType::AgentInstallFailed
    } else if started(trial.environment_setup) {
        ErrorType::EnvironmentStartFailed
    } else {
        ErrorType::InternalError
    }
}
