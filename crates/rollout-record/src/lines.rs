//! Files of JSON lines, read in order or by the offset of a line.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read as _, Seek as _},
    path::Path,
};

/// The maximum length of a line. Without it, a file without line ends would fill the memory.
const MAX_LINE_BYTES: usize = 1 << 30;

/// Reads lines. It holds one line at a time.
#[derive(Debug)]
pub struct Lines<R = BufReader<File>> {
    reader: R,
    offset: u64,
    number: u64,
    pub(crate) bytes: Vec<u8>,
}

/// A line of a file.
#[derive(Debug, Clone, Copy)]
pub struct Line<'a> {
    /// Its number, counted from 1.
    pub number: u64,
    /// Its offset in the file, in bytes.
    pub offset: u64,
    /// The line including its line end, which the last line of a file may lack.
    pub bytes: &'a [u8],
}

impl Line<'_> {
    /// Whether the line contains only whitespace.
    pub fn is_blank(&self) -> bool {
        self.bytes.trim_ascii().is_empty()
    }
}

impl<R: BufRead> Lines<R> {
    /// Creates a reader that starts at the current position.
    pub fn new(reader: R) -> Self {
        Self { reader, offset: 0, number: 0, bytes: Vec::new() }
    }

    /// Returns the next line, or None at the end.
    pub fn next_line(&mut self) -> io::Result<Option<Line<'_>>> {
        let offset = self.offset;
        if self.read()? == 0 {
            return Ok(None);
        }
        self.offset += self.bytes.len() as u64;
        self.number += 1;
        Ok(Some(Line { number: self.number, offset, bytes: &self.bytes }))
    }

    /// Whether there are no more lines.
    pub(crate) fn is_at_end(&mut self) -> bool {
        self.reader.fill_buf().is_ok_and(<[u8]>::is_empty)
    }

    fn read(&mut self) -> io::Result<usize> {
        self.bytes.clear();
        let length = self.reader.by_ref().take(MAX_LINE_BYTES as u64).read_until(b'\n', &mut self.bytes)?;
        if length == MAX_LINE_BYTES && !self.bytes.ends_with(b"\n") {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a line is longer than 1 GiB"));
        }
        Ok(length)
    }
}

impl Lines {
    /// Opens a file.
    pub fn open(path: &Path) -> io::Result<Self> {
        File::open(path).map(Self::from)
    }

    /// Returns the line at an offset. After this, only lines at offsets can be read.
    pub fn at(&mut self, offset: u64) -> io::Result<&[u8]> {
        let here = self.reader.stream_position()?;
        // Lines are mostly read in sequence, so the buffer is kept if it contains the offset.
        self.reader.seek_relative(offset as i64 - here as i64)?;
        self.read()?;
        Ok(&self.bytes)
    }
}

impl From<File> for Lines {
    fn from(file: File) -> Self {
        Self::new(BufReader::with_capacity(1 << 18, file))
    }
}
