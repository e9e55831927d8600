//! Checks an answer by running a program in an environment of its own.

use std::{sync::Arc, time::Duration};

use serde_json::Value;

use super::{Rubric, Scene, judge::filled};
use crate::{
    Error,
    environments::{EnvironmentMaker, destroy, failed},
};
use rollout_env::{CommandRole, Exec, Outcome, log::LogWriter};

/// How many bytes of the program's output are kept, from its start and from its end.
const KEPT_OUTPUT: usize = 2000;

/// A program that checks the answer of a rollout in a new environment. It passes if it exits with status 0.
#[derive(Debug, Clone)]
pub struct SandboxCheck {
    maker: Arc<EnvironmentMaker>,
    file: String,
    content: String,
    command: Vec<String>,
    timeout: Duration,
}

impl SandboxCheck {
    /// A check in environments of a kind: a file is written inside, and a program is run.
    ///
    /// In the content of the file, `{response}` is the answer that the parser finds, `{answer}` the correct one, and
    /// `{name}` a column of the example. `{response:json}` and the like are the same as a string of JSON, so that no
    /// content of an answer ends the string.
    pub fn new(maker: EnvironmentMaker, file: String, content: String, command: Vec<String>) -> Self {
        Self { maker: Arc::new(maker), file, content, command, timeout: super::Command::TIMEOUT }
    }

    /// Sets how long the program may run.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Whether the program passes. Its output is stored in the field `sandbox_output` of the state.
    pub async fn passes(&self, scene: &Scene<'_>) -> Result<bool, Error> {
        let content = self.content(scene);
        let environment = self.maker.create(&scene.state.trajectory_id).await?;
        let checked = async {
            let written = environment.write_file(&self.file, content.as_bytes()).await;
            written.map_err(|error| failed("cannot write the program", &error))?;
            let argv: Vec<&str> = self.command.iter().map(String::as_str).collect();
            let (stdout, out) = LogWriter::excerpt(KEPT_OUTPUT);
            let (stderr, err) = LogWriter::excerpt(KEPT_OUTPUT);
            let exec = Exec {
                role: CommandRole::Agent,
                argv: &argv,
                env: &[],
                deadline: Some(self.timeout),
                stdout,
                stderr,
            };
            let exit = environment.exec(exec).await;
            let exit = exit.map_err(|error| failed("cannot run the program", &error))?;
            let output = format!("{}{}", out.text().0, err.text().0);
            scene.note("sandbox_output", output);
            Ok(exit.outcome == Outcome::Code(0))
        };
        let checked = checked.await;
        destroy(environment).await;
        checked
    }

    fn content(&self, scene: &Scene<'_>) -> String {
        let response = scene.parsed();
        let text = |value: &Value| match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let columns =
            scene.state.input.extra.iter().map(|(name, value)| (format!("{{{name}}}"), text(value)));
        let mut places =
            vec![("{response}".to_owned(), response), ("{answer}".to_owned(), scene.answer.to_owned())];
        places.extend(columns);
        let quoted = |(place, value): &(String, String)| {
            (place.replace('}', ":json}"), Value::from(value.as_str()).to_string())
        };
        let quoted: Vec<(String, String)> = places.iter().map(quoted).collect();
        places.extend(quoted);
        let places: Vec<(&str, &str)> =
            places.iter().map(|(place, value)| (place.as_str(), value.as_str())).collect();
        filled(&self.content, &places)
    }
}

impl Rubric {
    /// Adds a program that checks each rollout in a new environment: 1 if it passes, otherwise 0.
    #[must_use]
    pub fn sandbox(self, name: impl Into<String>, weight: f64, check: SandboxCheck) -> Self {
        self.reward_later(name, weight, async move |scene| check.passes(scene).await)
    }
}
