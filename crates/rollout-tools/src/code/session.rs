//! One session: an environment, and the programs that run in it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use rollout_env::{CommandRole, CopyMode, Environment, Exec, Exit, Outcome, log::LogWriter};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::{Seed, Shared};
use crate::{
    environments::{end, failed},
    resource::{Call, ErrorCode, Params, Session, ToolError},
};

/// The working directory of programs.
pub(super) const WORK_DIR: &str = "/workspace";

/// The directory for program files.
const PROGRAM_DIR: &str = "/tmp/.rollout";

/// Finds an interpreter for a file: a minimal image may have no bash.
const IN_WORK_DIR: &str = r#"cd "$1" || exit 126
case "$2" in
python) exec python3 "$3" ;;
*) if command -v bash >/dev/null 2>&1; then exec bash "$3"; else exec sh "$3"; fi ;;
esac"#;

/// The part of a call's time that is reserved for stopping its program and returning its output.
const TIME_TO_ANSWER: Duration = Duration::from_secs(1);

/// The exit code of a shell for a missing program, among other causes.
const NOT_FOUND: i32 = 127;

/// A session of `code`.
pub(super) struct CodeSession {
    shared: Arc<Shared>,
    image: String,
    seed: Option<Seed>,
    environment: OnceCell<Box<dyn Environment>>,
    programs: AtomicU64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Language {
    Python,
    Shell,
}

impl CodeSession {
    pub(super) fn new(shared: Arc<Shared>, image: String, seed: Option<Seed>) -> Self {
        let environment = OnceCell::new();
        Self { shared, image, seed, environment, programs: AtomicU64::new(0) }
    }

    /// The environment, started once.
    async fn environment(&self, name: &str) -> Result<&dyn Environment, ToolError> {
        let started = self.environment.get_or_try_init(|| async {
            let environment = self.shared.start(name, &self.image).await?;
            if let Some(seed) = &self.seed {
                let staged = seed.stage().await?;
                let copied = environment.copy_to(&staged.folder(), WORK_DIR, CopyMode::Merge).await;
                copied.map_err(|error| failed(&error))?;
            }
            Ok::<_, ToolError>(environment)
        });
        Ok(&**started.await?)
    }

    async fn run(
        &self,
        environment: &dyn Environment,
        language: Language,
        program: &str,
        deadline: Duration,
    ) -> Result<Value, ToolError> {
        let number = self.programs.fetch_add(1, Ordering::Relaxed) + 1;
        let (word, suffix) = match language {
            Language::Python => ("python", "py"),
            Language::Shell => ("shell", "sh"),
        };
        let path = format!("{PROGRAM_DIR}/{number}.{suffix}");
        environment.write_file(&path, program.as_bytes()).await.map_err(|error| failed(&error))?;
        let part = self.shared.config.max_output_bytes.div_ceil(2);
        let ((stdout, out), (stderr, err)) = (LogWriter::excerpt(part), LogWriter::excerpt(part));
        let env = [("LANG", "C.UTF-8"), ("PYTHONPATH", WORK_DIR), ("PYTHONUNBUFFERED", "1")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        let command = Exec {
            role: CommandRole::Agent,
            argv: &["sh", "-c", IN_WORK_DIR, "sh", WORK_DIR, word, &path],
            env: &env,
            deadline: Some(deadline),
            stdout,
            stderr,
        };
        let exit = environment.exec(command).await.map_err(|error| failed(&error))?;
        if language == Language::Python
            && exit.outcome == Outcome::Code(NOT_FOUND)
            && !has_python(environment).await?
        {
            return Err(no_python());
        }
        Ok(answer(&exit, out.text(), err.text(), deadline))
    }
}

#[async_trait]
impl Session for CodeSession {
    async fn call(&self, tool: &str, params: Params, call: &Call) -> Result<Value, ToolError> {
        let started = Instant::now();
        let (language, key) = match tool {
            "python" => (Language::Python, "code"),
            "shell" => (Language::Shell, "command"),
            _ => return Err(ToolError::new(ErrorCode::InvalidRequest, format!("code has no tool {tool:?}"))),
        };
        let program = match params.get(key) {
            Some(Value::String(program)) => program,
            None => return Err(ToolError::new(ErrorCode::MissingField, format!("`{key}` is missing"))),
            Some(_) => {
                return Err(ToolError::new(ErrorCode::InvalidType, format!("`{key}` must be a string")));
            }
        };
        let deadline = deadline(&params)?.unwrap_or(self.shared.config.timeout_sec);
        let environment = self.environment(&call.session_id).await?;
        let left = call.timeout.saturating_sub(started.elapsed());
        self.run(environment, language, program, within(left, deadline)).await
    }

