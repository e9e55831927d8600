//! The card of a dataset: its description, and the list of its tables.

use std::collections::BTreeMap;

/// Extensions of files that the hub shows as tables.
const TABLES: [&str; 3] = ["csv", "jsonl", "parquet"];

/// Returns the text of a card for these files.
pub(super) fn text<'a>(repo: &str, names: impl Iterator<Item = &'a str>) -> String {
    let mut tables: BTreeMap<String, String> = BTreeMap::new();
    for name in names {
        if let Some((table, pattern)) = table(name) {
            tables.insert(table, pattern);
        }
    }
    let mut text = "---\ntags:\n- rollout\n".to_owned();
    if !tables.is_empty() {
        text.push_str("configs:\n");
    }
    for (table, pattern) in &tables {
        text.push_str(&format!("- config_name: {table}\n  data_files: \"{pattern}\"\n"));
    }
    text.push_str(&format!(
        "---\n\n# {repo}\n\nResults of agents and models on tasks, exported by Rollout.\n"
    ));
    text
}

/// Returns the name of the table of a file, and the pattern of the table's files: all files with the same name.
fn table(name: &str) -> Option<(String, String)> {
    let file = name.rsplit('/').next()?;
    let (stem, ending) = file.rsplit_once('.')?;
    if !TABLES.contains(&ending) {
        return None;
    }
    // A UUID prefix distinguishes the files of one table.
    let (table, pattern) = match stem.split_once('_') {
        Some((id, rest)) if is_uuid(id) => (rest, format!("**/*_{rest}.{ending}")),
        _ => (stem, format!("**/{stem}.{ending}")),
    };
    let is_plain = |char: char| char.is_ascii_alphanumeric() || matches!(char, '-' | '_');
    (!table.is_empty() && table.chars().all(is_plain)).then(|| (table.to_owned(), pattern))
}

fn is_uuid(text: &str) -> bool {
    let lengths = text.split('-').map(str::len);
    lengths.eq([8, 4, 4, 4, 12]) && text.chars().all(|char| char.is_ascii_hexdigit() || char == '-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_one_name_are_one_table() {
        let names = [
            "a/x/outputs.jsonl",
            "a/y/outputs.jsonl",
            "a/x/metadata.json",
            "trials.csv",
            "data/a/b/c/0e8f5a1c-7a4b-4c1d-9e2f-3a4b5c6d7e8f_samples.jsonl",
            "odd \"name\".csv",
            "LICENSE",
        ];
        insta::assert_snapshot!(text("results", names.into_iter()), @r#"
        ---
        tags:
        - rollout
        configs:
        - config_name: outputs
          data_files: "**/outputs.jsonl"
        - config_name: samples
          data_files: "**/*_samples.jsonl"
        - config_name: trials
          data_files: "**/trials.csv"
        ---

        # results

        Results of agents and models on tasks, exported by Rollout.
        "#);
    }

    #[test]
    fn without_tables_there_are_no_configurations() {
        assert!(!text("results", ["log.eval"].into_iter()).contains("configs"));
    }
}
