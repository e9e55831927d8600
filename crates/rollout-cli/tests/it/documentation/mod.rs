//! The documentation: its commands run as written, and its text keeps the rules.

mod commands;
mod markdown;
mod text;

use std::{
    fs,
    path::{Path, PathBuf},
};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// README.md and the pages of docs/, as paths from the root of the repository.
fn pages() -> Vec<String> {
    let files = fs::read_dir(repository().join("docs")).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut pages: Vec<String> = names
        .filter(|name| Path::new(name).extension().is_some_and(|extension| extension == "md"))
        .map(|name| format!("docs/{name}"))
        .collect();
    pages.push("README.md".to_owned());
    pages.sort();
    pages
}

fn read(page: &str) -> String {
    fs::read_to_string(repository().join(page)).unwrap()
}
