//! One try of a trial: its phases in order, and teardown whatever happens.

use std::{future::Future, io, path::PathBuf, sync::Arc, time::Duration};

use indexmap::IndexMap;
use jiff::Timestamp;
use tokio::time::Instant;

use super::{
    Clock, Progress, Timeouts, Trial,
    failure::{self, Failure, Script},
    seconds,
    setup::Snapshot,
    verify,
};
use crate::{
    agent::{self, trajectory::TurnLog},
    config::{AfterAgentError, AgentKind, Env, PreservePolicy},
    task::Task,
};
use rollout_core::{
    event::Phase,
    redact::Redactor,
    result::{EnvironmentRecord, ErrorType, TrialError, TrialResult, Usage},
    text::excerpt,
};
use rollout_env::{
    CopyMode, Environment, EnvironmentError, Exec, FileRead, Outcome, PreparedImage,
    blocking::blocking,
    log::{LogTail, LogWriter, create_log_files},
};
use rollout_model as model;

/// Getting logs out of a broken environment must not hold up the job.
const COLLECT_TIMEOUT: Duration = Duration::from_secs(300);

/// A call that an environment does not answer within this time, it never will.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(300);

/// Neither must removing it.
const TEARDOWN_TIMEOUT: Duration = Duration::from_secs(60);

/// The largest usage.json that is read.
const MAX_USAGE_BYTES: u64 = 64 << 10;

/// How a try ended.
pub(super) enum AttemptEnd {
    Finished { result: Box<TrialResult>, transient: bool },
    Cancelled,
    Unauthorized(model::Error),
}

/// One try, and what is known of it so far.
pub(super) struct Attempt<'a> {
    pub(super) trial: &'a Trial,
    pub(super) task: &'a Arc<Task>,
    pub(super) timeouts: Timeouts,
    clock: Clock,
    pub(super) setup: Span,
    pub(super) install: Span,
    execution: Span,
    pub(super) verification: Span,
    pub(super) image: Option<PreparedImage>,
    pub(super) snapshot: Snapshot,
    failure: Option<Failure>,
    pub(super) reward: Option<f64>,
    pub(super) rewards: IndexMap<String, f64>,
    pub(super) survivors: Vec<String>,
    pub(super) usage: Option<Usage>,
    pub(super) notes: Vec<String>,
    /// What a model and its tools said so far.
    pub(super) turns: TurnLog,
    /// That the server of the model refuses the key, which ends more than this trial.
    pub(super) refused: Option<model::Error>,
}

/// When a phase began and ended, if it did.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Span {
    began: Option<Instant>,
    ended: Option<Instant>,
}

impl Span {
    pub(super) fn begin(&mut self) {
        self.began = Some(Instant::now());
    }

    pub(super) fn end(&mut self) {
        self.ended = Some(Instant::now());
    }

    fn duration(self) -> Option<f64> {
        Some(seconds(self.ended?.duration_since(self.began?)))
    }
}

/// A phase was cut off by a cancel.
struct Cut;

impl<'a> Attempt<'a> {
    pub(super) fn new(trial: &'a Trial, task: &'a Arc<Task>, clock: Clock) -> Self {
        Self {
            trial,
            task,
            timeouts: Timeouts::new(&trial.config, &task.config),
            clock,
            setup: Span::default(),
            install: Span::default(),
            execution: Span::default(),
            verification: Span::default(),
            image: None,
            snapshot: Snapshot::Unwanted,
            failure: None,
            reward: None,
            rewards: IndexMap::new(),
            survivors: Vec::new(),
            usage: None,
            notes: Vec::new(),
            turns: TurnLog::default(),
            refused: None,
        }
    }

    pub(super) async fn run(mut self) -> AttemptEnd {
        let trial = self.trial;
        self.setup.begin();
        let environment = match until_cancelled(trial, self.start()).await {
            Err(Cut) => return AttemptEnd::Cancelled,
            Ok(Err(failure)) => {
                self.setup.end();
                self.failure = Some(failure);
                return self.finish(None, 0.0);
            }
            Ok(Ok(environment)) => environment,
        };
        let worked = until_cancelled(trial, self.work(&*environment)).await;
        if worked.is_err() {
            self.keep_trajectory().await;
            self.tear_down(environment, false).await;
            return AttemptEnd::Cancelled;
        }
        if let Some(error) = self.refused.take() {
            self.tear_down(environment, false).await;
            return AttemptEnd::Unauthorized(error);
        }

        self.phase(Phase::Collect);
        if until_cancelled(trial, self.collect(&*environment)).await.is_err() {
            self.tear_down(environment, false).await;
            return AttemptEnd::Cancelled;
        }

        self.phase(Phase::Teardown);
        let cost = environment.cost();
        let facts = environment.facts();
        let mut record = EnvironmentRecord {
            provider: trial.provider.name().to_owned(),
            id: environment.id().to_owned(),
            image: self.image.as_ref().map(|image| image.reference.clone()).unwrap_or_default(),
            agent_snapshot: match &self.snapshot {
                Snapshot::Found { key } => Some(key.clone()),
                Snapshot::Unwanted | Snapshot::Wanted { .. } => None,
            },
            network: facts.network,
            enforced: facts.enforced,
            preserved: None,
        };
        let preserve = preserved(trial.config.environment.preserve, self.failure.as_ref(), self.reward);
        record.preserved = self.tear_down(environment, preserve).await;
        self.finish(Some(record), cost)
    }

