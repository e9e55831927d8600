//! Reads the rows of Parquet files as JSON.

use std::{fs::File, ops::ControlFlow, path::Path};

use parquet::{
    file::reader::{FileReader as _, SerializedFileReader},
    record::{Field, Row as ParquetRow},
};
use serde_json::{Number, Value};

use super::RowsError;
use rollout_model::dataset::Row;

/// Reads the rows in order, until `take` has enough. Only one group of rows is in memory at a time.
pub(super) fn each_row(
    path: &Path,
    name: &str,
    take: &mut dyn FnMut(Row) -> ControlFlow<()>,
) -> Result<(), RowsError> {
    let file = File::open(path).map_err(|source| RowsError::Io { path: path.to_owned(), source })?;
    let invalid = |error: parquet::errors::ParquetError| RowsError::Format {
        name: name.to_owned(),
        reason: error.to_string(),
    };
    let reader = SerializedFileReader::new(file).map_err(invalid)?;
    for row in reader.get_row_iter(None).map_err(invalid)? {
        if take(object(&row.map_err(invalid)?)).is_break() {
            break;
        }
    }
    Ok(())
}

fn object(row: &ParquetRow) -> Row {
    row.get_column_iter().map(|(name, field)| (name.clone(), value(field))).collect()
}

fn value(field: &Field) -> Value {
    let float = |number: f64| Number::from_f64(number).map_or(Value::Null, Value::Number);
    match field {
        Field::Null => Value::Null,
        Field::Bool(value) => (*value).into(),
        Field::Byte(value) => (*value).into(),
        Field::Short(value) => (*value).into(),
        Field::Int(value) => (*value).into(),
        Field::Long(value) => (*value).into(),
        Field::UByte(value) => (*value).into(),
        Field::UShort(value) => (*value).into(),
        Field::UInt(value) => (*value).into(),
        Field::ULong(value) => (*value).into(),
        Field::Float(value) => float(f64::from(*value)),
        Field::Double(value) => float(*value),
        Field::Str(text) => text.as_str().into(),
        Field::Bytes(bytes) => String::from_utf8_lossy(bytes.data()).into(),
        Field::Group(row) => Value::Object(object(row)),
        Field::ListInternal(list) => list.elements().iter().map(value).collect(),
        Field::MapInternal(map) => {
            let key = |field: &Field| match value(field) {
                Value::String(text) => text,
                other => other.to_string(),
            };
            map.entries().iter().map(|(name, field)| (key(name), value(field))).collect::<Row>().into()
        }
        // Dates, decimals and the like, as the library writes them.
        other => other.to_string().into(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parquet::{
        basic::Compression,
        data_type::{ByteArray, ByteArrayType, DoubleType, Int32Type},
        file::{properties::WriterProperties, writer::SerializedFileWriter},
        schema::parser::parse_message_type,
    };
    use serde_json::json;

    use super::*;

    const SCHEMA: &str = "message rows {
        REQUIRED BINARY question (UTF8);
        OPTIONAL INT32 level;
        REQUIRED DOUBLE score;
        REQUIRED group options (LIST) { REPEATED group list { OPTIONAL BINARY element (UTF8); } }
    }";

    fn texts(texts: &[&str]) -> Vec<ByteArray> {
        texts.iter().map(|text| ByteArray::from(*text)).collect()
    }

    /// Two rows with a text, a number or nothing, and a list, in the compression that most datasets have.
    fn write(path: &Path) {
        let schema = Arc::new(parse_message_type(SCHEMA).unwrap());
        let properties = Arc::new(WriterProperties::builder().set_compression(Compression::SNAPPY).build());
        let mut writer = SerializedFileWriter::new(File::create(path).unwrap(), schema, properties).unwrap();
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<ByteArrayType>().write_batch(&texts(&["One?", "Two?"]), None, None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<Int32Type>().write_batch(&[7], Some(&[1, 0]), None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<DoubleType>().write_batch(&[0.5, f64::NAN], None, None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let options = texts(&["a", "b", "c"]);
        column.typed::<ByteArrayType>().write_batch(&options, Some(&[2, 2, 2]), Some(&[0, 1, 0])).unwrap();
        column.close().unwrap();
        group.close().unwrap();
        writer.close().unwrap();
    }

    #[test]
    fn rows_with_lists_and_missing_values_become_json() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows.parquet");
        write(&path);
        let mut rows = Vec::new();
        each_row(&path, "rows.parquet", &mut |row| {
            rows.push(Value::Object(row));
            ControlFlow::Continue(())
        })
        .unwrap();
        let expected = [
            json!({"question": "One?", "level": 7, "score": 0.5, "options": ["a", "b"]}),
            json!({"question": "Two?", "level": null, "score": null, "options": ["c"]}),
        ];
        assert_eq!(rows, expected);
    }

    #[test]
    fn a_file_of_another_kind_is_reported_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows.parquet");
        std::fs::write(&path, "not parquet at all").unwrap();
        let error = each_row(&path, "data/rows.parquet", &mut |_| ControlFlow::Continue(())).unwrap_err();
        assert!(error.to_string().contains("data/rows.parquet"), "{error}");
    }
}
