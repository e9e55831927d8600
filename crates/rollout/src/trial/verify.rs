//! Verification: fresh tests, an empty `/logs/verifier`, and a reward that is read once.

use std::path::Path;

use tokio::time::Instant;

use super::{
    artifacts::{self, Artifact},
    calls::required,
    clock::PhaseSpan,
    collectors::{CollectedFrom, run_collectors},
    context::{TrialContext, variables},
    failure::Failure,
    network,
    reward::{MAX_REWARD_BYTES, Reward, RewardError},
    script,
    separate::{self, SeparateEnvironment},
    services::Services,
    tampering::{TESTS_DIR, VerdictWatch},
    teardown::LogCopy,
    test_files::TestFiles,
};
use crate::config::{AfterAgentError, AgentProcesses, VerifierConfig};
use rollout_core::{
    event::Phase,
    result::{ErrorType, FailureCause},
    text::excerpt,
};
use rollout_env::{CopyMode, Environment, FileRead, PreparedImage, blocking::blocking};

/// How many left-over commands a result lists.
const MAX_SURVIVORS: usize = 20;

/// The result of verification.
pub(super) struct Verified {
    pub(super) span: PhaseSpan,
    /// Commands that the agent left running.
    pub(super) survivors: Vec<String>,
    /// What they did to the tests and the reward.
    pub(super) tampering: Vec<String>,
    pub(super) reward: Result<Reward, Failure>,
    /// The logs of a separate environment.
    pub(super) logs: LogCopy,
}

/// Whether an attempt with this failure, or without one, is graded. Failures not caused by the agent say nothing about
/// it.
pub(super) fn is_verified(config: &VerifierConfig, is_harbor: bool, failure: Option<&Failure>) -> bool {
    let graded = match failure {
        None => true,
        Some(failure) => {
            let by_agent = failure.error.kind.fault() == FailureCause::Agent;
            by_agent && !failure.transient && config.after_agent_error(is_harbor) == AfterAgentError::Run
        }
    };
    graded && !config.disable
}

/// What is graded: the environments in which the agent worked.
#[derive(Clone, Copy)]
pub(super) struct Graded<'a> {
    pub(super) agent: &'a dyn Environment,
    pub(super) services: &'a Services,
    /// The task's image, if it is prepared.
    pub(super) image: Option<&'a PreparedImage>,
}

/// Runs the tests and reads their reward: in the agent's environment, or in a separate one, which is in `separate`
/// while it exists.
pub(super) async fn verify(
    context: &TrialContext<'_>,
    graded: Graded<'_>,
    separate: &mut Option<SeparateEnvironment>,
    notes: &mut Vec<String>,
) -> Verified {
    let Graded { agent, services, .. } = graded;
    context.enter(Phase::Verify);
    let began = Instant::now();
    let mut watch = VerdictWatch::default();
    run_collectors(context, CollectedFrom::Main, agent, services, notes).await;
    if !context.step.is_separate {
        run_collectors(context, CollectedFrom::Services, agent, services, notes).await;
        if artifacts::are_wanted(context) {
            // The tests do not need them, so a failure is a note.
            let failed = artifacts::collect(context, agent, services, notes).await.err();
            notes.extend(failed.map(|failure| failure.error.message));
        }
    }
    let mut logs = LogCopy::Complete;
    let reward = if context.step.is_separate {
        let reward = match list(context, agent, &mut watch).await {
            Ok(()) => grade_apart(context, graded, separate, notes).await,
            Err(failure) => Err(failure),
        };
        if let Some(environment) = separate.take() {
            logs = separate::close(context, environment, notes).await;
        }
        reward
    } else {
        grade_in_place(context, graded, &mut watch, notes).await
    };
    let VerdictWatch { survivors, tampering, notes: noted, .. } = watch;
    notes.extend(noted);
    Verified { span: PhaseSpan::since(began), survivors, tampering, reward, logs }
}

/// What the agent of a finished trial left.
#[derive(Clone, Copy)]
pub(super) enum AgentState<'a> {
    /// A copy of its environment and of its services, without processes.
    Environment(&'a dyn Environment, &'a Services),
    /// Artifacts, for tests in a separate environment.
    Artifacts(&'a [Artifact]),
}

