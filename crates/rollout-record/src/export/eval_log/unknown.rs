//! Unknown fields.

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// Reads the remaining fields, except `_type`, which names a class that another program would load.
pub(super) fn without_type<'de, D: Deserializer<'de>>(from: D) -> Result<Map<String, Value>, D::Error> {
    let mut fields = Map::deserialize(from)?;
    fields.shift_remove("_type");
    Ok(fields)
}
