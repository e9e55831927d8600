//! Runs the scripts of a trial, and maps their exits to failures.

use std::{path::PathBuf, pin::pin, time::Duration};

use futures_util::future::BoxFuture;

use super::{
    calls::{bounded_after, required},
    context::TrialContext,
    failure::{Failure, in_seconds},
};
use crate::agent;
use rollout_core::{event::Phase, result::ErrorType};
use rollout_env::{
    CommandRole, Environment, EnvironmentError, Exec, Exit, Outcome,
    blocking::blocking,
    log::{LogTail, LogWriter, create_log_files},
};

/// What an agent gets to end by itself after its timeout.
const GRACE: Duration = Duration::from_secs(10);

/// How many lines of output an error quotes.
const QUOTED_LINES: usize = 10;

/// A script of a trial, for error messages.
#[derive(Debug, Clone, Copy)]
pub(super) struct Script {
    /// Its name.
    name: &'static str,
    /// Its path in the environment.
    path: &'static str,
    /// The directory of its output in the trial's directory.
    output: &'static str,
    role: CommandRole,
    phase: Phase,
    failed: ErrorType,
    timed_out: ErrorType,
    /// The setting of its timeout.
    pub(super) setting: &'static str,
    start: Start,
}

/// How a script is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    /// With bash.
    Bash,
    /// By its first line.
    Executed,
    /// The same, for a script that is in the image and may lack the mode for it.
    MadeExecutable,
}

/// A command that is left running. It is killed, with all its processes, when it is dropped.
pub(super) type LeftRunning<'e> = BoxFuture<'e, Result<Exit, EnvironmentError>>;

pub(super) const INSTALL: Script = Script {
    name: "the agent's install script",
    path: agent::INSTALL_SCRIPT,
    output: "setup",
    role: CommandRole::Agent,
    phase: Phase::Install,
    failed: ErrorType::AgentInstallFailed,
    timed_out: ErrorType::AgentInstallTimeout,
    setting: "agent.install_timeout_sec in task.toml",
    start: Start::Bash,
};

pub(super) const EXECUTE: Script = Script {
    name: "the agent's execute script",
    path: agent::EXECUTE_SCRIPT,
    output: "command",
    role: CommandRole::Agent,
    phase: Phase::Execute,
    failed: ErrorType::AgentExecutionFailed,
    timed_out: ErrorType::AgentExecutionTimeout,
    setting: "agent.timeout_sec in task.toml",
    start: Start::Bash,
};

pub(super) const ORACLE: Script = Script { name: "the task's solution", path: "/oracle/solve.sh", ..EXECUTE };

/// The oracle of Harbor.
pub(super) const HARBOR_ORACLE: Script =
    Script { path: "/solution/solve.sh", start: Start::Executed, ..ORACLE };

pub(super) const TESTS: Script = Script {
    name: "tests/test.sh",
    path: "/tests/test.sh",
    output: "logs/verifier",
    role: CommandRole::Verifier,
    phase: Phase::Verify,
    failed: ErrorType::VerifierFailed,
    timed_out: ErrorType::VerifierTimeout,
    setting: "verifier.timeout_sec in task.toml or verifier.override_timeout_sec in the job",
    start: Start::Bash,
};

/// The tests of Harbor.
pub(super) const HARBOR_TESTS: Script = Script { start: Start::Executed, ..TESTS };

/// The tests in the image of a separate environment.
pub(super) const BUILT_IN_TESTS: Script = Script { start: Start::MadeExecutable, ..TESTS };

/// The script that prepares the first step.
pub(super) const FIRST_STEP_SETUP: Script = Script {
    name: "setup.sh of the step",
    path: "setup.sh",
    output: "setup",
    role: CommandRole::Agent,
    phase: Phase::Start,
    failed: ErrorType::EnvironmentStartFailed,
    timed_out: ErrorType::EnvironmentStartFailed,
    setting: "environment.build_timeout_sec in task.toml",
    start: Start::Bash,
};

/// The script that prepares another step, in the environment that the agent has changed.
pub(super) const LATER_STEP_SETUP: Script = Script {
    phase: Phase::Execute,
    failed: ErrorType::AgentExecutionFailed,
    timed_out: ErrorType::AgentExecutionFailed,
    ..FIRST_STEP_SETUP
};

