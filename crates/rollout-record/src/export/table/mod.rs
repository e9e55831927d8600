//! The tables of a job: its trials, and the steps of their conversations.
//!
//! The columns are the same in every file format. [`TrialRow::COLUMNS`] and [`StepRow::COLUMNS`] declare each column
//! with its type and meaning.

mod steps;
mod trials;

use std::{borrow::Cow, path::PathBuf};

use jiff::Timestamp;

pub use self::{steps::StepRow, trials::TrialRow};
use super::{Export, ExportError, Exported, chat};
use crate::{layout::JobDir, notes::JobNotes};

/// The version of the columns. A new column does not change it. A removed column or a changed meaning does.
pub const SCHEMA_VERSION: u32 = 2;

/// A column of a table with rows of the type `R`.
#[derive(Debug)]
pub struct Column<R> {
    /// Its name.
    pub name: &'static str,
    /// The type of its values.
    pub kind: Kind,
    /// Whether every row has a value.
    pub is_required: bool,
    /// The meaning, for the documentation.
    pub meaning: &'static str,
    cell: for<'r> fn(&'r R) -> Cell<'r>,
}

/// The type of the values of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Text.
    Text,
    /// JSON text.
    Json,
    /// A signed 64-bit integer.
    Integer,
    /// A 64-bit floating-point number.
    Real,
    /// True or false.
    Boolean,
    /// A point in time.
    Time,
}

impl Kind {
    /// The name in the documentation.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "JSON text",
            Self::Integer => "integer",
            Self::Real => "real",
            Self::Boolean => "boolean",
            Self::Time => "time",
        }
    }
}

/// One value of a row.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell<'a> {
    /// No value.
    Null,
    /// A value of a text or JSON column.
    Text(Cow<'a, str>),
    /// A value of an integer column.
    Integer(i64),
    /// A value of a real column.
    Real(f64),
    /// A value of a boolean column.
    Boolean(bool),
    /// A value of a time column.
    Time(Timestamp),
}

impl<R> Column<R> {
    pub(super) const fn required(
        name: &'static str,
        kind: Kind,
        meaning: &'static str,
        cell: for<'r> fn(&'r R) -> Cell<'r>,
    ) -> Self {
        Self { name, kind, is_required: true, meaning, cell }
    }

    pub(super) const fn optional(
        name: &'static str,
        kind: Kind,
        meaning: &'static str,
        cell: for<'r> fn(&'r R) -> Cell<'r>,
    ) -> Self {
        Self { name, kind, is_required: false, meaning, cell }
    }

    /// Returns the value of a row in this column.
    pub fn cell<'r>(&self, row: &'r R) -> Cell<'r> {
        (self.cell)(row)
    }
}

impl<'a> Cell<'a> {
    /// Converts a value to JSON text.
    fn json(value: &impl serde::Serialize) -> Self {
        serde_json::to_string(value).map_or(Self::Null, |text| Self::Text(text.into()))
    }

    /// Converts a list to JSON text; null if it is empty.
    fn json_list<T: serde::Serialize>(values: &[T]) -> Self {
        if values.is_empty() { Self::Null } else { Self::json(&values) }
    }
}

impl<'a> From<&'a str> for Cell<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text.into())
    }
}

impl<'a> From<&'a String> for Cell<'a> {
    fn from(text: &'a String) -> Self {
        text.as_str().into()
    }
}

impl<'a> From<Cow<'a, str>> for Cell<'a> {
    fn from(text: Cow<'a, str>) -> Self {
        Self::Text(text)
    }
}

impl From<String> for Cell<'_> {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl From<u64> for Cell<'_> {
    fn from(number: u64) -> Self {
        Self::Integer(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<u32> for Cell<'_> {
    fn from(number: u32) -> Self {
        Self::Integer(number.into())
    }
}

impl From<usize> for Cell<'_> {
    fn from(number: usize) -> Self {
        (number as u64).into()
    }
}

impl From<f64> for Cell<'_> {
    fn from(number: f64) -> Self {
        Self::Real(number)
    }
}

impl From<bool> for Cell<'_> {
    fn from(is: bool) -> Self {
        Self::Boolean(is)
    }
}

impl From<Timestamp> for Cell<'_> {
    fn from(time: Timestamp) -> Self {
        Self::Time(time)
    }
}

impl<'a, T: Into<Cell<'a>>> From<Option<T>> for Cell<'a> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// A file of rows.
pub(super) trait Table {
    /// Adds a row.
    fn add<R>(&mut self, columns: &[Column<R>], row: &R) -> Result<(), ExportError>;

    /// Finishes the file.
    fn finish(self) -> Result<PathBuf, ExportError>;
}

/// Writes a table of the trials and one of their steps.
pub(super) fn write<T: Table>(
    export: &Export<'_>,
    mut trials: T,
    mut steps: T,
) -> Result<Exported, ExportError> {
    let job = export.job;
    let notes = JobNotes::read(&JobDir::new(job.path()))?;
    let (mut rows, mut silent) = (0, 0);
    for trial in export.trials()? {
        let trial = trial?;
        let conversation = job.conversation(&trial)?;
        let said = conversation.as_ref();
        let about = job.about(trial.task)?;
        let row = TrialRow {
            job,
            trial: &trial,
            about: about.as_ref(),
            conversation: said,
            model: said
                .and_then(|said| said.model.as_deref())
                .or_else(|| chat::model_of(job, trial.id.agent.as_str())),
            notes: notes.of(&trial.id),
        };
        trials.add(TrialRow::COLUMNS, &row)?;
        StepRow::each(&row, |step| steps.add(StepRow::COLUMNS, step))?;
        rows += 1;
        silent += u64::from(said.is_none());
    }
    let files = vec![trials.finish()?, steps.finish()?];
    let mut left_out = Vec::new();
    if silent > 0 {
        left_out.push(format!(
            "steps of {silent} of {rows} trials: script agents record no conversation; their output is in the logs"
        ));
    }
    Ok(Exported { files, rows, left_out })
}
