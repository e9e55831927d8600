//! The bytes of messages.

use super::{Item, MAX_DATA};

/// Bytes that are no message.
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

    /// A length of four bytes, and the bytes. More than fit make a frame that no reader takes.
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

    pub(crate) fn item(&mut self, item: &Item) {
        match item {
            Item::Enter { name, mode } => {
                self.byte(1);
                self.bytes(name);
                self.int(*mode);
            }
            Item::Leave => self.byte(2),
            Item::File { name, mode, seconds, nanoseconds } => {
                self.byte(3);
                self.bytes(name);
                self.int(*mode);
                self.long(seconds.cast_unsigned());
                self.int(*nanoseconds);
            }
            Item::Data(bytes) => {
                self.byte(4);
                self.bytes(bytes);
            }
            Item::Link { name, target } => {
                self.byte(5);
                self.bytes(name);
                self.bytes(target);
            }
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

    /// A list grows as it is read, so a false count costs nothing.
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

    pub(crate) fn item(&mut self) -> Result<Item, Malformed> {
        Ok(match self.byte()? {
            1 => Item::Enter { name: self.data()?, mode: self.int()? },
            2 => Item::Leave,
            3 => Item::File {
                name: self.data()?,
                mode: self.int()?,
                seconds: self.long()?.cast_signed(),
                nanoseconds: self.int()?,
            },
            4 => Item::Data(self.data()?),
            5 => Item::Link { name: self.data()?, target: self.data()? },
            _ => return Err(Malformed),
        })
    }
}
