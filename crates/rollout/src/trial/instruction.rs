//! The instruction of a step, as the agent gets it.

use std::{fs::File, io::Read as _};

use super::{calls::required, context::TrialContext, failure::Failure};
use crate::config::PresetConfig;
use rollout_core::{event::Phase, result::ErrorType};
use rollout_env::{CopyMode, Environment, blocking::blocking};

/// A larger instruction is too long for any model.
const MAX_INSTRUCTION_BYTES: u64 = 1 << 20;

/// Reads the instruction. By the rules of Harbor, marks of the benchmark at its head are left out.
pub(super) async fn read(context: &TrialContext<'_>) -> Result<Vec<u8>, Failure> {
    let invalid = |message: String| Failure::new(ErrorType::TaskInvalid, message);
    let path = context.step.instruction.clone();
    let read = blocking(move || {
        let mut bytes = Vec::new();
        File::open(path)?.take(MAX_INSTRUCTION_BYTES + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    });
    let bytes = read.await.map_err(|error| invalid(format!("cannot read instruction.md: {error}")))?;
    if bytes.len() as u64 > MAX_INSTRUCTION_BYTES {
        return Err(invalid("instruction.md is larger than 1 MiB".to_owned()));
    }
    Ok(if context.task.is_harbor { without_canary(&bytes).to_vec() } else { bytes })
}

/// Checks that the agent can read an instruction of this length.
pub(super) async fn check_length(context: &TrialContext<'_>, preset: &PresetConfig) -> Result<(), Failure> {
    let Some(most) = preset.max_instruction_bytes else { return Ok(()) };
    let length = read(context).await?.len();
    if length as u64 <= most {
        return Ok(());
    }
    let name = &preset.name;
    let message =
        format!("instruction.md has {length} bytes, but {name} can read at most {most}: make it shorter");
    Err(Failure::new(ErrorType::TaskInvalid, message))
}

/// Copies the instruction to its path for scripts.
pub(super) async fn copy(
    context: &TrialContext<'_>,
    environment: &dyn Environment,
    phase: Phase,
) -> Result<(), Failure> {
    let target = &context.trial.config.instruction_path;
    let copied = match context.task.is_harbor {
        true => {
            let text = read(context).await?;
            let scratch = blocking(move || {
                let file = tempfile::NamedTempFile::new()?;
                std::fs::write(file.path(), text)?;
                Ok(file)
            });
            let scratch = scratch.await.map_err(|error| {
                Failure::new(ErrorType::InternalError, format!("cannot prepare the instruction: {error}"))
            })?;
            required(phase, environment.copy_to(scratch.path(), target, CopyMode::Merge)).await
        }
        false => {
            let instruction = context.step.instruction.clone();
            // A symbolic link within the task is allowed, but environments follow none.
            let instruction =
                blocking(move || std::fs::canonicalize(instruction)).await.map_err(|error| {
                    Failure::new(ErrorType::TaskInvalid, format!("cannot read instruction.md: {error}"))
                })?;
            required(phase, environment.copy_to(&instruction, target, CopyMode::Merge)).await
        }
    };
    copied.map_err(|mut failure| {
        let hint =
            format!("; `instruction_path` of the job is {target}: set a path where a file can be created");
        failure.error.message.push_str(&hint);
        failure
    })
}

/// The text after comments with the word "canary" at its head, and after the empty lines that follow them.
fn without_canary(text: &[u8]) -> &[u8] {
    let mut rest = text;
    while let Some((line, after)) = first_line(rest) {
        let line = String::from_utf8_lossy(line.trim_ascii()).to_lowercase();
        let is_comment = line.starts_with('#') || line.starts_with("<!--") && line.ends_with("-->");
        if !is_comment || !line.contains("canary") {
            break;
        }
        rest = after;
    }
    if rest.len() == text.len() {
        return text;
    }
    while let Some((_, after)) = first_line(rest).filter(|(line, _)| line.trim_ascii().is_empty()) {
        rest = after;
    }
    rest
}

/// The first line, and the text after it. None at the end of the text.
fn first_line(text: &[u8]) -> Option<(&[u8], &[u8])> {
    match text.iter().position(|byte| *byte == b'\n') {
        Some(end) => Some((&text[..end], &text[end + 1..])),
        None if text.is_empty() => None,
        None => Some((text, &[])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canary_comments_at_the_head_are_removed() {
        for (text, expected) in [
            ("<!-- bench-canary GUID 1 -->\n\nDo it.\n", "Do it.\n"),
            ("# BENCHMARK CANARY\n# canary 2\n  \nDo it.", "Do it."),
            ("Do it.\n# canary\n", "Do it.\n# canary\n"),
            ("# Title\ncanary\n", "# Title\ncanary\n"),
            ("\nDo it.\n", "\nDo it.\n"),
            ("# canary", ""),
            ("", ""),
        ] {
            assert_eq!(without_canary(text.as_bytes()), expected.as_bytes(), "{text:?}");
        }
    }
}
