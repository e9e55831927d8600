//! The rules for the text of the documentation.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    process::Command,
};

use super::{pages, read, repository};

/// The lines of a page outside of fenced blocks, with their numbers.
fn prose(page: &str) -> Vec<(usize, &str)> {
    let mut fenced = false;
    let mut lines = Vec::new();
    for (place, line) in page.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            lines.push((place + 1, line));
        }
    }
    lines
}

#[test]
fn lines_have_at_most_120_characters() {
    let mut long = Vec::new();
    let others = ["ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(str::to_owned);
    for page in pages().into_iter().chain(others) {
        let text = read(&page);
        let lines = prose(&text).into_iter().filter(|(_, line)| !line.starts_with('|'));
        long.extend(
            lines.filter(|(_, line)| line.chars().count() > 120).map(|(line, _)| format!("{page}:{line}")),
        );
    }
    assert_eq!(long, Vec::<String>::new(), "these lines are too long");
}

#[test]
fn every_page_is_in_the_index() {
    let index = read("docs/README.md");
    let rows: Vec<_> = prose(&index).into_iter().filter(|(_, line)| line.starts_with("| [")).collect();
    let count = |page: &str| rows.iter().filter(|(_, line)| line.contains(&format!("]({page})"))).count();
    for page in pages().iter().filter_map(|page| page.strip_prefix("docs/")) {
        assert!(page == "README.md" || count(page) == 1, "docs/README.md must list {page} once");
    }
}

#[test]
fn every_page_has_an_example_in_its_first_30_lines() {
    // The index has only links.
    for page in pages().into_iter().filter(|page| page != "docs/README.md") {
        let has_example = read(&page).lines().take(30).any(|line| line.trim_start().starts_with("```"));
        assert!(has_example, "{page} starts without an example");
    }
}

/// The anchors of a page, as GitHub makes them from headings.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = prose(page).into_iter().filter_map(|(_, line)| line.strip_prefix('#'));
    let anchor = |heading: &str| -> String {
        let heading = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

#[test]
fn links_lead_to_files_and_headings() {
    let mut broken = Vec::new();
    for page in pages() {
        let text = read(&page);
        let dir: PathBuf = repository().join(&page).parent().unwrap().to_owned();
        // A link may be wrapped, but not its target.
        for target in
            text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target)
        {
            if target.contains("://") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = if file.is_empty() { repository().join(&page) } else { dir.join(file) };
            let found = path.exists()
                && (anchor.is_empty()
                    || std::fs::read_to_string(&path).is_ok_and(|text| anchors(&text).contains(anchor)));
            if !found {
                broken.push(format!("{page}: {target}"));
            }
        }
    }
    assert_eq!(broken, Vec::<String>::new(), "these links lead nowhere");
}

/// The part of a page from a heading to the next.
fn part(page: &str, heading: &str) -> String {
    let text = read(page);
    let (_, rest) = text.split_once(&format!("\n## {heading}\n")).expect("the heading exists");
    rest.split("\n## ").next().unwrap_or(rest).to_owned()
}

#[test]
fn the_example_of_a_new_setting_is_as_in_the_code() {
    let part = part("CONTRIBUTING.md", "Adding a setting");
    let block = part.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let code = read("crates/rollout/src/config/job.rs");
    let mut rest = code.as_str();
    for excerpt in block.split("…\n").map(str::trim).filter(|excerpt| !excerpt.is_empty()) {
        let (_, after) =
            rest.split_once(excerpt).unwrap_or_else(|| panic!("job.rs has no longer: {excerpt}"));
        rest = after;
    }
}

/// The code in a text: what is between backticks.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Every file and directory of the repository that the architecture can name, without those that are built.
fn sources() -> Vec<PathBuf> {
    let mut dirs =
        ["crates", "examples", "scripts", "schemas", "docs"].map(|dir| repository().join(dir)).to_vec();
    let mut found = Vec::new();
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("target") && !path.ends_with("node_modules") {
                dirs.push(path.clone());
            }
            found.push(path);
        }
    }
    found
}

#[test]
fn the_architecture_names_files_that_exist() {
    let text: String =
        prose(&read("ARCHITECTURE.md")).into_iter().map(|(_, line)| format!("{line}\n")).collect();
    let is_path = |name: &&str| {
        let has_only_names = name.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
        // An absolute path is one inside an environment.
        let is_file = [".rs", ".js", ".py"].iter().any(|ending| name.ends_with(ending));
        has_only_names && !name.starts_with('/') && (name.contains('/') || is_file)
    };
    let sources = sources();
    let named: BTreeSet<&str> = code(&text).filter(is_path).collect();
    assert!(named.len() > 50, "only {} paths were found", named.len());
    let missing: Vec<_> =
        named.into_iter().filter(|name| !sources.iter().any(|file| file.ends_with(name))).collect();
    assert_eq!(missing, Vec::<&str>::new());
}

