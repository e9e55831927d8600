//! The `columns` of an interaction: how the columns of a dataset become questions, answers and other data.

use indexmap::IndexMap;
use regex::Regex;
use serde_json::{Value as Json, json};

use rollout_settings::{
    Form, Section, Settings as _, Value,
    declare::{entry, one_of},
    forms::{filled, flag},
};

/// The columns of examples, in the order in which they are made.
pub type ColumnsConfig = IndexMap<String, ColumnConfig>;

/// How a column of an example is made from a row of a dataset.
#[derive(Debug, Clone)]
pub enum ColumnConfig {
    /// The value of a column.
    Column {
        /// The column; `a.b` is the entry `b` of the column `a`.
        column: String,
        /// The part of its text to take.
        pattern: Option<Regex>,
    },
    /// A text with the values of columns.
    Template(String),
    /// Lettered choices: an object with their `text`, and the `letter` of the first one.
    Choices {
        /// One column with a list, or one column for each choice.
        columns: Vec<String>,
        /// Whether they are shuffled.
        shuffle: bool,
    },
    /// A text with the entries of lists of equal length.
    Each {
        /// The columns of the lists.
        columns: Vec<String>,
        /// The text of each entry.
        template: String,
    },
}

impl PartialEq for ColumnConfig {
    fn eq(&self, other: &Self) -> bool {
        self.record() == other.record()
    }
}

impl ColumnConfig {
    /// The column in the form of a job file.
    pub fn record(&self) -> Json {
        match self {
            Self::Column { column, pattern } => {
                json!({ "column": column, "pattern": pattern.as_ref().map(Regex::as_str) })
            }
            Self::Template(template) => json!({ "template": template }),
            Self::Choices { columns, shuffle } => json!({ "choices": columns, "shuffle": shuffle }),
            Self::Each { columns, template } => json!({ "each": columns, "template": template }),
        }
    }
}

rollout_settings::settings! {
    /// How a column of an example is made.
    pub(super) struct ColumnKeys {
        /// The column of the dataset.
        ///
        /// `a.b` is the entry `b` of the column `a`.
        column: Option<String> = filled().kind("name").optional(),
        /// With `column`: a regular expression. The value is the text of its first group, or the whole match if it has
        /// no group.
        pattern: Option<String> = filled().kind("regular expression").optional(),
        /// A text in which `{name}` is replaced by the value of a column. `{{` is a brace.
        ///
        /// The text can also use columns that are created before this one.
        template: Option<String> = filled().optional(),
        /// Lettered choices: a column with a list, or a list of columns, one for each choice.
        ///
        /// The result has two entries: `text` has a line `A. …` for each choice, and `letter` is the letter of the
        /// choice that is first in the dataset.
        choices: Option<Vec<String>> = columns_of().optional(),
        /// With `choices`: shuffles them, in a different order for each row. The order of a row is the same in every
        /// run.
        shuffle: bool = flag(false),
        /// A list of columns with lists of equal length. The `template` is filled once for each position in the lists,
        /// with `{0}` for the item of the first list, and `{1}` for the item of the second.
        each: Option<Vec<String>> = columns_of().optional(),
    }
}

fn columns_of() -> Form<Vec<String>> {
    let schema = || json!({ "anyOf": [{ "type": "string" }, { "type": "array", "minItems": 1, "items": { "type": "string" } }] });
    Form::new("name, or list of names", schema, |section, key| match &section.node(key)?.value {
        Value::String(_) => Some(vec![section.filled_string(key)?.to_owned()]),
        _ => {
            let nodes = section.filled_list(key, "write the names of columns")?;
            let name = |node: &rollout_settings::Node| match &node.value {
                Value::String(name) => Some(name.clone()),
                _ => {
                    section.reader.wrong_type(node, &section.at(key), "the name of a column");
                    None
                }
            };
            nodes.iter().map(name).collect()
        }
    })
}

/// The `columns` of an interaction.
pub(super) fn form() -> Form<ColumnsConfig> {
    let schema = || {
        let mut column = entry::<ColumnKeys>();
        one_of(&["column", "template", "choices", "each"], &mut column);
        // `each` has a template too.
        column["oneOf"] = json!([
            { "required": ["column"] },
            { "required": ["template"], "not": { "required": ["each"] } },
            { "required": ["choices"] },
            { "required": ["each", "template"] },
        ]);
        json!({ "type": "object", "additionalProperties": { "anyOf": [{ "type": "string" }, column] } })
    };
    Form::written("mapping", schema, |section, key| {
        let names = section.mapping(key)?;
        let mut columns = ColumnsConfig::new();
        for entry in names.entries {
            columns.insert(entry.key.clone(), column(&names, &entry.key)?);
        }
        Some(columns)
    })
    .recorded(|_, written| written.plain())
    .or_empty()
}

fn column(section: &Section<'_>, key: &str) -> Option<ColumnConfig> {
    if let Value::String(_) = section.node(key)?.value {
        let column = section.filled_string(key)?.to_owned();
        return Some(ColumnConfig::Column { column, pattern: None });
    }
    let section = section.section::<ColumnKeys>(key)?;
    let ColumnKeys { column, pattern, template, choices, shuffle, each } = ColumnKeys::read(&section)?;
    let hint =
        "a column is the name of another one, or has a `column:`, a `template:`, `choices:` or `each:`";
    let kinds = if section.entry("each").is_some() { &["column", "choices", "each"][..] } else { &KINDS };
    let kind = section.one_of(kinds, hint)?;
    for (other, of) in [("pattern", "column"), ("shuffle", "choices")] {
        if kind != of {
            section.refuse(&[other], kind, |_| format!("it belongs to `{of}:`"));
        }
    }
    match kind {
        "column" => {
            let pattern = match pattern.map(|pattern| Regex::new(&pattern)) {
                None => None,
                Some(Ok(pattern)) => Some(pattern),
                Some(Err(error)) => {
                    section.invalid("pattern", format!("invalid regular expression: {error}"));
                    return None;
                }
            };
            Some(ColumnConfig::Column { column: column?, pattern })
        }
        "template" => Some(ColumnConfig::Template(template?)),
        "choices" => Some(ColumnConfig::Choices { columns: choices?, shuffle }),
        _ => {
            if section.entry("template").is_none() {
                section.missing("template", "write the text of each entry, such as `{0}: {1}`");
            }
            Some(ColumnConfig::Each { columns: each?, template: template? })
        }
    }
}

const KINDS: [&str; 4] = ["column", "template", "choices", "each"];