/// Runs the tests again, on what the agent of a finished trial left.
pub(super) async fn verify_again(
    context: &TrialContext<'_>,
    state: AgentState<'_>,
    separate: &mut Option<SeparateEnvironment>,
    notes: &mut Vec<String>,
) -> Verified {
    context.enter(Phase::Verify);
    let began = Instant::now();
    let mut watch = VerdictWatch::default();
    let reward = async {
        let (environment, _entrypoint) = match state {
            AgentState::Environment(agent, services) if context.step.is_separate => {
                run_collectors(context, CollectedFrom::Main, agent, services, notes).await;
                let graded = Graded { agent, services, image: None };
                let tests = separate::open(context, graded, separate, notes).await?;
                (tests.environment, tests.entrypoint)
            }
            AgentState::Environment(agent, services) => {
                let policy = context.step.verifier_network.as_ref();
                network::enter(context, agent, services, policy).await?;
                (agent, None)
            }
            AgentState::Artifacts(artifacts) => {
                let hosts = context.own_hosts();
                let neighbours = separate::Neighbours { hosts: &hosts, networks: &[] };
                let tests = separate::open_with(context, artifacts, neighbours, None, separate).await?;
                (tests.environment, tests.entrypoint)
            }
        };
        grade(context, environment, &mut watch, notes).await
    };
    let reward = reward.await;
    let logs = match separate.take() {
        Some(environment) => separate::close(context, environment, notes).await,
        None => LogCopy::Complete,
    };
    let span = PhaseSpan::since(began);
    Verified { span, survivors: Vec::new(), tampering: watch.tampering, reward, logs }
}

/// Lists the commands that the agent left running.
async fn list(
    context: &TrialContext<'_>,
    agent: &dyn Environment,
    watch: &mut VerdictWatch,
) -> Result<(), Failure> {
    let survivors = required(Phase::Verify, agent.survivors()).await?;
    let shown = |command: String| excerpt(&context.trial.redactor.text(&command));
    watch.survivors = survivors.into_iter().take(MAX_SURVIVORS).map(shown).collect();
    Ok(())
}

async fn grade_apart(
    context: &TrialContext<'_>,
    graded: Graded<'_>,
    separate: &mut Option<SeparateEnvironment>,
    notes: &mut Vec<String>,
) -> Result<Reward, Failure> {
    let tests = separate::open(context, graded, separate, notes).await?;
    grade(context, tests.environment, &mut VerdictWatch::default(), notes).await
}

async fn grade_in_place(
    context: &TrialContext<'_>,
    graded: Graded<'_>,
    watch: &mut VerdictWatch,
    notes: &mut Vec<String>,
) -> Result<Reward, Failure> {
    let Graded { agent: environment, services, .. } = graded;
    network::enter(context, environment, services, context.step.verifier_network.as_ref()).await?;
    list(context, environment, watch).await?;
    if context.trial.config.verifier.agent_processes == AgentProcesses::Kill {
        // Even if none was seen: a process may hide from a listing, but not from the kill.
        required(Phase::Verify, environment.kill_all()).await?;
    } else {
        watch.prepare(environment).await?;
    }
    grade(context, environment, watch, notes).await
}

