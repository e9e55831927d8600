//! Files of JSON lines, read in order or by the offset of a line.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read as _, Seek as _},
    path::Path,
};

use rollout_core::lines::read_line;

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

/// The next line of a file, or its beginning.
pub(crate) enum NextLine<'a, R> {
    /// All of it.
    Line(Line<'a>),
    /// It begins as was asked, and is still to be read.
    Begun(BegunLine<'a, R>),
}

/// A line that may be too long for the memory, to be read to its end.
pub(crate) struct BegunLine<'a, R> {
    /// Its number, counted from 1.
    pub(crate) number: u64,
    /// Where it begins, in bytes from the start of the file.
    pub(crate) offset: u64,
    lines: &'a mut Lines<R>,
    /// How much of its beginning, which was read, was handed out.
    handed_out: usize,
    has_end: bool,
}

impl<R: BufRead> BegunLine<'_, R> {
    /// Goes to the end of the line and says where that is. None if the file ends before the line does.
    pub(crate) fn skip(mut self) -> io::Result<Option<u64>> {
        self.handed_out = self.lines.bytes.len();
        while self.hand_out(usize::MAX, |_| ())? > 0 {}
        Ok(self.has_end.then_some(self.lines.offset))
    }

    /// Hands out what the buffer has of the line, and returns how much that is.
    fn hand_out(&mut self, most: usize, take: impl FnOnce(&[u8])) -> io::Result<usize> {
        if self.has_end {
            return Ok(0);
        }
        let buffer = self.lines.reader.fill_buf()?;
        let buffer = &buffer[..buffer.len().min(most)];
        let end = buffer.iter().position(|byte| *byte == b'\n');
        let part = end.map_or(buffer, |end| &buffer[..=end]);
        take(part);
        let length = part.len();
        self.has_end = end.is_some();
        self.lines.reader.consume(length);
        self.lines.offset += length as u64;
        Ok(length)
    }
}

impl<R: BufRead> io::Read for BegunLine<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut begun = &self.lines.bytes[self.handed_out..];
        if !begun.is_empty() {
            let read = begun.read(into)?;
            self.handed_out += read;
            return Ok(read);
        }
        self.hand_out(into.len(), |part| into[..part.len()].copy_from_slice(part))
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

    /// The next line, unless it begins so: then its reader has to read it. None at the end.
    pub(crate) fn next_unless(&mut self, beginning: &[u8]) -> io::Result<Option<NextLine<'_, R>>> {
        let offset = self.offset;
        self.bytes.clear();
        let most = beginning.len() as u64;
        if self.reader.by_ref().take(most).read_until(b'\n', &mut self.bytes)? == 0 {
            return Ok(None);
        }
        self.number += 1;
        let number = self.number;
        if self.bytes == beginning {
            self.offset += most;
            let line = BegunLine { number, offset, lines: self, handed_out: 0, has_end: false };
            return Ok(Some(NextLine::Begun(line)));
        }
        if !self.bytes.ends_with(b"\n") {
            self.read_on()?;
        }
        self.offset += self.bytes.len() as u64;
        Ok(Some(NextLine::Line(Line { number, offset, bytes: &self.bytes })))
    }

    /// Whether there are no more lines.
    pub(crate) fn is_at_end(&mut self) -> bool {
        self.reader.fill_buf().is_ok_and(<[u8]>::is_empty)
    }

    fn read(&mut self) -> io::Result<usize> {
        self.bytes.clear();
        self.read_on()
    }

    /// Reads to the end of the line.
    fn read_on(&mut self) -> io::Result<usize> {
        read_line(&mut self.reader, &mut self.bytes)
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
