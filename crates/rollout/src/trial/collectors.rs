//! The commands of a task that prepare artifacts after the agent.

use std::time::Duration;

use super::{calls::bounded_after, context::TrialContext};
use crate::config::Env;
use rollout_env::{
    CommandRole, CommandUsers, Environment, EnvironmentError, Exec, Exit, Outcome, log::LogWriter,
};

/// How much of the output of a failed command a note quotes.
const QUOTED_BYTES: usize = 1 << 10;

/// Runs the commands one after the other. A failure is a note.
pub(super) async fn run_collectors(
    context: &TrialContext<'_>,
    environment: &dyn Environment,
    notes: &mut Vec<String>,
) {
    let step = context.step;
    for collector in &step.collect {
        let limit = Duration::try_from_secs_f64(collector.timeout_sec).unwrap_or(Duration::MAX);
        let users = CommandUsers { agent: collector.user.clone(), verifier: collector.user.clone() };
        let (stderr, printed) = LogWriter::excerpt(QUOTED_BYTES);
        let run = async {
            environment.set_users(users)?;
            let command = Exec {
                role: CommandRole::Agent,
                argv: &["bash", "-c", &collector.command],
                env: &context.with_environment(&Env::new()),
                deadline: Some(limit),
                stdout: LogWriter::discard(),
                stderr,
            };
            bounded_after(limit, environment.exec(command)).await
        };
        let failed = problem(run.await);
        let text = context.trial.redactor.text(printed.text().0.trim()).into_owned();
        let quoted = if text.is_empty() { text } else { format!(": {text}") };
        notes.extend(failed.map(|how| format!("`{}` of verifier.collect {how}{quoted}", collector.command)));
    }
    if !step.collect.is_empty()
        && let Err(error) = environment.set_users(step.users.clone())
    {
        notes.push(error.to_string());
    }
}

fn problem(exit: Result<Exit, EnvironmentError>) -> Option<String> {
    match exit.map(|exit| exit.outcome) {
        Ok(Outcome::Code(0)) => None,
        Ok(Outcome::Code(code)) => Some(format!("exited with code {code}")),
        Ok(Outcome::Signal(signal)) => Some(format!("was killed by signal {signal}")),
        Ok(Outcome::TimedOut) => Some("timed out".to_owned()),
        Err(error) => Some(format!("failed: {error}")),
    }
}
