//! The tables of a job as Parquet files, compressed with Zstandard.
//!
//! Times are microseconds in UTC. The metadata of the files contains the version of the columns as
//! `rollout.schema_version`.

use std::{io, mem::take, path::PathBuf, sync::Arc};

use parquet::{
    basic::{Compression, LogicalType, Repetition, TimeUnit, Type as Physical, ZstdLevel},
    data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, Int64Type},
    errors::ParquetError,
    file::{
        metadata::KeyValue,
        properties::WriterProperties,
        writer::{SerializedFileWriter, SerializedRowGroupWriter},
    },
    schema::types::Type,
};

use super::{
    Export, ExportError, Exported, NewFile,
    table::{self, Cell, Column, Kind, SCHEMA_VERSION, StepRow, Table, TrialRow},
};
use crate::samples::write_column;

/// The number of rows in memory before they are written as a row group.
const MAX_ROWS: usize = 16 << 10;
const MAX_BYTES: usize = 16 << 20;

/// Writes `trials.parquet` and `steps.parquet`.
pub fn write(export: &Export<'_>) -> Result<Exported, ExportError> {
    let trials = ParquetTable::new(export.file("trials.parquet")?, "trials", TrialRow::COLUMNS)?;
    let steps = ParquetTable::new(export.file("steps.parquet")?, "steps", StepRow::COLUMNS)?;
    table::write(export, trials, steps)
}

struct ParquetTable {
    path: PathBuf,
    file: SerializedFileWriter<NewFile>,
    columns: Vec<Held>,
    rows: usize,
    bytes: usize,
}

/// The values of a column that are not written yet.
struct Held {
    values: Values,
    /// For each row of an optional column, whether it has a value.
    is_there: Option<Vec<i16>>,
}

enum Values {
    Text(Vec<ByteArray>),
    Integer(Vec<i64>),
    Real(Vec<f64>),
    Boolean(Vec<bool>),
}

impl ParquetTable {
    fn new<R>(file: NewFile, name: &str, columns: &[Column<R>]) -> Result<Self, ExportError> {
        let path = file.path.clone();
        let failed = |error| ExportError::Write { path: path.clone(), source: io::Error::other(error) };
        let schema = schema(name, columns).map_err(failed)?;
        let version = KeyValue::new("rollout.schema_version".to_owned(), SCHEMA_VERSION.to_string());
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_key_value_metadata(Some(vec![version]))
            .build();
        let file = SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties)).map_err(failed)?;
        let columns = columns.iter().map(Held::new).collect();
        Ok(Self { path, file, columns, rows: 0, bytes: 0 })
    }

    fn write_held(&mut self) -> Result<(), ExportError> {
        (self.rows, self.bytes) = (0, 0);
        let mut write = || {
            let mut group = self.file.next_row_group()?;
            self.columns.iter_mut().try_for_each(|column| column.write(&mut group))?;
            group.close().map(|_| ())
        };
        write()
            .map_err(|error| ExportError::Write { path: self.path.clone(), source: io::Error::other(error) })
    }
}

impl Table for ParquetTable {
    fn add<R>(&mut self, columns: &[Column<R>], row: &R) -> Result<(), ExportError> {
        for (column, held) in columns.iter().zip(&mut self.columns) {
            self.bytes += held.add(column.cell(row));
        }
        self.rows += 1;
        if self.rows >= MAX_ROWS || self.bytes >= MAX_BYTES { self.write_held() } else { Ok(()) }
    }

    fn finish(mut self) -> Result<PathBuf, ExportError> {
        if self.rows > 0 {
            self.write_held()?;
        }
        let Self { path, file, .. } = self;
        match file.into_inner() {
            Ok(file) => file.finish(),
            Err(error) => Err(ExportError::Write { path, source: io::Error::other(error) }),
        }
    }
}

fn schema<R>(name: &str, columns: &[Column<R>]) -> Result<Type, ParquetError> {
    let field = |column: &Column<R>| {
        let (physical, logical) = match column.kind {
            Kind::Text | Kind::Json => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
            Kind::Integer => (Physical::INT64, None),
            Kind::Real => (Physical::DOUBLE, None),
            Kind::Boolean => (Physical::BOOLEAN, None),
            Kind::Time => (Physical::INT64, Some(LogicalType::timestamp(true, TimeUnit::MICROS))),
        };
        let repetition = if column.is_required { Repetition::REQUIRED } else { Repetition::OPTIONAL };
        let field = Type::primitive_type_builder(column.name, physical);
        field.with_repetition(repetition).with_logical_type(logical).build().map(Arc::new)
    };
    let fields = columns.iter().map(field).collect::<Result<Vec<_>, _>>()?;
    Type::group_type_builder(name).with_fields(fields).build()
}

impl Held {
    fn new<R>(column: &Column<R>) -> Self {
        let values = match column.kind {
            Kind::Text | Kind::Json => Values::Text(Vec::new()),
            Kind::Integer | Kind::Time => Values::Integer(Vec::new()),
            Kind::Real => Values::Real(Vec::new()),
            Kind::Boolean => Values::Boolean(Vec::new()),
        };
        Self { values, is_there: (!column.is_required).then(Vec::new) }
    }

