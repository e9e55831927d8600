//! Writes server-sent events.

use serde_json::Value;

/// Adds an event. Dialects without names of events leave the name empty.
pub(super) fn event(out: &mut Vec<u8>, name: &str, data: &Value) {
    if !name.is_empty() {
        out.extend_from_slice(format!("event: {name}\n").as_bytes());
    }
    // JSON text has no line breaks, so it is one line of data.
    out.extend_from_slice(format!("data: {data}\n\n").as_bytes());
}
