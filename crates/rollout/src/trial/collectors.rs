//! The commands of a task that prepare artifacts after the agent.

use std::time::Duration;

use super::{calls::bounded_after, context::TrialContext, services::Services};
use crate::config::{CollectConfig, Env};
use rollout_env::{
    CommandRole, CommandUsers, Environment, EnvironmentError, Exec, Exit, Outcome, compose::MAIN_SERVICE,
    log::LogWriter,
};

/// How much of the output of a failed command a note quotes.
const QUOTED_BYTES: usize = 1 << 10;

/// Where commands run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CollectedFrom {
    /// In the agent's environment.
    Main,
    /// In other services. If the tests run elsewhere, the agent's processes are killed before, so that they cannot
    /// change what the services have.
    Services,
}

/// Runs the commands one after the other. A failure is a note.
pub(super) async fn run_collectors(
    context: &TrialContext<'_>,
    from: CollectedFrom,
    main: &dyn Environment,
    services: &Services,
    notes: &mut Vec<String>,
) {
    let step = context.step;
    let is_chosen = |collector: &&CollectConfig| match from {
        CollectedFrom::Main => of_service(collector).is_none(),
        CollectedFrom::Services => of_service(collector).is_some(),
    };
    for collector in step.collect.iter().filter(is_chosen) {
        let own = context.with_environment(&Env::new());
        let (environment, env) = match of_service(collector).map(|name| (name, services.service(name))) {
            None => (main, own.as_slice()),
            Some((_, Some(found))) => found,
            Some((name, None)) => {
                notes.push(format!("verifier.collect names the service {name}, which does not exist"));
                continue;
            }
        };
        let limit = Duration::try_from_secs_f64(collector.timeout_sec).unwrap_or(Duration::MAX);
        let users = CommandUsers { agent: collector.user.clone(), verifier: collector.user.clone() };
        let (stderr, printed) = LogWriter::excerpt(QUOTED_BYTES);
        let run = async {
            environment.set_users(users)?;
            let command = Exec {
                role: CommandRole::Agent,
                argv: &[shell(collector), "-c", &collector.command],
                env,
                deadline: Some(limit),
                stdout: LogWriter::discard(),
                stderr,
            };
            bounded_after(limit, environment.exec(command)).await
        };
        let failed = problem(run.await);
        if of_service(collector).is_some() {
            // The program of the service may be started again, as its own user.
            let _ = environment.set_users(CommandUsers::default());
        }
        let text = context.trial.redactor.text(printed.text().0.trim()).into_owned();
        let quoted = if text.is_empty() { text } else { format!(": {text}") };
        notes.extend(failed.map(|how| format!("`{}` of verifier.collect {how}{quoted}", collector.command)));
    }
    if !step.collect.is_empty()
        && let Err(error) = main.set_users(step.users.clone())
    {
        notes.push(error.to_string());
    }
}

/// The other service in which a command runs.
fn of_service(collector: &CollectConfig) -> Option<&str> {
    collector.service.as_deref().filter(|name| *name != MAIN_SERVICE)
}

/// Images of services often have no bash.
fn shell(collector: &CollectConfig) -> &'static str {
    if of_service(collector).is_some() { "sh" } else { "bash" }
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
