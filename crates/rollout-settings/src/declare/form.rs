//! One setting: how its value is read, checked, recorded and described.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::{Map, Value as Json, json};

use crate::{
    declare::{Key, Settings},
    record::{leave_out_unhashed, plain},
    section::Section,
    tree::{Node, SourceFiles},
};

/// How a value was written, for the record.
#[derive(Clone, Copy)]
pub struct Written<'a> {
    /// The value in the tree, if it is present and not null.
    pub node: Option<&'a Node>,
    /// Its key.
    pub key: &'a str,
    /// The sources of the tree; `None` for a configuration made in code.
    pub sources: Option<&'a SourceFiles>,
}

impl<'a> Written<'a> {
    /// For a configuration made in code.
    pub const NOWHERE: Self = Self { node: None, key: "", sources: None };

    /// The root of a tree.
    pub fn root(node: &'a Node, sources: &'a SourceFiles) -> Self {
        Self { node: Some(node), key: "", sources: Some(sources) }
    }

    /// A key of this mapping.
    pub fn key(self, key: &'a str) -> Self {
        let node = self.node.and_then(|node| node.get(key)).filter(|node| !node.is_null());
        Self { node, key, ..self }
    }

    /// The values of this list.
    pub fn items(self) -> impl Iterator<Item = Self> {
        let items = self.node.map(Node::items).unwrap_or_default();
        items.iter().map(move |node| Self { node: Some(node), ..self })
    }

    /// The value as it was written, with secrets masked; null if it is absent.
    pub fn plain(self) -> Json {
        self.node.map_or(Json::Null, |node| plain(node, self.key))
    }
}