    pub(super) fn phase(&self, phase: Phase) {
        (self.trial.progress)(Progress::Phase(phase));
    }

    /// Everything that happens inside. What went wrong is kept in `self.failure`.
    async fn work(&mut self, environment: &dyn Environment) {
        let ready = self.set_up(environment).await;
        // Who waits for this install waits no longer, whatever came of it.
        if let Snapshot::Wanted { turn, .. } = &mut self.snapshot {
            drop(turn.take());
        }
        if let Err(failure) = ready {
            self.failure = Some(failure);
            return;
        }
        let executed = self.execute(environment).await;
        if let AgentKind::Model(_) = self.trial.agent.kind {
            self.keep_trajectory().await;
        } else {
            self.usage = self.read_usage(environment).await;
        }
        if self.refused.is_some() {
            return;
        }
        let grade = match &executed {
            Ok(()) => true,
            Err(failure) => {
                !failure.transient && self.trial.config.verifier.after_agent_error == AfterAgentError::Run
            }
        };
        self.failure = executed.err();
        if self.trial.config.verifier.disable || !grade {
            return;
        }
        self.phase(Phase::Verify);
        self.verification.begin();
        let verified = verify::run(self, environment).await;
        self.verification.end();
        if let Err(failure) = verified
            // The agent's own error came first, and explains more than what the tests made of it.
            && self.failure.is_none()
        {
            self.failure = Some(failure);
        }
    }

    async fn execute(&mut self, environment: &dyn Environment) -> Result<(), Failure> {
        self.phase(Phase::Execute);
        self.execution.begin();
        let result = self.execute_agent(environment).await;
        self.execution.end();
        result
    }

    async fn execute_agent(&mut self, environment: &dyn Environment) -> Result<(), Failure> {
        let trial = self.trial;
        let (script, path) = match &trial.agent.kind {
            AgentKind::Nop => return Ok(()),
            AgentKind::Model(config) => return self.converse(environment, config).await,
            AgentKind::Oracle => {
                let solution = self.task.dir.join("solution");
                let copy = environment.copy_to(&solution, agent::ORACLE_DIR, CopyMode::Replace);
                bounded(Phase::Execute, copy).await?;
                bounded(Phase::Execute, environment.link(agent::ORACLE_DIR, agent::SOLUTION_LINK)).await?;
                (failure::ORACLE, "/oracle/solve.sh")
            }
            AgentKind::Script { execute, .. } => {
                bounded(Phase::Execute, environment.write_file(agent::EXECUTE_SCRIPT, execute.as_bytes()))
                    .await?;
                (failure::EXECUTE, agent::EXECUTE_SCRIPT)
            }
        };
        let env = self.agent_env();
        self.run_script(environment, script, path, &env, self.timeouts.execute).await.map(drop)
    }

    /// Variables that exist only while the agent's scripts run.
    pub(super) fn agent_env(&self) -> Vec<(String, String)> {
        let trial = self.trial;
        let mut env = flat(&trial.agent.env);
        for (key, value) in [
            ("ROLLOUT_TASK_INSTRUCTION", trial.config.instruction_path.clone()),
            ("ROLLOUT_AGENT_TIMEOUT_SEC", seconds(self.timeouts.execute).to_string()),
            ("ROLLOUT_JOB", trial.job_name.to_string()),
            ("ROLLOUT_TRIAL", trial.id.to_string()),
            ("ROLLOUT_ATTEMPT", trial.id.attempt.to_string()),
        ] {
            env.push((key.to_owned(), value));
        }
        env
    }

