//! Makes the columns of examples from the rows of a dataset.

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::config::{ColumnConfig, ColumnsConfig};
use rollout_model::dataset::{Row, shuffle};

/// Columns that have a meaning in examples. Those of the dataset are dropped unless they are mapped: they may mean
/// something else there.
const SPECIAL: [&str; 7] = ["prompt", "question", "answer", "info", "task", "example_id", "env_id"];

/// Applies a mapping to a row. An empty one changes nothing.
pub(super) fn mapped(columns: &ColumnsConfig, row: Row) -> Result<Row, String> {
    if columns.is_empty() {
        return Ok(row);
    }
    let mut made = Row::new();
    for (name, column) in columns {
        let value = value(column, &row, &made).map_err(|problem| format!("column `{name}`: {problem}"))?;
        made.insert(name.clone(), value);
    }
    let mut mapped: Row = row.into_iter().filter(|(name, _)| !SPECIAL.contains(&name.as_str())).collect();
    mapped.extend(made);
    Ok(mapped)
}

fn value(column: &ColumnConfig, row: &Row, made: &Row) -> Result<Value, String> {
    match column {
        ColumnConfig::Column { column, pattern: None } => found(column, row, made).cloned(),
        ColumnConfig::Column { column, pattern: Some(pattern) } => {
            let text = text(found(column, row, made)?);
            let captures = pattern.captures(&text);
            let group = captures.as_ref().and_then(|captures| captures.get(1).or_else(|| captures.get(0)));
            match group {
                Some(group) => Ok(json!(group.as_str().trim())),
                None => Err(format!("`{column}` does not match `{pattern}`")),
            }
        }
        ColumnConfig::Template(template) => {
            filled(template, &|name| found(name, row, made).map(text)).map(Value::String)
        }
        ColumnConfig::Choices { columns, shuffle } => choices(columns, *shuffle, row, made),
        ColumnConfig::Each { columns, template } => each(columns, template, row, made),
    }
}

/// The value of a column of the dataset, or of one that is made before.
fn found<'r>(name: &str, row: &'r Row, made: &'r Row) -> Result<&'r Value, String> {
    let inside = |row: &'r Row| {
        row.get(name).or_else(|| {
            let mut parts = name.split('.');
            let first = row.get(parts.next()?)?;
            parts.try_fold(first, |value, part| value.get(part))
        })
    };
    let value = inside(row).or_else(|| inside(made)).filter(|value| !value.is_null());
    value.ok_or_else(|| {
        let known: Vec<&str> = row.keys().map(String::as_str).collect();
        format!("the row has no value for `{name}`; its columns are {}", rollout_core::text::listed(known))
    })
}

/// A value as text: lists of texts are joined, other values are JSON.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) if items.iter().all(Value::is_string) => {
            let texts: Vec<&str> = items.iter().filter_map(Value::as_str).map(str::trim).collect();
            texts.join(" ")
        }
        value => value.to_string(),
    }
}

/// Fills the placeholders of a template in one pass, so that inserted text is not searched for placeholders.
fn filled(template: &str, value: &dyn Fn(&str) -> Result<String, String>) -> Result<String, String> {
    let mut text = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(at) = rest.find(['{', '}']) {
        text.push_str(&rest[..at]);
        let (brace, after) = (&rest[at..=at], &rest[at + 1..]);
        rest = match after.strip_prefix(brace) {
            Some(after) => {
                text.push_str(brace);
                after
            }
            None if brace == "{" => {
                let (name, after) = after.split_once('}').ok_or("a `{` of the template is not closed")?;
                text.push_str(&value(name)?);
                after
            }
            None => return Err("a `}` of the template has no `{`; write `}}` for a brace".to_owned()),
        };
    }
    text.push_str(rest);
    Ok(text)
}

fn choices(columns: &[String], shuffled: bool, row: &Row, made: &Row) -> Result<Value, String> {
    let values: Vec<String> = match columns {
        [only] => match found(only, row, made)? {
            Value::Array(items) => items.iter().map(text).collect(),
            _ => return Err(format!("`{only}` is not a list")),
        },
        several => several.iter().map(|name| found(name, row, made).map(text)).collect::<Result<_, _>>()?,
    };
    if values.is_empty() || values.len() > 26 {
        return Err(format!("there must be 1 to 26 choices, not {}", values.len()));
    }
    let mut order: Vec<usize> = (0..values.len()).collect();
    if shuffled {
        let hash = Sha256::digest(json!(values).to_string());
        let seed = hash.iter().take(8).fold(0, |seed: u64, byte| seed << 8 | u64::from(*byte));
        shuffle(&mut order, seed);
    }
    let letter = |place: usize| char::from(b'A' + place as u8);
    let line = |(place, index): (usize, &usize)| format!("{}. {}", letter(place), values[*index].trim());
    let lines: Vec<String> = order.iter().enumerate().map(line).collect();
    let first = order.iter().position(|index| *index == 0).unwrap_or_default();
    Ok(json!({ "text": lines.join("\n"), "letter": letter(first).to_string() }))
}