impl Script {
    /// The program and its arguments. Bash finds the interpreter of a script without a first line.
    fn argv(&self) -> Vec<&'static str> {
        match self.start {
            Start::Bash => vec!["bash", self.path],
            Start::Executed => vec!["bash", "-c", r#""$0""#, self.path],
            Start::MadeExecutable => vec!["bash", "-c", r#"chmod +x "$0"; "$0""#, self.path],
        }
    }

    /// The script can be executed itself: writes it again, with the mode for that.
    pub(super) async fn make_executable(
        &self,
        environment: &dyn Environment,
        source: PathBuf,
    ) -> Result<(), Failure> {
        if self.start != Start::Executed {
            return Ok(());
        }
        let content = blocking(move || std::fs::read(source)).await.map_err(|error| {
            Failure::new(ErrorType::TaskInvalid, format!("cannot read {}: {error}", self.name))
        })?;
        required(self.phase, environment.write_file(self.path, &content)).await
    }
}

/// Runs the agent's script, which is left running at its timeout where the rules of Harbor apply.
pub(super) async fn run_agent<'e>(
    context: &TrialContext<'_>,
    environment: &'e dyn Environment,
    script: &Script,
    env: Vec<(String, String)>,
    left: &mut Option<LeftRunning<'e>>,
) -> Result<ScriptEnd, Failure> {
    let limit = context.timeouts.execute;
    if !context.task.is_harbor {
        return run(context, environment, script, &env, limit).await;
    }
    let (stdout, stderr) = open_logs(context, script).await?;
    let (stdout_tail, stderr_tail) = (stdout.tail(), stderr.tail());
    let (argv, role) = (script.argv(), script.role);
    let mut running: LeftRunning<'e> = Box::pin(async move {
        environment.exec(Exec { role, argv: &argv, env: &env, deadline: None, stdout, stderr }).await
    });
    let exit = match tokio::time::timeout(limit, &mut running).await {
        Ok(exit) => exit.map_err(|error| Failure::environment(script.phase, &error))?,
        Err(_) => {
            *left = Some(running);
            Exit { outcome: Outcome::TimedOut, oom_killed: false }
        }
    };
    let is_left = left.is_some();
    Ok(ScriptEnd { script: *script, limit, exit, is_left, stdout: stdout_tail, stderr: stderr_tail })
}

/// Runs the agent's script. At its timeout, `ask_to_end` asks the agent to end, and it has a few seconds for that, in
/// which it can complete its own logs.
pub(super) async fn run_with_grace(
    context: &TrialContext<'_>,
    environment: &dyn Environment,
    script: &Script,
    env: &[(String, String)],
    ask_to_end: impl Future<Output = ()>,
) -> Result<ScriptEnd, Failure> {
    let limit = context.timeouts.execute;
    let mut running = pin!(run(context, environment, script, env, limit.saturating_add(GRACE)));
    if let Ok(end) = tokio::time::timeout(limit, &mut running).await {
        return end;
    }
    let (end, ()) = tokio::join!(running, ask_to_end);
    let mut end = end?;
    required(script.phase, environment.kill_all()).await?;
    (end.limit, end.exit.outcome) = (limit, Outcome::TimedOut);
    Ok(end)
}

/// Runs a script. Its output is written to its directory.
pub(super) async fn run(
    context: &TrialContext<'_>,
    environment: &dyn Environment,
    script: &Script,
    env: &[(String, String)],
    limit: Duration,
) -> Result<ScriptEnd, Failure> {
    let (stdout, stderr) = open_logs(context, script).await?;
    let (stdout_tail, stderr_tail) = (stdout.tail(), stderr.tail());
    let argv = script.argv();
    let command = Exec { role: script.role, argv: &argv, env, deadline: Some(limit), stdout, stderr };
    // The environment enforces the deadline; this is for one that does not.
    let exit = bounded_after(limit, environment.exec(command))
        .await
        .map_err(|error| Failure::environment(script.phase, &error))?;
    if exit.outcome == Outcome::TimedOut && script.role == CommandRole::Agent {
        // Processes that keep forking can escape when their tree is killed, but not here.
        required(script.phase, environment.kill_all()).await?;
    }
    Ok(ScriptEnd { script: *script, limit, exit, is_left: false, stdout: stdout_tail, stderr: stderr_tail })
}

