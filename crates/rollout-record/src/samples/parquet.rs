//! Samples as a Parquet file.
//!
//! ```text
//! message sample {
//!   required int64 example_id (INTEGER(64,false));
//!   required binary task (STRING);
//!   required binary trajectory_id (STRING);
//!   required int32 first_turn (INTEGER(32,false));
//!   required int32 last_turn (INTEGER(32,false));
//!   required double reward;
//!   optional double advantage;
//!   required boolean is_truncated;
//!   optional binary error (STRING);
//!   optional binary stop_condition (STRING);
//!   required group turns (LIST) { repeated group list { required group element {
//!     required int32 turn (INTEGER(32,false));
//!     required int32 first_token (INTEGER(32,false));
//!     required int32 tokens (INTEGER(32,false));
//!     optional double reward;
//!     optional binary policy_version (STRING);
//!   } } }
//!   required group token_ids (LIST) { repeated group list { required int32 element (INTEGER(32,false)); } }
//!   required group loss_mask (LIST) { repeated group list { required int32 element (INTEGER(8,false)); } }
//!   required group logprobs (LIST) { repeated group list { required float element; } }
//!   required group advantages (LIST) { repeated group list { required float element; } }
//!   required group routed_experts (LIST) { repeated group list { required int32 element (INTEGER(32,false)); } }
//!   required group routed_experts_shape (LIST) { repeated group list { required int32 element (INTEGER(32,false)); } }
//! }
//! ```
//!
//! `routed_experts` contains the experts of all tokens and layers in one list. Its dimensions are in
//! `routed_experts_shape`: tokens, layers, experts. Both are empty if the server reported none.

use std::{io::Write, sync::Arc};

use parquet::{
    basic::{Compression, ZstdLevel},
    data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, FloatType, Int32Type, Int64Type},
    errors::ParquetError,
    file::{
        properties::WriterProperties,
        writer::{SerializedFileWriter, SerializedRowGroupWriter},
    },
    schema::parser::parse_message_type,
};

use rollout_core::sample::{Sample, SampledTurn};

const SCHEMA: &str = "
message sample {
  required int64 example_id (INTEGER(64,false));
  required binary task (STRING);
  required binary trajectory_id (STRING);
  required int32 first_turn (INTEGER(32,false));
  required int32 last_turn (INTEGER(32,false));
  required double reward;
  optional double advantage;
  required boolean is_truncated;
  optional binary error (STRING);
  optional binary stop_condition (STRING);
  required group turns (LIST) { repeated group list { required group element {
    required int32 turn (INTEGER(32,false));
    required int32 first_token (INTEGER(32,false));
    required int32 tokens (INTEGER(32,false));
    optional double reward;
    optional binary policy_version (STRING);
  } } }
  required group token_ids (LIST) { repeated group list { required int32 element (INTEGER(32,false)); } }
  required group loss_mask (LIST) { repeated group list { required int32 element (INTEGER(8,false)); } }
  required group logprobs (LIST) { repeated group list { required float element; } }
  required group advantages (LIST) { repeated group list { required float element; } }
  required group routed_experts (LIST) { repeated group list { required int32 element (INTEGER(32,false)); } }
  required group routed_experts_shape (LIST) { repeated group list { required int32 element (INTEGER(32,false)); } }
}";

/// The number of tokens in memory before they are written as a row group.
const MAX_TOKENS: usize = 1 << 20;
const MAX_SAMPLES: usize = 8 << 10;

/// Writes samples as a Parquet file, compressed with Zstandard. It holds about a million tokens in memory.
///
/// ```
/// use rollout::model::samples::{ParquetWriter, SampleReader};
///
/// let mut file = ParquetWriter::new(Vec::new())?;
/// for sample in SampleReader::new("".as_bytes()) {
///     file.write(sample?)?;
/// }
/// assert!(file.finish()?.starts_with(b"PAR1"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ParquetWriter<W: Write + Send> {
    file: SerializedFileWriter<W>,
    held: Vec<Sample>,
    tokens: usize,
}

