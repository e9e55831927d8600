//! Encodes and decodes frames and their messages.

use std::io::{self, Read};

/// The most bytes of a file or stream in one frame.
pub const MAX_DATA: usize = 64 << 10;

/// The error for bytes that are not a valid message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a malformed message")
    }
}

impl std::error::Error for Malformed {}

pub(crate) struct Writer(Vec<u8>);

impl Writer {
    /// Starts a frame; its length is filled in at the end.
    pub(crate) fn new(id: u32) -> Self {
        let mut writer = Self(vec![0; 4]);
        writer.int(id);
        writer
    }

    pub(crate) fn frame(mut self) -> Vec<u8> {
        let length = u32::try_from(self.0.len() - 4).unwrap_or(u32::MAX);
        self.0[..4].copy_from_slice(&length.to_le_bytes());
        self.0
    }

    pub(crate) fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    pub(crate) fn flag(&mut self, flag: bool) {
        self.byte(u8::from(flag));
    }

    pub(crate) fn int(&mut self, number: u32) {
        self.0.extend(number.to_le_bytes());
    }

    pub(crate) fn long(&mut self, number: u64) {
        self.0.extend(number.to_le_bytes());
    }

    /// Writes a length of four bytes, then the bytes. A frame that becomes too long is rejected by the reader.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.int(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        self.0.extend(bytes);
    }

    pub(crate) fn list<T>(&mut self, items: &[T], each: impl Fn(&mut Self, &T)) {
        self.int(u32::try_from(items.len()).unwrap_or(u32::MAX));
        for item in items {
            each(self, item);
        }
    }

    pub(crate) fn option<T>(&mut self, value: Option<&T>, write: impl FnOnce(&mut Self, &T)) {
        self.flag(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
    }
}

pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(frame: &'a [u8]) -> Self {
        Self(frame)
    }

    pub(crate) fn end(self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed) }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(crate) fn byte(&mut self) -> Result<u8, Malformed> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn flag(&mut self) -> Result<bool, Malformed> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }

    pub(crate) fn int(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn long(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn slice(&mut self) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(self.int()?).map_err(|_| Malformed)?;
        self.take(length)
    }

    /// Bytes of a file or stream.
    pub(crate) fn data(&mut self) -> Result<Vec<u8>, Malformed> {
        let bytes = self.slice()?;
        if bytes.len() > MAX_DATA { Err(Malformed) } else { Ok(bytes.to_vec()) }
    }

    pub(crate) fn string(&mut self) -> Result<String, Malformed> {
        std::str::from_utf8(self.slice()?).map(str::to_owned).map_err(|_| Malformed)
    }

    /// The list grows while it is read, so a wrong count allocates nothing.
    pub(crate) fn list<T>(
        &mut self,
        each: impl Fn(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let count = self.int()?;
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(each(self)?);
        }
        Ok(items)
    }

    pub(crate) fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Option<T>, Malformed> {
        if self.flag()? { read(self).map(Some) } else { Ok(None) }
    }
}

/// The length of the frame after these four bytes.
pub fn frame_length(header: [u8; 4], max: usize) -> Result<usize, Malformed> {
    usize::try_from(u32::from_le_bytes(header)).ok().filter(|length| *length <= max).ok_or(Malformed)
}

/// Reads the content of the next frame; `None` at the end of the stream between two frames.
pub fn read_frame(mut from: impl Read, max: usize) -> io::Result<Option<Vec<u8>>> {
    let mut header = [0; 4];
    let mut filled = 0;
    while filled < header.len() {
        match from.read(&mut header[filled..]) {
            Ok(0) if filled == 0 => return Ok(None),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let length =
        frame_length(header, max).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    let mut frame = vec![0; length];
    from.read_exact(&mut frame)?;
    Ok(Some(frame))
}
