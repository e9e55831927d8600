//! Runs the scripts of a trial, and maps their exits to failures.

use std::{io, path::PathBuf, time::Duration};

use super::{
    calls::{bounded_after, required},
    context::TrialContext,
    failure::{Failure, in_seconds},
};
use crate::agent;
use rollout_core::{event::Phase, redact::Redactor, result::ErrorType};
use rollout_env::{
    CommandRole, Environment, Exec, Exit, Outcome,
    blocking::blocking,
    log::{LogTail, LogWriter, create_log_files},
};

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
}

pub(super) const INSTALL: Script = Script {
    name: "the agent's install script",
    path: agent::INSTALL_SCRIPT,
    output: "setup",
    role: CommandRole::Agent,
    phase: Phase::Install,
    failed: ErrorType::AgentInstallFailed,
    timed_out: ErrorType::AgentInstallTimeout,
    setting: "agent.install_timeout_sec in task.toml",
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
};

pub(super) const ORACLE: Script = Script { name: "the task's solution", path: "/oracle/solve.sh", ..EXECUTE };

pub(super) const TESTS: Script = Script {
    name: "tests/test.sh",
    path: "/tests/test.sh",
    output: "logs/verifier",
    role: CommandRole::Verifier,
    phase: Phase::Verify,
    failed: ErrorType::VerifierFailed,
    timed_out: ErrorType::VerifierTimeout,
    setting: "verifier.timeout_sec in task.toml or verifier.override_timeout_sec in the job",
};

/// Runs a script with bash. Its output is written to its directory.
pub(super) async fn run(
    context: &TrialContext<'_>,
    environment: &dyn Environment,
    script: &Script,
    env: &[(String, String)],
    limit: Duration,
) -> Result<ScriptEnd, Failure> {
    let dir = context.trial.dir.path().join(script.output);
    let (stdout, stderr) = open_logs(dir, &context.trial.redactor).await.map_err(|error| {
        let message = format!("cannot write the output of {}: {error}", script.name);
        Failure::new(ErrorType::InternalError, message)
    })?;
    let (stdout_tail, stderr_tail) = (stdout.tail(), stderr.tail());
    let command =
        Exec { role: script.role, argv: &["bash", script.path], env, deadline: Some(limit), stdout, stderr };
    // The environment enforces the deadline; this is for one that does not.
    let exit = bounded_after(limit, environment.exec(command))
        .await
        .map_err(|error| Failure::environment(script.phase, &error))?;
    if exit.outcome == Outcome::TimedOut && script.role == CommandRole::Agent {
        // Processes that keep forking can escape when their tree is killed, but not here.
        required(script.phase, environment.kill_all()).await?;
    }
    Ok(ScriptEnd { script: *script, limit, exit, stdout: stdout_tail, stderr: stderr_tail })
}

async fn open_logs(dir: PathBuf, redactor: &Redactor) -> io::Result<(LogWriter, LogWriter)> {
    let [stdout, stderr] = blocking(move || create_log_files(&dir)).await?;
    Ok((LogWriter::new(stdout, redactor), LogWriter::new(stderr, redactor)))
}

/// How a script ended.
#[derive(Debug)]
pub(super) struct ScriptEnd {
    script: Script,
    limit: Duration,
    exit: Exit,
    stdout: LogTail,
    stderr: LogTail,
}

impl ScriptEnd {
    pub(super) fn timed_out(&self) -> bool {
        self.exit.outcome == Outcome::TimedOut
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
                    "{} exceeded its timeout of {} and was killed with all its processes. \
                     To allow more time, raise {}, or timeout_multiplier in the job",
                    script.name,
                    in_seconds(self.limit),
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
                stdout: LogTail::default(),
                stderr: LogTail::default(),
            };
            let failure = ended.check().err();
            assert!(failure.as_ref().is_none_or(|failure| !failure.transient), "{failure:?}");
            assert_eq!(failure.map(|failure| failure.error.kind), expected, "{} {outcome:?}", script.name);
        }
    }
}
