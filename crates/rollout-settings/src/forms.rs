//! The types of settings: flags, numbers, words, texts, quantities, sections and lists.

use std::{
    fmt::Display,
    num::NonZeroU32,
    ops::{Bound, RangeBounds, RangeInclusive},
    time::Duration,
};

use indexmap::IndexMap;
use serde_json::{Map, Value as Json, json};

use super::{
    declare::{Settings, object},
    expand::{Env, EnvValue},
    form::Form,
    record,
    section::{MAX_TIMEOUT_SEC, Section, above_zero},
};
use rollout_core::quantity::{Bytes, Cpus};

/// A whole number type for settings.
pub trait Whole: Copy + serde::Serialize + 'static {
    /// The number, if it fits.
    fn from_u64(number: u64) -> Option<Self>;
}

impl Whole for u16 {
    fn from_u64(number: u64) -> Option<Self> {
        number.try_into().ok()
    }
}

impl Whole for u32 {
    fn from_u64(number: u64) -> Option<Self> {
        number.try_into().ok()
    }
}

impl Whole for u64 {
    fn from_u64(number: u64) -> Option<Self> {
        Some(number)
    }
}

impl Whole for usize {
    fn from_u64(number: u64) -> Option<Self> {
        Some(number.try_into().unwrap_or(usize::MAX))
    }
}

impl Whole for NonZeroU32 {
    fn from_u64(number: u64) -> Option<Self> {
        number.try_into().ok().and_then(NonZeroU32::new)
    }
}

/// True or false.
pub fn flag(default: bool) -> Form<bool> {
    Form::new("boolean", || json!({ "type": "boolean" }), |section, key| section.bool(key)).default(default)
}

/// A whole number within a range.
pub fn whole<T: Whole>(range: RangeInclusive<u64>) -> Form<T> {
    let (least, most) = (*range.start(), *range.end());
    let kind = match most {
        0..=1_000_000_000 => format!("{least} to {most}"),
        _ => format!("integer ≥ {least}"),
    };
    let schema = move || json!({ "type": "integer", "minimum": least, "maximum": most });
    Form::new(kind, schema, move |section, key| section.integer(key, range.clone()).and_then(T::from_u64))
}

/// A number from 1.
pub fn some_count<T: Whole>() -> Form<T> {
    whole(1..=u32::MAX.into())
}

/// A number from 1, with a default.
pub fn count<T: Whole>(default: u32) -> Form<T> {
    some_count().default(T::from_u64(default.into()).expect("a default is within bounds"))
}

/// A number within a range.
pub fn number(bounds: impl RangeBounds<f64> + Clone + 'static) -> Form<f64> {
    let (kind, least) = match bounds.start_bound() {
        Bound::Included(least) => (format!("number ≥ {least}"), Some(("minimum", *least))),
        Bound::Excluded(least) => (format!("number > {least}"), Some(("exclusiveMinimum", *least))),
        Bound::Unbounded => ("number".to_owned(), None),
    };
    let most = match bounds.end_bound() {
        Bound::Included(most) => Some(*most),
        _ => None,
    };
    let schema = move || {
        let mut schema = json!({ "type": "number" });
        if let Some((key, least)) = least {
            schema[key] = json!(least as i64);
        }
        if let Some(most) = most {
            schema["maximum"] = json!(most);
        }
        schema
    };
    Form::new(kind, schema, move |section, key| section.number(key, bounds.clone()))
}

/// A finite number.
pub fn finite() -> Form<f64> {
    Form::new("number", || json!({ "type": "number" }), |section, key| section.finite(key))
}

/// Seconds above 0.
pub fn seconds() -> Form<Duration> {
    number(above_zero(MAX_TIMEOUT_SEC))
        .kind("seconds > 0")
        .map(Duration::from_secs_f64, |duration| duration.as_secs_f64())
}

/// Seconds; 0 means that the key is not set.
pub fn timeout() -> Form<f64> {
    number(0.0..=MAX_TIMEOUT_SEC).kind("seconds").filter(|seconds| *seconds > 0.0)
}

/// One of several words. The first word of a value is recorded.
pub fn word<T: Copy + PartialEq + 'static>(words: &'static [(&'static str, T)]) -> Form<T> {
    let names = || words.iter().map(|(word, _)| *word);
    let schema = move || json!({ "enum": names().collect::<Vec<_>>() });
    let kind = words.iter().map(|(word, _)| format!("`{word}`")).collect::<Vec<_>>().join(", ");
    Form::written(kind, schema, |section, key| section.word(key, words)).recorded(|value, _| {
        words.iter().find(|(_, other)| other == value).map_or(Json::Null, |(word, _)| json!(word))
    })
}

fn string_schema() -> Json {
    json!({ "type": "string" })
}

/// A text, which may be empty.
pub fn text() -> Form<String> {
    Form::new("string", string_schema, |section, key| section.string(key).map(str::to_owned))
}

/// A text that is not blank.
pub fn filled() -> Form<String> {
    Form::new("string", string_schema, |section, key| section.filled_string(key).map(str::to_owned))
}

/// A text that may be written as a number.
pub fn number_or_text() -> Form<String> {
    Form::new("string", || json!({ "type": ["string", "number"] }), |section, key| section.text(key))
}

/// A text that is recorded as written, for texts that are expanded or resolved elsewhere.
pub fn path() -> Form<String> {
    Form::written("path", string_schema, |section, key| section.filled_string(key).map(str::to_owned))
}

/// The hash of a file.
pub fn hash() -> Form<String> {
    let schema = || json!({ "type": "string", "pattern": "^sha256:[0-9a-f]{64}$" });
    Form::new("`sha256:…`", schema, |section, key| section.string(key).map(str::to_owned))
}

/// Texts that are not empty.
pub fn texts() -> Form<Vec<String>> {
    let schema = || json!({ "type": "array", "items": { "type": "string" } });
    Form::new("list of strings", schema, |section, key| section.strings(key)).or_empty()
}

/// A program and its arguments.
pub fn command() -> Form<Vec<String>> {
    let schema = || json!({ "type": "array", "minItems": 1, "items": { "type": "string", "minLength": 1 } });
    Form::new("list of strings", schema, |section, key| section.command(key))
}

fn quantity<T: Display + 'static>(read: impl Fn(&Section<'_>, &str) -> Option<T> + 'static) -> Form<T> {
    quantity_from("exclusiveMinimum", read)
}

