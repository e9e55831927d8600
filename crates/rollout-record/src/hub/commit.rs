//! The wire format of a commit: one line for each file, with the content of small files.

use std::path::{Path, PathBuf};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, TryStreamExt as _, future::Either, stream};
use serde_json::json;
use tokio::{
    fs::File,
    io::{AsyncReadExt as _, AsyncSeekExt as _},
};

/// The maximum number of files, and of inline bytes, in one commit.
const MAX_CHANGES: usize = 2_000;
const MAX_INLINE: u64 = 64 << 20;

/// The number of bytes read at a time: a multiple of three, so that its base64 has no padding.
const BLOCK: usize = 192 << 10;

/// A file changed its length or was removed while it was sent.
#[derive(Debug, thiserror::Error)]
#[error("{} changed while it was read", .0.display())]
pub(super) struct FileChanged(pub(super) PathBuf);

impl FileChanged {
    /// Finds this error among the causes of an error.
    pub(super) fn cause_of<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a Self> {
        std::iter::successors(Some(error), |error| error.source()).find_map(|error| error.downcast_ref())
    }
}

/// A commit, as the parts of its wire format.
#[derive(Debug)]
pub(super) struct Commit {
    pieces: Vec<Piece>,
    changes: usize,
    /// The total size of inline files on disk.
    inline: u64,
}

#[derive(Debug, Clone)]
enum Piece {
    Bytes(Bytes),
    /// A file, as base64.
    File {
        path: PathBuf,
        size: u64,
    },
}

impl Commit {
    pub(super) fn new(summary: &str) -> Self {
        let header = json!({"key": "header", "value": {"summary": summary, "description": ""}});
        Self { pieces: vec![Piece::Bytes(format!("{header}\n").into())], changes: 0, inline: 0 }
    }

    /// Whether the commit is empty.
    pub(super) fn is_empty(&self) -> bool {
        self.changes == 0
    }

    /// Whether one more file with this many inline bytes fits.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        self.changes < MAX_CHANGES && (self.inline == 0 || self.inline + bytes <= MAX_INLINE)
    }

    /// Adds a file. It is read when the commit is sent.
    pub(super) fn add_file(&mut self, name: &str, path: &Path, size: u64) {
        self.inline += size;
        self.add(name, Piece::File { path: path.to_owned(), size });
    }

    pub(super) fn add_text(&mut self, name: &str, text: &str) {
        self.add(name, Piece::Bytes(BASE64_STANDARD.encode(text).into()));
    }

    /// Adds a file that is already in the storage for large files.
    pub(super) fn add_large(&mut self, name: &str, sha256: &str, size: u64) {
        self.changes += 1;
        let value = json!({"path": name, "algo": "sha256", "oid": sha256, "size": size});
        self.pieces.push(Piece::Bytes(format!("{}\n", json!({"key": "lfsFile", "value": value})).into()));
    }

    fn add(&mut self, name: &str, content: Piece) {
        self.changes += 1;
        let close = format!("\",\"path\":{},\"encoding\":\"base64\"}}}}\n", json!(name));
        self.pieces.extend([
            Piece::Bytes(Bytes::from_static(br#"{"key":"file","value":{"content":""#)),
            content,
            Piece::Bytes(close.into()),
        ]);
    }

    /// Returns the length in bytes.
    pub(super) fn length(&self) -> u64 {
        let length = |piece: &Piece| match piece {
            Piece::Bytes(bytes) => bytes.len() as u64,
            Piece::File { size, .. } => size.div_ceil(3) * 4,
        };
        self.pieces.iter().map(length).sum()
    }

    /// Returns the content, which is read from disk on demand.
    pub(super) fn stream(&self) -> impl Stream<Item = Result<Bytes, FileChanged>> + Send + 'static {
        stream::iter(self.pieces.clone()).flat_map(|piece| match piece {
            Piece::Bytes(bytes) => Either::Left(stream::iter([Ok(bytes)])),
            Piece::File { path, size } => {
                Either::Right(blocks(path, 0, size).map_ok(|block| BASE64_STANDARD.encode(block).into()))
            }
        })
    }
}

/// Returns a range of a file in blocks. A shorter file is an error; a longer file is cut.
pub(super) fn blocks(
    path: PathBuf,
    start: u64,
    length: u64,
) -> impl Stream<Item = Result<Bytes, FileChanged>> + Send + 'static {
    stream::try_unfold((None, length), move |(file, left): (Option<File>, u64)| {
        let path = path.clone();
        async move {
            let changed = |_| FileChanged(path.clone());
            if left == 0 {
                return Ok(None);
            }
            let mut file = match file {
                Some(file) => file,
                None => {
                    let mut file = File::open(&path).await.map_err(changed)?;
                    file.seek(std::io::SeekFrom::Start(start)).await.map_err(changed)?;
                    file.set_max_buf_size(BLOCK);
                    file
                }
            };
            let mut block = vec![0; usize::try_from(left).unwrap_or(BLOCK).min(BLOCK)];
            file.read_exact(&mut block).await.map_err(changed)?;
            let left = left - block.len() as u64;
            Ok(Some((Bytes::from(block), (Some(file), left))))
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[tokio::test]
    async fn the_wire_format_has_the_declared_length_and_a_line_for_each_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let content = vec![b'x'; 2 * BLOCK + 1];
        std::fs::write(&path, &content).unwrap();
        let size = content.len() as u64;
        let mut commit = Commit::new("a summary");
        commit.add_file("a \"b\"/ü", &path, size);
        commit.add_text("README.md", "# hi");
        commit.add_large("big", "ab", 7);
        let bytes = commit.stream().try_collect::<Vec<_>>().await.unwrap().concat();
        assert_eq!(bytes.len() as u64, commit.length());
        let text = String::from_utf8(bytes).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines[0]["value"]["summary"], "a summary");
        assert_eq!((&lines[1]["key"], &lines[1]["value"]["path"]), (&json!("file"), &json!("a \"b\"/ü")));
        let sent = BASE64_STANDARD.decode(lines[1]["value"]["content"].as_str().unwrap()).unwrap();
        assert!(sent == content, "the blocks make up the file");
        assert_eq!(lines[2]["value"]["content"], "IyBoaQ==");
        assert_eq!(
            lines[3],
            json!({"key": "lfsFile", "value": {"path": "big", "algo": "sha256", "oid": "ab", "size": 7}})
        );
    }

    #[tokio::test]
    async fn a_file_that_became_shorter_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "abc").unwrap();
        let changed = blocks(path.clone(), 0, 4).try_collect::<Vec<_>>().await.unwrap_err();
        assert_eq!(changed.0, path);
        let middle = blocks(path, 1, 2).try_collect::<Vec<_>>().await.unwrap().concat();
        assert_eq!(middle, b"bc");
    }
}
