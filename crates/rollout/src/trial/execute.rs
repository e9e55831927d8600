//! The execute phase: the agent attempts the task.

use tokio::time::Instant;

use super::{
    calls::{bounded, required},
    clock::PhaseSpan,
    context::{TrialContext, variables},
    converse::{Conversed, converse, save_trajectory},
    failure::Failure,
    gateway::{self, Line, Verdict},
    instruction, live, oracle, own_log, preset,
    script::{self, LeftRunning},
};
use crate::{
    agent::{self, trajectory::TurnLog},
    config::{AgentKind, PresetAgentConfig},
};
use rollout_core::{
    event::Phase,
    result::{AgentUsage, ErrorType, ModelCalls},
};
use rollout_env::{CopyMode, Environment, FileRead};
use rollout_model as model;
use rollout_model::State;

/// The largest usage.json that is read.
const MAX_USAGE_BYTES: u64 = 64 << 10;

/// What came of the execute phase.
pub(super) struct Executed<'e> {
    pub(super) span: PhaseSpan,
    /// The agent's command, if it was left running.
    pub(super) left: Option<LeftRunning<'e>>,
    /// What the agent used, as far as it is known.
    pub(super) usage: Option<AgentUsage>,
    /// What the agent says that it used, if that differs.
    pub(super) reported_usage: Option<AgentUsage>,
    /// Its calls of a model, if they went through the gateway.
    pub(super) model_calls: Option<ModelCalls>,
    /// The conversation, if the agent is a model and the trial keeps it.
    pub(super) state: Option<Box<State>>,
    pub(super) result: Result<(), Failure>,
}

/// Lets the agent attempt the task. What a model and its tools say goes to `turns`. The error is that the server of
/// the model refuses the key.
pub(super) async fn execute<'e>(
    context: &TrialContext<'_>,
    environment: &'e dyn Environment,
    turns: &TurnLog,
    notes: &mut Vec<String>,
) -> Result<Executed<'e>, model::Error> {
    context.enter(Phase::Execute);
    let began = Instant::now();
    if let AgentKind::Model(config) = &context.trial.agent.kind {
        let conversation = converse(context, environment, config, turns, notes);
        let conversed =
            live::reporting(context, || turns.used(), live::writing(context, turns, conversation)).await;
        let span = PhaseSpan::since(began);
        notes.extend(save_trajectory(context, turns).await.err());
        let Conversed { usage, state, result } = conversed?;
        let state = state.filter(|_| context.trial.keeps_state);
        return Ok(Executed {
            span,
            left: None,
            usage,
            reported_usage: None,
            model_calls: None,
            state,
            result,
        });
    }
    if let AgentKind::Preset(agent) = &context.trial.agent.kind {
        return execute_preset(context, environment, agent, turns, notes).await;
    }
    let mut left = None;
    let result = run_script(context, environment, &mut left, notes).await;
    let span = PhaseSpan::since(began);
    let usage = read_usage(environment).await.unwrap_or_else(|note| {
        notes.push(note);
        None
    });
    Ok(Executed { span, left, usage, reported_usage: None, model_calls: None, state: None, result })
}

/// Lets an agent that others made attempt the task. The error is that the server of its model refuses the key.
async fn execute_preset<'e>(
    context: &TrialContext<'_>,
    environment: &'e dyn Environment,
    agent: &PresetAgentConfig,
    turns: &TurnLog,
    notes: &mut Vec<String>,
) -> Result<Executed<'e>, model::Error> {
    let began = Instant::now();
    let mut executed = Executed {
        span: PhaseSpan::since(began),
        left: None,
        usage: None,
        reported_usage: None,
        model_calls: None,
        state: None,
        result: Ok(()),
    };
    if let Err(failure) = instruction::check_length(context, &agent.preset).await {
        return Ok(Executed { result: Err(failure), ..executed });
    }
    let line = match gateway::open(context, environment, agent).await {
        Ok(line) => line,
        Err(failure) => return Ok(Executed { result: Err(failure), ..executed }),
    };
    let used = || line.as_ref().map(Line::used).unwrap_or_default();
    let agent_run = run_preset(context, environment, agent, line.as_ref(), &mut executed.left);
    executed.result = live::reporting(context, used, agent_run).await;
    executed.span = PhaseSpan::since(began);
    notes.extend(preset::gather_logs(environment, agent).await.err());
    let reported = read_usage(environment).await.unwrap_or_else(|note| {
        notes.push(note);
        None
    });
    let own = own_log::read(context, environment, agent, notes).await;
    preset::forget_own_log(environment, agent).await;
    let reported = reported.or(own.as_ref().and_then(|own| own.usage));
    let Some(line) = line else {
        own_log::keep(context, own, began.elapsed(), turns, notes).await;
        return Ok(Executed { usage: reported, ..executed });
    };
    let answered = line.close(turns, own.as_ref(), notes).await;
    own_log::keep(context, own, began.elapsed(), turns, notes).await;
    executed.reported_usage = reported.filter(|reported| own_log::differs(reported, &answered.usage));
    executed.usage = Some(answered.usage);
    executed.model_calls = Some(answered.calls);
    let exited = |failure: &Failure| failure.error.kind == ErrorType::AgentExecutionFailed;
    match answered.verdict {
        Verdict::Fine => {}
        Verdict::UsedUp => {
            executed.result =
                executed.result.or_else(|failure| if exited(&failure) { Ok(()) } else { Err(failure) });
        }
        Verdict::FailedAside(failure) => {
            executed.result = executed.result.map_err(|error| if exited(&error) { failure } else { error });
        }
        Verdict::Silent if executed.result.is_err() => {}
        Verdict::Silent => {
            let message = "the agent never called its model; its output is in command/".to_owned();
            executed.result = Err(Failure::new(ErrorType::AgentExecutionFailed, message));
        }
        Verdict::Failed(failure) => executed.result = Err(failure),
        Verdict::Unauthorized(error) => return Err(error),
    }
    Ok(executed)
}

