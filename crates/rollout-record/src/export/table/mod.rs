//! The tables that are made of a job: one of its trials, and one of the steps of their conversations.
//!
//! The columns are the same in every form of file. They are declared once, each with its type and meaning, in
//! [`TrialRow::COLUMNS`] and [`StepRow::COLUMNS`].

mod steps;
mod trials;

use std::{borrow::Cow, path::PathBuf};

use jiff::Timestamp;

pub use self::{steps::StepRow, trials::TrialRow};
use super::{Export, ExportError, Exported, chat};

/// The version of the columns. A column that is added leaves it as it is; one that is gone or means something else
/// does not.
pub const SCHEMA_VERSION: u32 = 2;

/// A column of a table with rows of the type `R`.
#[derive(Debug)]
pub struct Column<R> {
    /// Its name.
    pub name: &'static str,
    /// What its values are.
    pub kind: Kind,
    /// Whether every row has a value.
    pub is_required: bool,
    /// What it says, for a reader of the tables.
    pub meaning: &'static str,
    cell: for<'r> fn(&'r R) -> Cell<'r>,
}

/// What the values of a column are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Text.
    Text,
    /// Text that is a JSON value.
    Json,
    /// A whole number of 64 bits with a sign.
    Integer,
    /// A floating-point number of 64 bits.
    Real,
    /// True or false.
    Boolean,
    /// A moment.
    Time,
}

impl Kind {
    /// The word for it in documentation.
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
    /// There is none.
    Null,
    /// Of a column of text or JSON text.
    Text(Cow<'a, str>),
    /// Of a column of integers.
    Integer(i64),
    /// Of a column of reals.
    Real(f64),
    /// Of a column of booleans.
    Boolean(bool),
    /// Of a column of times.
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

    /// The value that a row has in it.
    pub fn cell<'r>(&self, row: &'r R) -> Cell<'r> {
        (self.cell)(row)
    }
}

impl<'a> Cell<'a> {
    /// A value as JSON text.
    fn json(value: &impl serde::Serialize) -> Self {
        serde_json::to_string(value).map_or(Self::Null, |text| Self::Text(text.into()))
    }

    /// A list as JSON text; none if it is empty.
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

/// A file that rows go to.
pub(super) trait Table {
    /// Adds a row.
    fn add<R>(&mut self, columns: &[Column<R>], row: &R) -> Result<(), ExportError>;

    /// Ends the file, which is in its place then.
    fn finish(self) -> Result<PathBuf, ExportError>;
}

/// Fills a table of the trials and one of their steps.
pub(super) fn write<T: Table>(
    export: &Export<'_>,
    mut trials: T,
    mut steps: T,
) -> Result<Exported, ExportError> {
    let job = export.job;
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
            "steps of {silent} of the {rows} trials, of which no conversation is kept: what a script does is in its logs"
        ));
    }
    Ok(Exported { files, rows, left_out })
}
