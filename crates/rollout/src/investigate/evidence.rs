//! Collects the data of an episode from its job's directory. Much of it was written by agents and tasks.

use std::{
    io::{self, Read as _, Seek as _, SeekFrom},
    path::Path,
};

use rollout_core::message::Message;
use rollout_record::{
    layout::{JobDir, open_below},
    saved::{Conversation, SavedError, SavedJob, SavedTrial},
};

/// How many bytes of the start and of the end of a file are read.
const MAX_BYTES: u64 = 64 << 10;

/// The data of an episode.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Evidence {
    /// The instruction of the agent.
    pub(super) instruction: String,
    /// The messages of a model and its tools.
    pub(super) transcript: Vec<String>,
    /// The error.
    pub(super) error: String,
    /// The reward, as text.
    pub(super) reward: String,
    /// The output of programs, each with its name.
    pub(super) outputs: Vec<(&'static str, String)>,
}

impl Evidence {
    /// Reads the data of a trial from the directory of a job.
    pub(super) fn gather(job: &SavedJob, trial: &SavedTrial) -> Result<Self, SavedError> {
        let said = job.conversation(trial)?;
        let instruction = job.about(trial.task)?.map(|about| about.instruction);
        let prompt = |said: &Conversation| {
            said.prompt.iter().map(|message| shown(message)).collect::<Vec<_>>().join("\n\n")
        };
        let result = &trial.result;
        let mut error = result.error.as_ref().map(|error| format!("{}: {}", error.kind, error.message));
        if let Some(truth) = said.as_ref().and_then(|said| said.row.as_ref()?.answer.as_ref()) {
            let right = format!("The right answer is: {truth}");
            error = Some(error.map_or(right.clone(), |error| format!("{error}\n{right}")));
        }
        Ok(Self {
            instruction: instruction.or_else(|| said.as_ref().map(prompt)).unwrap_or_default(),
            transcript: said.iter().flat_map(|said| &said.completion).map(|message| shown(message)).collect(),
            error: error.unwrap_or_default(),
            reward: result.reward.map_or_else(|| "none".to_owned(), |reward| reward.to_string()),
            outputs: match job.task(trial).example_id {
                Some(_) => Vec::new(),
                None => outputs(job.path(), trial),
            },
        })
    }
}

fn shown(message: &Message) -> String {
    let calls = message.tool_calls.iter().map(|call| format!("\n→ {} {}", call.name, call.arguments));
    format!("{}:\n{}{}", message.role.as_str(), message.text(), calls.collect::<String>())
}

fn outputs(job: &Path, trial: &SavedTrial) -> Vec<(&'static str, String)> {
    let dir = JobDir::new(job).trial(&trial.id).of_last_result();
    let step = dir.deciding_step(&trial.result);
    let files = [
        ("Building the image", dir.build_log()),
        (
            "Standard error of the agent's installation, or of setup.sh of the step",
            step.setup().join("stderr.txt"),
        ),
        ("Standard output of the agent", step.command().join("stdout.txt")),
        ("Standard error of the agent", step.command().join("stderr.txt")),
        ("Standard output of the tests", step.verifier().join("stdout.txt")),
        ("Standard error of the tests", step.verifier().join("stderr.txt")),
    ];
    let read = |(name, path): (&'static str, std::path::PathBuf)| Some((name, excerpt(dir.path(), &path)?));
    files.into_iter().filter_map(read).collect()
}

/// The start and the end of a file in a directory. Files that cannot be read, and symbolic links to other places, are
/// treated as missing, because the content is sent to a server.
fn excerpt(dir: &Path, path: &Path) -> Option<String> {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = open_below(dir, path)?;
        let length = file.metadata()?.len();
        let mut bytes = Vec::new();
        if length > 2 * MAX_BYTES {
            (&mut file).take(MAX_BYTES).read_to_end(&mut bytes)?;
            bytes
                .extend_from_slice(format!("\n[{} bytes were cut out]\n", length - 2 * MAX_BYTES).as_bytes());
            file.seek(SeekFrom::Start(length - MAX_BYTES))?;
        }
        file.take(2 * MAX_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().ok().filter(|bytes| !bytes.is_empty())?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, File},
        os::unix::fs::symlink,
    };

    use super::*;

    #[test]
    fn a_link_to_outside_of_the_trial_is_not_followed() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("trial");
        fs::create_dir(&dir).unwrap();
        fs::write(root.path().join("secret"), "secret").unwrap();
        symlink("../secret", dir.join("stdout.txt")).unwrap();
        symlink("..", dir.join("logs")).unwrap();
        assert_eq!(excerpt(&dir, &dir.join("stdout.txt")), None);
        assert_eq!(excerpt(&dir, &dir.join("logs/secret")), None);
        assert_eq!(excerpt(&dir, &dir.join("missing")), None);
        fs::write(dir.join("stderr.txt"), "here").unwrap();
        assert_eq!(excerpt(&dir, &dir.join("stderr.txt")).as_deref(), Some("here"));
    }

    #[test]
    fn only_the_start_and_the_end_of_a_large_file_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stdout.txt");
        let file = File::create(&path).unwrap();
        file.set_len(1 << 40).unwrap();
        let text = excerpt(dir.path(), &path).unwrap();
        assert!(
            text.contains("\n[1099511496704 bytes were cut out]\n") && text.len() < 140_000,
            "{}",
            text.len()
        );
    }
}
