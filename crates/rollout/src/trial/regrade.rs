//! Grades a finished trial again: its tests run on what it left, without the agent.

use std::{fs, io, path::Path, sync::Arc};

use indexmap::IndexMap;
use tokio::time::Instant;

use super::{
    TrialEnd,
    artifacts::Artifact,
    cancelled,
    clock::{Clock, PhaseSpan},
    context::{Progress, Trial, TrialContext},
    earlier::{Basis, Regrade, basis, read_result},
    failure::Failure,
    healthcheck,
    network::{self, Egress},
    retry::next_try,
    run_once::{Cut, TryRecord, until_cancelled},
    separate,
    services::{ServiceSource, Services},
    setup, startup,
    step::{Step, steps},
    step_rewards::shortfall,
    teardown::{self, abandon},
    verify::{AgentState, Verified, verify_again},
};
use crate::task::{Task, TaskProblem, unsupported};
use rollout_core::{
    event::Phase,
    result::{ErrorType, FailureCause, RegradeSource, Regraded, StepResult, TrialResult},
};
use rollout_env::{EnvironmentError, EnvironmentSpec, PreparedImage, blocking::blocking};
use rollout_record::layout::TrialDir;

/// Files of a finished trial that the new result replaces.
const REPLACED: [&str; 4] = ["result.json", "error.txt", "tries", "earlier"];

/// Files of a finished trial that are continued: the logs of builds, services and entrypoints.
const CONTINUED: &str = "environment";

/// Grades a trial again. Its directory is prepared.
pub(super) async fn regrade(trial: &Trial, how: &Regrade, clock: Clock) -> TrialEnd {
    let failed = |earlier: Option<TrialResult>, failure: Failure| {
        let record = TryRecord { failure: Some(failure), ..TryRecord::default() };
        finished(trial, clock, RegradeSource::Nothing, earlier, record)
    };
    let task = match &trial.task {
        Ok(task) => Arc::clone(task),
        Err(problem) => {
            let kind = match problem {
                TaskProblem::Invalid(_) => ErrorType::TaskInvalid,
                TaskProblem::NotFound(_) => ErrorType::TaskNotFound,
            };
            return failed(None, Failure::new(kind, problem.to_string()));
        }
    };
    let (config, env, dir) = (Arc::clone(&trial.config), Arc::clone(&trial.env), trial.dir.clone());
    let (how, of) = (how.clone(), Arc::clone(&task));
    let found = blocking(move || {
        let steps = steps(&config, &env, &dir, &of);
        let result = read_result(&how.earlier);
        let basis = result.as_ref().map(|result| basis(&config, &of, &steps, &how, result));
        let basis = basis.unwrap_or_else(|reason| Basis::Nothing(reason.clone()));
        let linked = match result.is_ok() {
            true => link_files(how.earlier.of_last_result().path(), dir.path(), Path::new("")),
            false => Ok(()),
        };
        Ok((steps, result.ok(), basis, linked))
    });
    let (steps, earlier, basis, linked) = match found.await {
        Ok(found) => found,
        Err(error) => {
            let message = format!("cannot read the finished trial: {error}");
            return failed(None, Failure::new(ErrorType::InternalError, message));
        }
    };
    let mut notes: Vec<String> = linked
        .err()
        .map(|error| format!("some files of the finished trial could not be copied: {error}"))
        .into_iter()
        .collect();
    let Some(earlier) = earlier else {
        let Basis::Nothing(reason) = basis else { unreachable!("without a result, nothing can be graded") };
        return failed(None, Failure::new(ErrorType::NotRegraded, reason));
    };
    let source = basis.source();
    match &basis {
        Basis::Unchanged => return TrialEnd::Finished { result: Box::new(unchanged(earlier)), state: None },
        Basis::Nothing(reason) => {
            return failed(Some(earlier), Failure::new(ErrorType::NotRegraded, reason.clone()));
        }
        Basis::Environment { .. } | Basis::Artifacts(_) => {}
    }
    let unsupported: Vec<String> =
        unsupported(&task, &trial.config, Some(&*trial.provider)).iter().map(ToString::to_string).collect();
    let egress = match Egress::of_task(&task, trial.env.compose.as_deref()).await {
        Ok(egress) => egress,
        Err(failure) => return failed(Some(earlier), failure),
    };
    let context = TrialContext::new(trial, &task, &steps[0], &unsupported, egress.as_ref());
    let mut number = 1;
    loop {
        let Ok(mut record) = grade_once(&context, &steps, &basis, &earlier).await else {
            return cancelled(trial).await;
        };
        if let Some(delay) = next_try(&trial.config.retry, number, record.failure.as_ref())
            && let Some(failure) = &record.failure
        {
            let error = failure.error.clone();
            (trial.progress)(Progress::Retry { failed_try: number, error, delay });
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                () = trial.cancel.cancelled() => return cancelled(trial).await,
            }
            number += 1;
            continue;
        }
        record.notes.append(&mut notes);
        return finished(trial, clock, source, Some(earlier), record);
    }
}