fn each(columns: &[String], template: &str, row: &Row, made: &Row) -> Result<Value, String> {
    let mut lists = Vec::with_capacity(columns.len());
    for name in columns {
        match found(name, row, made)? {
            Value::Array(items) => lists.push(items),
            _ => return Err(format!("`{name}` is not a list")),
        }
    }
    let length = lists.first().map_or(0, |list| list.len());
    if lists.iter().any(|list| list.len() != length) {
        return Err(format!("the lists {} have different lengths", rollout_core::text::listed(columns)));
    }
    let entry = |place: usize| {
        filled(template, &|name| {
            let list = name.parse().ok().and_then(|number: usize| lists.get(number));
            list.map(|list| text(&list[place])).ok_or_else(|| format!("there is no list {{{name}}}"))
        })
    };
    let entries = (0..length).map(entry).collect::<Result<Vec<_>, _>>()?;
    Ok(json!(entries.join("\n\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(column: &str, pattern: Option<&str>) -> ColumnConfig {
        let pattern = pattern.map(|pattern| regex::Regex::new(pattern).unwrap());
        ColumnConfig::Column { column: column.to_owned(), pattern }
    }

    fn template(text: &str) -> ColumnConfig {
        ColumnConfig::Template(text.to_owned())
    }

    fn map(columns: &[(&str, ColumnConfig)], row: Value) -> Result<Value, String> {
        let columns = columns.iter().map(|(name, column)| ((*name).to_owned(), column.clone())).collect();
        let Value::Object(row) = row else { panic!("a row is an object") };
        mapped(&columns, row).map(Value::Object)
    }

    #[test]
    fn columns_are_copied_cut_out_and_filled_in() {
        let columns = [
            ("question", template("{{{problem}}} of {meta.level}")),
            ("answer", column("solution", Some(r"####\s*(.+)"))),
        ];
        let row = json!({"problem": "1+1?", "solution": "so\n#### 2 ", "meta": {"level": 3}, "prompt": "other", "x": 1});
        let expected = json!({"problem": "1+1?", "solution": "so\n#### 2 ", "meta": {"level": 3}, "x": 1,
            "question": "{1+1?} of 3", "answer": "2"});
        assert_eq!(map(&columns, row).unwrap(), expected);
    }

    #[test]
    fn inserted_text_is_not_searched_for_placeholders() {
        let found = map(&[("question", template("{a}"))], json!({"a": "{b} }"})).unwrap();
        assert_eq!(found["question"], "{b} }");
    }

    #[test]
    fn choices_are_shuffled_by_row_and_the_letter_follows_the_first() {
        let columns = [
            (
                "options",
                ColumnConfig::Choices {
                    columns: ["r", "w1", "w2", "w3"].map(str::to_owned).into(),
                    shuffle: true,
                },
            ),
            ("question", template("{q}\n{options.text}")),
            ("answer", column("options.letter", None)),
        ];
        let mut letters = std::collections::BTreeSet::new();
        for number in 0..50 {
            let row = json!({"q": "?", "r": format!("right {number}"), "w1": "x", "w2": "y", "w3": "z"});
            let found = map(&columns, row.clone()).unwrap();
            let letter = found["answer"].as_str().unwrap().to_owned();
            let line = format!("{letter}. right {number}");
            assert!(found["question"].as_str().unwrap().lines().any(|found| found == line), "{found}");
            assert_eq!(map(&columns, row).unwrap(), found, "always in the same way");
            letters.insert(letter);
        }
        assert_eq!(letters.len(), 4);
    }

    #[test]
    fn lists_are_joined_entry_by_entry() {
        let columns = [(
            "passages",
            ColumnConfig::Each {
                columns: vec!["c.title".to_owned(), "c.text".to_owned()],
                template: "{0}: {1}".to_owned(),
            },
        )];
        let row = json!({"c": {"title": ["A", "B"], "text": [["One.", " Two."], ["Three."]]}});
        assert_eq!(map(&columns, row).unwrap()["passages"], "A: One. Two.\n\nB: Three.");
        let uneven = json!({"c": {"title": ["A"], "text": []}});
        assert!(map(&columns, uneven).unwrap_err().contains("different lengths"));
    }

    #[test]
    fn a_missing_column_is_reported_with_the_known_ones() {
        let error = map(&[("question", column("text", None))], json!({"a": 1, "b": null})).unwrap_err();
        assert_eq!(error, "column `question`: the row has no value for `text`; its columns are a, b");
        assert!(map(&[("question", column("b", None))], json!({"a": 1, "b": null})).is_err());
    }
}
