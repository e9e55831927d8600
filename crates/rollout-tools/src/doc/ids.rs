//! Section ids: the section number, prefixed with the document's path if there are several documents.

use crate::seed::SeedFile;

/// The id of a section; `number` counts from 0.
pub(super) fn of(path: &str, number: usize, is_only: bool) -> String {
    if is_only { (number + 1).to_string() } else { format!("{path}#{}", number + 1) }
}

/// The file and the section, counted from 0, of an id. Models omit obvious parts and add brackets.
pub(super) fn find(id: &str, files: &[SeedFile]) -> Option<(usize, usize)> {
    let id = id.trim().trim_start_matches('[').trim_end_matches(']');
    let (path, number) = match id.rsplit_once('#') {
        Some((path, number)) => (Some(path), number),
        None => (None, id),
    };
    let number = number.trim().parse::<usize>().ok()?.checked_sub(1)?;
    let file = match path {
        Some(path) => find_file(path, files)?,
        None if files.len() == 1 => 0,
        None => return None,
    };
    Some((file, number))
}

/// The file of a path: the one with this path, or the only one with this file name.
pub(super) fn find_file(path: &str, files: &[SeedFile]) -> Option<usize> {
    let path = path.trim().trim_start_matches("./");
    files.iter().position(|file| file.path == path).or_else(|| {
        let is_named = |file: &SeedFile| file.path.rsplit('/').next() == path.rsplit('/').next();
        let mut named = (0..files.len()).filter(|at| is_named(&files[*at]));
        named.next().filter(|_| named.next().is_none())
    })
}
