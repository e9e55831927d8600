//! Captured output: any bytes, any amount, written to a file as they arrive.
//!
//! Memory use is constant: the file is capped, and only a short tail is kept for error messages.

use std::{
    collections::VecDeque,
    io,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::{fs::File, io::AsyncWriteExt as _};

use rollout_core::redact::{Redactor, StreamRedactor};

/// The largest file of one captured stream. Real agents stay far below; a runaway loop does not fill the disk.
pub const MAX_LOG_BYTES: u64 = 64 << 20;

/// The size of the tail for error messages.
const TAIL_BYTES: usize = 2048;

/// Writes one captured stream to its file: redacted, capped, unbuffered.
#[derive(Debug)]
pub struct LogWriter {
    file: Option<File>,
    redactor: StreamRedactor,
    clean: Vec<u8>,
    written: u64,
    discarded: u64,
    tail: LogTail,
    excerpt: Option<LogExcerpt>,
}

impl LogWriter {
    /// Writes to an open, empty file.
    pub fn new(file: std::fs::File, redactor: &Redactor) -> Self {
        Self::over(Some(File::from_std(file)), redactor)
    }

    /// Keeps only the tail.
    pub fn discard() -> Self {
        Self::over(None, &Redactor::default())
    }

    /// Keeps `part` bytes of the start and of the end in memory.
    pub fn excerpt(part: usize) -> (Self, LogExcerpt) {
        let excerpt = LogExcerpt::new(part);
        let writer = Self { excerpt: Some(excerpt.clone()), ..Self::discard() };
        (writer, excerpt)
    }

    fn over(file: Option<File>, redactor: &Redactor) -> Self {
        Self {
            file,
            redactor: redactor.stream(),
            clean: Vec::new(),
            written: 0,
            discarded: 0,
            tail: LogTail::default(),
            excerpt: None,
        }
    }

    /// Adds its last bytes to those of an earlier stream.
    pub fn with_tail(self, tail: &LogTail) -> Self {
        Self { tail: tail.clone(), ..self }
    }

    /// A view of the last bytes, which stays valid after the writer is moved.
    pub fn tail(&self) -> LogTail {
        self.tail.clone()
    }

    /// Appends bytes. Those beyond the cap are counted and dropped.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.clean.clear();
        self.redactor.push(bytes, &mut self.clean);
        self.append().await
    }

    /// Writes the received bytes to the file, so that a reader sees them. A possible start of a secret is held
    /// back until the stream continues or ends.
    pub async fn flush(&mut self) -> io::Result<()> {
        match &mut self.file {
            Some(file) => file.flush().await,
            None => Ok(()),
        }
    }

    /// Finishes the file, with a mark if it was cut.
    pub async fn finish(&mut self) -> io::Result<()> {
        self.clean.clear();
        self.redactor.flush(&mut self.clean);
        self.append().await?;
        if self.discarded > 0
            && let Some(file) = &mut self.file
        {
            let mark = format!(
                "\n[rollout: output cut here; {} MiB are kept, {} more bytes were dropped]\n",
                MAX_LOG_BYTES >> 20,
                self.discarded
            );
            self.discarded = 0;
            file.write_all(mark.as_bytes()).await?;
        }
        self.flush().await
    }

    async fn append(&mut self) -> io::Result<()> {
        if self.clean.is_empty() {
            return Ok(());
        }
        self.tail.push(&self.clean);
        if let Some(excerpt) = &self.excerpt {
            excerpt.push(&self.clean);
        }
        let room = MAX_LOG_BYTES.saturating_sub(self.written);
        let kept = room.min(self.clean.len() as u64) as usize;
        self.discarded += (self.clean.len() - kept) as u64;
        self.written += kept as u64;
        match &mut self.file {
            Some(file) if kept > 0 => file.write_all(&self.clean[..kept]).await,
            _ => Ok(()),
        }
    }
}

/// The last bytes of a captured stream.
#[derive(Debug, Clone, Default)]
pub struct LogTail(Arc<Mutex<VecDeque<u8>>>);

impl LogTail {
    fn push(&self, bytes: &[u8]) {
        let mut tail = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = &bytes[bytes.len().saturating_sub(TAIL_BYTES)..];
        let excess = (tail.len() + bytes.len()).saturating_sub(TAIL_BYTES);
        tail.drain(..excess);
        tail.extend(bytes);
    }

    /// The last lines as text, at most `lines` of them, without trailing white space.
    pub fn last_lines(&self, lines: usize) -> String {
        let tail = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: Vec<u8> = tail.iter().copied().collect();
        drop(tail);
        let text = String::from_utf8_lossy(&bytes);
        let all: Vec<&str> = text.trim_end().lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }
}

