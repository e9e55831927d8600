//! The examples of a plan. Large sets are stored in an unnamed file, with a few numbers per example in memory.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, Write as _},
    ops::Range,
    os::unix::fs::FileExt as _,
    sync::Arc,
};

use indexmap::IndexSet;
use serde::de::IgnoredAny;
use serde_json::Value;
use tokio::sync::Mutex;

use crate::{rollouts::Rollouts, task::Pins};
use rollout_core::name::{DatasetName, TaskName};
use rollout_env::blocking::blocking;
use rollout_model::{RolloutInput, dataset};
use rollout_record::tasks::TaskRecord;

/// The examples of one dataset, and the interaction for them.
#[derive(Debug, Clone)]
pub struct ExampleSet {
    /// Its name in results and directories.
    pub name: DatasetName,
    /// Interaction, rubric and limits.
    pub rollouts: Arc<Rollouts>,
    /// The examples. Each is attempted as often as the job says. If an `example_id` occurs more than once, it gets one
    /// attempt per occurrence instead.
    pub examples: Arc<StoredExamples>,
    /// The commits that were looked up for their dataset.
    pub resolved: Pins,
}

impl ExampleSet {
    /// Takes inputs in memory. Their tasks are named by number.
    pub fn new(
        name: DatasetName,
        rollouts: Arc<Rollouts>,
        inputs: impl IntoIterator<Item = RolloutInput>,
    ) -> io::Result<Self> {
        let mut writer = ExampleWriter::default();
        for input in inputs {
            writer.push(&input, None, None)?;
        }
        Ok(Self { name, rollouts, examples: Arc::new(writer.finish()?), resolved: Pins::new() })
    }
}

/// The maximum number of bytes of examples in memory.
const MOST_IN_MEMORY: usize = 1 << 20;

/// Collects examples. Large sets are written to a temporary file that disappears when it is closed.
#[derive(Debug, Default)]
pub struct ExampleWriter {
    file: Option<File>,
    /// The part that is not in the file.
    buffer: Vec<u8>,
    /// The length of the file.
    length: u64,
    stored: Vec<Stored>,
    /// The names of the tasks, concatenated.
    names: String,
    texts: IndexSet<Box<str>>,
}

/// The part of an example that is in memory. It is small, because there may be a million.
#[derive(Debug, Clone, Copy)]
struct Stored {
    example_id: u64,
    /// The position of its hash, followed by its JSON.
    offset: u64,
    /// The length of its JSON.
    length: u32,
    /// The position of its name.
    name: u32,
    /// The numbers of texts that many examples share; 0 is none.
    category: u32,
    difficulty: u32,
    tools: u32,
    name_length: u8,
    has_about: bool,
    /// Whether all inputs with its number are equal to the first one.
    is_uniform: bool,
}

/// The hash of an input.
type Digest = [u8; DIGEST_BYTES];

const DIGEST_BYTES: usize = 32;

