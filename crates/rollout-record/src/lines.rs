//! Files of JSON lines: read from the first line to the last, or a line at its offset.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read as _, Seek as _},
    path::Path,
};

/// The longest line that is read: a file without line ends must not fill the memory.
const MAX_LINE_BYTES: usize = 1 << 30;

/// Reads lines. At any time it holds one of them.
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
    /// Where it begins, in bytes from the start of the file.
    pub offset: u64,
    /// The line with its end, which the last line of a file may lack.
    pub bytes: &'a [u8],
}

impl Line<'_> {
    /// Whether it holds nothing but blanks.
    pub fn is_blank(&self) -> bool {
        self.bytes.trim_ascii().is_empty()
    }
}

impl<R: BufRead> Lines<R> {
    /// Reads lines from here on.
    pub fn new(reader: R) -> Self {
        Self { reader, offset: 0, number: 0, bytes: Vec::new() }
    }

    /// The next line. None at the end.
    pub fn next_line(&mut self) -> io::Result<Option<Line<'_>>> {
        let offset = self.offset;
        if self.read()? == 0 {
            return Ok(None);
        }
        self.offset += self.bytes.len() as u64;
        self.number += 1;
        Ok(Some(Line { number: self.number, offset, bytes: &self.bytes }))
    }

    /// Whether no line follows.
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

    /// The line that begins at an offset. After this, only lines at offsets can be read.
    pub fn at(&mut self, offset: u64) -> io::Result<&[u8]> {
        let here = self.reader.stream_position()?;
        // Lines are mostly asked for one after the other: the buffer is kept where it reaches.
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
