//! What others see of an agent while it works: what it used of its model so far, and the conversation as a growing file.

use std::{
    fs::File,
    future::Future,
    io::{self, Write as _},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use super::context::{Progress, TrialContext};
use crate::agent::trajectory::TurnLog;
use rollout_core::{event::ModelProgress, message::Messages, redact::Redactor};
use rollout_env::blocking::blocking;

/// The interval between two looks.
const INTERVAL: Duration = Duration::from_secs(1);

/// Reports what was used while `work` goes on, when it has changed.
pub(super) async fn reporting<T>(
    context: &TrialContext<'_>,
    used: impl Fn() -> ModelProgress,
    work: impl Future<Output = T>,
) -> T {
    beside(work, async {
        let mut reported = ModelProgress::default();
        loop {
            tokio::time::sleep(INTERVAL).await;
            let used = used();
            if used != reported {
                reported = used;
                (context.trial.progress)(Progress::Model(used));
            }
        }
    })
    .await
}

/// Appends the messages of a conversation to a file while `work` goes on, one JSON line each.
///
/// The file is for people who follow the trial. trajectory.json replaces it, so a file that cannot be written fails
/// nothing.
pub(super) async fn writing<T>(
    context: &TrialContext<'_>,
    turns: &TurnLog,
    work: impl Future<Output = T>,
) -> T {
    let path = context.step.dir.live_conversation();
    beside(work, async {
        let mut written = 0;
        loop {
            tokio::time::sleep(INTERVAL).await;
            let messages = turns.messages_after(written);
            if messages.is_empty() {
                continue;
            }
            written += messages.len();
            let (path, redactor) = (path.clone(), Arc::clone(&context.trial.redactor));
            if let Err(error) = blocking(move || append(path, &messages, &redactor)).await {
                tracing::warn!(trial = %context.trial.id, %error, "cannot write the conversation of a running trial");
                return std::future::pending().await;
            }
        }
    })
    .await
}

/// Waits for `work`, with `other` running until then.
async fn beside<T>(work: impl Future<Output = T>, other: impl Future<Output = ()>) -> T {
    tokio::select! {
        biased;
        done = work => done,
        () = other => unreachable!("it has no end"),
    }
}

fn append(path: PathBuf, messages: &Messages, redactor: &Redactor) -> io::Result<()> {
    let mut lines = Vec::new();
    for message in messages {
        serde_json::to_writer(&mut lines, &redactor.json(serde_json::to_value(message)?))?;
        lines.push(b'\n');
    }
    File::options().create(true).append(true).open(path)?.write_all(&lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollout_core::message::Message;

    #[test]
    fn messages_are_appended_without_secrets() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("conversation.jsonl");
        let redactor = Redactor::new(["s3cret-key"]);
        for text in ["hello", "the key is s3cret-key"] {
            let messages = [Message::assistant(text)].map(Arc::new).into_iter().collect();
            append(path.clone(), &messages, &redactor).unwrap();
        }
        let lines = std::fs::read_to_string(path).unwrap();
        let contents: Vec<String> = lines
            .lines()
            .map(|line| serde_json::from_str::<Message>(line).unwrap().text().into_owned())
            .collect();
        assert_eq!(contents, ["hello", "the key is [redacted]"]);
    }
}
