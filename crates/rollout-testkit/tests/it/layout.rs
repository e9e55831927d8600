//! How the tests of all crates are laid out: one program for each crate, and no file that is left out of it.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

fn entries(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

fn is_rust(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "rs")
}

/// The programs that cargo makes of the files in `tests/`.
fn programs(tests: &Path) -> Vec<PathBuf> {
    let root = |path: PathBuf| if path.is_dir() { path.join("main.rs") } else { path };
    entries(tests).into_iter().map(root).filter(|path| is_rust(path) && path.is_file()).collect()
}

fn rust_files(dir: &Path, found: &mut BTreeSet<PathBuf>) {
    for path in entries(dir) {
        if path.is_dir() {
            rust_files(&path, found);
        } else if is_rust(&path) {
            found.insert(path);
        }
    }
}

/// Adds a file and those of the modules that it declares, whose files are in `dir`.
fn reachable(file: PathBuf, dir: &Path, found: &mut BTreeSet<PathBuf>) {
    let text = fs::read_to_string(&file).unwrap();
    found.insert(file);
    let declared = text
        .lines()
        .filter_map(|line| line.trim_start_matches("pub(crate) ").strip_prefix("mod ")?.strip_suffix(';'));
    for module in declared {
        let (file, dir) = (dir.join(module).with_extension("rs"), dir.join(module));
        reachable(if file.exists() { file } else { dir.join("mod.rs") }, &dir, found);
    }
}

#[test]
fn every_crate_has_one_test_program_with_every_file_below_tests() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let crates = ["crates", "examples"].into_iter().flat_map(|dir| entries(&workspace.join(dir)));
    let mut checked = 0;
    for krate in crates.filter(|krate| krate.join("Cargo.toml").exists()) {
        let tests = krate.join("tests");
        let programs = programs(&tests);
        assert!(
            programs.len() <= 1,
            "cargo makes a program of each, so put all below tests/it: {programs:?}"
        );
        let (mut all, mut used) = (BTreeSet::new(), BTreeSet::new());
        rust_files(&tests, &mut all);
        for program in programs {
            let dir = program.parent().unwrap().to_owned();
            reachable(program, &dir, &mut used);
        }
        let forgotten: Vec<_> = all.difference(&used).collect();
        assert!(
            forgotten.is_empty(),
            "no `mod` declares these files, so their tests never run: {forgotten:?}"
        );
        checked += all.len();
    }
    assert!(checked > 100, "only {checked} files were found");
}

#[test]
fn no_file_of_code_has_more_than_600_lines() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = BTreeSet::new();
    for dir in ["crates", "examples", "scripts"] {
        rust_files(&workspace.join(dir), &mut files);
    }
    let lines = |path: &PathBuf| fs::read_to_string(path).unwrap().lines().count();
    assert!(files.len() > 500, "only {} files were found", files.len());
    files.retain(|path| lines(path) > 600);
    assert!(files.is_empty(), "split these files by purpose: {files:#?}");
}
