//! Job and task files as their authors write them: what they mean, what is refused, and how that looks.

mod any_input;
mod benchmark;
mod diagnostics;
mod interactions;
mod invalid;
mod job;
mod models;
mod presets;
mod schema;
mod task;

use std::{fs, path::Path};

use rollout::config::{LoadedJob, Override, Problems, load_job};

fn job(text: &str) -> Result<LoadedJob, Problems> {
    job_in(tempfile::tempdir().unwrap().path(), text, &[])
}

fn job_in(dir: &Path, text: &str, overrides: &[&str]) -> Result<LoadedJob, Problems> {
    for name in ["tasks", "path-to-dataset"] {
        fs::create_dir_all(dir.join(name)).unwrap();
    }
    fs::write(dir.join("path-to-registry"), "[]").unwrap();
    let path = dir.join("job.yaml");
    fs::write(&path, text).unwrap();
    let overrides: Vec<Override> = overrides.iter().map(|text| text.parse().unwrap()).collect();
    load_job(&path, &overrides, &variables)
}

fn variables(name: &str) -> Option<String> {
    match name {
        "MY_API_KEY" => Some("sk-very-secret".to_owned()),
        "MODEL" => Some("some-model-name".to_owned()),
        _ => None,
    }
}
