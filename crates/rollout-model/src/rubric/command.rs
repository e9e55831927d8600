//! A program that scores, written in any language.

use std::{ffi::OsString, io, path::PathBuf, process::ExitStatus, sync::Arc, time::Duration};

use serde::Serialize;
use tokio::sync::Semaphore;

use super::{Rubric, Scene};
use crate::process::{RunError, Said, run};
use rollout_core::text::excerpt;

/// What is read of a number, and of an array of them.
const MAX_NUMBER: usize = 4 << 10;
const MAX_NUMBERS: usize = 1 << 20;

/// A program that reads a rollout as JSON from its input and writes a score to its output.
///
/// It gets one object: `prompt`, `completion`, `response` (the answer that the parser finds), `answer`, `info`, `task`,
/// `example_id`, `trajectory_id`, `model`, `is_completed`, `is_truncated`, `stop_condition`, `error`, `num_turns`,
/// `metrics` (of the functions before it), `usage`, `timing`, and beside these the columns of the dataset and the fields
/// of the state. It writes one finite number. Over a group, it gets an array of such objects and writes an array of
/// numbers.
///
/// There is no shell in between; the program has the environment variables of this process. A program that does not end in time, ends with an error or writes anything else scores
/// 0, and the log shows the end of what it said to its standard error. What it leaves running is killed.
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
    /// The program, then its arguments.
    argv: Vec<OsString>,
    dir: Option<PathBuf>,
    timeout: Duration,
    /// How many may run at once.
    slots: Arc<Semaphore>,
}

/// Why a program gave no score.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// It cannot be started.
    #[error("`{program}` does not start; is it installed, and executable?")]
    Start {
        /// The program.
        program: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Talking to it failed.
    #[error("the program cannot be talked to")]
    Talk(#[source] io::Error),
    /// It ran out of time.
    #[error("the program did not end within {}s{stderr}", after.as_secs_f64())]
    Timeout {
        /// How long that is.
        after: Duration,
        /// What follows the message: the end of what it said.
        stderr: String,
    },
    /// It failed.
    #[error("the program ended with {status}{stderr}")]
    Failed {
        /// How it ended.
        status: ExitStatus,
        /// What follows the message: the end of what it said.
        stderr: String,
    },
    /// It wrote more than any score takes.
    #[error("the program wrote more than {0} bytes")]
    TooMuch(usize),
    /// It wrote something else.
    #[error("the program wrote {output:?} instead of {wanted}{stderr}")]
    NoScore {
        /// The start of what it wrote.
        output: String,
        /// What it should have written.
        wanted: &'static str,
        /// What follows the message: the end of what it said.
        stderr: String,
    },
}

impl Command {
    /// How long a program may take unless told otherwise.
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

    /// Gives it so much time.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// What the program makes of one rollout.
    pub async fn score(&self, scene: &Scene<'_>) -> Result<f64, CommandError> {
        let (output, said) = self.run(&scene.shown(), MAX_NUMBER).await?;
        let number = output.trim().parse().ok().filter(|number: &f64| number.is_finite());
        number.ok_or_else(|| no_score(&output, "a finite number", &said))
    }

    /// What the program makes of a group.
    pub async fn score_group(&self, scenes: &[Scene<'_>]) -> Result<Vec<f64>, CommandError> {
        let shown: Vec<_> = scenes.iter().map(Scene::shown).collect();
        let (output, said) = self.run(&shown, MAX_NUMBERS).await?;
        serde_json::from_str(&output).map_err(|_| no_score(&output, "a JSON array of numbers", &said))
    }

    async fn run(&self, input: &impl Serialize, limit: usize) -> Result<(String, Said), CommandError> {
        let _slot = self.slots.acquire().await.expect("nobody closes the semaphore");
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
    /// Adds a program that scores each rollout. With a weight of 0 it only is a metric.
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