/// The result of a trial that ended before the tests.
fn unchanged(earlier: TrialResult) -> TrialResult {
    let (reward, error) = (earlier.reward, earlier.error.clone());
    let regraded = Some(Regraded { on: RegradeSource::Unchanged, reward, error });
    TrialResult { regraded, ..earlier }
}

/// Joins what the tests found now with what is known of the agent.
fn finished(
    trial: &Trial,
    clock: Clock,
    on: RegradeSource,
    earlier: Option<TrialResult>,
    record: TryRecord,
) -> TrialEnd {
    let now = record.into_result(trial, clock);
    let Some(earlier) = earlier else {
        let regraded = Some(Regraded { on, reward: None, error: None });
        return TrialEnd::Finished { result: Box::new(TrialResult { regraded, ..now }), state: None };
    };
    let mut result = earlier.clone();
    let by_agent = earlier.error.clone().filter(|error| error.kind.fault() == FailureCause::Agent);
    result.error = match now.error {
        // It says why there is no reward, whatever the agent did.
        Some(error) if on == RegradeSource::Nothing => Some(error),
        error => by_agent.or(error),
    };
    (result.reward, result.rewards) = (now.reward, now.rewards);
    result.leaves_out_step = now.leaves_out_step;
    result.steps = match on {
        // Only the last step was graded, and the rewards of the others do not count.
        RegradeSource::Environment if !now.steps.is_empty() => {
            let graded = |step: &StepResult| now.steps.iter().any(|now| now.name == step.name);
            let before = earlier.steps.iter().filter(|step| !graded(step)).cloned();
            before.chain(now.steps.iter().cloned()).collect()
        }
        _ => now.steps,
    };
    for step in &mut result.steps {
        let before = earlier.steps.iter().find(|before| before.name == step.name);
        step.agent_execution_sec = before.and_then(|before| before.agent_execution_sec);
    }
    result.task_git_commit_id = now.task_git_commit_id;
    let [before, after] = [earlier.durations, now.durations].map(|durations| durations.verifier_sec);
    result.durations.verifier_sec = after;
    result.durations.total_sec =
        (earlier.durations.total_sec - before.unwrap_or_default() + after.unwrap_or_default()).max(0.0);
    result.timestamps.verifier_started_at = now.timestamps.verifier_started_at;
    result.timestamps.verifier_ended_at = now.timestamps.verifier_ended_at;
    result.timestamps.ended_at = now.timestamps.ended_at;
    result.tampering = now.tampering;
    // The environments in which the tests ran now.
    result.environment_cost += now.environment_cost;
    result.cost += now.environment_cost;
    for note in now.notes {
        if !result.notes.contains(&note) {
            result.notes.push(note);
        }
    }
    result.incomplete_logs |= now.incomplete_logs;
    result.regraded = Some(Regraded { on, reward: earlier.reward, error: earlier.error });
    TrialEnd::Finished { result: Box::new(result), state: None }
}