async fn grade(
    context: &TrialContext<'_>,
    environment: &dyn Environment,
    watch: &mut VerdictWatch,
    notes: &mut Vec<String>,
) -> Result<Reward, Failure> {
    let phase = Phase::Verify;
    let is_harbor = context.task.is_harbor;
    let config = &context.trial.config.verifier;
    required(phase, environment.make_dirs(&["/logs/verifier"], true)).await?;
    let tests = TestFiles::open(context).await?;
    let script = match is_harbor {
        true if separate::has_tests(context) => script::BUILT_IN_TESTS,
        true => script::HARBOR_TESTS,
        false => script::TESTS,
    };
    if !separate::has_tests(context) {
        required(phase, environment.copy_to(tests.path(), TESTS_DIR, CopyMode::Replace)).await?;
        script.make_executable(environment, tests.path().join("test.sh")).await?;
    }
    watch.begin(environment).await?;
    let mut env = context.tests_environment();
    env.extend(variables(&context.step.verifier_env));
    let ended = script::run(context, environment, &script, &env, context.timeouts.verify).await?;
    watch.end(environment).await?;
    if !config.ignores_exit_code(is_harbor) || ended.timed_out() {
        ended.check()?;
    }

    let [first, second] =
        if is_harbor { ["reward.json", "reward.txt"] } else { ["reward.txt", "reward.json"] };
    let (name, content) = match read(environment, first).await? {
        Some(content) => (first, content),
        None => match read(environment, second).await? {
            Some(content) => (second, content),
            None => {
                let message = format!(
                    "tests/test.sh did not write a number to /logs/verifier/reward.txt{}",
                    ended.quote()
                );
                return Err(Failure::new(ErrorType::VerifierRewardMissing, message));
            }
        },
    };
    // Masked before anything is quoted or saved; a number has nothing to mask.
    let content = match String::from_utf8(content) {
        Ok(text) => context.trial.redactor.text(&text).into_owned().into_bytes(),
        Err(error) => error.into_bytes(),
    };
    keep(context.step.dir.verifier().join(name).as_path(), &content).await;
    let reward = match name {
        "reward.txt" => Reward::from_text(&content),
        _ if is_harbor => Reward::from_harbor_json(&content),
        _ => Reward::from_json(&content),
    };
    let reward = reward.map_err(|error| invalid(name, &error))?;
    if reward.is_mean {
        notes.push("reward.json has no `reward`: the reward is the mean of its numbers".to_owned());
    }
    Ok(reward)
}

/// Reads a reward file. None if it does not exist.
async fn read(environment: &dyn Environment, name: &str) -> Result<Option<Vec<u8>>, Failure> {
    let path = format!("/logs/verifier/{name}");
    let found = required(Phase::Verify, environment.read_file(&path, MAX_REWARD_BYTES)).await?;
    match found {
        FileRead::Content(bytes) => Ok(Some(bytes)),
        FileRead::Missing => Ok(None),
        FileRead::NotRegular => Err(Failure::new(
            ErrorType::VerifierRewardInvalid,
            format!("{path} is not a regular file; tests/test.sh must write one number there"),
        )),
        FileRead::TooLarge(size) => Err(Failure::new(
            ErrorType::VerifierRewardInvalid,
            format!("{path} has {size} bytes; the limit is {MAX_REWARD_BYTES}"),
        )),
    }
}

fn invalid(name: &str, error: &RewardError) -> Failure {
    Failure::new(
        ErrorType::VerifierRewardInvalid,
        format!(
            "/logs/verifier/{name} contains {error}; tests/test.sh must write one finite number there, such as 1 or 0.5"
        ),
    )
}

/// Saves the bytes that were read where the copy of `/logs` does not overwrite them, so that the record shows what was
/// graded even if a process inside keeps writing.
async fn keep(path: &Path, content: &[u8]) {
    let (path, content) = (path.to_owned(), content.to_owned());
    if let Err(error) = blocking(move || std::fs::write(&path, content)).await {
        tracing::warn!(%error, "cannot save the reward file");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_agent_is_graded_only_if_configured_and_never_before_a_retry() {
        use AfterAgentError::{Run, Skip};
        let failure = |transient| {
            let failure = Failure::new(ErrorType::AgentExecutionFailed, "it broke".to_owned());
            Some(Failure { transient, ..failure })
        };
        let server = || Some(Failure::new(ErrorType::ModelFailed, "no answer".to_owned()));
        for (after_agent_error, disable, failure, verified) in [
            (Skip, false, None, true),
            (Skip, false, failure(false), false),
            (Run, false, failure(false), true),
            (Run, false, failure(true), false),
            (Run, true, failure(false), false),
            (Run, false, server(), false),
            (Skip, true, None, false),
        ] {
            let after_agent_error = Some(after_agent_error);
            let config = VerifierConfig { after_agent_error, disable, ..VerifierConfig::default() };
            let found = is_verified(&config, false, failure.as_ref());
            assert_eq!(found, verified, "{after_agent_error:?} {disable} {failure:?}");
        }
    }
}