/// The start and the end of a captured stream.
#[derive(Debug, Clone)]
pub struct LogExcerpt(Arc<Mutex<Kept>>);

#[derive(Debug)]
struct Kept {
    /// The number of bytes kept of each.
    part: usize,
    start: Vec<u8>,
    end: VecDeque<u8>,
    all: u64,
}

impl LogExcerpt {
    fn new(part: usize) -> Self {
        Self(Arc::new(Mutex::new(Kept { part, start: Vec::new(), end: VecDeque::new(), all: 0 })))
    }

    fn push(&self, bytes: &[u8]) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.all += bytes.len() as u64;
        let room = kept.part - kept.start.len();
        let (start, rest) = bytes.split_at(room.min(bytes.len()));
        kept.start.extend_from_slice(start);
        let rest = &rest[rest.len().saturating_sub(kept.part)..];
        let excess = (kept.end.len() + rest.len()).saturating_sub(kept.part);
        kept.end.drain(..excess);
        kept.end.extend(rest);
    }

    /// The text, with a line in place of the omitted part, and the number of omitted bytes.
    pub fn text(&self) -> (String, u64) {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let end: Vec<u8> = kept.end.iter().copied().collect();
        let left_out = kept.all - (kept.start.len() + end.len()) as u64;
        if left_out == 0 {
            let whole = [&kept.start[..], &end].concat();
            return (String::from_utf8_lossy(&whole).into_owned(), 0);
        }
        (cut(&kept.start, &end, left_out), left_out)
    }
}

/// The start and the end of a text, with a line in place of the omitted part.
pub fn cut(start: &[u8], end: &[u8], left_out: u64) -> String {
    // A character that was cut in the middle is omitted.
    let start = match std::str::from_utf8(start) {
        Err(error) if error.error_len().is_none() => &start[..error.valid_up_to()],
        _ => start,
    };
    let whole = end.iter().position(|byte| byte & 0xc0 != 0x80).unwrap_or(0);
    format!(
        "{}\n[{left_out} bytes are left out here]\n{}",
        String::from_utf8_lossy(start),
        String::from_utf8_lossy(&end[whole..])
    )
}

/// Creates empty files for the two captured streams of a command, and their directory.
pub fn create_log_files(dir: &Path) -> io::Result<[std::fs::File; 2]> {
    std::fs::create_dir_all(dir)?;
    Ok([std::fs::File::create(dir.join("stdout.txt"))?, std::fs::File::create(dir.join("stderr.txt"))?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn output_beyond_the_cap_is_dropped_and_the_cut_is_marked() {
        let dir = tempfile::tempdir().unwrap();
        let [stdout, _] = create_log_files(dir.path()).unwrap();
        let path = dir.path().join("stdout.txt");
        let mut log = LogWriter::new(stdout, &Redactor::default());
        let chunk = vec![b'x'; 1 << 20];
        for _ in 0..65 {
            log.write(&chunk).await.unwrap();
        }
        log.finish().await.unwrap();
        let text = std::fs::read(&path).unwrap();
        let mark = "\n[rollout: output cut here; 64 MiB are kept, 1048576 more bytes were dropped]\n";
        assert!(text.ends_with(mark.as_bytes()));
        assert_eq!(text.len() as u64, MAX_LOG_BYTES + mark.len() as u64);
    }

    #[tokio::test]
    async fn an_excerpt_keeps_the_start_and_the_end_however_the_bytes_come() {
        let text: String = (0..100).map(|n| format!("{n:02}")).collect();
        for size in [1, 7, 200] {
            let (mut log, excerpt) = LogWriter::excerpt(10);
            assert_eq!(excerpt.text(), (String::new(), 0));
            for (place, chunk) in text.as_bytes().chunks(size).enumerate() {
                log.write(chunk).await.unwrap();
                if size == 7 && place == 1 {
                    assert_eq!(excerpt.text(), ("00010203040506".to_owned(), 0));
                }
            }
            let expected = "0001020304\n[180 bytes are left out here]\n9596979899";
            assert_eq!(excerpt.text(), (expected.to_owned(), 180));
        }
    }

    #[tokio::test]
    async fn the_tail_quotes_the_last_lines_whatever_their_bytes() {
        let mut log = LogWriter::discard();
        let tail = log.tail();
        log.write(b"one\ntwo\n\xff three\n\n").await.unwrap();
        assert_eq!(tail.last_lines(2), "two\n\u{fffd} three");
    }
}
