//! The log of a build: the output of commands is written to a file, and only a short tail is kept in memory.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

use tokio::io::AsyncWriteExt;
use tokio::sync::Mutex;

/// The most bytes that one build writes to its log, so that endless output cannot fill the disk.
const MAX_LOG: u64 = 64 << 20;
/// The longest line that is kept together, so that output without line ends cannot fill the memory.
const MAX_LINE: usize = 16 << 10;
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

/// The log of a build, which its stages write to at the same time.
pub(crate) struct Log(Mutex<LogFile>);

struct LogFile {
    file: tokio::fs::File,
    left: u64,
}

impl Log {
    pub(crate) fn new(sink: LogSink) -> Log {
        Log(Mutex::new(LogFile { file: tokio::fs::File::from_std(sink.0), left: MAX_LOG }))
    }

    /// The part of one stage. With a label, each of its lines begins with the label.
    pub(crate) fn stage(&self, label: Option<String>) -> StageLog<'_> {
        StageLog { log: self, label, line: Vec::new(), line_is_open: false }
    }

    /// Writes bytes up to the log's limit. The rest is dropped, and one line reports that.
    async fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let LogFile { file, left } = &mut *self.0.lock().await;
        if *left == 0 {
            return Ok(());
        }
        let fitting = bytes.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
        file.write_all(&bytes[..fitting]).await?;
        *left -= fitting as u64;
        if *left == 0 {
            file.write_all(b"\n[the log ends here: the build printed more than 64 MiB]\n").await?;
        }
        // The file buffers; without this, a reader who follows the log sees each line one write late.
        file.flush().await
    }
}

/// The part of a log that one stage writes.
pub(crate) struct StageLog<'a> {
    log: &'a Log,
    label: Option<String>,
    /// The start of a labelled line that has not ended.
    line: Vec<u8>,
    /// The last line was written without its end.
    line_is_open: bool,
}

impl StageLog<'_> {
    /// Writes output. Labelled lines are written when they are complete, so that lines of stages do not mix.
    pub(crate) async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(label) = &self.label else {
            self.line_is_open = bytes.last().map_or(self.line_is_open, |last| *last != b'\n');
            return self.log.write(bytes).await;
        };
        let mut lines = Vec::new();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(piece);
            if self.line.ends_with(b"\n") || self.line.len() > MAX_LINE {
                add_line(&mut lines, label, &mut self.line);
            }
        }
        if lines.is_empty() { Ok(()) } else { self.log.write(&lines).await }
    }

    /// Ends a line that was written without its end.
    pub(crate) async fn end_line(&mut self) -> io::Result<()> {
        let mut lines = Vec::new();
        match &self.label {
            Some(label) if !self.line.is_empty() => add_line(&mut lines, label, &mut self.line),
            None if self.line_is_open => lines.push(b'\n'),
            _ => return Ok(()),
        }
        self.line_is_open = false;
        self.log.write(&lines).await
    }
}

fn add_line(lines: &mut Vec<u8>, label: &str, line: &mut Vec<u8>) {
    lines.extend_from_slice(format!("[{label}] ").as_bytes());
    lines.append(line);
    if !lines.ends_with(b"\n") {
        lines.push(b'\n');
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

    fn log(dir: &Path) -> Log {
        Log::new(LogSink::append(&dir.join("log")).unwrap())
    }

    fn text(dir: &Path) -> String {
        std::fs::read_to_string(dir.join("log")).unwrap()
    }

    #[tokio::test]
    async fn output_beyond_the_limit_is_dropped_and_reported_once() {
        let dir = tempfile::tempdir().unwrap();
        let log = log(dir.path());
        log.0.lock().await.left = 10;
        for _ in 0..5 {
            log.stage(None).write(b"1234").await.unwrap();
        }
        insta::assert_snapshot!(text(dir.path()), @"
        1234123412
        [the log ends here: the build printed more than 64 MiB]
        ");
    }

    #[tokio::test]
    async fn lines_of_stages_are_labelled_and_do_not_mix() {
        let dir = tempfile::tempdir().unwrap();
        let log = log(dir.path());
        let (mut one, mut two) = (log.stage(Some("one".to_owned())), log.stage(Some("two".to_owned())));
        one.write(b"a\nb").await.unwrap();
        two.write(b"c").await.unwrap();
        one.write(b"b\nd").await.unwrap();
        two.write(b"\n").await.unwrap();
        one.end_line().await.unwrap();
        two.end_line().await.unwrap();
        insta::assert_snapshot!(text(dir.path()), @"
        [one] a
        [one] bb
        [two] c
        [one] d
        ");
    }

    #[tokio::test]
    async fn a_line_without_an_end_is_ended_and_never_grows_without_limit() {
        let dir = tempfile::tempdir().unwrap();
        let log = log(dir.path());
        let mut plain = log.stage(None);
        plain.write(b"open").await.unwrap();
        plain.end_line().await.unwrap();
        plain.end_line().await.unwrap();
        let mut labelled = log.stage(Some("x".to_owned()));
        for _ in 0..10 {
            labelled.write(&[b'.'; MAX_LINE]).await.unwrap();
            assert!(labelled.line.len() <= MAX_LINE);
        }
        assert!(text(dir.path()).starts_with("open\n[x] ..."));
    }
}