impl ExampleWriter {
    /// Adds an example, with its record for the plan. Its number is the name of its task, unless it has its own name.
    /// Blocks while it writes to the system's directory for temporary files.
    pub fn push(
        &mut self,
        input: &RolloutInput,
        name: Option<&TaskName>,
        about: Option<&TaskRecord>,
    ) -> io::Result<()> {
        let RolloutInput { prompt, example_id, task, answer, info, extra } = input;
        let offset = self.length + self.buffer.len() as u64;
        let digest: Digest = dataset::content_digest(std::slice::from_ref(input));
        self.buffer.extend_from_slice(&digest);
        let start = self.buffer.len();
        serde_json::to_writer(&mut self.buffer, &(prompt, example_id, task, answer, info, extra, about))?;
        let length = self.buffer.len() - start;
        let before = self.names.len();
        match name {
            Some(name) => self.names.push_str(name.as_str()),
            None => self.names.push_str(&example_id.to_string()),
        }
        let said = |key: &str| {
            let info = info.as_ref()?;
            // The additional fields of a benchmark's lines are one level deeper.
            info.get(key).or_else(|| info.get("metadata")?.get(key)).filter(|value| !value.is_null())
        };
        let label = |key: &str| said(key).and_then(Value::as_str).filter(|text| !text.is_empty());
        let tools = info.as_ref().and_then(|info| info.get("tool_defs")).filter(|defs| !defs.is_null());
        let stored = Stored {
            example_id: *example_id,
            offset,
            length: u32::try_from(length).map_err(|_| io::Error::other("an example is larger than 4 GiB"))?,
            name: u32::try_from(before).map_err(|_| io::Error::other("the names are larger than 4 GiB"))?,
            category: number(&mut self.texts, label("category")),
            difficulty: number(&mut self.texts, label("difficulty")),
            tools: number(&mut self.texts, tools.map(Value::to_string).as_deref()),
            name_length: u8::try_from(self.names.len() - before).expect("a name has at most 200 bytes"),
            has_about: about.is_some(),
            is_uniform: true,
        };
        self.stored.push(stored);
        if self.buffer.len() > MOST_IN_MEMORY {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut file = match self.file.take() {
            Some(file) => file,
            None => tempfile::tempfile()?,
        };
        file.write_all(&self.buffer)?;
        self.length += self.buffer.len() as u64;
        self.buffer.clear();
        self.file = Some(file);
        Ok(())
    }

    /// Shuffles the examples in an order that depends only on the seed.
    pub fn shuffle(&mut self, seed: u64) {
        dataset::shuffle(&mut self.stored, seed);
    }

    /// Keeps the first `count` examples.
    pub fn truncate(&mut self, count: usize) {
        self.stored.truncate(count);
    }

    /// The examples, in the order of the first occurrence of their numbers.
    pub fn finish(mut self) -> io::Result<StoredExamples> {
        if self.file.is_some() {
            self.flush()?;
        }
        let Self { file, buffer, mut stored, names, texts, .. } = self;
        let text = match file {
            Some(file) => Text::OnDisk(file),
            None => Text::InMemory(buffer),
        };
        if !stored.is_sorted_by_key(|stored| stored.example_id) {
            let mut first = HashMap::with_capacity(stored.len());
            for (place, stored) in stored.iter().enumerate() {
                first.entry(stored.example_id).or_insert(place);
            }
            stored.sort_by_key(|stored| first[&stored.example_id]);
        }
        stored.shrink_to_fit();
        for inputs in stored.chunk_by_mut(|one, next| one.example_id == next.example_id) {
            if let [first, others @ ..] = inputs
                && !others.is_empty()
            {
                let digest = text.digest(first)?;
                for other in others {
                    first.is_uniform &= text.digest(other)? == digest;
                }
            }
        }
        Ok(StoredExamples { text, ahead: Mutex::default(), stored, names, texts })
    }
}

/// The number of a text, from 1. 0 is none.
fn number(texts: &mut IndexSet<Box<str>>, text: Option<&str>) -> u32 {
    let Some(text) = text else { return 0 };
    let known = texts.get_index_of(text);
    known.unwrap_or_else(|| texts.insert_full(text.into()).0) as u32 + 1
}

/// The most examples that are read from the disk at a time. One by one, each would need another thread for a moment.
const READ_AHEAD: usize = 64;

/// The bytes after which no further example is read at the same time.
const READ_AHEAD_BYTES: usize = 256 << 10;

/// Examples that can be read one by one.
#[derive(Debug)]
pub struct StoredExamples {
    text: Text,
    /// Used only if the examples are on the disk.
    ahead: Mutex<ReadAhead>,
    stored: Vec<Stored>,
    names: String,
    texts: IndexSet<Box<str>>,
}

/// The JSON of consecutive examples. Rollouts need them almost in order.
#[derive(Debug, Default)]
struct ReadAhead {
    start: u32,
    texts: Vec<Arc<[u8]>>,
}

impl ReadAhead {
    fn get(&self, place: u32) -> Option<Arc<[u8]>> {
        self.texts.get(place.checked_sub(self.start)? as usize).cloned()
    }
}

/// The location of the examples, each stored as its hash and its JSON.
#[derive(Debug)]
enum Text {
    InMemory(Vec<u8>),
    OnDisk(File),
}

impl Text {
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        match self {
            Self::InMemory(all) => bytes.copy_from_slice(&all[offset as usize..][..bytes.len()]),
            Self::OnDisk(file) => file.read_exact_at(bytes, offset)?,
        }
        Ok(())
    }

