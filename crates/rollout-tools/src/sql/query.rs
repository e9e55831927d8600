//! The helper's work for the `sql` tools: one request to one database.

use std::fmt;
use std::fs::File;

use rusqlite::types::ValueRef;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::open::Database;
use super::schema;
use crate::helper::{Failure, Work};

/// The most bytes of values in a result.
const MOST_BYTES: usize = 256 << 10;
/// The most bytes of one value in a result.
const LONGEST_CELL: usize = 4 << 10;

/// A request to a database.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Question {
    /// Describes its tables.
    Schema,
    /// Runs a statement.
    Execute {
        /// The statement.
        sql: String,
        /// The most rows to return.
        max_rows: usize,
    },
}

impl Work for Question {
    const NAME: &'static str = "sql";
}

/// Answers a request with the database in this file.
pub(crate) fn answer(question: &Question, file: &File, seconds: u64) -> Result<Value, Failure> {
    let database = Database::open(file, seconds)?;
    let answer = match question {
        Question::Schema => schema::read(&database.connection).map(serde_json::to_value),
        Question::Execute { sql, max_rows } => {
            Table::of(&database.connection, sql, *max_rows, LONGEST_CELL).map(serde_json::to_value)
        }
    };
    answer
        .map_err(|error| database.explain(&error))?
        .map_err(|error| Failure::Failed(format!("cannot encode the result: {error}")))
}

/// The result of a statement.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Table {
    pub(super) columns: Vec<String>,
    pub(super) rows: Vec<Vec<Value>>,
    /// Why rows are missing at the end, if any.
    pub(super) cut: Option<String>,
}

impl Table {
    /// Runs a statement.
    pub(super) fn of(
        connection: &rusqlite::Connection,
        sql: &str,
        max_rows: usize,
        longest: usize,
    ) -> rusqlite::Result<Self> {
        let mut statement = connection.prepare(sql)?;
        let columns: Vec<_> = statement.column_names().map(str::to_owned).collect();
        let (mut rows, mut bytes, mut cut) = (Vec::new(), 0, None);
        let mut given = statement.query([])?;
        while let Some(row) = given.next()? {
            if rows.len() == max_rows {
                cut = Some(format!("there are more than {max_rows} rows; the first {max_rows} are shown"));
                break;
            }
            let mut cells = Vec::with_capacity(columns.len());
            for column in 0..columns.len() {
                let cell = cell(row.get_ref(column)?, longest);
                bytes += size_of::<Value>() + cell.as_str().map_or(0, str::len);
                cells.push(cell);
            }
            if bytes > MOST_BYTES {
                cut = Some(format!(
                    "the result is larger than {} KiB; the first {} rows are shown",
                    MOST_BYTES >> 10,
                    rows.len()
                ));
                break;
            }
            rows.push(cells);
        }
        Ok(Self { columns, rows, cut })
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.columns.join(" | "))?;
        for row in &self.rows {
            writeln!(f, "{}", line(row))?;
        }
        match (&self.cut, self.rows.len()) {
            (Some(cut), _) => write!(f, "({cut})"),
            (None, 1) => write!(f, "(1 row)"),
            (None, rows) => write!(f, "({rows} rows)"),
        }
    }
}

/// A row as one line.
pub(super) fn line(row: &[Value]) -> String {
    let cells: Vec<_> = row
        .iter()
        .map(|cell| match cell {
            Value::String(text) => text.replace('\n', " "),
            Value::Null => "NULL".to_owned(),
            other => other.to_string(),
        })
        .collect();
    cells.join(" | ")
}

fn cell(value: ValueRef<'_>, longest: usize) -> Value {
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => number.into(),
        // JSON has no infinity.
        ValueRef::Real(number) if number.is_finite() => number.into(),
        ValueRef::Real(number) => number.to_string().into(),
        ValueRef::Text(text) if text.len() > longest => {
            let end = String::from_utf8_lossy(&text[..longest]);
            format!("{}… ({} bytes in all)", end.trim_end_matches('\u{fffd}'), text.len()).into()
        }
        ValueRef::Text(text) => String::from_utf8_lossy(text).into(),
        ValueRef::Blob(blob) => format!("<blob of {} bytes>", blob.len()).into(),
    }
}