    /// Adds a value, and returns its approximate memory size.
    fn add(&mut self, cell: Cell<'_>) -> usize {
        let mut size = size_of::<u64>();
        let is_there = match (&mut self.values, cell) {
            (Values::Text(values), Cell::Text(text)) => {
                size = size_of::<ByteArray>() + text.len();
                values.push(ByteArray::from(text.into_owned().into_bytes()));
                1
            }
            (Values::Integer(values), Cell::Integer(number)) => {
                values.push(number);
                1
            }
            (Values::Integer(values), Cell::Time(time)) => {
                values.push(time.as_microsecond());
                1
            }
            (Values::Real(values), Cell::Real(number)) => {
                values.push(number);
                1
            }
            (Values::Boolean(values), Cell::Boolean(is)) => {
                values.push(is);
                1
            }
            // In a required column, the file would be rejected.
            _ => 0,
        };
        self.is_there.iter_mut().for_each(|all| all.push(is_there));
        size
    }

    fn write(&mut self, group: &mut SerializedRowGroupWriter<'_, NewFile>) -> Result<(), ParquetError> {
        let is_there = self.is_there.as_mut().map(take);
        let is_there = is_there.as_deref();
        match &mut self.values {
            Values::Text(held) => write_column::<ByteArrayType, _>(group, &take(held), is_there, None),
            Values::Integer(held) => write_column::<Int64Type, _>(group, &take(held), is_there, None),
            Values::Real(held) => write_column::<DoubleType, _>(group, &take(held), is_there, None),
            Values::Boolean(held) => write_column::<BoolType, _>(group, &take(held), is_there, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use jiff::Timestamp;
    use parquet::{
        file::reader::{FileReader as _, SerializedFileReader},
        record::{Field, Row},
    };
    use proptest::prelude::*;

    use super::*;

    /// A row of every kind of column.
    #[derive(Debug, Clone, PartialEq)]
    struct All {
        text: Option<String>,
        integer: Option<i64>,
        real: Option<f64>,
        boolean: Option<bool>,
        time: Option<i64>,
        name: String,
    }

    const COLUMNS: [Column<All>; 6] = [
        Column::optional("text", Kind::Text, "", |row| row.text.as_ref().into()),
        Column::optional("integer", Kind::Integer, "", |row| row.integer.map_or(Cell::Null, Cell::Integer)),
        Column::optional("real", Kind::Real, "", |row| row.real.into()),
        Column::optional("boolean", Kind::Boolean, "", |row| row.boolean.into()),
        Column::optional("time", Kind::Time, "", |row| {
            row.time.map(|at| Timestamp::from_microsecond(at).unwrap()).into()
        }),
        Column::required("name", Kind::Text, "", |row| (&row.name).into()),
    ];

    fn written(rows: &[All]) -> SerializedFileReader<File> {
        let dir = tempfile::tempdir().unwrap();
        let file = NewFile::create(dir.path().join("rows.parquet")).unwrap();
        let mut table = ParquetTable::new(file, "rows", &COLUMNS).unwrap();
        rows.iter().for_each(|row| table.add(&COLUMNS, row).unwrap());
        SerializedFileReader::new(File::open(table.finish().unwrap()).unwrap()).unwrap()
    }

    fn read(row: &Row) -> All {
        let mut fields = row.get_column_iter().map(|(_, field)| field.clone());
        let mut next = || fields.next().filter(|field| *field != Field::Null);
        let text = |field| match field {
            Field::Str(text) => text,
            other => panic!("{other} is no text"),
        };
        All {
            text: next().map(text),
            integer: next()
                .map(|field| if let Field::Long(number) = field { number } else { panic!("{field}") }),
            real: next()
                .map(|field| if let Field::Double(number) = field { number } else { panic!("{field}") }),
            boolean: next().map(|field| if let Field::Bool(is) = field { is } else { panic!("{field}") }),
            time: next()
                .map(|field| if let Field::TimestampMicros(at) = field { at } else { panic!("{field}") }),
            name: next().map(text).unwrap(),
        }
    }

    fn any_row() -> impl Strategy<Value = All> {
        let real = any::<f64>().prop_filter("JSON has no others", |number| number.is_finite());
        let time = -60_000_000_000_000_000..250_000_000_000_000_000_i64;
        let some = (any::<Option<String>>(), any::<Option<i64>>(), prop::option::of(real));
        (some, any::<Option<bool>>(), prop::option::of(time), any::<String>()).prop_map(
            |((text, integer, real), boolean, time, name)| All { text, integer, real, boolean, time, name },
        )
    }

    proptest! {
        // Every case writes a file to disk.
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn what_is_written_is_read_back(rows in prop::collection::vec(any_row(), 0..20)) {
            let file = written(&rows);
            let found: Vec<All> = file.get_row_iter(None).unwrap().map(|row| read(&row.unwrap())).collect();
            prop_assert_eq!(found, rows);
        }
    }

    #[test]
    fn rows_are_written_in_groups_of_bounded_size() {
        let row = |text: &str| All {
            text: Some(text.to_owned()),
            integer: None,
            real: None,
            boolean: None,
            time: None,
            name: String::new(),
        };
        let groups = |file: SerializedFileReader<File>| -> Vec<i64> {
            file.metadata().row_groups().iter().map(|group| group.num_rows()).collect()
        };
        assert_eq!(groups(written(&vec![row("short"); MAX_ROWS + 1])), [MAX_ROWS as i64, 1]);
        let long = "x".repeat(MAX_BYTES / 2);
        assert_eq!(groups(written(&vec![row(&long); 5])), [2, 2, 1]);
    }
}
