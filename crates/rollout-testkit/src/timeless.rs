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

/// A line of output without the times in it and their padding. A long time has two words, such as `1m 05s`.
pub fn timeless_line(line: &str) -> String {
    let is_number = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit() || c == '.');
    let is_of = |word: &str, units: [char; 2]| word.strip_suffix(units).is_some_and(is_number);
    let mut text = String::new();
    let mut words = line.split(' ').peekable();
    let mut is_first = true;
    while let Some(word) = words.next() {
        let is_long = is_of(word, ['h', 'm'])
            && words.next_if(|next| next.len() == 3 && is_of(next, ['m', 's'])).is_some();
        if is_long || is_of(word, ['s', 's']) {
            text.truncate(text.trim_end().len());
            text.push_str("  [time]");
        } else {
            text.push_str(if is_first { "" } else { " " });
            text.push_str(word);
        }
        is_first = false;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long_times_are_removed_with_their_padding() {
        let lines = ["solved    0.4s", "all  1m 05s", "1h 02m left", "took 59.9s, 3m of 5m", "  a  b"];
        let expected = ["solved  [time]", "all  [time]", "  [time] left", "took 59.9s, 3m of 5m", "  a  b"];
        assert_eq!(lines.map(timeless_line), expected);
    }
}
