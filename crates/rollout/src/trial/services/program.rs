//! The program of a service: it runs until its environment is removed, and is started again as the file says.

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, task::JoinHandle};

use crate::trial::rented::RentedEnvironment;
use rollout_core::redact::Redactor;
use rollout_env::{
    CommandRole, Environment, Exec, Outcome,
    compose::RestartPolicy,
    log::{LogTail, LogWriter, MAX_LOG_BYTES},
};

/// How many lines of each output an error quotes.
const QUOTED_LINES: usize = 10;

/// The wait before the first restart, which doubles each time.
const FIRST_WAIT: Duration = Duration::from_millis(100);

/// The longest wait before a restart.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// How a program ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ProgramEnd {
    /// With code 0.
    Success,
    /// In another way.
    Failure(String),
}

/// A program that was started.
pub(super) struct Program {
    task: JoinHandle<()>,
    ended: watch::Receiver<Option<ProgramEnd>>,
    tails: [LogTail; 2],
}

/// What is run.
pub(super) struct ProgramSpec {
    pub(super) argv: Vec<String>,
    pub(super) env: Vec<(String, String)>,
    pub(super) restart: RestartPolicy,
}

impl Program {
    /// Starts a program, whose output goes to these files.
    pub(super) fn start(
        environment: Arc<RentedEnvironment>,
        spec: ProgramSpec,
        output: [std::fs::File; 2],
        redactor: &Redactor,
    ) -> Self {
        let tails = [LogTail::default(), LogTail::default()];
        let (sender, ended) = watch::channel(None);
        let (redactor, shared) = (redactor.clone(), tails.clone());
        let task = tokio::spawn(async move {
            keep_running(&**environment, &spec, &output, &redactor, &shared, &sender).await;
        });
        Self { task, ended, tails }
    }

    /// How it ended, if it did and is not started again.
    pub(super) fn end(&self) -> Option<ProgramEnd> {
        self.ended.borrow().clone()
    }

    /// Waits for its end.
    pub(super) async fn wait(&self) -> ProgramEnd {
        let mut ended = self.ended.clone();
        match ended.wait_for(Option::is_some).await {
            Ok(end) => end.clone().unwrap_or(ProgramEnd::Success),
            Err(_) => ProgramEnd::Failure("was stopped".to_owned()),
        }
    }

    /// The last lines of its output, for an error.
    pub(super) fn last_lines(&self) -> String {
        let lines: Vec<String> = self.tails.iter().map(|tail| tail.last_lines(QUOTED_LINES)).collect();
        let text =
            lines.iter().filter(|lines| !lines.trim().is_empty()).cloned().collect::<Vec<_>>().join("\n");
        if text.is_empty() { text } else { format!("\n{text}") }
    }

    /// Stops it.
    pub(super) async fn stop(mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
    }
}

impl Drop for Program {
    /// Ends the task, which would otherwise keep the environment of the service.
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn keep_running(
    environment: &dyn Environment,
    spec: &ProgramSpec,
    logs: &[std::fs::File; 2],
    redactor: &Redactor,
    tails: &[LogTail; 2],
    sender: &watch::Sender<Option<ProgramEnd>>,
) {
    let (mut restarts, mut wait) = (0, FIRST_WAIT);
    loop {
        let end = run(environment, spec, logs, redactor, tails).await;
        let again = match (spec.restart, &end) {
            (RestartPolicy::Never, _) | (RestartPolicy::OnFailure(_), ProgramEnd::Success) => false,
            (RestartPolicy::Always, _) | (RestartPolicy::OnFailure(None), _) => true,
            (RestartPolicy::OnFailure(Some(most)), _) => restarts < most,
        };
        if !again {
            sender.send_replace(Some(end));
            return;
        }
        tokio::time::sleep(wait).await;
        restarts += 1;
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}

async fn run(
    environment: &dyn Environment,
    spec: &ProgramSpec,
    logs: &[std::fs::File; 2],
    redactor: &Redactor,
    tails: &[LogTail; 2],
) -> ProgramEnd {
    // A program that is started again and again must not fill the disk.
    let has_room = |file: &std::fs::File| file.metadata().is_ok_and(|found| found.len() < MAX_LOG_BYTES);
    let writer = |number: usize| match logs[number].try_clone() {
        Ok(file) if has_room(&file) => LogWriter::new(file, redactor).with_tail(&tails[number]),
        _ => LogWriter::discard().with_tail(&tails[number]),
    };
    let argv: Vec<&str> = spec.argv.iter().map(String::as_str).collect();
    let command = Exec {
        role: CommandRole::Agent,
        argv: &argv,
        env: &spec.env,
        deadline: None,
        stdout: writer(0),
        stderr: writer(1),
    };
    match environment.exec(command).await.map(|exit| exit.outcome) {
        Ok(Outcome::Code(0)) => ProgramEnd::Success,
        Ok(Outcome::Code(code)) => ProgramEnd::Failure(format!("exited with code {code}")),
        Ok(Outcome::Signal(signal)) => ProgramEnd::Failure(format!("was killed by signal {signal}")),
        Ok(Outcome::TimedOut) => ProgramEnd::Failure("timed out".to_owned()),
        Err(error) => ProgramEnd::Failure(format!("failed: {error}")),
    }
}
