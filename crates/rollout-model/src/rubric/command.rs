//! Scoring programs, written in any language.

use std::{ffi::OsString, io, path::PathBuf, process::ExitStatus, sync::Arc, time::Duration};

use serde::Serialize;
use tokio::sync::Semaphore;

use super::{Rubric, Scene};
use crate::process::{RunError, Said, run};
use rollout_core::text::excerpt;

/// The maximum output of a program for one number, and for an array of numbers.
const MAX_NUMBER: usize = 4 << 10;
const MAX_NUMBERS: usize = 1 << 20;

/// A program that reads a rollout as JSON from its input and writes a score to its output.
///
/// It gets one object: `prompt`, `completion`, `response` (the answer that the parser finds), `answer`, `info`, `task`,
/// `example_id`, `trajectory_id`, `model`, `is_completed`, `is_truncated`, `stop_condition`, `error`, `num_turns`,
/// `metrics` (of the functions before it), `usage`, `timing`, and the columns of the dataset and the fields of the
/// state. It writes one finite number. For a group, it gets an array of such objects and writes an array of numbers.
///
/// It is started without a shell, with the environment variables of this process. A program that times out, fails or
/// writes anything else scores 0, and the log shows the last lines of its standard error. Processes that it leaves
/// running are killed.
///
/// ```
/// use rollout::model::{Rubric, rubric::Command};
///
/// let program = "import json, sys; s = json.load(sys.stdin); print(s['response'] == s['answer'] and 1 or 0)";
/// let rubric = Rubric::new().command("exact", 1.0, Command::new("python3", ["-c", program]));
/// # let _ = rubric;
/// ```
#[derive(Debug, Clone)]
pub struct Command {
    /// The program and its arguments.
    argv: Vec<OsString>,
    dir: Option<PathBuf>,
    timeout: Duration,
    /// Limits how many run at once.
    slots: Arc<Semaphore>,
}

/// Why a program returned no score.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// It cannot be started.
    #[error("cannot start `{program}`; is it installed and executable?")]
    Start {
        /// The program.
        program: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Communication with it failed.
    #[error("cannot communicate with the program")]
    Talk(#[source] io::Error),
    /// It timed out.
    #[error("the program timed out after {}s{stderr}", after.as_secs_f64())]
    Timeout {
        /// The timeout.
        after: Duration,
        /// The last lines of its standard error, as a suffix of the message.
        stderr: String,
    },
    /// It failed.
    #[error("the program failed: {status}{stderr}")]
    Failed {
        /// Its exit status.
        status: ExitStatus,
        /// The last lines of its standard error, as a suffix of the message.
        stderr: String,
    },
    /// It wrote too much.
    #[error("the program wrote more than {0} bytes")]
    TooMuch(usize),
    /// It wrote something that is not a score.
    #[error("the program wrote {output:?} instead of {wanted}{stderr}")]
    NoScore {
        /// The start of its output.
        output: String,
        /// The expected output.
        wanted: &'static str,
        /// The last lines of its standard error, as a suffix of the message.
        stderr: String,
    },
}

impl Command {
    /// The default timeout of a program.
    pub const TIMEOUT: Duration = Duration::from_secs(60);

    /// A program with its arguments.
    pub fn new(program: impl Into<OsString>, args: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            argv: std::iter::once(program.into()).chain(args.into_iter().map(Into::into)).collect(),
            dir: None,
            timeout: Self::TIMEOUT,
            slots: Arc::new(Semaphore::new(2 * cores)),
        }
    }

    /// Runs in this directory instead of the current one.
    #[must_use]
    pub fn dir(self, dir: impl Into<PathBuf>) -> Self {
        Self { dir: Some(dir.into()), ..self }
    }

    /// Sets its timeout.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// The score of one rollout.
    pub async fn score(&self, scene: &Scene<'_>) -> Result<f64, CommandError> {
        let (output, said) = self.run(&scene.shown(), MAX_NUMBER).await?;
        let number = output.trim().parse().ok().filter(|number: &f64| number.is_finite());
        number.ok_or_else(|| no_score(&output, "a finite number", &said))
    }

    /// The scores of a group.
    pub async fn score_group(&self, scenes: &[Scene<'_>]) -> Result<Vec<f64>, CommandError> {
        let shown: Vec<_> = scenes.iter().map(Scene::shown).collect();
        let (output, said) = self.run(&shown, MAX_NUMBERS).await?;
        serde_json::from_str(&output).map_err(|_| no_score(&output, "a JSON array of numbers", &said))
    }

    async fn run(&self, input: &impl Serialize, limit: usize) -> Result<(String, Said), CommandError> {
        let _slot = self.slots.acquire().await.expect("the semaphore is never closed");
        let input = serde_json::to_vec(input).map_err(|error| CommandError::Talk(error.into()))?;
        let ran = run(&self.argv, self.dir.as_deref(), &input, limit, self.timeout).await;
        let (output, said) = ran.map_err(|error| match error {
            RunError::Start(source) => {
                CommandError::Start { program: self.argv[0].to_string_lossy().into_owned(), source }
            }
            RunError::Talk(source) => CommandError::Talk(source),
            RunError::TooMuch => CommandError::TooMuch(limit),
            RunError::Timeout(said) => {
                CommandError::Timeout { after: self.timeout, stderr: said.as_suffix() }
            }
            RunError::Failed(status, said) => CommandError::Failed { status, stderr: said.as_suffix() },
        })?;
        Ok((String::from_utf8_lossy(&output).into_owned(), said))
    }
}

impl Rubric {
    /// Adds a program that scores each rollout. With a weight of 0 it is only a metric.
    #[must_use]
    pub fn command(self, name: impl Into<String>, weight: f64, command: Command) -> Self {
        self.reward_later(name, weight, async move |scene| command.score(scene).await)
    }

    /// Adds a program that scores the rollouts of an example together.
    #[must_use]
    pub fn group_command(self, name: impl Into<String>, weight: f64, command: Command) -> Self {
        self.group_reward_later(name, weight, async move |scenes| command.score_group(scenes).await)
    }
}

fn no_score(output: &str, wanted: &'static str, said: &Said) -> CommandError {
    CommandError::NoScore { output: excerpt(output.trim()), wanted, stderr: said.as_suffix() }
}
