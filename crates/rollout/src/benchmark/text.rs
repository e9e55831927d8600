//! Converts an answer of the tool server to text for the model.

use std::borrow::Cow;

use serde_json::{Value, json};

use super::tools::Answer;

/// The maximum number of characters of an answer that a model gets.
const MAX_CHARS: usize = 4000;

/// The text of a tool's answer for the model.
pub(super) fn tool_text(answer: &Answer) -> String {
    let data = words(&answer.data);
    let text = match (answer.code, &answer.data) {
        (0, _) => data,
        (_, Value::Null) => answer.message.as_str().into(),
        (_, _) => format!("{}\n{data}", answer.message).into(),
    };
    shortened(&text)
}

/// Removes the picture from an answer: `image` in base64, of the type in `format`. Returns it as a part of a message.
pub(super) fn take_picture(answer: &mut Answer) -> Option<Value> {
    const FORMATS: [&str; 4] = ["png", "jpeg", "webp", "gif"];
    let format = answer.data.get("format")?.as_str().filter(|format| FORMATS.contains(format))?.to_owned();
    let image = answer.data.get_mut("image").filter(|image| image.is_string())?;
    let picture = std::mem::replace(image, "shown in the next message".into());
    let url = format!("data:image/{format};base64,{}", picture.as_str().unwrap_or_default());
    Some(json!({"type": "image_url", "image_url": {"url": url}}))
}

/// The `result` of an object that has one, otherwise all of the data.
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
        tool_text(&Answer { code: 0, message: "ok".to_owned(), data })
    }

    #[test]
    fn a_result_is_shown_unchanged_and_other_data_as_indented_json() {
        assert_eq!(good(json!({"result": "巴黎", "took": 3})), "巴黎");
        assert_eq!(good(json!({"result": 5})), "5");
        assert_eq!(good(json!("plain")), "plain");
        assert_eq!(good(json!({"城市": ["巴黎"]})), "{\n  \"城市\": [\n    \"巴黎\"\n  ]\n}");
        assert_eq!(good(Value::Null), "null");
    }

    #[test]
    fn a_failure_is_shown_with_its_message_and_never_as_null() {
        let failed = |data| tool_text(&Answer { code: 5006, message: "too slow".to_owned(), data });
        assert_eq!(failed(Value::Null), "too slow");
        assert_eq!(failed(json!({"result": "half of it"})), "too slow\nhalf of it");
    }

    #[test]
    fn a_picture_is_removed_from_an_answer_and_other_images_stay() {
        let mut answer = Answer {
            code: 0,
            message: String::new(),
            data: json!({"image": "iVBORw0=", "format": "png", "result": "1280x720"}),
        };
        let part = take_picture(&mut answer).unwrap();
        assert_eq!(part["image_url"]["url"], "data:image/png;base64,iVBORw0=");
        assert_eq!(tool_text(&answer), "1280x720");
        for data in [
            json!({"image": "x"}),
            json!({"image": 1, "format": "png"}),
            json!({"image": "x", "format": "svg"}),
        ] {
            let mut answer = Answer { code: 0, message: String::new(), data: data.clone() };
            assert_eq!(take_picture(&mut answer), None);
            assert_eq!(answer.data, data);
        }
    }

    #[test]
    fn more_than_4000_characters_are_cut_with_a_note() {
        assert_eq!(good(json!("好".repeat(4000))), "好".repeat(4000));
        let expected = format!("{}\n... (truncated, total 4001 chars)", "好".repeat(4000));
        assert_eq!(good(json!("好".repeat(4001))), expected);
    }
}
