//! The files below `invalid/`, each beside the message that people see when they load it.
//!
//! `<name>.yaml` is a job, `<name>.toml` a task, `<name>.json` a benchmark, and `<name>.expected` the message. The lines of
//! `<name>.set` are values of `--set`. A directory with a `job.yaml` is a job beside the other files that it names.

use std::{ffi::OsStr, fs, path::Path, path::PathBuf};

use rollout::config::{Override, load_benchmark_text, load_job, load_job_text, load_task_config};

const KINDS: [&str; 3] = ["yaml", "toml", "json"];

fn cases(dir: &Path) -> Vec<PathBuf> {
    let job = dir.join("job.yaml");
    if job.exists() {
        return vec![job];
    }
    let mut paths: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.into_iter().flat_map(|path| if path.is_dir() { cases(&path) } else { case(path) }).collect()
}

fn case(path: PathBuf) -> Vec<PathBuf> {
    if path.extension().and_then(OsStr::to_str).is_some_and(|kind| KINDS.contains(&kind)) {
        return vec![path];
    }
    assert!(KINDS.iter().any(|kind| path.with_extension(kind).exists()), "{} is of no case", path.display());
    Vec::new()
}

fn message(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let set = fs::read_to_string(path.with_extension("set")).unwrap_or_default();
    let overrides: Vec<Override> = set.lines().map(|line| line.parse().unwrap()).collect();
    let vars = |name: &str| (name == "SET").then(|| "value".to_owned());
    let loaded = match path.extension().and_then(OsStr::to_str) {
        Some("toml") => load_task_config(Path::new("task.toml"), &text).map(drop),
        Some("json") => load_benchmark_text(Path::new("config.json"), &text, &overrides, &vars).map(drop),
        _ if path.ends_with("job.yaml") => load_job(path, &overrides, &vars).map(drop),
        _ => load_job_text(Path::new("job.yaml"), &text, &overrides, &vars).map(drop),
    };
    let Err(problems) = loaded else { panic!("{} is valid", path.display()) };
    let dir = path.parent().unwrap().display().to_string();
    let mut text = problems.render(false).replace(&dir, "<dir>");
    if !cfg!(feature = "kubernetes") {
        // The command has this feature. Tests of this crate alone do not.
        text = text.replace("`docker` or `native`", "`docker`, `native` or `kubernetes`");
    }
    format!("{}\n", text.trim_end())
}

#[test]
fn every_file_is_rejected_with_the_message_next_to_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/config/invalid");
    let mut changed = String::new();
    for path in cases(&root) {
        let (expected_path, message) = (path.with_extension("expected"), message(&path));
        let expected = fs::read_to_string(&expected_path).unwrap_or_default();
        if message == expected {
            continue;
        }
        if std::env::var_os("UPDATE_FIXTURES").is_some() {
            fs::write(&expected_path, &message).unwrap();
        } else {
            changed += &format!("{}\n--- expected\n{expected}--- shown\n{message}\n", path.display());
        }
    }
    assert!(
        changed.is_empty(),
        "{changed}after a deliberate change run `UPDATE_FIXTURES=1 cargo nextest run -p rollout config::invalid`"
    );
}
