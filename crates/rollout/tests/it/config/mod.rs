//! Job and task files as their authors write them: what they mean, what is refused, and how that looks.

mod any_input;
mod benchmark;
mod benchmark_problems;
mod diagnostics;
mod interaction_problems;
mod interactions;
mod job;
mod job_list_problems;
mod job_settings_problems;
mod model_problems;
mod models;
mod schema;
mod score_and_tool_problems;
mod task;

use std::{fs, path::Path};

use rollout::config::{LoadedJob, Override, Problems, load_job, load_job_text};

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

fn refused(text: &str) -> Problems {
    let vars = |name: &str| (name == "SET").then(|| "value".to_owned());
    load_job_text(Path::new("job.yaml"), text, &[], &vars).unwrap_err()
}

fn job_problems(text: &str) -> String {
    refused(text).render(false)
}

/// A job with one more thing in it, which makes it wrong.
fn job_problems_with(more: &str) -> String {
    job_problems(&format!("agents: [{{name: oracle}}]\ndatasets: [{{path: src}}]\n{more}"))
}
