//! Databases by name.

use crate::seed::SeedFile;
use crate::{Code, ToolError};

/// What the names of databases end with.
const ENDINGS: [&str; 3] = [".db", ".sqlite", ".sqlite3"];

/// Whether a file with this name may be a database.
pub(super) fn is_database(name: &str) -> bool {
    ENDINGS.iter().any(|ending| name.to_ascii_lowercase().ends_with(ending))
}

/// What a database is called: its path without the ending, unless another is called so, too.
pub(super) fn names(files: &[SeedFile]) -> Vec<String> {
    let short: Vec<_> = files.iter().map(|file| stem(&file.path)).collect();
    let is_unique = |name: &str| short.iter().filter(|other| **other == name).count() == 1;
    files
        .iter()
        .zip(&short)
        .map(|(file, short)| if is_unique(short) { (*short).to_owned() } else { file.path.clone() })
        .collect()
}

/// The database that is meant by this name, or the only one.
pub(super) fn choose<'a>(files: &'a [SeedFile], wanted: Option<&str>) -> Result<&'a SeedFile, ToolError> {
    let fitting: Vec<_> = match wanted {
        None => files.iter().collect(),
        Some(wanted) => {
            let exact: Vec<_> = files.iter().filter(|file| file.path == wanted).collect();
            // Models leave out the folder or the ending, and change the case.
            let loose = || {
                files.iter().filter(|file| names_of(&file.path).any(|name| name.eq_ignore_ascii_case(wanted)))
            };
            if exact.is_empty() { loose().collect() } else { exact }
        }
    };
    let all = || names(files).join(", ");
    match (fitting.as_slice(), wanted) {
        ([one], _) => Ok(one),
        (_, _) if files.is_empty() => Err(ToolError::new(
            Code::NoResults,
            format!("there is no database here: none of the files ends in {}", ENDINGS.join(", ")),
        )),
        (_, None) => Err(ToolError::new(
            Code::MissingField,
            format!("`database` is missing; there are several: {}", all()),
        )),
        ([], Some(wanted)) => Err(ToolError::new(
            Code::NoResults,
            format!("there is no database `{wanted}`; there are: {}", all()),
        )),
        (_, Some(wanted)) => Err(ToolError::new(
            Code::InvalidInput,
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
