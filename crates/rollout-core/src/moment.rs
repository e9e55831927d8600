//! Times in records: UTC with six digits of the second, so that they sort as text.
//!
//! For fields: `#[serde(with = "rollout_core::moment")]`.

use jiff::Timestamp;
use serde::{Deserialize as _, Deserializer, Serializer};

/// Formats a time.
///
/// ```
/// let at: jiff::Timestamp = "2026-01-15T10:30:00.5Z".parse().unwrap();
/// assert_eq!(rollout_core::moment::text(at), "2026-01-15T10:30:00.500000Z");
/// ```
pub fn text(at: Timestamp) -> String {
    format!("{at:.6}")
}

/// Serializes a time.
pub fn serialize<S: Serializer>(at: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{at:.6}"))
}

/// Deserializes a time with any number of digits.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
    Timestamp::deserialize(deserializer)
}

/// Optional times.
pub mod optional {
    use jiff::Timestamp;
    use serde::{Deserialize as _, Deserializer, Serializer};

    /// Serializes a time or null.
    pub fn serialize<S: Serializer>(at: &Option<Timestamp>, serializer: S) -> Result<S::Ok, S::Error> {
        match at {
            Some(at) => super::serialize(at, serializer),
            None => serializer.serialize_none(),
        }
    }

    /// Deserializes a time or null.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
        Option::deserialize(deserializer)
    }
}
