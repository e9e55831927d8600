//! Checks the syntax of a script with `bash -n`, which runs nothing.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, Write as _},
    path::PathBuf,
    process::{Command, Stdio},
};

use rollout_core::text::cut;

/// Larger scripts contain data, and are not checked.
const MAX_BYTES: u64 = 1 << 20;

/// How much of bash's message is shown.
const MAX_MESSAGE: usize = 300;

/// The text of a script.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct ScriptText(Vec<u8>);

/// The result of the check.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Parsed {
    /// Valid, or bash is not installed.
    Valid,
    /// Not valid bash.
    Invalid {
        /// The position and the reason.
        message: String,
        /// Whether the script cannot succeed. It may exit before it reaches the line.
        certain: bool,
    },
}

impl ScriptText {
    /// The script in a file. None if it cannot be read, or is not a shell script.
    pub(super) fn of_file(path: PathBuf) -> Option<Self> {
        let mut bytes = Vec::new();
        File::open(path).ok()?.take(MAX_BYTES + 1).read_to_end(&mut bytes).ok()?;
        (bytes.len() as u64 <= MAX_BYTES).then_some(Self(bytes)).filter(Self::is_for_shell)
    }

    /// A script in a job file.
    pub(super) fn of_text(text: &str) -> Option<Self> {
        (text.len() as u64 <= MAX_BYTES).then(|| Self(text.as_bytes().to_vec())).filter(Self::is_for_shell)
    }

    fn is_for_shell(&self) -> bool {
        let first = self.0.split(|byte| *byte == b'\n').next().unwrap_or_default();
        match first.strip_prefix(b"#!") {
            None => true,
            Some(line) => {
                let line = String::from_utf8_lossy(line);
                ["bash", "/sh", "env sh", "dash"].iter().any(|shell| line.contains(shell))
            }
        }
    }

    /// Checks it with bash.
    pub(super) fn parse(&self) -> Parsed {
        match self.complaint() {
            Ok(Some(text)) => {
                let number = line_number(&text);
                let certain = number.is_none_or(|number| !self.ends_before(number));
                Parsed::Invalid { message: message(&text), certain }
            }
            // A machine without bash can still run containers that have it.
            Ok(None) | Err(_) => Parsed::Valid,
        }
    }

    fn complaint(&self) -> io::Result<Option<String>> {
        let mut file = tempfile::tempfile()?;
        file.write_all(&self.0)?;
        file.rewind()?;
        let output = Command::new("bash")
            // A script may enable these patterns itself.
            .args(["-O", "extglob", "-n"])
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("LC_ALL", "C")
            .stdin(file)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .output()?;
        Ok((!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned()))
    }

    /// Whether the script may exit before a line: after `exit` there is often data.
    fn ends_before(&self, number: usize) -> bool {
        let text = String::from_utf8_lossy(&self.0);
        text.lines().take(number.saturating_sub(1)).any(|line| {
            let word = line.split_whitespace().next().unwrap_or_default();
            line.starts_with(word) && ["exit", "exec", "return"].contains(&word.trim_end_matches(';'))
        })
    }
}

/// The first line that bash complains about.
fn line_number(complaint: &str) -> Option<usize> {
    let (_, rest) = complaint.split_once("line ")?;
    rest.split(':').next()?.trim().parse().ok()
}

/// Bash's message in one line, without its name.
fn message(complaint: &str) -> String {
    let lines = complaint.lines().map(|line| line.strip_prefix("bash: ").unwrap_or(line).trim());
    let text = lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
    let text: String = text.chars().filter(|char| !char.is_control()).collect();
    cut(&text, MAX_MESSAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Option<(String, bool)> {
        match ScriptText::of_text(text)?.parse() {
            Parsed::Valid => None,
            Parsed::Invalid { message, certain } => Some((message, certain)),
        }
    }

    #[test]
    fn a_syntax_error_is_reported_with_its_line_and_whether_it_is_reached() {
        assert_eq!(parsed("echo one\n[[ a == !(b) ]] && true\n"), None);
        let (message, certain) = parsed("if true; then\n  echo one\n").unwrap();
        assert!(message.contains("line 3") && message.contains("unexpected end of file"), "{message}");
        assert!(certain);
        let (_, certain) = parsed("main() { :; }\nmain\nexit 0\n(((data\n").unwrap();
        assert!(!certain);
        assert_eq!(parsed("#!/usr/bin/env python3\nif True:\n  pass\n"), None);
    }
}