    /// Runs a script by bash, its output going to its directory. Returns the tails of both streams.
    pub(super) async fn run_script(
        &self,
        environment: &dyn Environment,
        script: Script,
        path: &str,
        env: &[(String, String)],
        limit: Duration,
    ) -> Result<(LogTail, LogTail), Failure> {
        let phase = match script.failed {
            ErrorType::AgentInstallFailed => Phase::Install,
            ErrorType::VerifierFailed => Phase::Verify,
            _ => Phase::Execute,
        };
        let dir = self.trial.dir.path().join(script.output);
        let (stdout, stderr) = open_logs(dir, &self.trial.redactor).await.map_err(|error| {
            Failure::new(
                ErrorType::InternalError,
                format!("cannot write the output of {}: {error}", script.name),
            )
        })?;
        let tails = (stdout.tail(), stderr.tail());
        let command = Exec { argv: &["bash", path], env, deadline: Some(limit), stdout, stderr };
        // The environment keeps the deadline; this is for one that does not.
        let exec = tokio::time::timeout(limit + CALL_TIMEOUT, environment.exec(command)).await;
        let exit = exec
            .unwrap_or_else(|_| Err(unanswered()))
            .map_err(|error| Failure::environment(phase, &error))?;
        let ignored = script.failed == ErrorType::VerifierFailed
            && self.trial.config.verifier.ignore_exit_code
            && exit.outcome != Outcome::TimedOut;
        match script.judge(exit, limit, &tails.0, &tails.1) {
            Some(failure) if !ignored => Err(failure),
            _ => Ok(tails),
        }
    }

    /// What the agent says it used. A file that makes no sense is a note, not an error.
    async fn read_usage(&mut self, environment: &dyn Environment) -> Option<Usage> {
        match bounded(Phase::Execute, environment.read_file("/logs/agent/usage.json", MAX_USAGE_BYTES)).await
        {
            Ok(FileRead::Content(bytes)) => match serde_json::from_slice::<Usage>(&bytes) {
                Ok(usage) if usage.cost_usd.is_none_or(|cost| cost.is_finite() && cost >= 0.0) => Some(usage),
                Ok(_) => {
                    self.notes.push("/logs/agent/usage.json was ignored: cost_usd is negative".to_owned());
                    None
                }
                Err(error) => {
                    self.notes.push(format!("/logs/agent/usage.json was ignored: {error}"));
                    None
                }
            },
            Ok(FileRead::Missing) | Err(_) => None,
            Ok(FileRead::NotRegular | FileRead::TooLarge(_)) => {
                self.notes
                    .push("/logs/agent/usage.json was ignored: it is not a small regular file".to_owned());
                None
            }
        }
    }

    /// Brings `/logs` out, also when the agent failed. Where there are secrets, nothing is in its place before
    /// they are masked.
    async fn collect(&mut self, environment: &dyn Environment) {
        let logs = self.trial.dir.logs();
        let secrets = !self.trial.redactor.is_empty();
        let target = if secrets { self.trial.dir.unredacted_logs() } else { logs.clone() };
        let copied = tokio::time::timeout(COLLECT_TIMEOUT, environment.copy_from("/logs", &target)).await;
        let failed = match copied {
            Ok(Ok(report)) => {
                let skipped = report.skipped.into_iter().map(|what| format!("not copied from /logs: {what}"));
                self.notes.extend(skipped);
                None
            }
            Ok(Err(error)) => Some(format!("/logs could not be copied: {error}")),
            Err(_) => Some("/logs could not be copied in time".to_owned()),
        };
        // A copy that was cut off may still be going on, behind the back of whoever masks it.
        let whole = failed.is_none();
        self.notes.extend(failed);
        if secrets && whole {
            let redactor = Arc::clone(&self.trial.redactor);
            match blocking(move || redactor.move_tree(&target, &logs)).await {
                Ok(0) => {}
                Ok(left_out) => self.notes.push(format!(
                    "{left_out} entries of /logs had secrets in their names, or could not be read, and were left out"
                )),
                Err(error) => {
                    self.notes.push(format!("/logs could not be redacted, so it was not kept: {error}"))
                }
            }
        }
    }