type Read<T> = Box<dyn Fn(&Section<'_>, &str) -> Option<T>>;
/// Removes values from a recorded section.
pub(super) type LeaveOut = fn(&mut Json);
type Record<T> = Box<dyn Fn(&T, Written<'_>) -> Json>;

/// The type of a setting, without its name and documentation.
pub struct Form<T> {
    read: Read<T>,
    record: Option<Record<T>>,
    schema: Box<dyn Fn() -> Json>,
    /// The value when the key is absent. Without one, the section cannot be read.
    absent: Option<Box<dyn Fn() -> T>>,
    default: Shown,
    missing: Option<&'static str>,
    hashed: bool,
    leave_out: Option<LeaveOut>,
    kind: Cow<'static, str>,
    note: &'static str,
    unset: Option<&'static str>,
    others: Vec<Other<T>>,
    always: bool,
    /// Whether it is recorded only if the key was written.
    where_written: bool,
}

/// Another key that is read with the value.
struct Other<T> {
    key: Key,
    record: Option<Record<T>>,
}

/// The default that the schema and the documentation show.
enum Shown {
    None,
    /// The value when the key is absent, as it is recorded.
    Absent,
    Json(Json),
}

impl<T: 'static> Form<T> {
    /// A value that is recorded unchanged. `kind` is for the documentation, the schema for editors.
    pub fn new(
        kind: impl Into<Cow<'static, str>>,
        schema: impl Fn() -> Json + 'static,
        read: impl Fn(&Section<'_>, &str) -> Option<T> + 'static,
    ) -> Self
    where
        T: Serialize,
    {
        Self::written(kind, schema, read).recorded(|value, _| json!(value))
    }

    /// A value that is recorded as it was written, with secrets masked.
    pub fn written(
        kind: impl Into<Cow<'static, str>>,
        schema: impl Fn() -> Json + 'static,
        read: impl Fn(&Section<'_>, &str) -> Option<T> + 'static,
    ) -> Self {
        Self {
            read: Box::new(read),
            record: Some(Box::new(|_, written| written.plain())),
            schema: Box::new(schema),
            absent: None,
            default: Shown::None,
            missing: None,
            hashed: true,
            leave_out: None,
            kind: kind.into(),
            note: "",
            unset: None,
            others: Vec::new(),
            always: false,
            where_written: false,
        }
    }

    /// Sets how the value is recorded.
    pub fn recorded(mut self, record: impl Fn(&T, Written<'_>) -> Json + 'static) -> Self {
        self.record = Some(Box::new(record));
        self
    }

    /// Omits the value from the record.
    pub fn unrecorded(mut self) -> Self {
        self.record = None;
        self
    }

    /// Records the value only if the key was written, so that records made before the setting existed, and
    /// their hashes, stay the same.
    pub fn recorded_where_written(mut self) -> Self {
        self.where_written = true;
        self
    }

    /// Omits the value from the hash, because it cannot change a result.
    pub fn unhashed(mut self) -> Self {
        self.hashed = false;
        self
    }

    /// Omits the values of a section that its own keys leave out of the hash.
    pub(crate) fn leaving_out<S: Settings>(mut self) -> Self {
        self.leave_out = Some(leave_out_unhashed::<S>);
        self
    }

    /// The value when the key is absent or its value is invalid.
    pub fn default(mut self, value: T) -> Self
    where
        T: Clone,
    {
        self.default = Shown::Absent;
        self.or(value)
    }

    /// As [`default`](Self::default), but the schema does not show it.
    pub fn or(self, value: T) -> Self
    where
        T: Clone,
    {
        self.or_with(move || value.clone())
    }

    /// An empty value when the key is absent.
    pub fn or_empty(mut self) -> Self
    where
        T: Default,
    {
        self.absent = Some(Box::new(T::default));
        self.unset.get_or_insert("empty");
        self
    }

    /// The default shown in the schema, if it differs from the value when the key is absent.
    pub fn shown_default(mut self, default: impl Into<Json>) -> Self {
        self.default = Shown::Json(default.into());
        self
    }

    /// The default shown in the documentation.
    pub fn unset(mut self, text: &'static str) -> Self {
        self.unset = Some(text);
        self
    }

    /// Reports an error with this hint when the key is absent.
    pub fn required(mut self, hint: &'static str) -> Self {
        self.missing = Some(hint);
        self
    }

    /// As [`default`](Self::default), from a function, and the schema does not show it.
    pub fn or_with(mut self, value: impl Fn() -> T + 'static) -> Self {
        self.absent = Some(Box::new(value));
        self
    }

    /// Sets how the value is read.
    pub fn read_by(mut self, read: impl Fn(&Section<'_>, &str) -> Option<T> + 'static) -> Self {
        self.read = Box::new(read);
        self
    }

    /// Treats values that do not match as absent.
    pub fn filter(mut self, keep: impl Fn(&T) -> bool + 'static) -> Self {
        let read = self.read;
        self.read = Box::new(move |section, key| read(section, key).filter(&keep));
        self
    }

    /// Checks each value that was read, and may change it.
    pub fn check(mut self, check: impl Fn(&mut T, &Section<'_>, &str) + 'static) -> Self {
        let read = self.read;
        self.read = Box::new(move |section, key| {
            let mut value = read(section, key)?;
            check(&mut value, section, key);
            Some(value)
        });
        self
    }

    /// Changes the schema.
    pub fn refine(mut self, refine: impl Fn(&mut Json) + 'static) -> Self {
        let schema = self.schema;
        self.schema = Box::new(move || {
            let mut schema = schema();
            refine(&mut schema);
            schema
        });
        self
    }

    /// The type shown in the documentation.
    pub fn kind(mut self, kind: impl Into<Cow<'static, str>>) -> Self {
        self.kind = kind.into();
        self
    }

    /// A sentence that follows the description in the schema.
    pub fn note(mut self, note: &'static str) -> Self {
        self.note = note;
        self
    }

    /// Another key for the same value, which is read by the same function.
    pub fn alias<U: 'static>(self, name: &'static str, doc: &'static str, form: Form<U>) -> Self {
        self.other(name, doc, form, true, None)
    }

    /// Another key that is read by the same function. Must be called last.
    pub fn beside<U: 'static>(self, name: &'static str, doc: &'static str, form: Form<U>) -> Self {
        self.other(name, doc, form, false, None)
    }

    /// The same, with the recorded value of that key.
    pub fn beside_recorded<U: 'static>(
        self,
        name: &'static str,
        doc: &'static str,
        form: Form<U>,
        record: impl Fn(&T, Written<'_>) -> Json + 'static,
    ) -> Self {
        self.other(name, doc, form, false, Some(Box::new(record)))
    }

    fn other<U: 'static>(
        mut self,
        name: &'static str,
        doc: &'static str,
        form: Form<U>,
        alias: bool,
        record: Option<Record<T>>,
    ) -> Self {
        let key = Key { alias, ..form.describe(name, doc).swap_remove(0) };
        self.others.push(Other { key, record });
        self
    }

    /// Calls the reader also when the key is absent.
    pub fn always(mut self) -> Self {
        self.always = true;
        self
    }

    /// Records the value as it was written.
    pub fn as_written(self) -> Self {
        self.recorded(|_, written| written.plain())
    }

    /// A value that may be absent.
    pub fn optional(mut self) -> Form<Option<T>> {
        let record = self.record.take().map(|record| -> Record<Option<T>> {
            Box::new(move |value, written| value.as_ref().map_or(Json::Null, |value| record(value, written)))
        });
        self.absent = None;
        let form = self.with_record(record, Some);
        Form { absent: Some(Box::new(|| None)), ..form }
    }

    /// Converts the type of the value.
    pub fn map<U: 'static>(mut self, into: fn(T) -> U, from: fn(&U) -> T) -> Form<U> {
        let record = self
            .record
            .take()
            .map(|record| -> Record<U> { Box::new(move |value, written| record(&from(value), written)) });
        self.with_record(record, into)
    }

    /// A value of another type that is read from the same keys.
    pub fn read_into<U: 'static>(
        self,
        read: impl Fn(&Section<'_>, &str) -> Option<U> + 'static,
        record: impl Fn(&U, Written<'_>) -> Json + 'static,
    ) -> Form<U> {
        Form {
            schema: self.schema,
            leave_out: self.leave_out,
            ..Form::written(self.kind, || Json::Null, read)
        }
        .recorded(record)
    }

    fn with_record<U: 'static>(self, record: Option<Record<U>>, into: fn(T) -> U) -> Form<U> {
        let (read, absent) = (self.read, self.absent);
        Form {
            read: Box::new(move |section, key| read(section, key).map(into)),
            record,
            schema: self.schema,
            absent: absent.map(|absent| -> Box<dyn Fn() -> U> { Box::new(move || into(absent())) }),
            default: self.default,
            missing: self.missing,
            hashed: self.hashed,
            leave_out: self.leave_out,
            kind: self.kind,
            note: self.note,
            unset: self.unset,
            others: self.others.into_iter().map(|other| Other { key: other.key, record: None }).collect(),
            always: self.always,
            where_written: self.where_written,
        }
    }

    /// The value of a key. `None` if there is none, which has been reported.
    pub fn read(&self, section: &Section<'_>, key: &str) -> Option<T> {
        let given = |key: &str| section.node(key).is_some();
        let here = given(key) || self.others.iter().any(|other| given(other.key.name));
        if let (false, Some(hint)) = (here, self.missing) {
            section.missing(key, hint);
        }
        let value = if here || self.always { (self.read)(section, key) } else { None };
        value.or_else(|| self.absent())
    }

    /// The value when the key is absent.
    pub fn absent(&self) -> Option<T> {
        self.absent.as_ref().map(|absent| absent())
    }

    /// Adds the value to the record of its section.
    pub fn record(&self, key: &str, value: &T, written: Written<'_>, out: &mut Map<String, Json>) {
        if self.where_written && written.key(key).node.is_none() {
            return;
        }
        let others = self.others.iter().map(|other| (other.key.name, &other.record));
        for (key, record) in std::iter::once((key, &self.record)).chain(others) {
            if let Some(record) = record {
                out.insert(key.to_owned(), record(value, written.key(key)));
            }
        }
    }

    /// The key and those that are read with it, without the type of the value.
    pub fn describe(mut self, name: &'static str, doc: &'static str) -> Vec<Key> {
        let others = std::mem::take(&mut self.others);
        let (required, hashed, kind, unset) =
            (self.missing.is_some(), self.hashed, self.kind.clone(), self.unset);
        let leave_out = self.leave_out;
        let schema = Box::new(move || self.full_schema(doc));
        let key = Key { name, doc, schema, required, hashed, leave_out, kind, unset, alias: false };
        std::iter::once(key).chain(others.into_iter().map(|other| other.key)).collect()
    }

    fn full_schema(&self, doc: &str) -> Json {
        let mut description = summary(doc);
        if !self.note.is_empty() {
            description = format!("{description} {}", self.note);
        }
        let mut schema = Map::from_iter([("description".to_owned(), json!(description))]);
        if let Json::Object(own) = (self.schema)() {
            schema.extend(own);
        }
        let default = match (&self.default, &self.record, &self.absent) {
            (Shown::Json(default), ..) => Some(default.clone()),
            (Shown::Absent, Some(record), Some(absent)) => Some(record(&absent(), Written::NOWHERE)),
            _ => None,
        };
        schema.extend(default.map(|default| ("default".to_owned(), default)));
        Json::Object(schema)
    }
}

/// The first paragraph of a doc comment, on one line.
pub fn summary(doc: &str) -> String {
    paragraph(doc.split("\n\n").next().unwrap_or_default())
}

/// A paragraph of a doc comment, on one line.
pub(crate) fn paragraph(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
