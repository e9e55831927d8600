//! The log of a build: the output of commands is written to a file, and only a short tail is kept in memory.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

use tokio::io::AsyncWriteExt;

/// The most bytes that one build writes to its log, so that endless output cannot fill the disk.
const MAX_LOG: u64 = 64 << 20;
/// The most output of a command that an error shows.
const MAX_TAIL_BYTES: usize = 4 << 10;
const MAX_TAIL_LINES: usize = 20;

/// The file that receives the lines and the output of a build while it runs.
#[derive(Debug)]
pub struct LogSink(File);

impl LogSink {
    /// Appends to a file, which is created if it is missing.
    pub fn append(path: &Path) -> io::Result<LogSink> {
        OpenOptions::new().append(true).create(true).open(path).map(LogSink)
    }
}

/// A log being written.
pub(crate) struct Log {
    file: tokio::fs::File,
    left: u64,
}

impl Log {
    pub(crate) fn new(sink: LogSink) -> Log {
        Log { file: tokio::fs::File::from_std(sink.0), left: MAX_LOG }
    }

    /// Writes bytes up to the log's limit. The rest is dropped, and one line reports that.
    pub(crate) async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.left == 0 {
            return Ok(());
        }
        let fitting = bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.file.write_all(&bytes[..fitting]).await?;
        self.left -= fitting as u64;
        if self.left == 0 {
            self.file.write_all(b"\n[the log ends here: the build printed more than 64 MiB]\n").await?;
        }
        // The file buffers; without this, a reader who follows the log sees each line one write late.
        self.file.flush().await
    }
}

/// The end of a command's output.
#[derive(Debug, Default)]
pub(crate) struct Tail(Vec<u8>);

impl Tail {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(MAX_TAIL_BYTES)..];
        let surplus = (self.0.len() + bytes.len()).saturating_sub(MAX_TAIL_BYTES);
        self.0.drain(..surplus);
        self.0.extend_from_slice(bytes);
    }

    /// The last lines; bytes that are not UTF-8 are replaced.
    pub(crate) fn text(&self) -> String {
        let text = String::from_utf8_lossy(&self.0);
        let lines: Vec<&str> = text.trim_end().lines().collect();
        lines[lines.len().saturating_sub(MAX_TAIL_LINES)..].join("\n")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_tail_keeps_the_last_lines() {
        let mut tail = Tail::default();
        for number in 0..100 {
            tail.push(format!("line {number}\n").as_bytes());
        }
        let text = tail.text();
        assert_eq!(text.lines().count(), 20);
        assert_eq!((text.lines().next(), text.lines().last()), (Some("line 80"), Some("line 99")));
    }

    proptest! {
        #[test]
        fn a_tail_is_the_end_of_what_was_pushed_and_bounded(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3000), 0..8)) {
            let mut tail = Tail::default();
            chunks.iter().for_each(|chunk| tail.push(chunk));
            let all = chunks.concat();
            prop_assert_eq!(&tail.0, &all[all.len().saturating_sub(MAX_TAIL_BYTES)..]);
        }
    }

    #[tokio::test]
    async fn output_beyond_the_limit_is_dropped_and_reported_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = Log::new(LogSink::append(&path).unwrap());
        log.left = 10;
        for _ in 0..5 {
            log.write(b"1234").await.unwrap();
        }
        insta::assert_snapshot!(std::fs::read_to_string(path).unwrap(), @"
        1234123412
        [the log ends here: the build printed more than 64 MiB]
        ");
    }
}
