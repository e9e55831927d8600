//! Answers in fields between XML tags.

use std::{collections::HashSet, sync::Arc};

use indexmap::IndexMap;
use serde::Deserialize;

use super::{Message, Parser, mean_over_messages, said_by_model};

/// A field of a response, under one of several names. The first is its main name.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "Names")]
pub struct XmlField(Vec<String>);

#[derive(Deserialize)]
#[serde(untagged)]
enum Names {
    One(String),
    Any(Vec<String>),
}

impl From<Names> for XmlField {
    fn from(names: Names) -> Self {
        match names {
            Names::One(name) => Self(vec![name]),
            Names::Any(names) => Self(names),
        }
    }
}

impl From<&str> for XmlField {
    fn from(name: &str) -> Self {
        Self(vec![name.to_owned()])
    }
}

impl From<Vec<String>> for XmlField {
    fn from(names: Vec<String>) -> Self {
        Self(names)
    }
}

impl<const N: usize> From<[&str; N]> for XmlField {
    fn from(names: [&str; N]) -> Self {
        Self(names.map(str::to_owned).into())
    }
}

/// Why fields are invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum XmlError {
    /// There are no fields, or one has no name.
    #[error("missing names of XML fields; give at least one, as `[reasoning, answer]`")]
    NoNames,
    /// A name is not a valid tag.
    #[error("invalid tag `{0}`; use letters, digits, `_` and `-`")]
    BadName(String),
    /// Two fields share a name.
    #[error("the XML field `{0}` is given twice; each name belongs to one field")]
    Twice(String),
    /// The answer field is unknown.
    #[error("unknown XML field `{0}`; set `answer_field` to the field with the answer")]
    NoAnswer(String),
}

/// Reads fields like `<answer>4</answer>` from a text.
///
/// ```
/// use rollout::model::parser::{Parser, Xml, XmlField};
///
/// let xml = Xml::new(["reasoning".into(), XmlField::from(["code", "answer"])], "answer")?;
/// let fields = xml.fields("<reasoning>\nhm\n</reasoning><code>1</code>");
/// assert_eq!((fields["reasoning"].as_str(), fields["code"].as_str()), ("hm", "1"));
/// assert_eq!(xml.parse("<answer> 4 </answer>"), "4");
/// # Ok::<(), rollout::model::parser::XmlError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Xml {
    /// No name is empty, and every field has a name.
    fields: Vec<Vec<String>>,
    answer: String,
}

impl Xml {
    /// Reads these fields; one of them is the answer.
    pub fn new(fields: impl IntoIterator<Item = XmlField>, answer_field: &str) -> Result<Self, XmlError> {
        let fields: Vec<Vec<String>> = fields.into_iter().map(|XmlField(names)| names).collect();
        if fields.is_empty() || fields.iter().any(Vec::is_empty) {
            return Err(XmlError::NoNames);
        }
        let mut seen = HashSet::new();
        for name in fields.iter().flatten() {
            if name.is_empty() || !name.chars().all(|c| c.is_alphanumeric() || "_-".contains(c)) {
                return Err(XmlError::BadName(name.clone()));
            }
            if !seen.insert(name.as_str()) {
                return Err(XmlError::Twice(name.clone()));
            }
        }
        if !seen.contains(answer_field) {
            return Err(XmlError::NoAnswer(answer_field.to_owned()));
        }
        Ok(Self { fields, answer: answer_field.to_owned() })
    }

    /// The fields of a text, by the names used in it. The first of a name counts.
    pub fn fields(&self, text: &str) -> IndexMap<String, String> {
        let names = self.fields.iter().flatten();
        names.filter_map(|name| Some((name.clone(), field(text, name)?.to_owned()))).collect()
    }

    fn message_format(&self, text: &str) -> f64 {
        let tagged = |name: &String| text.contains(&open(name)) || text.contains(&close(name));
        let parsed = self.fields.iter().flatten().any(|name| field(text, name).is_some());
        let present = self.fields.iter().filter(|names| names.iter().any(tagged)).count();
        let whole = text.trim();
        let starts = self.fields.first().into_iter().flatten().any(|name| whole.starts_with(&open(name)));
        let ends = self.fields.last().into_iter().flatten().any(|name| whole.ends_with(&close(name)));
        let fields = if parsed { present as f64 / self.fields.len() as f64 } else { 0.0 };
        // The spacing inside a field is ignored, so its share is always given.
        let spacing = 0.2;
        0.4 * fields + spacing + 0.2 * f64::from(starts) + 0.2 * f64::from(ends)
    }
}

