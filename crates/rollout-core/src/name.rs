//! Names that become directories: those of jobs, agents, datasets and tasks.
//!
//! A valid name can be joined to a path without leaving its parent, and without a conflict with a file that Rollout
//! writes there.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::text::is_invisible;

/// Files in a job directory, beside the directories of its agents.
const RESERVED: [&str; 7] =
    ["config.json", "result.json", "journal.jsonl", "tasks.jsonl", "notes.jsonl", "rollout.log", "eval-log"];

/// The maximum length, so that a name with `__<attempt>` fits into the 255 bytes of a directory entry.
const MAX_BYTES: usize = 200;

/// Why a text is not a valid name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The text is empty or only whitespace.
    #[error("a name cannot be empty")]
    Empty,
    /// The text is `.` or `..`, or contains a path separator.
    #[error("a name becomes a directory, so it cannot be a path")]
    Path,
    /// The text contains a control character.
    #[error("a name cannot contain control characters")]
    Control,
    /// The text contains an invisible character, or one that changes the direction of text.
    #[error("a name cannot contain the invisible character U+{:04X}", *.0 as u32)]
    Invisible(char),
    /// The text is the name of a file that Rollout writes.
    #[error("this name is reserved for a file in the job directory")]
    Reserved,
    /// The text is too long for a file system.
    #[error("a name can be at most {MAX_BYTES} bytes long")]
    TooLong,
}

fn check(text: &str) -> Result<(), NameError> {
    if text.trim().is_empty() {
        return Err(NameError::Empty);
    }
    if text == "." || text == ".." || text.contains(['/', '\\']) {
        return Err(NameError::Path);
    }
    if text.chars().any(char::is_control) {
        return Err(NameError::Control);
    }
    if let Some(invisible) = text.chars().find(|c| is_invisible(*c)) {
        return Err(NameError::Invisible(invisible));
    }
    // Temporary files have this extension.
    let place = text.strip_suffix(".tmp").unwrap_or(text);
    if RESERVED.iter().any(|reserved| place.eq_ignore_ascii_case(reserved)) {
        return Err(NameError::Reserved);
    }
    if text.len() > MAX_BYTES {
        return Err(NameError::TooLong);
    }
    Ok(())
}

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks the text, and creates a name.
            pub fn new(text: impl Into<String>) -> Result<Self, NameError> {
                let text = text.into();
                check(&text)?;
                Ok(Self(text.into()))
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;

            fn try_from(text: String) -> Result<Self, NameError> {
                Self::new(text)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.as_str().to_owned()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
    )*};
}

names! {
    /// The name of a job, and of its directory in `jobs_dir`.
    JobName,
    /// The name of an agent, unique in its job.
    AgentName,
    /// The name of a dataset, unique in its job.
    DatasetName,
    /// The name of a task, unique in its dataset.
    TaskName,
}

/// The index of a trial in the plan, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TrialIndex(pub u64);

/// The name of a trial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrialId {
    /// The agent.
    pub agent: AgentName,
    /// The dataset.
    pub dataset: DatasetName,
    /// The task.
    pub task: TaskName,
    /// The attempt, counted from 1.
    pub attempt: u32,
}

impl std::fmt::Display for TrialId {
    /// Writes the path of the trial's directory, relative to the job's directory.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}/{}__{}", self.agent, self.dataset, self.task, self.attempt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_single_directory_entry() {
        for (text, expected) in [
            ("hello-world", None),
            ("Claude Code 1.0", None),
            ("日本語", None),
            ("..hidden", None),
            ("", Some(NameError::Empty)),
            ("  ", Some(NameError::Empty)),
            (".", Some(NameError::Path)),
            ("..", Some(NameError::Path)),
            ("a/b", Some(NameError::Path)),
            ("/etc", Some(NameError::Path)),
            ("a\\b", Some(NameError::Path)),
            ("a\nb", Some(NameError::Control)),
            ("a\0b", Some(NameError::Control)),
            ("a\u{202e}b", Some(NameError::Invisible('\u{202e}'))),
            ("a\u{200b}", Some(NameError::Invisible('\u{200b}'))),
            ("\u{feff}a", Some(NameError::Invisible('\u{feff}'))),
            ("result.json", Some(NameError::Reserved)),
            ("Config.JSON", Some(NameError::Reserved)),
            ("journal.jsonl", Some(NameError::Reserved)),
            ("tasks.jsonl", Some(NameError::Reserved)),
            ("result.json.tmp", Some(NameError::Reserved)),
        ] {
            assert_eq!(TaskName::new(text).err(), expected, "{text:?}");
        }
        assert_eq!(TaskName::new("x".repeat(201)).err(), Some(NameError::TooLong));
    }
}
