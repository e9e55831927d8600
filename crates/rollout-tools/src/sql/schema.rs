//! Describes the tables of a database.

use std::fmt;

use rusqlite::{Connection, OptionalExtension as _};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::query::{Table, line};

/// The most tables that are described.
const MOST_TABLES: usize = 200;
/// Rows are counted up to this number; counting more takes too long.
const MOST_COUNTED: i64 = 1_000_000;
/// The number of rows shown of each table.
const SAMPLE: usize = 3;
/// The most bytes of a value in these rows.
const LONGEST_CELL: usize = 80;

/// The tables of a database.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Schema {
    pub(super) tables: Vec<TableInfo>,
    /// The number of omitted tables.
    left_out: usize,
}

/// A table or a view.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct TableInfo {
    name: String,
    kind: String,
    columns: Vec<Column>,
    /// `None` if they cannot be counted, for example in a broken view.
    rows: Option<i64>,
    /// Whether there are more rows than were counted.
    more_rows: bool,
    sample: Vec<Vec<Value>>,
}

/// A column of a table.
#[derive(Debug, Serialize, Deserialize)]
struct Column {
    name: String,
    #[serde(rename = "type")]
    kind: String,
    not_null: bool,
    primary_key: bool,
    /// The table and column that it references.
    #[serde(skip_serializing_if = "Option::is_none")]
    references: Option<String>,
}

/// Reads the schema of a database.
pub(super) fn read(connection: &Connection) -> rusqlite::Result<Schema> {
    let mut statement = connection.prepare(
        "SELECT name, type FROM sqlite_schema WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name",
    )?;
    let found = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let mut found: Vec<(String, String)> = found.collect::<rusqlite::Result<_>>()?;
    let left_out = found.len().saturating_sub(MOST_TABLES);
    found.truncate(MOST_TABLES);
    let tables = found.into_iter().map(|(name, kind)| table(connection, name, kind));
    Ok(Schema { tables: tables.collect::<rusqlite::Result<_>>()?, left_out })
}

fn table(connection: &Connection, name: String, kind: String) -> rusqlite::Result<TableInfo> {
    let columns = columns(connection, &name)?;
    let quoted = format!("\"{}\"", name.replace('"', "\"\""));
    let count = format!("SELECT count(*) FROM (SELECT 1 FROM {quoted} LIMIT {})", MOST_COUNTED + 1);
    let counted: Option<i64> = skip_unreadable(connection.query_row(&count, [], |row| row.get(0)))?;
    let sample = match counted {
        Some(_) => {
            let sql = format!("SELECT * FROM {quoted} LIMIT {SAMPLE}");
            skip_unreadable(Table::of(connection, &sql, SAMPLE, LONGEST_CELL))?
        }
        None => None,
    };
    Ok(TableInfo {
        name,
        kind,
        columns,
        rows: counted.map(|counted| counted.min(MOST_COUNTED)),
        more_rows: counted.is_some_and(|counted| counted > MOST_COUNTED),
        sample: sample.map(|sample| sample.rows).unwrap_or_default(),
    })
}

/// The result for a table; `None` if it cannot be read: a view of a missing table or with failing expressions,
/// or a virtual table of a missing module. Such a table does not hide the others.
fn skip_unreadable<T>(given: rusqlite::Result<T>) -> rusqlite::Result<Option<T>> {
    match given {
        Ok(given) => Ok(Some(given)),
        Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::OperationInterrupted) => {
            Err(error)
        }
        Err(_) => Ok(None),
    }
}

fn columns(connection: &Connection, table: &str) -> rusqlite::Result<Vec<Column>> {
    let mut statement =
        connection.prepare("SELECT name, type, \"notnull\", pk FROM pragma_table_info(?1) ORDER BY cid")?;
    let columns = statement.query_map([table], |row| {
        Ok(Column {
            name: row.get(0)?,
            kind: row.get(1)?,
            not_null: row.get(2)?,
            primary_key: row.get::<_, i64>(3)? > 0,
            references: None,
        })
    });
    // A broken view has no columns.
    let Ok(columns) = columns.and_then(Iterator::collect::<rusqlite::Result<Vec<_>>>) else {
        return Ok(Vec::new());
    };
    columns
        .into_iter()
        .map(|column| {
            let sql = "SELECT \"table\" || coalesce('.' || \"to\", '') FROM pragma_foreign_key_list(?1) WHERE \"from\" = ?2";
            let references = connection.query_row(sql, [table, &column.name], |row| row.get(0)).optional()?;
            Ok(Column { references, ..column })
        })
        .collect()
}

impl fmt::Display for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.tables.is_empty() {
            return f.write_str("The database has no tables.");
        }
        for (nth, table) in self.tables.iter().enumerate() {
            write!(f, "{}{} {}", if nth > 0 { "\n" } else { "" }, table.kind, table.name)?;
            match (table.rows, table.more_rows) {
                (Some(rows), true) => writeln!(f, " (more than {rows} rows)")?,
                (Some(1), _) => writeln!(f, " (1 row)")?,
                (Some(rows), false) => writeln!(f, " ({rows} rows)")?,
                (None, _) => writeln!(f, " (cannot be read)")?,
            }
            for column in &table.columns {
                write!(f, "  {} {}", column.name, column.kind)?;
                f.write_str(if column.primary_key { " primary key" } else { "" })?;
                f.write_str(if column.not_null { " not null" } else { "" })?;
                match &column.references {
                    Some(references) => writeln!(f, " -> {references}")?,
                    None => writeln!(f)?,
                }
            }
            for row in &table.sample {
                writeln!(f, "  row: {}", line(row))?;
            }
        }
        match self.left_out {
            0 => Ok(()),
            left_out => write!(f, "\n({left_out} more tables are not shown)"),
        }
    }
}
