//! Rows of data files: JSON Lines, JSON, CSV and Parquet, converted to JSON lines with the columns of examples.
//!
//! Rows are read and written one by one, so memory does not grow with the files.

mod columns;
#[cfg(feature = "parquet")]
mod parquet;

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write as _},
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use crate::config::ColumnsConfig;
use rollout_model::dataset::{self, ExamplesError, Problem, Row};

/// How many problems of rows are collected before the reading stops.
const MAX_PROBLEMS: usize = 20;

/// Why rows cannot be read or converted.
#[derive(Debug, thiserror::Error)]
pub enum RowsError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The converted rows cannot be written.
    #[error("cannot write the converted rows to {}", path.display())]
    Store {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file is not in its format.
    #[error("cannot read the rows of {name}: {reason}")]
    Format {
        /// The file, as the dataset names it.
        name: String,
        /// The problem.
        reason: String,
    },
    /// This build cannot read Parquet.
    #[error("{name} is a Parquet file, and this build of Rollout cannot read Parquet")]
    NoParquet {
        /// The file, as the dataset names it.
        name: String,
    },
    /// Rows cannot be mapped.
    #[error("{name} has rows that do not match `columns`:{}", listed(problems))]
    Mapping {
        /// The file, as the dataset names it.
        name: String,
        /// The first problems.
        problems: Vec<Problem>,
    },
    /// There is no row at all.
    #[error("the dataset is empty")]
    Empty,
}

fn listed(problems: &[Problem]) -> String {
    problems.iter().map(|Problem { row, message }| format!("\n  row {row}: {message}")).collect()
}

/// The format of a file of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RowFormat {
    /// JSON Lines, or one JSON list.
    Json,
    /// Comma-separated values, the first line has the names of the columns.
    Csv,
    /// Apache Parquet.
    Parquet,
}

impl RowFormat {
    /// The format of a file by its name.
    pub(crate) fn of(name: &str) -> Option<Self> {
        match Path::new(name).extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "jsonl" | "ndjson" | "json" => Some(Self::Json),
            "csv" => Some(Self::Csv),
            "parquet" => Some(Self::Parquet),
            _ => None,
        }
    }

    /// Whether this build can read it.
    pub(crate) fn is_readable(self) -> bool {
        self != Self::Parquet || cfg!(feature = "parquet")
    }
}

/// A file of rows, and its name for messages.
#[derive(Debug, Clone)]
pub(crate) struct TableFile {
    pub(crate) path: PathBuf,
    pub(crate) name: String,
    pub(crate) format: RowFormat,
}

/// Converts files to JSON lines in a new file, which appears complete or not at all, and returns the number of rows.
/// Blocks.
pub(crate) fn convert(files: &[TableFile], columns: &ColumnsConfig, target: &Path) -> Result<u64, RowsError> {
    let store = |source| RowsError::Store { path: target.to_owned(), source };
    let dir = target.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(dir).map_err(store)?;
    let mut out = BufWriter::new(tempfile::NamedTempFile::new_in(dir).map_err(store)?);
    let mut count = 0;
    for file in files {
        let mut problems = Vec::new();
        let mut failed = None;
        let mut number = 0;
        each_row(file, &mut |row| {
            number += 1;
            let written = match columns::mapped(columns, row) {
                Ok(row) => serde_json::to_writer(&mut out, &row)
                    .map_err(io::Error::from)
                    .and_then(|()| out.write_all(b"\n")),
                Err(message) => {
                    problems.push(Problem { row: number, message });
                    Ok(())
                }
            };
            failed = written.err();
            match failed.is_some() || problems.len() >= MAX_PROBLEMS {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        })?;
        if let Some(error) = failed {
            return Err(store(error));
        }
        if !problems.is_empty() {
            return Err(RowsError::Mapping { name: file.name.clone(), problems });
        }
        count += number as u64;
    }
    if count == 0 {
        return Err(RowsError::Empty);
    }
    let file = out.into_inner().map_err(|error| store(error.into_error()))?;
    file.persist(target).map_err(|error| store(error.error))?;
    Ok(count)
}

/// Reads the rows of a file in order, until `take` has enough. Blocks.
fn each_row(file: &TableFile, take: &mut dyn FnMut(Row) -> ControlFlow<()>) -> Result<(), RowsError> {
    let TableFile { path, name, format } = file;
    match format {
        RowFormat::Json => dataset::each_row(path, take).map_err(|error| match error {
            ExamplesError::Io { path, source } => RowsError::Io { path, source },
            other => RowsError::Format { name: name.clone(), reason: other.to_string() },
        }),
        RowFormat::Csv => csv(path, name, take),
        #[cfg(feature = "parquet")]
        RowFormat::Parquet => parquet::each_row(path, name, take),
        #[cfg(not(feature = "parquet"))]
        RowFormat::Parquet => Err(RowsError::NoParquet { name: name.clone() }),
    }
}

fn csv(path: &Path, name: &str, take: &mut dyn FnMut(Row) -> ControlFlow<()>) -> Result<(), RowsError> {
    let file = File::open(path).map_err(|source| RowsError::Io { path: path.to_owned(), source })?;
    let invalid = |error: csv::Error| RowsError::Format { name: name.to_owned(), reason: error.to_string() };
    let mut reader = csv::Reader::from_reader(file);
    let columns: Vec<String> = reader.headers().map_err(invalid)?.iter().map(str::to_owned).collect();
    for record in reader.records() {
        let record = record.map_err(invalid)?;
        let row = columns.iter().cloned().zip(record.iter().map(Into::into)).collect();
        if take(row).is_break() {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn converted(name: &str, content: &str) -> Result<String, RowsError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        fs::write(&path, content).unwrap();
        let format = RowFormat::of(name).unwrap();
        let target = dir.path().join("out/rows.jsonl");
        let file = TableFile { path, name: name.to_owned(), format };
        let count = convert(&[file.clone(), file], &ColumnsConfig::new(), &target)?;
        let text = fs::read_to_string(target).unwrap();
        assert_eq!(text.lines().count() as u64, count);
        Ok(text)
    }

    #[test]
    fn files_become_json_lines_one_after_the_other() {
        let row = "{\"a\":\"1\",\"b\":\"x, \\\"y\\\"\\nz\"}\n";
        assert_eq!(converted("t.csv", "a,b\n1,\"x, \"\"y\"\"\nz\"\n").unwrap(), row.repeat(2));
        assert_eq!(converted("t.jsonl", &format!("{row}\n")).unwrap(), row.repeat(2));
        assert_eq!(converted("t.json", &format!("[{row}]")).unwrap(), row.repeat(2));
    }

    #[test]
    fn invalid_files_are_reported_by_name_and_row() {
        let error = converted("t.csv", "a,b\n1\n").unwrap_err().to_string();
        assert!(error.contains("t.csv") && error.contains("fields"), "{error}");
        let error = converted("t.jsonl", "{}\n1\n").unwrap_err().to_string();
        assert!(error.contains("t.jsonl") && error.contains("row 2"), "{error}");
        assert!(matches!(converted("t.csv", "a,b\n"), Err(RowsError::Empty)));
    }
}