    async fn close(self: Box<Self>) {
        if let Some(environment) = self.environment.into_inner() {
            end(environment).await;
        }
    }
}

/// The deadline of a program whose call has this much time left, so that the call can still return the output.
/// If a call is too short for that, the server cancels both.
fn within(left: Duration, deadline: Duration) -> Duration {
    match left.checked_sub(TIME_TO_ANSWER) {
        Some(left) if !left.is_zero() => deadline.min(left),
        _ => deadline,
    }
}

fn deadline(params: &Params) -> Result<Option<Duration>, ToolError> {
    let seconds = match params.get("timeout") {
        None | Some(Value::Null) => return Ok(None),
        // Models quote numbers.
        Some(Value::String(text)) => text.trim().parse().ok(),
        Some(value) => value.as_f64(),
    };
    let time = seconds
        .filter(|seconds| *seconds > 0.0)
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    match time {
        Some(time) => Ok(Some(time)),
        None => Err(ToolError::new(ErrorCode::InvalidType, "`timeout` is not a number of seconds above 0")),
    }
}

/// The result of a program: as text for the model, and in parts.
fn answer(exit: &Exit, out: (String, u64), err: (String, u64), deadline: Duration) -> Value {
    let ((stdout, out_left), (stderr, err_left)) = (out, err);
    let mut result = String::new();
    let mut add = |text: &str| {
        if !result.is_empty() && !result.ends_with('\n') && !text.is_empty() {
            result.push('\n');
        }
        result.push_str(text);
    };
    add(&stdout);
    add(&stderr);
    if exit.oom_killed {
        add("[the memory limit killed a process]");
    }
    let (exit_code, timed_out) = match exit.outcome {
        Outcome::Code(0) => (Some(0), false),
        Outcome::Code(code) => {
            add(&format!("[exit code {code}]"));
            (Some(code), false)
        }
        Outcome::Signal(signal) => {
            add(&format!("[killed by signal {signal}]"));
            (Some(128 + signal), false)
        }
        Outcome::TimedOut => {
            let seconds = (deadline.as_secs_f64() * 100.0).round() / 100.0;
            add(&format!("[killed: timed out after {seconds} seconds]"));
            (None, true)
        }
    };
    if result.is_empty() {
        result.push_str("[no output]");
    }
    json!({
        "result": result,
        "stdout": stdout,
        "stderr": stderr,
        "exit_code": exit_code,
        "timed_out": timed_out,
        "truncated": out_left + err_left > 0,
        "bytes_left_out": out_left + err_left,
        "out_of_memory": exit.oom_killed,
    })
}

/// Whether Python is installed in the environment.
pub(super) async fn has_python(environment: &dyn Environment) -> Result<bool, ToolError> {
    let command = Exec {
        role: CommandRole::Agent,
        argv: &["sh", "-c", "command -v python3"],
        env: &[],
        deadline: Some(Duration::from_secs(30)),
        stdout: LogWriter::discard(),
        stderr: LogWriter::discard(),
    };
    let exit = environment.exec(command).await.map_err(|error| failed(&error))?;
    Ok(exit.outcome == Outcome::Code(0))
}

pub(super) fn no_python() -> ToolError {
    let text = "python3 is not installed where code runs; install it (on Debian and Ubuntu: apt install python3), or set \
                `resources.code` to an image that has it";
    ToolError::new(ErrorCode::DependencyMissing, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(outcome: Outcome, stdout: &str, stderr: &str) -> String {
        let exit = Exit { outcome, oom_killed: false };
        let answer =
            answer(&exit, (stdout.to_owned(), 0), (stderr.to_owned(), 0), Duration::from_millis(1500));
        answer["result"].as_str().unwrap().to_owned()
    }

    #[test]
    fn a_model_reads_the_output_and_how_it_ended_if_not_well() {
        assert_eq!(result(Outcome::Code(0), "4\n", ""), "4\n");
        assert_eq!(result(Outcome::Code(0), "", ""), "[no output]");
        assert_eq!(result(Outcome::Code(1), "a", "Traceback\n"), "a\nTraceback\n[exit code 1]");
        assert_eq!(result(Outcome::Signal(9), "", ""), "[killed by signal 9]");
        assert_eq!(result(Outcome::TimedOut, "half", ""), "half\n[killed: timed out after 1.5 seconds]");
    }

    #[test]
    fn a_program_ends_before_its_call_does() {
        let seconds = Duration::from_secs;
        assert_eq!(within(seconds(60), seconds(10)), seconds(10));
        assert_eq!(within(seconds(60), seconds(1000)), seconds(59));
        assert_eq!(within(seconds(1), seconds(10)), seconds(10));
    }

    #[test]
    fn a_timeout_is_a_number_of_seconds_however_it_is_written() {
        let of = |value: Value| {
            deadline(&Params::from_iter([("timeout".to_owned(), value)])).map_err(|error| error.code)
        };
        assert_eq!(of(Value::Null), Ok(None));
        assert_eq!(of(json!(2)), Ok(Some(Duration::from_secs(2))));
        assert_eq!(of(json!("0.5")), Ok(Some(Duration::from_millis(500))));
        for wrong in [json!(0), json!(-1), json!("soon"), json!([1]), json!("NaN"), json!(1e300)] {
            assert_eq!(of(wrong.clone()), Err(ErrorCode::InvalidType), "{wrong}");
        }
    }
}
