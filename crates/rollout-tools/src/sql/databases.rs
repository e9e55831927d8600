//! Databases by name.

use std::collections::HashMap;

use crate::resource::{ErrorCode, ToolError};
use crate::seed::SeedFile;

/// The file extensions of databases.
const ENDINGS: [&str; 3] = [".db", ".sqlite", ".sqlite3"];

/// The number of databases that are named in an error.
const MOST_NAMED: usize = 20;

/// Whether a file with this name may be a database.
pub(super) fn is_database(name: &str) -> bool {
    ENDINGS.iter().any(|ending| name.to_ascii_lowercase().ends_with(ending))
}

/// The name of a database: its path without the extension, unless that is ambiguous.
pub(super) fn names(files: &[SeedFile]) -> Vec<String> {
    let mut called: HashMap<&str, usize> = HashMap::new();
    for file in files {
        *called.entry(stem(&file.path)).or_default() += 1;
    }
    let name = |file: &SeedFile| match stem(&file.path) {
        short if called[short] == 1 => short.to_owned(),
        _ => file.path.clone(),
    };
    files.iter().map(name).collect()
}

/// The names of some of the databases.
fn some(files: &[SeedFile]) -> String {
    let names = names(files);
    match names.len().saturating_sub(MOST_NAMED) {
        0 => names.join(", "),
        more => {
            format!("{} and {more} more, which sql:list_databases lists", names[..MOST_NAMED].join(", "))
        }
    }
}

/// The database of this name, or the only one.
pub(super) fn choose<'a>(files: &'a [SeedFile], wanted: Option<&str>) -> Result<&'a SeedFile, ToolError> {
    let fitting: Vec<_> = match wanted {
        None => files.iter().collect(),
        Some(wanted) => {
            let exact: Vec<_> = files.iter().filter(|file| file.path == wanted).collect();
            // Models omit the folder or the extension, and change the case.
            let loose = || {
                files.iter().filter(|file| names_of(&file.path).any(|name| name.eq_ignore_ascii_case(wanted)))
            };
            if exact.is_empty() { loose().collect() } else { exact }
        }
    };
    let all = || some(files);
    match (fitting.as_slice(), wanted) {
        ([one], _) => Ok(one),
        (_, _) if files.is_empty() => Err(ToolError::new(
            ErrorCode::NoResults,
            format!("there is no database: none of the files ends in {}", ENDINGS.join(", ")),
        )),
        (_, None) => Err(ToolError::new(
            ErrorCode::MissingField,
            format!("`database` is missing; there are several: {}", all()),
        )),
        ([], Some(wanted)) => Err(ToolError::new(
            ErrorCode::NoResults,
            format!("there is no database `{wanted}`; there are: {}", all()),
        )),
        (_, Some(wanted)) => Err(ToolError::new(
            ErrorCode::InvalidInput,
            format!("`{wanted}` may be more than one database; there are: {}", all()),
        )),
    }
}

fn names_of(path: &str) -> impl Iterator<Item = &str> {
    let file = path.rsplit('/').next().unwrap_or(path);
    [path, stem(path), file, stem(file)].into_iter()
}

fn stem(path: &str) -> &str {
    path.rsplit_once('.').map_or(path, |(stem, _)| stem)
}
