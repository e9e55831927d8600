//! Reading a journal. A header with a million tasks is longer than all that a job needs to have in memory, so it is read
//! as a stream, task by task.

use std::{
    fmt,
    fs::File,
    io::{self, BufReader, Seek as _, SeekFrom},
    path::{Path, PathBuf},
};

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::{
    Header, JournalEntry, JournalError, PlannedTask, VERSION, io_error,
    outline::{self, OutlinedEntry},
};
use crate::lines::{Line, Lines, NextLine};

/// How the line of a header begins. Headers that begin otherwise are read as well, though not as a stream.
const HEADER: &[u8] = br#"{"entry":"job","#;

/// Reads a journal without taking part in its job. Returns the header and the length of whole lines.
pub fn read(path: &Path, mut each: impl FnMut(JournalEntry)) -> Result<(Header, u64), JournalError> {
    let Found { header, whole, .. } = read_lines(path, |_| true, |_, bytes| entry(bytes, &mut each))?;
    Ok((header, whole))
}

/// Reads a journal without taking part in its job, each entry with the place in the file where its line begins, and of
/// each trial the outline.
pub(crate) fn read_outlines(
    path: &Path,
    mut each: impl FnMut(u64, OutlinedEntry<'_>),
) -> Result<(Header, u64), JournalError> {
    let Found { header, whole, .. } = read_lines(
        path,
        |_| true,
        |offset, bytes| match OutlinedEntry::parse(bytes)? {
            OutlinedEntry::Other(JournalEntry::Job(header)) => Ok(Some(header)),
            entry => {
                each(offset, entry);
                Ok(None)
            }
        },
    )?;
    Ok((header, whole))
}

/// Reads the whole lines after an offset, and returns where they end. A line that cannot be parsed ends them: it may still
/// be written, and if it is damaged, reading the whole journal reports it.
pub(crate) fn read_appended(
    path: &Path,
    from: u64,
    mut each: impl FnMut(u64, OutlinedEntry<'_>),
) -> Result<u64, JournalError> {
    let failed = |source| io_error("read", path, source);
    let mut file = File::open(path).map_err(|source| io_error("open", path, source))?;
    file.seek(SeekFrom::Start(from)).map_err(failed)?;
    let mut lines = Lines::from(file);
    let mut whole = from;
    while let Some(Line { offset, bytes, .. }) = lines.next_line().map_err(failed)? {
        let Some(entry) = bytes.ends_with(b"\n").then(|| OutlinedEntry::parse(bytes).ok()).flatten() else {
            break;
        };
        whole = from + offset + bytes.len() as u64;
        each(from + offset, entry);
    }
    Ok(whole)
}

/// Parses a line, and passes on its entry, or returns the header that it has.
pub(super) fn entry(
    bytes: &[u8],
    mut each: impl FnMut(JournalEntry),
) -> Result<Option<Box<Header>>, serde_json::Error> {
    match outline::parse(bytes)? {
        JournalEntry::Job(header) => Ok(Some(header)),
        entry => {
            each(entry);
            Ok(None)
        }
    }
}

/// The header of a journal without those of its tasks that are examples, which may be many. They stay in the file.
#[derive(Debug)]
pub struct PlanHeader {
    header: Header,
    path: PathBuf,
    offset: u64,
}

impl PlanHeader {
    /// Reads the newest header of a journal.
    pub fn read(path: &Path) -> Result<Self, JournalError> {
        let Found { header, offset, .. } =
            read_lines(path, |task| task.example_id.is_none(), |_, bytes| entry(bytes, |_| ()))?;
        Ok(Self { header, path: path.to_owned(), offset })
    }

    /// The header. Of its tasks it has those that are containers.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Reads all tasks, one by one. Blocks while it reads.
    pub fn each_task(&self, mut each: impl FnMut(PlannedTask)) -> Result<(), JournalError> {
        let mut read = || -> io::Result<()> {
            let mut file = File::open(&self.path)?;
            file.seek(SeekFrom::Start(self.offset))?;
            let mut json = serde_json::Deserializer::from_reader(BufReader::with_capacity(1 << 16, file));
            Ok(HeaderFields(&mut each).deserialize(&mut json).map(drop)?)
        };
        read().map_err(|source| io_error("read", &self.path, source))
    }

    /// The header with all of its tasks. Blocks while it reads.
    pub fn whole(self) -> Result<Header, JournalError> {
        let mut tasks = Vec::new();
        self.each_task(|task| tasks.push(task))?;
        Ok(Header { tasks, ..self.header })
    }
}

/// What was read of a journal.
pub(super) struct Found {
    /// The newest header, with the tasks that were wanted.
    header: Header,
    /// Where it begins.
    offset: u64,
    /// The length of whole lines.
    pub(super) whole: u64,
}

/// Reads a journal. Of the tasks of its headers those are kept that are wanted. `each` gets the other lines with the places
/// where they begin, and returns the header that a line has.
pub(super) fn read_lines(
    path: &Path,
    wanted: impl Fn(&PlannedTask) -> bool,
    mut each: impl FnMut(u64, &[u8]) -> Result<Option<Box<Header>>, serde_json::Error>,
) -> Result<Found, JournalError> {
    let failed = |source| io_error("read", path, source);
    let mut lines = Lines::open(path).map_err(|source| io_error("open", path, source))?;
    let mut whole = 0;
    let mut newest: Option<(Header, u64)> = None;
    loop {
        let (number, offset, end, parsed) = match lines.next_unless(HEADER).map_err(failed)? {
            None => break,
            Some(NextLine::Line(Line { number, offset, bytes })) => {
                if !bytes.ends_with(b"\n") {
                    break;
                }
                (number, offset, offset + bytes.len() as u64, each(offset, bytes))
            }
            Some(NextLine::Begun(mut line)) => {
                let mut tasks = Vec::new();
                let mut keep = |task| {
                    if wanted(&task) {
                        tasks.push(task);
                    }
                };
                let reader = BufReader::with_capacity(1 << 16, &mut line);
                let mut json = serde_json::Deserializer::from_reader(reader);
                let read = HeaderFields(&mut keep).deserialize(&mut json).and_then(|header| {
                    json.end()?;
                    Ok(header)
                });
                let parsed = read.map(|header| Some(Box::new(Header { tasks, ..header })));
                let (number, offset) = (line.number, line.offset);
                match line.skip().map_err(failed)? {
                    Some(end) => (number, offset, end, parsed),
                    None => break,
                }
            }
        };
        let header = match parsed {
            Ok(header) => header,
            // A crash of the machine can leave a last line of the right length and the wrong bytes.
            Err(_) if number > 1 && lines.is_at_end() => break,
            Err(source) => return Err(JournalError::Damaged { path: path.to_owned(), line: number, source }),
        };
        whole = end;
        match header {
            Some(found) if found.version > VERSION => {
                return Err(JournalError::TooNew { path: path.to_owned(), found: found.version });
            }
            Some(mut found) => {
                found.tasks.retain(&wanted);
                newest = Some((*found, offset));
            }
            None if newest.is_none() => return Err(JournalError::NoHeader { path: path.to_owned() }),
            None => {}
        }
    }
    let (header, offset) = newest.ok_or_else(|| JournalError::NoHeader { path: path.to_owned() })?;
    Ok(Found { header, offset, whole })
}

/// Reads a header whose tasks go elsewhere.
struct HeaderFields<'t>(&'t mut dyn FnMut(PlannedTask));

impl<'de> DeserializeSeed<'de> for HeaderFields<'_> {
    type Value = Header;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Header, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for HeaderFields<'_> {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the header of a journal")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let mut fields = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let value = match key.as_str() {
                "tasks" => {
                    map.next_value_seed(Tasks(&mut *self.0))?;
                    Value::Array(Vec::new())
                }
                _ => map.next_value()?,
            };
            fields.insert(key, value);
        }
        serde_json::from_value(Value::Object(fields)).map_err(de::Error::custom)
    }
}

/// Reads tasks one by one.
struct Tasks<'t>(&'t mut dyn FnMut(PlannedTask));

impl<'de> DeserializeSeed<'de> for Tasks<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Tasks<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the tasks of a job")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut tasks: A) -> Result<(), A::Error> {
        while let Some(task) = tasks.next_element()? {
            (self.0)(task);
        }
        Ok(())
    }
}