/// Runs the tests once on what the trial left.
async fn grade_once(
    context: &TrialContext<'_>,
    steps: &[Step],
    basis: &Basis,
    earlier: &TrialResult,
) -> Result<TryRecord, Cut> {
    let mut record = TryRecord::default();
    match basis {
        Basis::Environment { place, services } => {
            let last = &steps[steps.len() - 1];
            let mut own = TryRecord::default();
            own.failure = on_environment(&context.at(last), place, services, earlier, &mut own).await?.err();
            let reward = own.reward.take();
            record.add_step(last, own, reward.as_ref());
            record.reward = reward;
        }
        Basis::Artifacts(artifacts) => on_artifacts(context, steps, artifacts, &mut record).await?,
        Basis::Unchanged | Basis::Nothing(_) => {}
    }
    Ok(record)
}

async fn on_environment(
    context: &TrialContext<'_>,
    place: &str,
    places: &IndexMap<String, String>,
    earlier: &TrialResult,
    record: &mut TryRecord,
) -> Result<Result<(), Failure>, Cut> {
    context.enter(Phase::Start);
    let trial = context.trial;
    if context.step.is_separate {
        // They are collected again, and must not be written to the files of the finished trial.
        let links = context.step.dir.artifacts();
        if let Err(error) = blocking(move || remove_dir(&links)).await {
            let message = format!("cannot remove the links to the earlier artifacts: {error}");
            return Ok(Err(Failure::new(ErrorType::InternalError, message)));
        }
    }
    let (id, name) = (trial.id.to_string(), context.environment_name());
    let created = async {
        match context.compose() {
            Some(compose) => {
                Services::create(context, compose, ServiceSource::Preserved(places), &name).await
            }
            None => Ok(Services::default()),
        }
    };
    let mut services = match until_cancelled(context, created).await? {
        Ok(services) => services,
        Err(failure) => return Ok(Err(failure)),
    };
    let hosts = if services.main_settings().is_some() { Vec::new() } else { context.own_hosts() };
    let reference = earlier.environment.as_ref().map(|environment| environment.image.clone());
    let image = PreparedImage { reference: reference.unwrap_or_default() };
    let spec = EnvironmentSpec {
        name: &name,
        hosts: &hosts,
        container: services.main_settings(),
        ..context.environment_spec(&id, &image)
    };
    let created = until_cancelled(context, context.rent_from(place, spec)).await;
    let environment = match created {
        Ok(Ok(environment)) => environment,
        Ok(Err(error)) => {
            record.notes.extend(services.remove().await);
            return Ok(Err(match error {
                EnvironmentError::Refused(reason) => Failure::new(ErrorType::NotRegraded, reason),
                error => Failure::environment(Phase::Start, &error),
            }));
        }
        Err(cut) => {
            services.remove().await;
            return Err(cut);
        }
    };
    let mut separate = None;
    let inside = async {
        let agent = &*environment;
        let logs = trial.dir.path().join("environment/services");
        services.start(context, agent, &logs).await?;
        let services = &services;
        network::enter(context, agent, services, None).await?;
        // Like after a restart of a machine: files are there, and what the image starts is started.
        let _entrypoint = startup::start(context, agent).await?;
        healthcheck::wait(context, agent, context.task.config.healthcheck.as_ref(), Phase::Start).await?;
        setup::set_users(context, agent)?;
        let state = AgentState::Environment(agent, services);
        Ok(verify_again(context, state, &mut separate, &mut record.notes).await)
    };
    let verified = match until_cancelled(context, inside).await {
        Ok(verified) => verified,
        Err(cut) => {
            if let Some(separate) = separate {
                separate.abandon().await;
            }
            abandon(environment).await;
            services.remove().await;
            return Err(cut);
        }
    };
    if !context.step.is_separate {
        record.logs = separate::copy_logs(context, &*environment, &mut record.notes).await;
    }
    context.enter(Phase::Teardown);
    record.notes.extend(teardown::remove(environment).await.err());
    record.notes.extend(services.remove().await);
    Ok(verified.map(|verified| add(record, verified)).and_then(|added| added))
}