    /// Removes what was not redacted. Called when nothing inside can write there any more.
    async fn drop_unredacted(&self) {
        let logs = self.trial.dir.unredacted_logs();
        if self.trial.redactor.is_empty() {
            return;
        }
        let removed = blocking(move || match std::fs::remove_dir_all(&logs) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        });
        if let Err(error) = removed.await {
            tracing::error!(trial = %self.trial.id, %error, "logs that may hold secrets could not be removed");
        }
    }

    /// Ends the environment under a deadline of its own. Returns where it was preserved.
    async fn tear_down(&mut self, environment: Box<dyn Environment>, preserve: bool) -> Option<String> {
        let ended = tokio::time::timeout(TEARDOWN_TIMEOUT, async {
            if preserve {
                environment.preserve().await.map(Some)
            } else {
                environment.destroy().await.map(|()| None)
            }
        });
        let ended = ended.await;
        self.drop_unredacted().await;
        let message = match ended {
            Ok(Ok(place)) => return place,
            Ok(Err(error)) => error.to_string(),
            Err(_) => {
                format!("the environment did not go away within {} seconds", TEARDOWN_TIMEOUT.as_secs())
            }
        };
        let message = format!("{message}. `rollout clean` removes what is left");
        match &self.failure {
            None => self.failure = Some(Failure::new(ErrorType::EnvironmentTeardownFailed, message)),
            Some(_) => self.notes.push(message),
        }
        None
    }

    fn finish(self, environment: Option<EnvironmentRecord>, environment_cost: f64) -> AttemptEnd {
        let clock = self.clock;
        let at = |moment: Option<Instant>| -> Option<Timestamp> { moment.map(|moment| clock.at(moment)) };
        let model_cost = self.usage.and_then(|usage| usage.cost_usd);
        let redact = |text: String| self.trial.redactor.text(&text).into_owned();
        let mut result = clock.empty_result(self.trial, Instant::now());
        result.reward = self.reward;
        result.rewards = self.rewards;
        result.cost = environment_cost + model_cost.unwrap_or(0.0);
        result.environment_cost = environment_cost;
        result.model_cost = model_cost;
        result.usage = self.usage;
        result.durations.environment_setup_sec = self.setup.duration();
        result.durations.agent_setup_sec = self.install.duration();
        result.durations.agent_execution_sec = self.execution.duration();
        result.durations.verifier_sec = self.verification.duration();
        result.timestamps.environment_setup_started_at = at(self.setup.began);
        result.timestamps.environment_setup_ended_at = at(self.setup.ended);
        result.timestamps.agent_setup_started_at = at(self.install.began);
        result.timestamps.agent_setup_ended_at = at(self.install.ended);
        result.timestamps.agent_execution_started_at = at(self.execution.began);
        result.timestamps.agent_execution_ended_at = at(self.execution.ended);
        result.timestamps.verifier_started_at = at(self.verification.began);
        result.timestamps.verifier_ended_at = at(self.verification.ended);
        result.environment = environment;
        result.survivors = self.survivors.into_iter().map(|command| excerpt(&redact(command))).collect();
        result.notes = self.notes.into_iter().map(redact).collect();
        let transient = self.failure.as_ref().is_some_and(|failure| failure.transient);
        result.error = self
            .failure
            .map(|Failure { error, .. }| TrialError { kind: error.kind, message: redact(error.message) });
        AttemptEnd::Finished { result: Box::new(result), transient }
    }
}

async fn until_cancelled<T>(trial: &Trial, work: impl Future<Output = T>) -> Result<T, Cut> {
    tokio::select! {
        biased;
        () = trial.cancel.cancelled() => Err(Cut),
        done = work => Ok(done),
    }
}

/// Waits for a call to an environment, but not for ever.
pub(super) async fn bounded<T>(
    phase: Phase,
    call: impl Future<Output = Result<T, EnvironmentError>>,
) -> Result<T, Failure> {
    let answer = tokio::time::timeout(CALL_TIMEOUT, call).await;
    answer.unwrap_or_else(|_| Err(unanswered())).map_err(|error| Failure::environment(phase, &error))
}

pub(super) fn unanswered() -> EnvironmentError {
    EnvironmentError::Lost(format!(
        "the environment did not answer within {} seconds",
        CALL_TIMEOUT.as_secs()
    ))
}

async fn open_logs(dir: PathBuf, redactor: &Redactor) -> io::Result<(LogWriter, LogWriter)> {
    let [stdout, stderr] = blocking(move || create_log_files(&dir)).await?;
    Ok((LogWriter::new(stdout, redactor), LogWriter::new(stderr, redactor)))
}

/// Whether the environment of a trial that came out so is kept.
fn preserved(policy: PreservePolicy, failure: Option<&Failure>, reward: Option<f64>) -> bool {
    match policy {
        PreservePolicy::Never => false,
        PreservePolicy::Always => true,
        PreservePolicy::OnFailure => failure.is_some() || reward.is_some_and(|reward| reward < 1.0),
    }
}

/// Variables as a provider takes them.
pub(super) fn flat(env: &Env) -> Vec<(String, String)> {
    env.iter().map(|(key, value)| (key.clone(), value.value.clone())).collect()
}
