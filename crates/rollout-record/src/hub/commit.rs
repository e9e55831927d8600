//! A commit as it goes over the wire: a line for each file, small files within their line.

use std::{path::PathBuf, sync::Arc};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use futures_util::{Stream, stream};
use serde_json::json;
use tokio::{fs::File, io::AsyncReadExt as _};

/// How much of a file is read at a time: a multiple of three, so that base64 of it has no padding.
const BLOCK: usize = 192 << 10;

/// A file became shorter or longer, or went away, while it was sent.
#[derive(Debug, thiserror::Error)]
#[error("{} changed while it was read", .0.display())]
pub(super) struct FileChanged(pub(super) PathBuf);

impl FileChanged {
    /// Finds it among the causes of an error.
    pub(super) fn cause_of<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a Self> {
        std::iter::successors(Some(error), |error| error.source()).find_map(|error| error.downcast_ref())
    }
}

/// One change of a commit.
#[derive(Debug, Clone)]
pub(super) struct Change {
    /// The file's path in the repository.
    pub(super) name: String,
    pub(super) content: Body,
}

/// Where the content of a file comes from.
#[derive(Debug, Clone)]
pub(super) enum Body {
    /// It is on the disk, and goes into the commit.
    File { path: PathBuf, size: u64 },
    /// It is this text.
    Text(Arc<str>),
    /// It has been sent already, and the commit names it.
    Large { sha256: String, size: u64 },
}

impl Body {
    /// How many bytes of the file the commit itself holds.
    pub(super) fn inline(&self) -> u64 {
        match self {
            Self::File { size, .. } => *size,
            Self::Text(text) => text.len() as u64,
            Self::Large { .. } => 0,
        }
    }
}

/// A piece of the wire form.
enum Piece {
    Bytes(Bytes),
    /// A file, as base64.
    File {
        path: PathBuf,
        size: u64,
    },
}

/// The wire form of a commit.
#[derive(Debug, Clone)]
pub(super) struct Wire {
    header: String,
    changes: Arc<[Change]>,
}

impl Wire {
    pub(super) fn new(summary: &str, changes: Arc<[Change]>) -> Self {
        let header = json!({"key": "header", "value": {"summary": summary, "description": ""}});
        Self { header: format!("{header}\n"), changes }
    }

    /// How many bytes it has.
    pub(super) fn length(&self) -> u64 {
        let piece = |piece: Piece| match piece {
            Piece::Bytes(bytes) => bytes.len() as u64,
            Piece::File { size, .. } => size.div_ceil(3) * 4,
        };
        self.pieces().map(piece).sum()
    }

    /// Its bytes, read from the disk as they are asked for.
    pub(super) fn stream(&self) -> impl Stream<Item = Result<Bytes, FileChanged>> + Send + 'static {
        let pieces: Vec<_> = self.pieces().collect();
        let streams = pieces.into_iter().map(|piece| match piece {
            Piece::Bytes(bytes) => futures_util::future::Either::Left(stream::iter([Ok(bytes)])),
            Piece::File { path, size } => {
                use futures_util::TryStreamExt as _;
                let encoded =
                    blocks(path, 0, size).map_ok(|block| Bytes::from(BASE64_STANDARD.encode(block)));
                futures_util::future::Either::Right(encoded)
            }
        });
        use futures_util::StreamExt as _;
        stream::iter(streams).flatten()
    }

    fn pieces(&self) -> impl Iterator<Item = Piece> {
        let header = Piece::Bytes(self.header.clone().into());
        std::iter::once(header).chain(self.changes.iter().flat_map(|change| {
            let name = serde_json::Value::from(change.name.as_str());
            let open = || Piece::Bytes(Bytes::from_static(br#"{"key":"file","value":{"content":""#));
            let close = || Piece::Bytes(format!("\",\"path\":{name},\"encoding\":\"base64\"}}}}\n").into());
            match &change.content {
                Body::File { path, size } => {
                    vec![open(), Piece::File { path: path.clone(), size: *size }, close()]
                }
                Body::Text(text) => {
                    vec![open(), Piece::Bytes(BASE64_STANDARD.encode(&**text).into()), close()]
                }
                Body::Large { sha256, size } => {
                    let value = json!({"path": name, "algo": "sha256", "oid": sha256, "size": size});
                    vec![Piece::Bytes(format!("{}\n", json!({"key": "lfsFile", "value": value})).into())]
                }
            }
        }))
    }
}

/// So many bytes of a file from a place on, in blocks. A file that has fewer is an error, and what comes after is left.
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
                    use tokio::io::AsyncSeekExt as _;
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
    use futures_util::TryStreamExt as _;
    use serde_json::Value;

    use super::*;

    #[tokio::test]
    async fn the_wire_form_has_the_length_it_says_and_a_line_for_each_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let content = vec![b'x'; 2 * BLOCK + 1];
        std::fs::write(&path, &content).unwrap();
        let size = content.len() as u64;
        let changes = [
            Change { name: "a \"b\"/ü".to_owned(), content: Body::File { path, size } },
            Change { name: "README.md".to_owned(), content: Body::Text("# hi".into()) },
            Change { name: "big".to_owned(), content: Body::Large { sha256: "ab".to_owned(), size: 7 } },
        ];
        let wire = Wire::new("a summary", changes.into());
        let bytes = wire.stream().try_collect::<Vec<_>>().await.unwrap().concat();
        assert_eq!(bytes.len() as u64, wire.length());
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
