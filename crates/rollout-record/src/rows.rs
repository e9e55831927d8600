//! The rows of model rollouts: `outputs.jsonl`, appended group by group.
//!
//! A row counts once its line is whole. Lines that are no rows may stand between them: they are left alone.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufWriter, Read as _, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};

use super::{
    atomic::WriteError,
    lines::{Line, Lines},
};
use rollout_core::row::RolloutOutput;

/// The name under which rows are written.
pub const OUTPUTS: &str = "outputs.jsonl";
/// Another name under which rows are found.
pub const RESULTS: &str = "results.jsonl";
/// The averages beside the rows.
pub const METADATA: &str = "metadata.json";
/// What the answers of a benchmark are worth, one by one.
pub const EVALUATION: &str = "evaluation.json";

/// The file of the rows in a directory: the one that is there, or the one to be made.
pub fn file_in(dir: &Path) -> PathBuf {
    let [outputs, results] = [dir.join(OUTPUTS), dir.join(RESULTS)];
    if !outputs.exists() && results.exists() { results } else { outputs }
}

/// Appends rows.
#[derive(Debug)]
pub struct RowFile {
    path: PathBuf,
    file: File,
}

impl RowFile {
    /// Opens the file, or makes it. A torn last line is cut off, and one that only lacks its end gets it.
    pub fn open(path: &Path) -> Result<Self, WriteError> {
        let failed = |source| WriteError { path: path.to_owned(), source };
        let open = || -> io::Result<File> {
            let mut file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
            let (whole, tail) = last_line(&mut file)?;
            if !tail.is_empty() {
                if serde_json::from_slice::<serde_json::Value>(&tail).is_ok() {
                    file.write_all(b"\n")?;
                } else {
                    file.set_len(whole)?;
                }
            }
            Ok(file)
        };
        Ok(Self { path: path.to_owned(), file: open().map_err(failed)? })
    }

    /// Puts whole lines on the disk. On an error nothing of them counts: what reached the file is cut off.
    pub fn append(&mut self, lines: &[u8]) -> Result<(), WriteError> {
        let mut write = || -> io::Result<()> {
            let before = self.file.seek(SeekFrom::End(0))?;
            self.file.write_all(lines).and_then(|()| self.file.sync_data()).inspect_err(|_| {
                // If this fails too, the torn line is cut off when the file is opened again.
                let _ = self.file.set_len(before);
            })
        };
        write().map_err(|source| WriteError { path: self.path.clone(), source })
    }
}

/// The length of the whole lines, and what stands after the last of them.
fn last_line(file: &mut File) -> io::Result<(u64, Vec<u8>)> {
    const STEP: u64 = 64 << 10;
    let length = file.seek(SeekFrom::End(0))?;
    let mut start = length;
    let mut tail = Vec::new();
    while start > 0 {
        let from = start.saturating_sub(STEP);
        file.seek(SeekFrom::Start(from))?;
        let mut chunk = Vec::new();
        io::Read::by_ref(file).take(start - from).read_to_end(&mut chunk)?;
        let end = chunk.iter().rposition(|byte| *byte == b'\n');
        let rest = chunk.split_off(end.map_or(0, |end| end + 1));
        tail.splice(0..0, rest);
        if end.is_some() {
            break;
        }
        start = from;
    }
    Ok((length - tail.len() as u64, tail))
}

/// A row of which something would be lost.
#[derive(Debug, thiserror::Error)]
pub enum RowError {
    /// A field has a form that cannot be kept.
    #[error("line {line}")]
    Field {
        /// The line, from 1.
        line: u64,
        /// Which field, and why.
        source: serde_json::Error,
    },
    /// JSON has no such numbers, but Python writes them.
    #[error("line {line}: `{field}` is NaN or infinite, which is not JSON")]
    NotFinite {
        /// The line, from 1.
        line: u64,
        /// The key before the number.
        field: String,
    },
}

/// Reads the rows of a file in their order, with the number of their line from 1. What is no row is counted and left
/// out; a row that cannot be kept whole is a [`RowError`].
pub fn read(path: &Path, mut each: impl FnMut(u64, RolloutOutput)) -> io::Result<u64> {
    let mut lines = match Lines::open(path) {
        Ok(lines) => lines,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error),
    };
    let mut foreign = 0;
    while let Some(line) = lines.next_line()? {
        match serde_json::from_slice(line.bytes) {
            Ok(row) => each(line.number, row),
            Err(_) if line.is_blank() => {}
            Err(source) => match unreadable(&line, source) {
                Some(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
                None => foreign += 1,
            },
        }
    }
    Ok(foreign)
}

/// Why a line that is meant to be a row is none. None if it is something else.
fn unreadable(line: &Line<'_>, source: serde_json::Error) -> Option<RowError> {
    let is_row = |line: &[u8]| {
        let object = serde_json::from_slice::<Map<String, Value>>(line);
        object.is_ok_and(|row| row.get("example_id").is_some_and(Value::is_u64))
    };
    if is_row(line.bytes) {
        return Some(RowError::Field { line: line.number, source });
    }
    let text = std::str::from_utf8(line.bytes).ok()?;
    let (finite, field) = without_infinities(text)?;
    is_row(finite.as_bytes()).then_some(RowError::NotFinite { line: line.number, field })
}

