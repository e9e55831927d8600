//! Searches all files of a directory for words.

use std::{fs, path::Path};

/// Every file below a directory that contains these words, with the first matching line.
pub fn files_holding(dir: &Path, words: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut pending = vec![dir.to_owned()];
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(dir).expect("list a directory").flatten() {
            if entry.file_type().expect("look at an entry").is_dir() {
                pending.push(entry.path());
            } else if let Ok(bytes) = fs::read(entry.path()) {
                let text = String::from_utf8_lossy(&bytes);
                let line = text.lines().find(|line| line.contains(words));
                found.extend(line.map(|line| format!("{}: {line}", entry.path().display())));
            }
        }
    }
    found
}
