//! Sections of settings, generated from the forms of their keys.

pub mod form;
pub mod reader;
pub mod record;
pub mod section;

use std::borrow::Cow;

use serde_json::{Map, Value as Json, json};

use self::{form::Written, section::Section};

/// A key of a section, without the type of its value.
pub struct Key {
    /// The key.
    pub name: &'static str,
    /// Its documentation. The first paragraph is the description in the schema; the others appear only in
    /// docs/.
    pub doc: &'static str,
    /// Its JSON Schema, with the description.
    pub schema: Box<dyn Fn() -> Json>,
    /// Whether it is required.
    pub required: bool,
    /// Whether it can change a result.
    pub hashed: bool,
    /// For a section: removes the values from its record that cannot change a result.
    pub(super) leave_out: Option<form::LeaveOut>,
    /// Whether it is an alias of the key before it.
    pub alias: bool,
    pub(super) kind: Cow<'static, str>,
    pub(super) unset: Option<&'static str>,
}

/// A section declared with [`settings!`](crate::settings!).
pub trait Settings: Sized + 'static {
    /// The type of the values.
    type Value: 'static;

    /// The documentation of the section.
    const DOC: &'static str;

    /// The keys, in order.
    fn keys() -> Vec<Key>;

    /// Reads the values. `None` if a required one is missing, which has been reported.
    fn read(section: &Section<'_>) -> Option<Self::Value>;

    /// The values as config.json records them, in the order of the keys.
    fn record(value: &Self::Value, written: Written<'_>) -> Map<String, Json>;

    /// The values of a section without keys. None if one is required.
    fn defaults() -> Option<Self::Value>;
}

/// Declares the settings of a section: a struct of its own, or the keys for one that is elsewhere.
///
/// Each field has its documentation, its key if that is not its name, and its [form](form::Form):
///
/// ```
/// use rollout_settings::{Settings as _, forms::{count, flag}, object};
///
/// rollout_settings::settings! {
///     /// When something is retried.
///     #[derive(Debug, Clone)]
///     pub struct RetryConfig {
///         /// The number of attempts, including the first.
///         pub max_attempts: u32 = count(3),
///         /// Whether retries are disabled.
///         pub disabled as "off": bool = flag(false),
///     }
/// }
///
/// assert_eq!(RetryConfig::defaults().unwrap().max_attempts, 3);
/// assert_eq!(object::<RetryConfig>()["properties"]["off"]["default"], false);
/// ```
///
/// With `struct RetryKeys for RetryConfig { … }` the fields are those of a type that is declared elsewhere.
#[macro_export]
macro_rules! settings {
    (
        @implement $name:ident, $value:ident, [$($doc:literal),*]
        $( ($field:ident, [$key:expr $(, $_name:expr)?], [$($field_doc:literal),*], $form:expr) )*
    ) => {
        impl $crate::Settings for $name {
            type Value = $value;
            const DOC: &'static str = concat!($($doc, "\n"),*);

            fn keys() -> Vec<$crate::Key> {
                let mut keys = Vec::new();
                $(
                    let form = $crate::declare::of(|value: &$value| &value.$field, $form);
                    keys.extend(form.describe($key, concat!($($field_doc, "\n"),*)));
                )*
                keys
            }

            fn read(section: &$crate::Section<'_>) -> Option<Self::Value> {
                // All at once, so that no value shadows a function that a later form calls.
                let ($($field,)*) = (
                    $(
                        $crate::declare::of(|value: &$value| &value.$field, $form).read(section, $key),
                    )*
                );
                Some($value { $($field: $field?),* })
            }

            fn record(
                value: &Self::Value,
                written: $crate::Written<'_>,
            ) -> $crate::declare::JsonMap {
                let mut out = $crate::declare::JsonMap::new();
                $(
                    $crate::declare::of(|value: &$value| &value.$field, $form)
                        .record($key, &value.$field, written, &mut out);
                )*
                out
            }

            fn defaults() -> Option<Self::Value> {
                Some($value {
                    $( $field: $crate::declare::of(|value: &$value| &value.$field, $form).absent()?, )*
                })
            }
        }
    };
    (
        $(#[doc = $doc:literal])*
        $(#[derive($($derive:ident),*)])?
        $vis:vis struct $name:ident {
            $(
                $(#[doc = $field_doc:literal])*
                $field_vis:vis $field:ident $(as $key:literal)? : $type:ty = $form:expr
            ),* $(,)?
        }
    ) => {
        $(#[doc = $doc])*
        $(#[derive($($derive),*)])?
        $vis struct $name {
            $( $(#[doc = $field_doc])* $field_vis $field: $type, )*
        }
        $crate::settings! {
            @implement $name, $name, [$($doc),*]
            $( ($field, [$($key,)? stringify!($field)], [$($field_doc),*], $form) )*
        }
    };
    (
        $(#[doc = $doc:literal])*
        $vis:vis struct $name:ident for $value:ident {
            $(
                $(#[doc = $field_doc:literal])*
                $field:ident $(as $key:literal)? = $form:expr
            ),* $(,)?
        }
    ) => {
        $(#[doc = $doc])*
        $vis struct $name;
        $crate::settings! {
            @implement $name, $value, [$($doc),*]
            $( ($field, [$($key,)? stringify!($field)], [$($field_doc),*], $form) )*
        }
    };
}

/// The type of records.
pub type JsonMap = Map<String, Json>;

/// Checks that a form has the type of its field.
pub fn of<S, T>(_: fn(&S) -> &T, form: form::Form<T>) -> form::Form<T> {
    form
}

/// The JSON Schema of a section, without its description.
pub fn object<S: Settings>() -> Json {
    let keys = S::keys();
    let properties: Map<String, Json> =
        keys.iter().map(|key| (key.name.to_owned(), (key.schema)())).collect();
    let mut schema = json!({ "type": "object", "properties": properties, "additionalProperties": false });
    let required: Vec<&str> = keys.iter().filter(|key| key.required).map(|key| key.name).collect();
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

/// The JSON Schema of an entry of a list, with its description.
pub fn entry<S: Settings>() -> Json {
    described(&form::summary(S::DOC), object::<S>())
}

/// The JSON Schema of a file.
pub fn titled<S: Settings>(title: &str) -> Json {
    const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";
    let mut schema =
        Map::from_iter([("$schema".to_owned(), json!(DIALECT)), ("title".to_owned(), json!(title))]);
    if let Json::Object(own) = entry::<S>() {
        schema.extend(own);
    }
    Json::Object(schema)
}

/// A schema with a description before it.
pub fn described(description: &str, schema: Json) -> Json {
    let mut out = Map::from_iter([("description".to_owned(), json!(description))]);
    if let Json::Object(schema) = schema {
        out.extend(schema);
    }
    Json::Object(out)
}

/// Requires exactly one of these keys.
pub fn one_of(keys: &[&str], schema: &mut Json) {
    schema["oneOf"] = keys.iter().map(|key| json!({ "required": [key] })).collect();
}