/// A line of Python's with nulls for the numbers that JSON does not have, and the key before the first of them. None if
/// there are none.
fn without_infinities(text: &str) -> Option<(String, String)> {
    let mut finite = String::with_capacity(text.len());
    let (mut key, mut first) = ("", None);
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if c == '"' {
            let mut escaped = false;
            let end = rest[1..].find(|c| {
                let ends = c == '"' && !escaped;
                escaped = c == '\\' && !escaped;
                ends
            })?;
            let (string, after) = rest.split_at(end + 2);
            if after.trim_start().starts_with(':') {
                key = &string[1..string.len() - 1];
            }
            finite.push_str(string);
            rest = after;
        } else if let Some(after) =
            ["NaN", "-Infinity", "Infinity"].iter().find_map(|word| rest.strip_prefix(word))
        {
            first.get_or_insert(key);
            finite.push_str("null");
            rest = after;
        } else {
            finite.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    first.map(|key| (finite, key.to_owned()))
}

/// Takes lines out of a file, by their numbers in ascending order. A reader sees the old file or the new one.
pub fn remove_lines(path: &Path, mut numbers: &[u64]) -> Result<(), WriteError> {
    let failed = |source| WriteError { path: path.to_owned(), source };
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    let mut copy = || -> io::Result<()> {
        let mut lines = Lines::open(path)?;
        let mut writer = BufWriter::with_capacity(1 << 18, File::create(&temporary)?);
        while let Some(line) = lines.next_line()? {
            match numbers {
                [first, rest @ ..] if *first == line.number => numbers = rest,
                _ => writer.write_all(line.bytes)?,
            }
        }
        writer.into_inner().map_err(io::IntoInnerError::into_error)?.sync_data()?;
        fs::rename(&temporary, path)
    };
    copy().map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: &str = "{\"example_id\":0}\n{\"example_id\":1}\n{\"example_id\":2}\n";

    fn ids(path: &Path) -> (Vec<u64>, u64) {
        let mut ids = Vec::new();
        let foreign = read(path, |_, row| ids.push(row.example_id)).unwrap();
        (ids, foreign)
    }

    #[test]
    fn a_file_cut_at_any_byte_goes_on_with_whole_rows() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(OUTPUTS);
        for cut in 0..=ROWS.len() {
            fs::write(&path, &ROWS[..cut]).unwrap();
            RowFile::open(&path).unwrap().append(b"{\"example_id\":9}\n").unwrap();
            let text = fs::read_to_string(&path).unwrap();
            // A row that lacks only its newline is whole.
            let whole = ROWS[..cut].matches('}').count() as u64;
            assert_eq!(ids(&path), ((0..whole).chain([9]).collect(), 0), "cut at byte {cut}: {text}");
        }
    }

    #[test]
    fn a_long_torn_row_is_cut_off_too() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(OUTPUTS);
        let torn = format!("{ROWS}{{\"example_id\":3,\"prompt\":\"{}", "x".repeat(200_000));
        fs::write(&path, torn).unwrap();
        drop(RowFile::open(&path).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), ROWS);
    }

    #[test]
    fn lines_that_are_no_rows_are_counted_and_stay() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(OUTPUTS);
        fs::write(&path, format!("# by hand\n\n{ROWS}[1]\n")).unwrap();
        assert_eq!(ids(&path), (vec![0, 1, 2], 2));
        remove_lines(&path, &[3, 5]).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "# by hand\n\n{\"example_id\":1}\n[1]\n");
    }

    #[test]
    fn a_row_that_would_lose_something_is_an_error_with_its_line_and_field() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(RESULTS);
        let error_of = |row: &str| {
            fs::write(&path, format!("{ROWS}{row}\n")).unwrap();
            let error = read(&path, |_, _| {}).unwrap_err();
            let error = error.into_inner().unwrap();
            let cause = error.source().map(|source| format!(": {source}"));
            format!("{error}{}", cause.unwrap_or_default())
        };
        let errors = [
            error_of(r#"{"example_id": 3, "completion": [{"role": "assistant", "tool_calls": ["{"]}]}"#),
            error_of(r#"{"example_id": 3, "reward": "NaN"}"#),
            error_of(r#"{"example_id": 3, "task": "say \"NaN\": NaN", "metrics": {"a": 1, "b\"": NaN}}"#),
            error_of(
                r#"{"example_id": 3, "trajectory": [{"tokens": {"completion_logprobs": [-1, -Infinity]}}]}"#,
            ),
        ];
        insta::assert_snapshot!(errors.join("\n"), @r#"
        line 4: `completion[0]`: a tool call that is a string must contain a JSON object: EOF while parsing an object at line 1 column 1
        line 4: `reward`: invalid type: string "NaN", expected f64
        line 4: `b\"` is NaN or infinite, which is not JSON
        line 4: `completion_logprobs` is NaN or infinite, which is not JSON
        "#);
        fs::write(&path, format!("{ROWS}{{\"other\": NaN}}\n{{\"example_id\": \"x\"}}\n{{oops\n")).unwrap();
        assert_eq!(ids(&path), (vec![0, 1, 2], 3));
    }

    #[test]
    fn results_of_other_programs_go_on_under_their_own_name() {
        let dir = tempfile::tempdir().unwrap();
        assert!(file_in(dir.path()).ends_with(OUTPUTS));
        fs::write(dir.path().join(RESULTS), "").unwrap();
        assert!(file_in(dir.path()).ends_with(RESULTS));
        fs::write(dir.path().join(OUTPUTS), "").unwrap();
        assert!(file_in(dir.path()).ends_with(OUTPUTS));
    }
}