    fn digest(&self, stored: &Stored) -> io::Result<Digest> {
        let mut digest = Digest::default();
        self.read(stored.offset, &mut digest)?;
        Ok(digest)
    }
}

/// An input from its JSON, which ends with the record of its example.
fn parse_input(json: &[u8]) -> io::Result<RolloutInput> {
    let (prompt, example_id, task, answer, info, extra, IgnoredAny) = serde_json::from_slice(json)?;
    Ok(RolloutInput { prompt, example_id, task, answer, info, extra })
}

/// The inputs of one task: their indexes among the stored ones.
pub(super) type InputPlaces = Range<u32>;

impl StoredExamples {
    /// The number of inputs.
    pub fn len(&self) -> usize {
        self.stored.len()
    }

    /// Whether there are no inputs.
    pub fn is_empty(&self) -> bool {
        self.stored.is_empty()
    }

    /// Reads all inputs, in order. Blocks while it reads.
    pub fn inputs(&self) -> impl Iterator<Item = io::Result<RolloutInput>> {
        (0..self.stored.len() as u32).map(|place| self.read(place))
    }

    /// Reads an input, without blocking.
    pub(super) async fn input(self: &Arc<Self>, place: u32) -> io::Result<RolloutInput> {
        if let Text::InMemory(_) = self.text {
            return self.read(place);
        }
        let mut ahead = self.ahead.lock().await;
        let text = match ahead.get(place) {
            Some(text) => text,
            None => {
                let examples = Arc::clone(self);
                *ahead = blocking(move || examples.read_ahead(place)).await?;
                ahead.get(place).ok_or(io::ErrorKind::UnexpectedEof)?
            }
        };
        drop(ahead);
        parse_input(&text)
    }

    /// Reads an input. Blocks while it reads.
    fn read(&self, place: u32) -> io::Result<RolloutInput> {
        parse_input(&self.json(place)?)
    }

    /// Reads the JSON of an example and of those after it. Blocks while it reads.
    fn read_ahead(&self, start: u32) -> io::Result<ReadAhead> {
        let mut ahead = ReadAhead { start, texts: Vec::new() };
        let mut bytes = 0;
        for place in (start..self.stored.len() as u32).take(READ_AHEAD) {
            let text = self.json(place)?;
            bytes += text.len();
            ahead.texts.push(text.into());
            if bytes > READ_AHEAD_BYTES {
                break;
            }
        }
        Ok(ahead)
    }

    /// The record of an example for the plan, if there is one. Blocks while it reads.
    pub(super) fn about(&self, places: &InputPlaces) -> io::Result<Option<TaskRecord>> {
        if !self.has_about(places) {
            return Ok(None);
        }
        type Ignored = IgnoredAny;
        let (_, _, _, _, _, _, about): (Ignored, Ignored, Ignored, Ignored, Ignored, Ignored, _) =
            serde_json::from_slice(&self.json(places.start)?)?;
        Ok(about)
    }

    pub(super) fn has_about(&self, places: &InputPlaces) -> bool {
        self.first(places).has_about
    }

    fn json(&self, place: u32) -> io::Result<Vec<u8>> {
        let Stored { offset, length, .. } = self.stored[place as usize];
        let mut text = vec![0; length as usize];
        self.text.read(offset + DIGEST_BYTES as u64, &mut text)?;
        Ok(text)
    }

