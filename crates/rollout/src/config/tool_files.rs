//! The files that a benchmark passes to its tools: which parameters name them, and the base of relative paths.

use std::path::Path;

use serde_json::{Map, Value};

/// Whether a parameter of a tool or of a session names files.
pub(crate) fn names_files(key: &str) -> bool {
    ["seed_path", "seed_paths", "folder"].contains(&key)
        || ["_path", "_dir", "_file", "_folder"].iter().any(|end| key.ends_with(end))
}

/// Calls `change` with each path in parameters.
pub(crate) fn each_path(params: &mut Map<String, Value>, change: &mut dyn FnMut(&mut String)) {
    for (key, value) in params {
        match value {
            Value::Object(inner) => each_path(inner, change),
            Value::String(path) if names_files(key) => change(path),
            Value::Array(paths) if names_files(key) => {
                for path in paths {
                    if let Value::String(path) = path {
                        change(path);
                    }
                }
            }
            _ => {}
        }
    }
}

/// Makes relative paths absolute if they exist next to a file. The tool server resolves the others.
pub(crate) fn resolve(params: &mut Map<String, Value>, beside: &Path) {
    each_path(params, &mut |path| {
        let found = beside.join(&*path);
        if Path::new(path).is_relative() && !path.is_empty() && found.exists() {
            let found = std::path::absolute(&found).unwrap_or(found);
            // A path that is not text cannot be sent.
            if let Some(text) = found.to_str() {
                *path = text.to_owned();
            }
        }
    });
}
