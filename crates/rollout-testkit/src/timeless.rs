//! Removes times from results and output.

use serde_json::Value;

/// A document without times, random ids, and the command that made it.
pub fn without_times(mut value: Value) -> Value {
    match &mut value {
        Value::Object(map) => {
            let moving = |key: &str| {
                let words =
                    ["time", "timing", "timestamps", "timestamp", "durations", "id", "job_id", "command"];
                words.contains(&key)
                    || ["_at", "_sec", "_seconds", "_time", "_ms"].iter().any(|end| key.ends_with(end))
            };
            map.retain(|key, _| !moving(key));
            map.values_mut().for_each(|value| *value = without_times(value.take()));
        }
        Value::Array(values) => values.iter_mut().for_each(|value| *value = without_times(value.take())),
        _ => {}
    }
    value
}

/// A line of output without the times in it and their padding.
pub fn timeless_line(line: &str) -> String {
    let is_time = |word: &str| {
        let number = word.strip_suffix('s').unwrap_or_default();
        !number.is_empty() && number.chars().all(|c| c.is_ascii_digit() || c == '.')
    };
    let mut text = String::new();
    for (place, word) in line.split(' ').enumerate() {
        if is_time(word) {
            text.truncate(text.trim_end().len());
            text.push_str("  [time]");
        } else {
            text.push_str(if place > 0 { " " } else { "" });
            text.push_str(word);
        }
    }
    text
}