/// A Parquet file could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the Parquet file")]
pub struct ParquetWriteError(#[from] ParquetError);

impl<W: Write + Send> ParquetWriter<W> {
    /// Starts a file.
    pub fn new(to: W) -> Result<Self, ParquetWriteError> {
        let schema = Arc::new(parse_message_type(SCHEMA)?);
        let compression = Compression::ZSTD(ZstdLevel::default());
        let properties = WriterProperties::builder().set_compression(compression).build();
        let file = SerializedFileWriter::new(to, schema, Arc::new(properties))?;
        Ok(Self { file, held: Vec::new(), tokens: 0 })
    }

    /// Adds a sample.
    pub fn write(&mut self, sample: Sample) -> Result<(), ParquetWriteError> {
        self.tokens += sample.token_ids.len();
        self.held.push(sample);
        if self.tokens >= MAX_TOKENS || self.held.len() >= MAX_SAMPLES { self.write_held() } else { Ok(()) }
    }

    /// Finishes the file, and returns the writer. An unfinished file cannot be read.
    pub fn finish(mut self) -> Result<W, ParquetWriteError> {
        if !self.held.is_empty() {
            self.write_held()?;
        }
        Ok(self.file.into_inner()?)
    }

    fn write_held(&mut self) -> Result<(), ParquetWriteError> {
        let samples = std::mem::take(&mut self.held);
        self.tokens = 0;
        let mut group = self.file.next_row_group()?;
        // In the order of the schema. Parquet stores unsigned numbers as signed numbers with the same bits.
        flat::<Int64Type, _>(&mut group, &samples, |s| s.example_id.cast_signed())?;
        flat::<ByteArrayType, _>(&mut group, &samples, |s| ByteArray::from(&*s.task))?;
        flat::<ByteArrayType, _>(&mut group, &samples, |s| ByteArray::from(&*s.trajectory_id))?;
        flat::<Int32Type, _>(&mut group, &samples, |s| s.first_turn.cast_signed())?;
        flat::<Int32Type, _>(&mut group, &samples, |s| s.last_turn.cast_signed())?;
        flat::<DoubleType, _>(&mut group, &samples, |s| s.reward)?;
        let known: Vec<f64> = samples.iter().filter_map(|sample| sample.advantage).collect();
        let is_known: Vec<i16> = samples.iter().map(|sample| i16::from(sample.advantage.is_some())).collect();
        write_column::<DoubleType, _>(&mut group, &known, Some(&is_known), None)?;
        flat::<BoolType, _>(&mut group, &samples, |s| s.is_truncated)?;
        optional_text(&mut group, &samples, |s| s.error.as_deref())?;
        optional_text(&mut group, &samples, |s| s.stop_condition.as_deref())?;
        let turns = |s: &Sample| s.turns.clone();
        list::<Int32Type, _, _>(&mut group, &samples, turns, |turn| turn.turn.cast_signed())?;
        list::<Int32Type, _, _>(&mut group, &samples, turns, |turn| turn.first_token.cast_signed())?;
        list::<Int32Type, _, _>(&mut group, &samples, turns, |turn| turn.tokens.cast_signed())?;
        optional_list::<DoubleType, _>(&mut group, &samples, |turn| turn.reward)?;
        optional_list::<ByteArrayType, _>(&mut group, &samples, |turn| {
            turn.policy_version.as_deref().map(ByteArray::from)
        })?;
        list::<Int32Type, _, _>(&mut group, &samples, |s| s.token_ids.clone(), |id| id.cast_signed())?;
        list::<Int32Type, _, _>(&mut group, &samples, |s| s.loss_mask.clone(), i32::from)?;
        list::<FloatType, _, _>(&mut group, &samples, |s| s.logprobs.clone(), |logprob| logprob as f32)?;
        list::<FloatType, _, _>(
            &mut group,
            &samples,
            |s| s.advantages.clone(),
            |advantage| advantage as f32,
        )?;
        list::<Int32Type, _, _>(&mut group, &samples, flat_experts, u32::cast_signed)?;
        list::<Int32Type, _, _>(&mut group, &samples, experts_shape, |length| length as i32)?;
        group.close()?;
        Ok(())
    }
}

type Group<'a, W> = SerializedRowGroupWriter<'a, W>;

fn flat<T: DataType, W: Write + Send>(
    group: &mut Group<'_, W>,
    samples: &[Sample],
    value: impl Fn(&Sample) -> T::T,
) -> Result<(), ParquetError> {
    let values: Vec<T::T> = samples.iter().map(value).collect();
    write_column::<T, W>(group, &values, None, None)
}

fn optional_text<W: Write + Send>(
    group: &mut Group<'_, W>,
    samples: &[Sample],
    text: impl Fn(&Sample) -> Option<&str>,
) -> Result<(), ParquetError> {
    let known: Vec<_> = samples.iter().filter_map(|sample| text(sample).map(ByteArray::from)).collect();
    let is_known: Vec<_> = samples.iter().map(|sample| i16::from(text(sample).is_some())).collect();
    write_column::<ByteArrayType, W>(group, &known, Some(&is_known), None)
}

fn list<T: DataType, W: Write + Send, V>(
    group: &mut Group<'_, W>,
    samples: &[Sample],
    values: impl Fn(&Sample) -> Vec<V>,
    value: impl Fn(V) -> T::T,
) -> Result<(), ParquetError> {
    // An empty list is one position without a value. The first value of a list starts a row; the others repeat it.
    let (mut all, mut definitions, mut repetitions) = (Vec::new(), Vec::new(), Vec::new());
    for sample in samples {
        let values = values(sample);
        let length = values.len();
        all.extend(values.into_iter().map(&value));
        definitions.extend(std::iter::repeat_n(i16::from(length > 0), length.max(1)));
        repetitions.extend((0..length.max(1)).map(|place| i16::from(place > 0)));
    }
    write_column::<T, W>(group, &all, Some(&definitions), Some(&repetitions))
}

/// Writes a column of the turns whose values are optional.
fn optional_list<T: DataType, W: Write + Send>(
    group: &mut Group<'_, W>,
    samples: &[Sample],
    value: impl Fn(&SampledTurn) -> Option<T::T>,
) -> Result<(), ParquetError> {
    let (mut known, mut definitions, mut repetitions) = (Vec::new(), Vec::new(), Vec::new());
    for sample in samples {
        if sample.turns.is_empty() {
            definitions.push(0);
            repetitions.push(0);
        }
        for (place, turn) in sample.turns.iter().enumerate() {
            let value = value(turn);
            definitions.push(1 + i16::from(value.is_some()));
            repetitions.push(i16::from(place > 0));
            known.extend(value);
        }
    }
    write_column::<T, W>(group, &known, Some(&definitions), Some(&repetitions))
}

fn flat_experts(sample: &Sample) -> Vec<u32> {
    sample.routed_experts.iter().flatten().flatten().flatten().copied().collect()
}

fn experts_shape(sample: &Sample) -> Vec<usize> {
    let Some(tokens) = &sample.routed_experts else { return Vec::new() };
    let layers = tokens.first().map_or(0, Vec::len);
    let experts = tokens.first().and_then(|token| token.first()).map_or(0, Vec::len);
    vec![tokens.len(), layers, experts]
}

pub(crate) fn write_column<T: DataType, W: Write + Send>(
    group: &mut Group<'_, W>,
    values: &[T::T],
    definitions: Option<&[i16]>,
    repetitions: Option<&[i16]>,
) -> Result<(), ParquetError> {
    let column = group.next_column()?;
    let mut column =
        column.ok_or_else(|| ParquetError::General("the schema has fewer columns".to_owned()))?;
    column.typed::<T>().write_batch(values, definitions, repetitions)?;
    column.close()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use parquet::{
        file::reader::{FileReader as _, SerializedFileReader},
        record::Row,
    };

    use super::*;

    fn sample(example_id: u64, tokens: u32) -> Sample {
        Sample {
            example_id,
            task: "math".into(),
            trajectory_id: format!("{example_id:032x}").into(),
            first_turn: 0,
            last_turn: 2,
            reward: 0.25,
            advantage: example_id.is_multiple_of(2).then_some(-0.5),
            is_truncated: example_id == 0,
            error: (example_id == 1).then(|| "ModelError".into()),
            stop_condition: Some("max_turns_reached".into()),
            turns: (0..tokens.min(2))
                .map(|turn| SampledTurn {
                    turn,
                    first_token: turn + 1,
                    tokens: 1,
                    reward: (turn == 0).then_some(0.5),
                    policy_version: (turn == 1).then(|| "step-3".into()),
                })
                .collect(),
            token_ids: (0..tokens).map(|id| u32::MAX - id).collect(),
            loss_mask: (0..tokens).map(|id| u8::from(id > 0)).collect(),
            logprobs: (0..tokens).map(|id| -f64::from(id)).collect(),
            advantages: (0..tokens).map(|id| if id > 0 { -0.5 } else { 0.0 }).collect(),
            routed_experts: (example_id == 0).then(|| (0..tokens).map(|id| vec![vec![id, 7]]).collect()),
        }
    }

    fn written(samples: impl IntoIterator<Item = Sample>) -> SerializedFileReader<Bytes> {
        let mut file = ParquetWriter::new(Vec::new()).unwrap();
        samples.into_iter().for_each(|sample| file.write(sample).unwrap());
        SerializedFileReader::new(Bytes::from(file.finish().unwrap())).unwrap()
    }

    fn rows(file: &SerializedFileReader<Bytes>) -> Vec<Row> {
        file.get_row_iter(None).unwrap().map(Result::unwrap).collect()
    }

    #[test]
    fn what_is_written_is_read_back() {
        let rows = rows(&written([sample(0, 3), sample(1, 0), sample(u64::MAX, 1)]));
        let texts: Vec<_> = rows.iter().map(Row::to_string).collect();
        insta::assert_snapshot!(texts.join("\n"), @r#"
        {example_id: 0, task: "math", trajectory_id: "00000000000000000000000000000000", first_turn: 0, last_turn: 2, reward: 0.25, advantage: -5E-1, is_truncated: true, error: null, stop_condition: "max_turns_reached", turns: [{turn: 0, first_token: 1, tokens: 1, reward: 0.5, policy_version: null}, {turn: 1, first_token: 2, tokens: 1, reward: null, policy_version: "step-3"}], token_ids: [4294967295, 4294967294, 4294967293], loss_mask: [0, 1, 1], logprobs: [-0E0, -1E0, -2E0], advantages: [0E0, -5E-1, -5E-1], routed_experts: [0, 7, 1, 7, 2, 7], routed_experts_shape: [3, 1, 2]}
        {example_id: 1, task: "math", trajectory_id: "00000000000000000000000000000001", first_turn: 0, last_turn: 2, reward: 0.25, advantage: null, is_truncated: false, error: "ModelError", stop_condition: "max_turns_reached", turns: [], token_ids: [], loss_mask: [], logprobs: [], advantages: [], routed_experts: [], routed_experts_shape: []}
        {example_id: 18446744073709551615, task: "math", trajectory_id: "0000000000000000ffffffffffffffff", first_turn: 0, last_turn: 2, reward: 0.25, advantage: null, is_truncated: false, error: null, stop_condition: "max_turns_reached", turns: [{turn: 0, first_token: 1, tokens: 1, reward: 0.5, policy_version: null}], token_ids: [4294967295], loss_mask: [0], logprobs: [-0E0], advantages: [0E0], routed_experts: [], routed_experts_shape: []}
        "#);
    }

    #[test]
    fn samples_are_written_in_groups_of_bounded_size() {
        let file = written((0..5).map(|id| sample(id, MAX_TOKENS as u32 / 2)));
        let groups: Vec<_> = file.metadata().row_groups().iter().map(|group| group.num_rows()).collect();
        assert_eq!(groups, [2, 2, 1]);
        let many = written((0..MAX_SAMPLES as u64 + 1).map(|id| sample(id, 1)));
        assert_eq!(
            (many.metadata().num_row_groups(), many.metadata().file_metadata().num_rows()),
            (2, MAX_SAMPLES as i64 + 1)
        );
    }

    #[test]
    fn a_file_of_no_samples_has_the_schema() {
        let file = written([]);
        assert_eq!(file.metadata().file_metadata().schema_descr().num_columns(), 21);
        assert!(rows(&file).is_empty());
    }
}
