//! The format of the cases.

use std::{fs, path::Path, process::Command};

/// A builder of Docker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Builder {
    Classic,
    BuildKit,
}

/// A Dockerfile with its context.
pub(super) struct Case {
    pub(super) name: String,
    pub(super) builders: Vec<Builder>,
    setup: String,
    dockerfile: String,
    /// The new files, where no builder of Docker can be asked.
    pub(super) expected: Option<String>,
}

/// Reads all cases, each with its number.
pub(super) fn parse(text: &str, port: u16) -> Vec<(usize, Case)> {
    let cases = text.split("\n=== ").map(|case| case.trim_start_matches("=== "));
    let cases: Vec<_> = cases.map(|case| one(&case.replace("PORT", &port.to_string()))).enumerate().collect();
    assert!(cases.len() > 5);
    cases
}

fn one(text: &str) -> Case {
    let (name, rest) = text.split_once('\n').unwrap();
    let mut sections = rest.split("--- ");
    let head = sections.next().unwrap();
    let mut case = Case {
        name: name.to_owned(),
        builders: vec![Builder::Classic, Builder::BuildKit],
        setup: String::new(),
        dockerfile: String::new(),
        expected: None,
    };
    match head.trim() {
        "" => {}
        "builders: buildkit" => case.builders = vec![Builder::BuildKit],
        "builders: none" => case.builders = Vec::new(),
        other => panic!("{name}: {other}"),
    }
    for section in sections {
        let (title, content) = section.split_once('\n').unwrap_or((section, ""));
        match title {
            "setup" => case.setup = content.to_owned(),
            "Dockerfile" => case.dockerfile = content.to_owned(),
            "expected" => case.expected = Some(content.trim().to_owned()),
            other => panic!("{name}: {other}"),
        }
    }
    assert_eq!(case.expected.is_some(), case.builders.is_empty(), "{name}");
    case
}

impl Case {
    /// Makes the context.
    pub(super) fn write(&self, dir: &Path) {
        fs::create_dir_all(dir).unwrap();
        // A script may write the Dockerfile itself.
        if !self.dockerfile.is_empty() {
            fs::write(dir.join("Dockerfile"), &self.dockerfile).unwrap();
        }
        let script = format!("umask 022\n{}", self.setup);
        let made = Command::new("bash").args(["-euc", &script]).current_dir(dir).status().unwrap();
        assert!(made.success(), "{}", self.name);
    }
}
