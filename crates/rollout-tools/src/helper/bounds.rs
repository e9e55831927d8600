//! Bounds as the configuration has them: neither nothing nor absurd.

use serde::{Deserialize, Deserializer, de};
use serde_json::Value;

/// A day: longer than anything here takes.
const MOST_SECONDS: u64 = 86_400;
/// A tebibyte: more than anybody wants to spend on a file.
const MOST_BYTES: u64 = 1 << 40;

/// Reads a number of seconds.
pub(crate) fn seconds<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    number(from, MOST_SECONDS)
}

/// Reads a number of bytes.
pub(crate) fn bytes<'de, D: Deserializer<'de>, T: TryFrom<u64>>(from: D) -> Result<T, D::Error> {
    number(from, MOST_BYTES)
}

fn number<'de, D: Deserializer<'de>, T: TryFrom<u64>>(from: D, most: u64) -> Result<T, D::Error> {
    let value = Value::deserialize(from)?;
    let number = value.as_u64().filter(|number| (1..=most).contains(number));
    number
        .and_then(|number| T::try_from(number).ok())
        .ok_or_else(|| de::Error::custom(format!("{value} is not a whole number between 1 and {most}")))
}