#[test]
fn the_walk_of_a_container_trial_names_at_most_20_files() {
    let walks = part("ARCHITECTURE.md", "Four walks through the code");
    let walk = walks.split_once("**A container trial**").unwrap().1.split_once("\n1. ").unwrap().1;
    let walk = walk.split("\n\n").next().unwrap();
    let files: Vec<&str> = code(walk).filter(|name| name.ends_with(".rs")).collect();
    assert!((1..=20).contains(&files.len()), "the walk has {} files: {files:?}", files.len());
    let distinct: BTreeSet<_> = files.iter().collect();
    assert_eq!(distinct.len(), files.len(), "a file is opened twice: {files:?}");
}

#[test]
fn the_architecture_lists_the_modules_of_the_library() {
    let listed = part("ARCHITECTURE.md", "Layers");
    let code = read("crates/rollout/src/lib.rs");
    let modules = code.lines().filter_map(|line| {
        let line = line.strip_prefix("pub ").unwrap_or(line);
        line.strip_prefix("mod ")?.strip_suffix(';')
    });
    let missing: Vec<_> = modules.filter(|name| !listed.contains(&format!("\n| `{name}` |"))).collect();
    assert_eq!(missing, Vec::<&str>::new());
}

/// What `--help` prints for a command.
fn help(command: &[&str]) -> Option<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_rollout")).args(command).arg("--help").output().unwrap();
    output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
}

/// The code in the text of a page that begins with `rollout`, and the examples of the command reference.
fn mentioned(page: &str) -> Vec<String> {
    let prose = prose(page).into_iter().map(|(_, line)| line).collect::<Vec<_>>().join("\n");
    let code = code(&prose).map(str::to_owned).collect::<Vec<_>>().into_iter();
    let examples = page.lines().filter(|line| line.starts_with("  rollout ")).map(|line| {
        let line = line.trim_start();
        line.split_once("   ").map_or(line, |(command, _)| command).to_owned()
    });
    code.chain(examples).filter(|code| code.starts_with("rollout ")).collect()
}

#[test]
fn commands_and_options_in_the_text_exist() {
    let (mut helps, mut wrong) = (BTreeMap::new(), Vec::new());
    let mut help_of = |command: &[&str]| -> Option<String> {
        helps.entry(command.join(" ")).or_insert_with(|| help(command)).clone()
    };
    for page in pages() {
        for code in mentioned(&read(&page)) {
            // A pipe leads to another program.
            let words: Vec<&str> = code.split(" |").next().unwrap().split_whitespace().skip(1).collect();
            let is_name = |word: &&&str| word.chars().all(|c| c.is_ascii_lowercase() || c == '-');
            let names: Vec<&str> = words.iter().take_while(is_name).copied().collect();
            // The names before the arguments; a job file or an option needs no name.
            let help = match names.first() {
                Some(first) if !first.starts_with('-') => {
                    help_of(&names[..names.len().min(2)]).or_else(|| help_of(&names[..1]))
                }
                _ => help_of(&["run"]),
            };
            let exists = |option: &&str| {
                let known = |word: &str| word == option.split('=').next().unwrap();
                *option == "--version"
                    || help.as_ref().is_some_and(|help| help.split([' ', ',', '\n']).any(known))
            };
            if help.is_none() || !words.iter().filter(|word| word.starts_with("--")).all(exists) {
                wrong.push(format!("{page}: {code}"));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new(), "these commands or options do not exist");
}

/// The names of variables in source code: those that begin with `ROLLOUT_`, and those that a function looks up.
fn variables(code: &str) -> Vec<&str> {
    const LOOKUPS: [&str; 7] =
        ["variable(\"", "var(\"", "var_os(\"", "env = \"", "set(\"", "path(\"", "text(\""];
    fn name(text: &str) -> &str {
        let is_part = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
        text.split(|c| !is_part(c)).next().unwrap_or_default()
    }
    let mut names: Vec<&str> =
        code.match_indices("ROLLOUT_").map(|(place, _)| name(&code[place..])).collect();
    for lookup in LOOKUPS {
        let quoted = code.split(lookup).skip(1).filter_map(|rest| rest.split_once('"'));
        names.extend(quoted.map(|(text, _)| text).filter(|text| name(text) == *text));
    }
    names.retain(|name| name.len() > 1 && !name.ends_with('_'));
    names
}

#[test]
fn every_variable_that_the_program_uses_is_documented() {
    // Set for the tests of this repository, for the guest, and for git.
    const INTERNAL: [&str; 4] = ["ROLLOUT_TEST_", "ROLLOUT_GUEST", "ROLLOUT_GIT_", "UPDATE_SCHEMAS"];
    let documented = ["docs/variables.md", "docs/agents.md", "docs/tasks.md"].map(read).concat();
    let is_source = |path: &PathBuf| {
        let path = path.strip_prefix(repository()).unwrap().to_str().unwrap();
        path.starts_with("crates/") && path.contains("/src/") && path.ends_with(".rs")
    };
    // Only the command looks up variables; the library names those that it sets.
    let mut missing = BTreeSet::new();
    for path in sources().into_iter().filter(is_source) {
        let code = std::fs::read_to_string(&path).unwrap();
        let names =
            variables(&code).into_iter().filter(|name| !INTERNAL.iter().any(|own| name.starts_with(own)));
        missing.extend(names.filter(|name| !documented.contains(*name)).map(str::to_owned));
    }
    assert_eq!(missing, BTreeSet::new(), "docs/variables.md does not list these variables");
}
