//! Files of tests and solutions that the agent can see.

use std::{
    collections::HashMap,
    fs,
    io::{self, BufRead as _, Read as _},
    path::{Path, PathBuf},
};

use rollout::text::hex;
use serde::Serialize;
use sha2::{Digest as _, Sha256};

/// A script of an agent: lists the files of the environment with their hashes, without those of the system.
pub(super) const LIST_FILES: &str = r#"
mkdir -p /logs/agent
find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /logs -o -path /etc \
    -o -path /bin -o -path /sbin -o -path /lib -o -path /lib32 -o -path /lib64 -o -path /boot \
    -o -path /usr/bin -o -path /usr/sbin -o -path /usr/lib -o -path /usr/lib32 -o -path /usr/lib64 \
    -o -path /usr/libexec -o -path /usr/include -o -path /usr/share -o -path /usr/local/lib \
    -o -path /var/lib -o -path /var/cache -o -path /var/log -o -name node_modules -o -name .git \) -prune \
    -o -type f -size -2048k -exec sha256sum {} + > /logs/agent/files.txt 2> /dev/null
exit 0
"#;

/// The list that the script writes, in the directory of a trial or of a step.
const LISTED: &str = "logs/agent/files.txt";

/// Smaller files are the same by chance, such as an empty `__init__.py`.
const MIN_BYTES: u64 = 16;

/// Larger files are not listed in the environment.
const MAX_BYTES: u64 = 2 << 20;

/// How many bytes of the list are read.
const MAX_LIST_BYTES: u64 = 32 << 20;

/// Names of files that are programs.
const SCRIPTS: [&str; 14] =
    ["sh", "bash", "py", "js", "mjs", "ts", "rb", "pl", "go", "rs", "c", "cpp", "java", "lua"];

/// A file of the task in the environment.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct Leak {
    /// The file of the task; none if only its place in the environment is known.
    pub(super) file: Option<String>,
    /// Its path in the environment.
    pub(super) path: String,
    /// Whether it gives the task away: a file of the solution, or a script of the tests.
    pub(super) is_serious: bool,
}

/// Finds files of a task among those that were listed in its environment, before any of its steps. None if nothing was
/// listed.
pub(super) fn find(task: &Path, trial: &Path) -> Option<Vec<Leak>> {
    let lists = lists(trial);
    if lists.is_empty() {
        return None;
    }
    let known = hashes(task);
    let mut found = Vec::new();
    let mut lines = 0;
    let listed = lists
        .into_iter()
        .flat_map(|list| io::BufReader::new(list.take(MAX_LIST_BYTES)).split(b'\n').map_while(Result::ok));
    for line in listed {
        let line = String::from_utf8_lossy(&line);
        // sha256sum marks lines whose names it had to escape.
        let Some((hash, path)) = line.trim_start_matches('\\').split_once("  ") else { continue };
        lines += 1;
        let in_place = ["/tests/", "/solution/", "/oracle/"].iter().any(|dir| path.starts_with(dir));
        match known.get(hash) {
            Some(file) => {
                let is_serious = in_place || is_serious(file);
                let file = Some(file.display().to_string());
                found.push(Leak { file, path: path.to_owned(), is_serious });
            }
            None if in_place => {
                found.push(Leak { file: None, path: path.to_owned(), is_serious: true });
            }
            None => {}
        }
    }
    found.sort();
    found.dedup();
    // An image always has a file, at least that of a shell.
    (lines > 0 || task.join("environment").is_dir()).then_some(found)
}

/// The list of a trial, or those of its steps.
fn lists(trial: &Path) -> Vec<fs::File> {
    let steps = fs::read_dir(trial.join("steps")).into_iter().flatten().flatten();
    let dirs = steps.map(|step| step.path()).chain([trial.to_owned()]);
    dirs.filter_map(|dir| fs::File::open(dir.join(LISTED)).ok()).collect()
}

fn is_serious(file: &Path) -> bool {
    let is_script = file.extension().is_some_and(|end| SCRIPTS.iter().any(|script| end == *script));
    is_script || file.components().any(|part| part.as_os_str() == "solution")
}

/// The files of tests and solutions of a task, by their hashes.
fn hashes(task: &Path) -> HashMap<String, PathBuf> {
    let mut found = HashMap::new();
    let mut pending: Vec<PathBuf> = ["tests", "solution", "steps"].map(PathBuf::from).to_vec();
    while let Some(below) = pending.pop() {
        for entry in fs::read_dir(task.join(&below)).into_iter().flatten().flatten() {
            let path = below.join(entry.file_name());
            let Ok(metadata) = entry.metadata() else { continue };
            let is_hidden = path
                .components()
                .any(|part| ["tests", "solution"].iter().any(|dir| part.as_os_str() == *dir));
            if metadata.is_dir() {
                pending.push(path);
            } else if metadata.is_file()
                && is_hidden
                && (MIN_BYTES..=MAX_BYTES).contains(&metadata.len())
                && let Ok(bytes) = fs::read(entry.path())
            {
                found.insert(hex(&Sha256::digest(bytes)), path);
            }
        }
    }
    found
}