    /// The indexes of the inputs of each example, and how often the example occurs. Equal inputs share an index.
    pub(super) fn tasks(&self) -> impl Iterator<Item = (InputPlaces, u32)> {
        let mut start = 0;
        self.stored.chunk_by(|one, next| one.example_id == next.example_id).map(move |inputs| {
            let count = inputs.len() as u32;
            let places = start..start + if inputs[0].is_uniform { 1 } else { count };
            start += count;
            (places, count)
        })
    }

    /// The name of a task.
    pub(super) fn name(&self, places: &InputPlaces) -> &str {
        let Stored { name, name_length, .. } = self.first(places);
        &self.names[*name as usize..][..usize::from(*name_length)]
    }

    /// The number of an example.
    pub(super) fn example_id(&self, places: &InputPlaces) -> u64 {
        self.first(places).example_id
    }

    /// The hash of the inputs of an example's rollouts. Blocks while it reads.
    pub(super) fn content_hash(&self, places: &InputPlaces) -> io::Result<String> {
        if places.len() == 1 {
            return Ok(dataset::hash_text(&self.text.digest(self.first(places))?));
        }
        let inputs: Vec<_> = places.clone().map(|place| self.read(place)).collect::<io::Result<_>>()?;
        Ok(dataset::hash_text(&dataset::content_digest(&inputs)))
    }

    /// The category of an example, if it has one.
    pub(super) fn category(&self, places: &InputPlaces) -> Option<&str> {
        self.text(self.first(places).category)
    }

    /// The difficulty of an example, if it has one.
    pub(super) fn difficulty(&self, places: &InputPlaces) -> Option<&str> {
        self.text(self.first(places).difficulty)
    }

    /// The tools of an example, as JSON.
    pub(super) fn tools(&self, places: &InputPlaces) -> Option<&str> {
        self.text(self.first(places).tools)
    }

    fn first(&self, places: &InputPlaces) -> &Stored {
        &self.stored[places.start as usize]
    }