/// Runs the script of a preset until it ends, or until the agent has used up what it may use of the model.
async fn run_preset<'e>(
    context: &TrialContext<'_>,
    environment: &'e dyn Environment,
    agent: &PresetAgentConfig,
    line: Option<&Line>,
    left: &mut Option<LeftRunning<'e>>,
) -> Result<(), Failure> {
    let phase = Phase::Execute;
    preset::bring_extensions(context, environment, agent).await?;
    let version = preset::known_version(context, agent);
    let script = agent::preset::execute_script(&agent.preset, &version);
    required(phase, environment.write_file(agent::EXECUTE_SCRIPT, script.as_bytes())).await?;
    let mut env = context.agent_variables();
    env.extend(line.into_iter().flat_map(|line| line.variables.clone()));
    // After the timeout, the agent gets some time to end by itself, and what it used does not matter any more.
    let limit = context.timeouts.execute;
    let used_up = async {
        if let Some(line) = line
            && tokio::time::timeout(limit, line.used_up()).await.is_ok()
        {
            return;
        }
        std::future::pending().await
    };
    let run = async {
        if context.task.is_harbor {
            return script::run_agent(context, environment, &script::EXECUTE, env, left).await;
        }
        let ask_to_end = preset::ask_to_end(environment);
        script::run_with_grace(context, environment, &script::EXECUTE, &env, ask_to_end).await
    };
    tokio::select! {
        end = run => end?.check(),
        // Leaving its script ends the agent, and this ends what it started elsewhere.
        () = used_up => required(phase, environment.kill_all()).await,
    }
}

/// Runs the script of an agent that has one.
async fn run_script<'e>(
    context: &TrialContext<'_>,
    environment: &'e dyn Environment,
    left: &mut Option<LeftRunning<'e>>,
    notes: &mut Vec<String>,
) -> Result<(), Failure> {
    let phase = Phase::Execute;
    match &context.trial.agent.kind {
        AgentKind::Nop | AgentKind::Model(_) | AgentKind::Preset(_) => Ok(()),
        AgentKind::Oracle if context.task.is_harbor => {
            oracle::run_like_harbor(context, environment, left, notes).await
        }
        AgentKind::Oracle => {
            let solution = &context.step.solution;
            required(phase, environment.copy_to(solution, agent::ORACLE_DIR, CopyMode::Replace)).await?;
            required(phase, environment.link(agent::ORACLE_DIR, agent::SOLUTION_LINK)).await?;
            let mut env = context.agent_variables();
            env.extend(variables(&context.trial.env.solution));
            script::run_agent(context, environment, &script::ORACLE, env, left).await?.check()
        }
        AgentKind::Script { execute, .. } => {
            required(phase, environment.write_file(agent::EXECUTE_SCRIPT, execute.as_bytes())).await?;
            let env = context.agent_variables();
            script::run_agent(context, environment, &script::EXECUTE, env, left).await?.check()
        }
    }
}

/// What the agent reports to have used. The error is a note: an invalid file fails no trial.
async fn read_usage(environment: &dyn Environment) -> Result<Option<AgentUsage>, String> {
    match bounded(environment.read_file("/logs/agent/usage.json", MAX_USAGE_BYTES)).await {
        Ok(found) => parse_usage(&found).map_err(|why| format!("/logs/agent/usage.json was ignored: {why}")),
        Err(_) => Ok(None),
    }
}

fn parse_usage(found: &FileRead) -> Result<Option<AgentUsage>, String> {
    let usage: AgentUsage = match found {
        FileRead::Content(bytes) => serde_json::from_slice(bytes).map_err(|error| error.to_string())?,
        FileRead::Missing => return Ok(None),
        FileRead::NotRegular | FileRead::TooLarge(_) => {
            return Err("it is not a small regular file".to_owned());
        }
    };
    match usage.problem() {
        Some(problem) => Err(problem),
        None => Ok(Some(usage)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_read_from_a_small_regular_file_with_a_cost_that_can_be() {
        let content = |text: &str| FileRead::Content(text.into());
        let cost = |cost_usd| Ok(Some(AgentUsage { cost_usd, ..AgentUsage::default() }));
        for (found, usage) in [
            (content("{}"), cost(None)),
            (content(r#"{"cost_usd": 0}"#), cost(Some(0.0))),
            (content(r#"{"cost_usd": 0.5, "model": "m"}"#), cost(Some(0.5))),
            (content(r#"{"cost_usd": -1}"#), Err("cost_usd is -1.0, but must be from 0 to 1000000")),
            (content(r#"{"cost_usd": 1.7e300}"#), Err("cost_usd is 1.7e300, but must be from 0 to 1000000")),
            (
                content(r#"{"input_tokens": 18446744073709551615}"#),
                Err("input_tokens is 18446744073709551615, but must be at most 1000000000000"),
            ),
            (content("{"), Err("EOF while parsing an object at line 1 column 1")),
            (FileRead::Missing, Ok(None)),
            (FileRead::NotRegular, Err("it is not a small regular file")),
            (FileRead::TooLarge(1 << 20), Err("it is not a small regular file")),
        ] {
            assert_eq!(parse_usage(&found), usage.map_err(str::to_owned), "{found:?}");
        }
    }
}