/// Adds the outcome of the tests to a record.
fn add(record: &mut TryRecord, verified: Verified) -> Result<(), Failure> {
    record.verification = Some(verified.span);
    record.tampering = verified.tampering;
    record.logs = record.logs.and(verified.logs);
    record.reward = Some(verified.reward?);
    Ok(())
}

async fn on_artifacts(
    context: &TrialContext<'_>,
    steps: &[Step],
    artifacts: &[Vec<Artifact>],
    record: &mut TryRecord,
) -> Result<(), Cut> {
    let mut rewards = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        let context = context.at(step);
        let mut own = TryRecord::default();
        match artifacts.get(number) {
            Some(artifacts) => {
                let dir = step.dir.path().to_owned();
                let made = blocking(move || fs::create_dir_all(dir)).await;
                let mut separate = None;
                let state = AgentState::Artifacts(artifacts);
                let verified = verify_again(&context, state, &mut separate, &mut own.notes);
                let verified = match until_cancelled(&context, verified).await {
                    Ok(verified) => verified,
                    Err(cut) => {
                        if let Some(separate) = separate {
                            separate.abandon().await;
                        }
                        return Err(cut);
                    }
                };
                own.failure = add(&mut own, verified).err();
                if let Err(error) = made {
                    own.notes.push(format!("cannot create the directory of a step: {error}"));
                }
            }
            None => {
                let now = Instant::now();
                own.verification = Some(PhaseSpan { began: now, ended: now });
                own.failure = Some(Failure::new(
                    ErrorType::NotRegraded,
                    format!("the agent did not attempt {}; run the trial again", step.shown_name()),
                ));
            }
        }
        let is_last = number + 1 == steps.len();
        let is_graded = own.reward.is_some();
        let ends = own.failure.is_some() && !is_graded;
        let short = shortfall(&step.min_reward, own.reward.as_ref());
        rewards.push(own.reward.take());
        record.add_step(step, own, rewards.last().and_then(Option::as_ref));
        if let (Some(short), false) = (short, is_last) {
            record.notes.push(format!("the steps after {} do not count: {short}", step.shown_name()));
            break;
        }
        if ends {
            break;
        }
    }
    record.reward = match context.task.config.steps.is_empty() {
        true => rewards.pop().flatten(),
        // A step that was never attempted leaves no reward of the trial.
        false
            if record
                .failure
                .as_ref()
                .is_some_and(|failure| failure.error.kind == ErrorType::NotRegraded) =>
        {
            None
        }
        false => record.combined(context, &rewards),
    };
    Ok(())
}

/// Makes the files of a finished trial appear in another directory, without those that the new result replaces. They
/// are hard links where possible, except for files that the tests continue: neither trial changes the others any more.
fn link_files(from: &Path, to: &Path, below: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from.join(below))? {
        let entry = entry?;
        let path = below.join(entry.file_name());
        let is_replaced =
            REPLACED.iter().any(|name| path == Path::new(name)) || path.ends_with("logs/verifier");
        let kind = entry.file_type()?;
        if is_replaced {
            continue;
        }
        let target = to.join(&path);
        if kind.is_dir() {
            fs::create_dir_all(&target)?;
            link_files(from, to, &path)?;
        } else if kind.is_file()
            && (path.starts_with(CONTINUED) || fs::hard_link(entry.path(), &target).is_err())
        {
            // Links also fail on another file system, or one without links.
            fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}

/// Removes a directory, if it exists.
fn remove_dir(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// What the tests of a finished trial would run on, with the reason if that is nothing. Blocks.
pub(crate) fn survey(
    config: &crate::config::JobConfig,
    env: &super::TaskEnv,
    task: &Task,
    how: &Regrade,
) -> (RegradeSource, Option<String>) {
    let steps = steps(config, env, &TrialDir::new(""), task);
    let basis = match read_result(&how.earlier) {
        Ok(result) => basis(config, task, &steps, how, &result),
        Err(reason) => Basis::Nothing(reason),
    };
    let source = basis.source();
    (source, if let Basis::Nothing(reason) = basis { Some(reason) } else { None })
}