async fn open_logs(context: &TrialContext<'_>, script: &Script) -> Result<(LogWriter, LogWriter), Failure> {
    let (dir, redactor) = (context.step.dir.path().join(script.output), &context.trial.redactor);
    let [stdout, stderr] = blocking(move || create_log_files(&dir)).await.map_err(|error| {
        let message = format!("cannot write the output of {}: {error}", script.name);
        Failure::new(ErrorType::InternalError, message)
    })?;
    Ok((LogWriter::new(stdout, redactor), LogWriter::new(stderr, redactor)))
}

/// How a script ended.
#[derive(Debug)]
pub(super) struct ScriptEnd {
    script: Script,
    limit: Duration,
    exit: Exit,
    /// Whether it was left running at its timeout.
    is_left: bool,
    stdout: LogTail,
    stderr: LogTail,
}

impl ScriptEnd {
    pub(super) fn timed_out(&self) -> bool {
        self.exit.outcome == Outcome::TimedOut
    }

    /// The exit code, unless it was killed or timed out.
    pub(super) fn code(&self) -> Option<i32> {
        match self.exit.outcome {
            Outcome::Code(code) => Some(code),
            Outcome::Signal(_) | Outcome::TimedOut => None,
        }
    }

    /// The failure of the exit, if it is one.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let script = self.script;
        let (kind, mut message) = match self.exit.outcome {
            Outcome::Code(0) => return Ok(()),
            Outcome::Code(code) => (script.failed, format!("{} exited with code {code}", script.name)),
            Outcome::Signal(signal) => {
                (script.failed, format!("{} was killed by signal {signal}", script.name))
            }
            Outcome::TimedOut => (
                script.timed_out,
                format!(
                    "{} exceeded its timeout of {} and {}. \
                     To allow more time, raise {}, or timeout_multiplier in the job",
                    script.name,
                    in_seconds(self.limit),
                    if self.is_left { "was left running" } else { "was killed with all its processes" },
                    script.setting
                ),
            ),
        };
        if script.role == CommandRole::Verifier && matches!(self.exit.outcome, Outcome::Code(_)) {
            message.push_str(". For a wrong answer, test.sh should write the reward 0 and exit with code 0");
        }
        if self.exit.oom_killed {
            message.push_str(
                ". The environment ran out of memory and the kernel killed a process in it: \
                 raise environment.memory in task.toml or environment.override_memory in the job",
            );
        }
        message.push_str(&self.quote());
        Err(Failure::new(kind, message))
    }

    /// The last lines of output, and where the rest is.
    pub(super) fn quote(&self) -> String {
        for (stream, tail) in [("stderr", &self.stderr), ("stdout", &self.stdout)] {
            let lines = tail.last_lines(QUOTED_LINES);
            if !lines.is_empty() {
                let file = format!("{}/{stream}.txt", self.script.output);
                return format!("\nlast lines of {file}:\n{lines}");
            }
        }
        "\nit printed no output".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_becomes_the_failure_of_its_script() {
        for (script, outcome, expected) in [
            (INSTALL, Outcome::Code(0), None),
            (INSTALL, Outcome::Code(1), Some(ErrorType::AgentInstallFailed)),
            (INSTALL, Outcome::TimedOut, Some(ErrorType::AgentInstallTimeout)),
            (EXECUTE, Outcome::Signal(9), Some(ErrorType::AgentExecutionFailed)),
            (ORACLE, Outcome::TimedOut, Some(ErrorType::AgentExecutionTimeout)),
            (TESTS, Outcome::Code(2), Some(ErrorType::VerifierFailed)),
            (TESTS, Outcome::TimedOut, Some(ErrorType::VerifierTimeout)),
        ] {
            let ended = ScriptEnd {
                script,
                limit: Duration::from_secs(1),
                exit: Exit { outcome, oom_killed: false },
                is_left: false,
                stdout: LogTail::default(),
                stderr: LogTail::default(),
            };
            let failure = ended.check().err();
            assert!(failure.as_ref().is_none_or(|failure| !failure.transient), "{failure:?}");
            assert_eq!(failure.map(|failure| failure.error.kind), expected, "{} {outcome:?}", script.name);
        }
    }
}
