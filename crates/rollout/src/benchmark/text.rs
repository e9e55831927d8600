//! What a model is told of an answer of the tool server.

use std::borrow::Cow;

use serde_json::Value;

use super::tools::Answer;

/// The most characters of an answer that a model is shown.
const MAX_CHARS: usize = 4000;

/// The words for the answer of a tool.
pub(super) fn told(answer: &Answer) -> String {
    let data = words(&answer.data);
    let text = match (answer.code, &answer.data) {
        (0, _) => data,
        (_, Value::Null) => answer.message.as_str().into(),
        (_, _) => format!("{}\n{data}", answer.message).into(),
    };
    shortened(&text)
}

/// The `result` of an object that has one, else all of the data.
fn words(data: &Value) -> Cow<'_, str> {
    match data.get("result").unwrap_or(data) {
        Value::String(text) => text.into(),
        other => format!("{other:#}").into(),
    }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_CHARS) {
        None => text.to_owned(),
        Some((end, _)) => {
            let total = text.chars().count();
            format!("{}\n... (truncated, total {total} chars)", &text[..end])
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn good(data: Value) -> String {
        told(&Answer { code: 0, message: "ok".to_owned(), data })
    }

    #[test]
    fn a_result_is_told_as_it_is_and_other_data_as_indented_json() {
        assert_eq!(good(json!({"result": "巴黎", "took": 3})), "巴黎");
        assert_eq!(good(json!({"result": 5})), "5");
        assert_eq!(good(json!("plain")), "plain");
        assert_eq!(good(json!({"城市": ["巴黎"]})), "{\n  \"城市\": [\n    \"巴黎\"\n  ]\n}");
        assert_eq!(good(Value::Null), "null");
    }

    #[test]
    fn a_failure_is_told_in_its_own_words_and_never_as_null() {
        let failed = |data| told(&Answer { code: 5006, message: "too slow".to_owned(), data });
        assert_eq!(failed(Value::Null), "too slow");
        assert_eq!(failed(json!({"result": "half of it"})), "too slow\nhalf of it");
    }

    #[test]
    fn more_than_4000_characters_are_cut_with_a_note() {
        assert_eq!(good(json!("好".repeat(4000))), "好".repeat(4000));
        let expected = format!("{}\n... (truncated, total 4001 chars)", "好".repeat(4000));
        assert_eq!(good(json!("好".repeat(4001))), expected);
    }
}
