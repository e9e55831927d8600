//! Reference tables of settings, for docs/.

use std::{borrow::Cow, fmt::Write as _, path::Path};

use serde_json::Value as Json;

use super::{declare::Key, form::paragraph};

/// Regenerates the tables of a page, each between `<!-- settings: name -->` and `<!-- end -->`. After the name,
/// `first..last` selects a range of keys.
pub fn fill(page: &str, tables: &[(&str, Vec<Key>)]) -> Result<String, String> {
    let unknown = |name: &str| Err(format!("no settings are named `{name}`"));
    fill_or(page, tables, unknown)
}

/// Regenerates the tables of a page. `other` decides about a table that is not among `tables`: an error, or to keep it.
fn fill_or(
    page: &str,
    tables: &[(&str, Vec<Key>)],
    other: impl Fn(&str) -> Result<(), String>,
) -> Result<String, String> {
    let mut parts = page.split("<!-- settings: ");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (marker, rest) = part.split_once(" -->").ok_or("a marker is not closed")?;
        let (old, rest) = rest.split_once("<!-- end -->").ok_or_else(|| format!("`{marker}` has no end"))?;
        let (name, range) = match marker.rsplit_once(' ') {
            Some((name, range)) if range.contains("..") => (name, range.split_once("..")),
            _ => (marker, None),
        };
        let Some((_, keys)) = tables.iter().find(|(table, _)| *table == name) else {
            other(name)?;
            let _ = write!(out, "<!-- settings: {marker} -->{old}<!-- end -->{rest}");
            continue;
        };
        let at = |key: &str| {
            keys.iter()
                .position(|known| known.name == key)
                .ok_or_else(|| format!("`{name}` has no key `{key}`"))
        };
        let keys = match range {
            Some((first, last)) => &keys[at(first)?..=at(last)?],
            None => keys,
        };
        let _ = write!(out, "<!-- settings: {marker} -->\n{}<!-- end -->{rest}", table(keys));
    }
    Ok(out)
}

/// Checks that the tables of a page match the declarations. If `UPDATE_SCHEMAS` is set, they are written first.
pub fn check_page(path: &Path, tables: &[(&str, Vec<Key>)]) -> Result<(), String> {
    check(path, |page| fill(page, tables))
}

/// Checks one table of a page whose other tables belong to parts that may be missing in this build.
pub fn check_table(path: &Path, name: &str, keys: Vec<Key>) -> Result<(), String> {
    check(path, |page| {
        if !page.contains(&format!("<!-- settings: {name} ")) {
            return Err(format!("{} has no table `{name}`", path.display()));
        }
        fill_or(page, &[(name, keys)], |_| Ok(()))
    })
}

fn check(path: &Path, fill: impl FnOnce(&str) -> Result<String, String>) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let page = std::fs::read_to_string(path).map_err(failed)?;
    let expected = fill(&page)?;
    if std::env::var_os("UPDATE_SCHEMAS").is_some() {
        std::fs::write(path, &expected).map_err(failed)?;
    } else if page != expected {
        let what = "does not match the code; update it with `UPDATE_SCHEMAS=1 cargo nextest run schema`";
        return Err(format!("{} {what}", path.display()));
    }
    Ok(())
}

fn table(keys: &[Key]) -> String {
    let mut out = "| key | type | default | meaning |\n| --- | --- | --- | --- |\n".to_owned();
    let mut keys = keys.iter().peekable();
    while let Some(key) = keys.next() {
        let (mut name, mut kind) = (format!("`{}`", key.name), key.kind.to_string());
        while let Some(alias) = keys.next_if(|key| key.alias) {
            name += &format!(", or `{}`", alias.name);
            if alias.kind != key.kind {
                kind += &format!(", or {}", alias.kind);
            }
        }
        let _ =
            writeln!(out, "| {name} | {} | {} | {} |", kind.replace('|', "\\|"), default(key), meaning(key));
    }
    out
}

fn default(key: &Key) -> Cow<'static, str> {
    match (key.unset, (key.schema)().get("default")) {
        _ if key.required => "required".into(),
        (Some(text), _) => text.into(),
        (None, Some(Json::Number(number))) => number.to_string().trim_end_matches(".0").to_owned().into(),
        (None, Some(Json::String(text))) => format!("`{text}`").into(),
        (None, Some(value)) => format!("`{value}`").into(),
        (None, None) => "none".into(),
    }
}

/// The description, and the further paragraphs of the documentation.
fn meaning(key: &Key) -> String {
    paragraph(key.doc).replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Settings as _,
        forms::{count, flag},
    };

    crate::settings! {
        /// A section.
        struct Some {
            /// How many.
            ///
            /// More is slower.
            _number as "number": u32 = count(3),
            /// Whether.
            _flag as "flag": bool = flag(false),
        }
    }

    #[test]
    fn tables_are_written_between_their_markers() {
        let tables = [("some", Some::keys())];
        let page = "a\n<!-- settings: some -->\nold\n<!-- end -->\nb\n<!-- settings: some flag..flag --><!-- end -->\n";
        let filled = fill(page, &tables).unwrap();
        insta::assert_snapshot!(filled, @"
        a
        <!-- settings: some -->
        | key | type | default | meaning |
        | --- | --- | --- | --- |
        | `number` | integer ≥ 1 | 3 | How many. More is slower. |
        | `flag` | boolean | `false` | Whether. |
        <!-- end -->
        b
        <!-- settings: some flag..flag -->
        | key | type | default | meaning |
        | --- | --- | --- | --- |
        | `flag` | boolean | `false` | Whether. |
        <!-- end -->
        ");
        assert_eq!(fill(&filled, &tables).unwrap(), filled);
        assert!(fill("<!-- settings: other --><!-- end -->", &tables).is_err());
        assert!(fill("<!-- settings: some a..b --><!-- end -->", &tables).is_err());
    }

    #[test]
    fn one_table_of_a_shared_page_is_checked_alone() {
        let dir = tempfile::tempdir().unwrap();
        let page = dir.path().join("page.md");
        let other = "<!-- settings: other -->\nkept\n<!-- end -->\n";
        std::fs::write(&page, format!("{other}<!-- settings: some -->\nold\n<!-- end -->\n")).unwrap();
        assert!(check_table(&page, "some", Some::keys()).unwrap_err().contains("does not match"));
        let filled = format!("{other}<!-- settings: some -->\n{}<!-- end -->\n", table(&Some::keys()));
        std::fs::write(&page, filled).unwrap();
        check_table(&page, "some", Some::keys()).unwrap();
        assert!(check_table(&page, "third", Some::keys()).unwrap_err().contains("has no table `third`"));
    }
}
