//! Moments as records write them: UTC, with six digits of the second, so that texts sort as times do.
//!
//! For fields: `#[serde(with = "rollout_core::moment")]`.

use jiff::Timestamp;
use serde::{Deserialize as _, Deserializer, Serializer};

/// The text of a moment.
///
/// ```
/// let at: jiff::Timestamp = "2026-01-15T10:30:00.5Z".parse().unwrap();
/// assert_eq!(rollout_core::moment::text(at), "2026-01-15T10:30:00.500000Z");
/// ```
pub fn text(at: Timestamp) -> String {
    format!("{at:.6}")
}

/// Writes a moment.
pub fn serialize<S: Serializer>(at: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{at:.6}"))
}

/// Reads a moment, with any number of digits.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
    Timestamp::deserialize(deserializer)
}

/// Moments that may be missing.
pub mod optional {
    use jiff::Timestamp;
    use serde::{Deserialize as _, Deserializer, Serializer};

    /// Writes a moment, or null.
    pub fn serialize<S: Serializer>(at: &Option<Timestamp>, serializer: S) -> Result<S::Ok, S::Error> {
        match at {
            Some(at) => super::serialize(at, serializer),
            None => serializer.serialize_none(),
        }
    }

    /// Reads a moment, or null.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
        Option::deserialize(deserializer)
    }
}