impl Parser for Xml {
    fn parse(&self, text: &str) -> String {
        field(text, &self.answer).unwrap_or_default().to_owned()
    }

    /// The answer in the last message of the model that has one.
    fn parse_answer(&self, completion: &[Arc<Message>]) -> Option<String> {
        said_by_model(completion)
            .rev()
            .find_map(|message| field(&message.text(), &self.answer).map(str::to_owned))
    }

    /// The mean over the model's messages of: 0.4 times the share of fields that are present, if any can be read; 0.2
    /// for spacing; 0.2 for starting with the first field; and 0.2 for ending with the last.
    fn format_reward(&self, completion: &[Arc<Message>]) -> f64 {
        mean_over_messages(completion, |text| self.message_format(text))
    }
}

fn open(name: &str) -> String {
    format!("<{name}>")
}

fn close(name: &str) -> String {
    format!("</{name}>")
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&open(name))?;
    let (inner, _) = rest.split_once(&close(name))?;
    Some(inner.trim())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn xml() -> Xml {
        Xml::new(["think".into(), XmlField::from(["code", "answer"])], "answer").unwrap()
    }

    fn said(texts: &[&str]) -> Vec<Arc<Message>> {
        texts.iter().map(|text| Arc::new(Message::assistant(*text))).collect()
    }

    #[test]
    fn the_first_of_a_name_counts_and_spans_lines() {
        let fields = xml().fields("<think>\na\n b\n</think> <answer>1</answer> <answer>2</answer> <code>");
        let fields: Vec<_> = fields.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        assert_eq!(fields, [("think", "a\n b"), ("answer", "1")]);
    }

    #[test]
    fn the_answer_is_searched_from_the_last_message_backwards() {
        let completion = said(&["<answer>1</answer>", "<answer>2</answer>", "<answer>3", "sorry"]);
        assert_eq!(xml().parse_answer(&completion).as_deref(), Some("2"));
        assert_eq!(xml().parse_answer(&said(&["4"])), None);
        assert_eq!(xml().parse("4"), "");
    }

    #[test]
    fn the_format_is_weighed_in_parts() {
        for (text, expected) in [
            ("<think>a</think><answer>1</answer>", 1.0),
            (" <think>a</think>\n<code>1</code> ", 1.0),
            ("<think>a</think> so 1", 0.2 + 0.2 + 0.2),
            ("well <answer>1</answer>", 0.2 + 0.2 + 0.2),
            ("<think>a</think><answer>1", 0.4 + 0.2 + 0.2),
            ("<think>a", 0.2 + 0.2),
            ("1", 0.2),
        ] {
            assert!((xml().format_reward(&said(&[text])) - expected).abs() < 1e-12, "{text}");
        }
        assert!((xml().format_reward(&said(&["<think>a</think><code>1</code>", "1"])) - 0.6).abs() < 1e-12);
        assert_eq!(xml().format_reward(&[]), 0.0);
    }

    #[test]
    fn ambiguous_fields_are_rejected() {
        let new = |fields: Vec<XmlField>, answer| Xml::new(fields, answer).unwrap_err().to_string();
        let refusals = [
            new(vec![], "answer"),
            new(vec![XmlField::from([])], "answer"),
            new(vec!["a b".into()], "a b"),
            new(vec!["a".into(), ["b", "a"].into()], "a"),
            new(vec!["a".into()], "answer"),
        ];
        insta::assert_snapshot!(refusals.join("\n"), @r"
        missing names of XML fields; give at least one, as `[reasoning, answer]`
        missing names of XML fields; give at least one, as `[reasoning, answer]`
        invalid tag `a b`; use letters, digits, `_` and `-`
        the XML field `a` is given twice; each name belongs to one field
        unknown XML field `answer`; set `answer_field` to the field with the answer
        ");
    }

    #[test]
    fn a_field_is_one_name_or_a_list_of_them() {
        let fields: Vec<XmlField> = serde_json::from_str(r#"["think", ["code", "answer"]]"#).unwrap();
        assert_eq!(fields, ["think".into(), XmlField::from(["code", "answer"])]);
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic_and_format_scores_are_at_most_one(text in "(<think>|</think>|<answer>|</answer>|[a é]){0,20}") {
            let format = xml().format_reward(&said(&[&text]));
            prop_assert!((0.0..=1.000_001).contains(&format));
            if let Some(answer) = xml().parse_answer(&said(&[&text])) {
                prop_assert_eq!(answer.trim(), answer.as_str());
                prop_assert!(text.contains(&answer));
            }
        }
    }
}