/// A quantity from 0 on; `bound` is the key of a schema that says whether 0 is one.
fn quantity_from<T: Display + 'static>(
    bound: &'static str,
    read: impl Fn(&Section<'_>, &str) -> Option<T> + 'static,
) -> Form<T> {
    let schema = move || {
        let pattern = r"^\+?([0-9]+\.?[0-9]*|\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][-+]?[0-9]{1,4})?$";
        json!({ "anyOf": [
            { "type": "number", bound: 0 },
            { "type": "string", "pattern": pattern },
        ] })
    };
    Form::written("[quantity](tasks.md#quantities)", schema, read)
        .note("A number or a Kubernetes quantity.")
        .recorded(|amount, _| json!(amount.to_string()))
}

/// An amount of CPU.
pub fn cpus() -> Form<Cpus> {
    quantity(|section, key| section.cpus(key))
}

/// An amount of memory or storage.
pub fn bytes() -> Form<Bytes> {
    quantity(|section, key| section.bytes(key))
}

/// An amount of memory or storage, or 0.
pub fn bytes_or_zero() -> Form<Bytes> {
    quantity_from("minimum", |section, key| section.bytes_or_zero(key))
}

/// An amount of memory or storage, also in mebibytes under another key; `read` chooses between them.
pub fn bytes_or_mebibytes(
    mebibytes_key: &'static str,
    mebibytes_doc: &'static str,
    read: impl Fn(&Section<'_>, &str, &str) -> Option<Bytes> + 'static,
) -> Form<Bytes> {
    let mebibytes: Form<f64> =
        Form::new("MiB", || json!({ "type": "number", "exclusiveMinimum": 0 }), |_, _| None);
    quantity(move |section, key| read(section, key, mebibytes_key)).alias(
        mebibytes_key,
        mebibytes_doc,
        mebibytes,
    )
}

/// Variables by name, expanded.
pub fn env() -> Form<Env> {
    let schema =
        || json!({ "type": "object", "additionalProperties": { "type": ["string", "number", "boolean"] } });
    Form::written("mapping", schema, |section, key| Some(section.env(key)))
        .recorded(|_, written| record::env(written))
        .or_empty()
}

/// Headers of requests, expanded.
pub fn headers() -> Form<IndexMap<String, EnvValue>> {
    let schema = || json!({ "type": "object", "additionalProperties": { "type": "string" } });
    Form::written("mapping", schema, |section, key| Some(section.headers(key)))
        .recorded(|_, written| record::headers(written))
        .or_empty()
}

fn object_schema() -> Json {
    json!({ "type": "object" })
}

/// A mapping that is kept as written.
pub fn mapping() -> Form<Map<String, Json>> {
    let read = |section: &Section<'_>, key: &str| section.mapping(key).map(|map| map.json_map());
    Form::written("mapping", object_schema, read)
        .recorded(|_, written| written.node.map_or_else(|| json!({}), |_| written.plain()))
        .or_empty()
}

/// A mapping that is kept with its texts expanded.
pub fn expanded_mapping() -> Form<Map<String, Json>> {
    mapping().read_by(|section, key| Some(section.expanded_map(key)))
}

/// A section of settings; the defaults if it is absent.
pub fn section<S: Settings>() -> Form<S::Value> {
    Form::written("mapping", object::<S>, |section, key| S::read(&section.section_or_empty::<S>(key)))
        .recorded(|value, written| Json::Object(S::record(value, written)))
        .leaving_out::<S>()
        .or_with(|| S::defaults().expect("a section without required keys has defaults"))
}

/// A section that may contain keys of other programs; the defaults if it is absent.
pub fn open_section<S: Settings>() -> Form<S::Value> {
    section::<S>()
        .refine(|schema| schema["additionalProperties"] = json!(true))
        .read_by(|section, key| S::read(&section.mapping(key).unwrap_or_else(|| section.empty(key))))
}

/// A section that may be absent, or that has required keys.
pub fn some_section<S: Settings>() -> Form<S::Value> {
    Form::written("mapping", object::<S>, |section, key| section.settings::<S>(key))
        .recorded(|value, written| Json::Object(S::record(value, written)))
        .leaving_out::<S>()
}

/// A list whose entries have this schema.
pub fn list<T: 'static>(
    item: fn() -> Json,
    read: impl Fn(&Section<'_>, &str) -> Option<Vec<T>> + 'static,
) -> Form<Vec<T>> {
    Form::written("list", move || json!({ "type": "array", "items": item() }), read).or_empty()
}

/// A list with at least one entry, whose entries have this schema.
pub fn filled_list<T: 'static>(
    item: fn() -> Json,
    read: impl Fn(&Section<'_>, &str) -> Option<Vec<T>> + 'static,
) -> Form<Vec<T>> {
    Form::written("list", move || json!({ "type": "array", "minItems": 1, "items": item() }), read).or_empty()
}