    fn text(&self, number: u32) -> Option<&str> {
        let place = (number as usize).checked_sub(1)?;
        self.texts.get_index(place).map(|text| &**text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollout_model::dataset::{Format, rows};

    fn stored(lines: &str) -> (Vec<RolloutInput>, StoredExamples) {
        let inputs = Format::default().inputs(rows(lines).unwrap()).unwrap();
        let mut writer = ExampleWriter::default();
        inputs.iter().for_each(|input| writer.push(input, None, None).unwrap());
        (inputs, writer.finish().unwrap())
    }

    #[test]
    fn an_example_is_read_back_unchanged() {
        let (inputs, stored) = stored(
            r#"{"question": "2+2? \u0000 😀", "answer": "4", "info": {"x": 0.1, "y": [1e300, null]}, "more": {"b": 1, "a": 2}}
               {"prompt": [{"role": "user", "content": [{"type": "text", "text": "a"}], "name": "n"}, {"role": "other", "content": null, "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {"k": 1}}}]}], "task": "t"}"#,
        );
        let read: Vec<_> = stored.inputs().collect::<io::Result<_>>().unwrap();
        assert_eq!(read, inputs);
        let hashes: Vec<_> =
            stored.tasks().map(|(places, _)| stored.content_hash(&places).unwrap()).collect();
        let expected: Vec<_> = inputs.chunks(1).map(dataset::content_hash).collect();
        assert_eq!(hashes, expected);
    }

    #[test]
    fn many_examples_are_stored_on_disk_and_read_back_unchanged() {
        let long = "x".repeat(MOST_IN_MEMORY / 3);
        let inputs = (0..9).map(|example_id| RolloutInput {
            example_id,
            answer: Some(format!("{long}{example_id}")),
            ..RolloutInput::default()
        });
        let set = ExampleSet::new(DatasetName::new("set").unwrap(), rollouts(), inputs.clone()).unwrap();
        assert!(matches!(set.examples.text, Text::OnDisk(_)));
        for (read, written) in set.examples.inputs().zip(inputs) {
            assert_eq!(read.unwrap(), written);
        }
    }

    #[tokio::test]
    async fn examples_on_disk_are_read_in_any_order_and_several_at_a_time() {
        let count = 3 * READ_AHEAD as u64;
        let long = "x".repeat(MOST_IN_MEMORY / READ_AHEAD);
        // Examples of many and of few bytes, so that both limits are reached.
        let inputs = (0..count).map(|example_id| RolloutInput {
            example_id,
            answer: Some(if example_id < count / 2 { long.clone() } else { example_id.to_string() }),
            ..RolloutInput::default()
        });
        let inputs: Vec<_> = inputs.collect();
        let set = ExampleSet::new(DatasetName::new("set").unwrap(), rollouts(), inputs.clone()).unwrap();
        let places = (0..inputs.len()).chain((0..inputs.len()).rev()).chain([7, 7, 150, 8]);
        for place in places {
            assert_eq!(set.examples.input(place as u32).await.unwrap(), inputs[place]);
        }
        let [large, small] = [0, 100].map(|start| set.examples.read_ahead(start).unwrap().texts.len());
        assert!((2..READ_AHEAD).contains(&large), "{large}");
        assert_eq!(small, READ_AHEAD);
    }

    #[test]
    fn inputs_with_one_number_are_grouped_and_equal_ones_stored_once() {
        let input = |example_id, task: &str| RolloutInput {
            example_id,
            task: task.into(),
            ..RolloutInput::default()
        };
        let inputs = [input(7, "a"), input(2, "b"), input(7, "c"), input(2, "b")];
        let set = ExampleSet::new(DatasetName::new("set").unwrap(), rollouts(), inputs.clone()).unwrap();
        let tasks: Vec<_> = set.examples.tasks().collect();
        assert_eq!(tasks, [(0..2, 2), (2..3, 2)]);
        let hash = set.examples.content_hash(&tasks[0].0).unwrap();
        assert_eq!(hash, dataset::content_hash(&[inputs[0].clone(), inputs[2].clone()]));
        assert_eq!(set.examples.name(&tasks[0].0), "7");
    }

    #[test]
    fn an_example_keeps_its_name_in_any_order() {
        let mut writer = ExampleWriter::default();
        for example_id in 0..20 {
            let name = (example_id % 2 == 0).then(|| TaskName::new(format!("even {example_id}")).unwrap());
            let input = RolloutInput { example_id, ..RolloutInput::default() };
            writer.push(&input, name.as_ref(), None).unwrap();
        }
        writer.shuffle(3);
        let stored = writer.finish().unwrap();
        for (places, _) in stored.tasks() {
            let expected = match stored.example_id(&places) {
                even if even % 2 == 0 => format!("even {even}"),
                odd => odd.to_string(),
            };
            assert_eq!(stored.name(&places), expected);
        }
    }

    #[test]
    fn a_planned_example_takes_at_most_64_bytes_beside_its_text() {
        assert!(size_of::<Stored>() + size_of::<crate::job::PlanTask>() <= 64);
    }

    #[test]
    fn labels_are_found_in_the_example_or_in_its_metadata() {
        let (_, stored) = stored(
            r#"{"question": "a", "info": {"category": "x", "metadata": {"category": "y", "difficulty": "hard"}}}
               {"question": "b", "info": {"category": "", "tool_defs": [{"name": "t"}]}}"#,
        );
        let (first, second) = (0..1, 1..2);
        assert_eq!((stored.category(&first), stored.difficulty(&first)), (Some("x"), Some("hard")));
        assert_eq!((stored.category(&second), stored.difficulty(&second)), (None, None));
        assert_eq!((stored.tools(&first), stored.tools(&second)), (None, Some(r#"[{"name":"t"}]"#)));
    }

    fn rollouts() -> Arc<Rollouts> {
        Arc::new(Rollouts::new(rollout_model::SingleTurn, rollout_model::Rubric::new()))
    }
}
