//! Runs commands in an environment, and shortens their output for a model.

use std::{fs::File, io, os::unix::fs::FileExt as _, time::Duration};

use crate::tool::container::{ToolFailure, bounded};
use rollout_core::redact::Redactor;
use rollout_env::{
    CommandRole, Environment, Exec, Exit, Outcome,
    blocking::blocking,
    log::{LogWriter, cut},
};

/// How much of the start and of the end of an output is shown to a model.
const SHOWN_BYTES: u64 = 12 << 10;

/// Linux limits an argument to 128 KiB.
const MAX_COMMAND_BYTES: usize = 120 << 10;

/// A minimal image may lack bash. One pipe keeps the order of standard output and standard error.
const ANY_SHELL: &str =
    r#"exec 2>&1; if command -v bash >/dev/null 2>&1; then exec bash -c "$1"; else exec sh -c "$1"; fi"#;

/// Runs a command of a model, and returns its output and its exit status.
pub(super) async fn bash(
    environment: &dyn Environment,
    command: &str,
    env: &[(String, String)],
    deadline: Duration,
) -> Result<String, ToolFailure> {
    if command.len() > MAX_COMMAND_BYTES {
        let text = format!(
            "the command has {} bytes, and the limit is {MAX_COMMAND_BYTES}; write it to a file first",
            command.len()
        );
        return Err(ToolFailure::new("ValueError", text));
    }
    let (exit, mut text) = run(environment, &["sh", "-c", ANY_SHELL, "sh", command], env, deadline).await?;
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    if exit.oom_killed {
        text.push_str("[the memory limit killed a process]\n");
    }
    text.push_str(&match exit.outcome {
        Outcome::Code(code) => format!("[exit code {code}]"),
        Outcome::Signal(signal) => format!("[killed by signal {signal}]"),
        Outcome::TimedOut => format!("[killed: timed out after {} seconds]", deadline.as_secs_f64()),
    });
    Ok(text)
}

/// Runs a command, and returns the start and the end of its standard output and error together.
pub(super) async fn run(
    environment: &dyn Environment,
    argv: &[&str],
    env: &[(String, String)],
    deadline: Duration,
) -> Result<(Exit, String), ToolFailure> {
    if argv.iter().any(|argument| argument.contains('\0')) {
        return Err(ToolFailure::new("ValueError", "a command or path cannot contain a zero byte"));
    }
    let files = blocking(|| {
        // Two handles of one open file: both streams append to it.
        let file = tempfile::tempfile()?;
        Ok([file.try_clone()?, file.try_clone()?, file])
    });
    let [stdout, stderr, output] = files.await.map_err(no_output)?;
    let redactor = Redactor::default();
    let command = Exec {
        role: CommandRole::Agent,
        argv,
        env,
        deadline: Some(deadline),
        stdout: LogWriter::new(stdout, &redactor),
        stderr: LogWriter::new(stderr, &redactor),
    };
    let exit = bounded(deadline, environment.exec(command)).await?;
    let text = blocking(move || excerpt(&output)).await.map_err(no_output)?;
    Ok((exit, text))
}

fn no_output(error: io::Error) -> ToolFailure {
    ToolFailure::new("InfraError", format!("cannot store the output of a command: {error}"))
}

/// The start and the end of a file.
fn excerpt(file: &File) -> io::Result<String> {
    let length = file.metadata()?.len();
    if length <= 2 * SHOWN_BYTES {
        return Ok(String::from_utf8_lossy(&read_at(file, 0, length)?).into_owned());
    }
    let start = read_at(file, 0, SHOWN_BYTES)?;
    let end = read_at(file, length - SHOWN_BYTES, SHOWN_BYTES)?;
    Ok(cut(&start, &end, length - 2 * SHOWN_BYTES))
}

fn read_at(file: &File, offset: u64, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length as usize];
    file.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
}

/// The part of a text that is shown to a model.
pub(super) fn shown(bytes: &[u8]) -> String {
    let part = SHOWN_BYTES as usize;
    if bytes.len() <= 2 * part {
        return String::from_utf8_lossy(bytes).into_owned();
    }
    cut(&bytes[..part], &bytes[bytes.len() - part..], (bytes.len() - 2 * part) as u64)
}

#[cfg(test)]
mod tests {
    use crate::tool::container::shell::*;

    #[test]
    fn long_text_is_cut_in_the_middle_between_characters() {
        assert_eq!(shown(b"short"), "short");
        let long = "é".repeat(20_000);
        // One byte before makes the cuts fall inside characters.
        let text = shown(format!("x{long}").as_bytes());
        let (start, rest) = text.split_once("\n[15425 bytes are left out here]\n").unwrap();
        assert_eq!(start, format!("x{}", "é".repeat(6143)));
        assert_eq!(rest, "é".repeat(6144));
    }
}
