//! The conversation of a trial that still runs, from the files that grow while it does.

use std::{
    io::{self, Read as _},
    path::Path,
};

use crate::agent::calls::Calls;
use rollout_core::message::{Message, Messages};
use rollout_record::layout::{TrialDir, open_below};

/// How much of the end of an agent's calls is read. An agent sends its whole conversation with each call, so the last
/// calls have all of it.
const CALLS_BYTES: u64 = 8 << 20;

/// Reads the messages so far: those of a model that works on the task itself, or those that an agent sent to its model
/// through the gateway. Empty before the first answer, and for other agents. Files outside of the job are not read.
/// Blocks.
pub fn messages_so_far(job: &Path, trial: &TrialDir) -> io::Result<Messages> {
    let trial = &trial.current_step();
    let missing = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    match open_below(job, &trial.live_conversation()) {
        Ok(mut file) => {
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            // The last line may be incomplete.
            let lines = bytes.split(|byte| *byte == b'\n');
            let messages = lines.filter_map(|line| serde_json::from_slice::<Message>(line).ok());
            Ok(messages.map(Into::into).collect())
        }
        Err(error) if missing(&error) => match open_below(job, &trial.calls()) {
            Ok(file) => Ok(Calls::read_end(file, CALLS_BYTES)?.into_messages()),
            Err(error) if missing(&error) => Ok(Messages::new()),
            Err(error) => Err(error),
        },
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_line_that_is_being_written_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let trial = TrialDir::new(dir.path());
        let messages = || messages_so_far(dir.path(), &trial).unwrap();
        assert!(messages().is_empty());
        fs::write(trial.live_conversation(), "{\"role\":\"user\",\"content\":\"hello\"}\n{\"role\":\"assis")
            .unwrap();
        assert_eq!(messages().iter().map(|message| message.text()).collect::<Vec<_>>(), ["hello"]);
    }
}
