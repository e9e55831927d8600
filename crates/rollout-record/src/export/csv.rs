//! The tables of a job as comma-separated values (RFC 4180).
//!
//! Spreadsheets run a cell that begins with `=`, `+`, `-` or `@` as a formula. Text of an agent must not be run, so
//! such a cell gets an apostrophe in front, unless it is a number.

use std::{borrow::Cow, io, path::PathBuf};

use csv::{Terminator, Writer, WriterBuilder};

use super::{
    Export, ExportError, Exported, NewFile,
    table::{self, Cell, Column, StepRow, Table, TrialRow},
};

/// Writes `trials.csv` and `steps.csv`.
pub fn write(export: &Export<'_>) -> Result<Exported, ExportError> {
    let trials = CsvTable::new(export.file("trials.csv")?, TrialRow::COLUMNS)?;
    let steps = CsvTable::new(export.file("steps.csv")?, StepRow::COLUMNS)?;
    table::write(export, trials, steps)
}

struct CsvTable {
    path: PathBuf,
    writer: Writer<NewFile>,
}

impl CsvTable {
    fn new<R>(file: NewFile, columns: &[Column<R>]) -> Result<Self, ExportError> {
        let path = file.path.clone();
        let writer = WriterBuilder::new().terminator(Terminator::CRLF).from_writer(file);
        let mut table = Self { path, writer };
        let header = table.writer.write_record(columns.iter().map(|column| column.name));
        header.map_err(|error| table.failed(error.into()))?;
        Ok(table)
    }

    fn failed(&self, source: io::Error) -> ExportError {
        ExportError::Write { path: self.path.clone(), source }
    }
}

impl Table for CsvTable {
    fn add<R>(&mut self, columns: &[Column<R>], row: &R) -> Result<(), ExportError> {
        let mut record = columns.iter().map(|column| field(column.cell(row)));
        let written = record.try_for_each(|field| self.writer.write_field(&*field));
        let ended = written.and_then(|()| self.writer.write_record(None::<&[u8]>));
        ended.map_err(|error| self.failed(error.into()))
    }

    fn finish(self) -> Result<PathBuf, ExportError> {
        let Self { path, writer } = self;
        match writer.into_inner() {
            Ok(file) => file.finish(),
            Err(error) => Err(ExportError::Write { path, source: error.into_error() }),
        }
    }
}

/// Returns the text of a cell.
fn field(cell: Cell<'_>) -> Cow<'_, str> {
    match cell {
        Cell::Null => "".into(),
        Cell::Text(text) => guarded(text),
        Cell::Integer(number) => number.to_string().into(),
        // The shortest text that reads back as the same number.
        Cell::Real(number) => format!("{number:?}").into(),
        Cell::Boolean(is) => if is { "true" } else { "false" }.into(),
        Cell::Time(time) => rollout_core::moment::text(time).into(),
    }
}

/// Escapes text that a spreadsheet would read as a formula, or a reader as the end of the file.
///
/// A reader removes exactly one apostrophe from a cell that begins like this. So a text that already has apostrophes
/// before a formula gets one more.
fn guarded(text: Cow<'_, str>) -> Cow<'_, str> {
    let text = if text.contains('\0') { text.replace('\0', "\u{fffd}").into() } else { text };
    if is_formula(text.trim_start_matches('\'')) { format!("'{text}").into() } else { text }
}

fn is_formula(text: &str) -> bool {
    const STARTS: [char; 11] = ['=', '+', '-', '@', '\t', '\r', '\n', '＝', '＋', '－', '＠'];
    text.starts_with(STARTS) && !is_number(text)
}

/// Whether a spreadsheet reads the text as a number. Other numbers of the standard library, such as `-inf`, do not
/// count.
fn is_number(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte)) && text.parse::<f64>().is_ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reverses the escaping.
    fn unguarded(cell: &str) -> &str {
        match cell.strip_prefix('\'') {
            Some(rest) if is_formula(rest.trim_start_matches('\'')) => rest,
            _ => cell,
        }
    }

    #[test]
    fn cells_that_a_spreadsheet_would_run_are_texts_for_it() {
        let cells = [
            "=1+1", "+1-800", "-rf", "@SUM(A1)", "\t=1", "＝1", "-inf", "'=1", "-1.5e3", "+2", "plain",
            "'tis", "",
        ];
        let shown: Vec<_> = cells.map(|cell| format!("{cell:?} {:?}", guarded(cell.into()))).into();
        insta::assert_snapshot!(shown.join("\n"), @r#"
        "=1+1" "'=1+1"
        "+1-800" "'+1-800"
        "-rf" "'-rf"
        "@SUM(A1)" "'@SUM(A1)"
        "\t=1" "'\t=1"
        "＝1" "'＝1"
        "-inf" "'-inf"
        "'=1" "''=1"
        "-1.5e3" "-1.5e3"
        "+2" "+2"
        "plain" "plain"
        "'tis" "'tis"
        "" ""
        "#);
    }

    proptest! {
        #[test]
        fn every_text_reads_back_and_none_is_a_formula(text in "['=+@\t\r\n\",a0.e-]{0,6}|\\PC*") {
            let cell = guarded(text.as_str().into()).into_owned();
            prop_assert!(!is_formula(&cell));
            prop_assert_eq!(unguarded(&cell), text.as_str());
            let mut writer = WriterBuilder::new().terminator(Terminator::CRLF).from_writer(Vec::new());
            writer.write_record([cell.as_str(), "end"]).unwrap();
            let file = writer.into_inner().unwrap();
            let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(&file[..]);
            let record = reader.records().next().unwrap().unwrap();
            prop_assert_eq!((&record[0], &record[1]), (cell.as_str(), "end"));
        }

        #[test]
        fn numbers_come_back_to_the_bit(number in any::<f64>().prop_filter("JSON has no others", |n| n.is_finite())) {
            prop_assert_eq!(field(Cell::Real(number)).parse::<f64>().unwrap().to_bits(), number.to_bits());
        }
    }
}
