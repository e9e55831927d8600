//! A job from the options of `rollout run`, without a job file.

use std::{
    fs::File,
    io::{ErrorKind, Write as _},
    path::{Path, PathBuf},
};

use rollout::config::{Document, LoadedJob, Override, is_preset_path, load_job_text};
use serde_json::{Map, Value, json};

use super::{dataset_argument, load};
use crate::{args::Run, exit::Failure};

/// What the job is called in messages.
const NAME: &str = "<command line>";

/// Agents that need no model.
const RESERVED: [&str; 2] = ["oracle", "nop"];

/// Loads the job that the options describe, and saves it if that is asked for.
pub(crate) fn job(args: &Run, overrides: &[Override]) -> Result<LoadedJob, Failure> {
    let text = yaml(&written(args)?);
    let path = args.save.clone().unwrap_or_else(|| PathBuf::from(NAME));
    let loaded = load_job_text(&path, &text, overrides, &load::variable)
        .map_err(|problems| load::refused(&path, &problems))?;
    if let Some(save) = &args.save {
        let failed = |error: std::io::Error| {
            let hint = (error.kind() == ErrorKind::AlreadyExists)
                .then_some("choose another file, or remove it: --save never replaces a file");
            Failure::from(format!("cannot save the job as {}: {error}", save.display())).hint(hint)
        };
        // The settings of `--set` are a part of the job that runs, so they belong in its file.
        let refused = |problems| load::refused(&path, &problems);
        let mut document = Document::parse(Path::new(NAME), &text, None).map_err(refused)?;
        overrides.iter().try_for_each(|over| document.set(over)).map_err(refused)?;
        let mut file = File::create_new(save).map_err(failed)?;
        file.write_all(yaml(&document.into_value()).as_bytes()).map_err(failed)?;
    }
    Ok(loaded)
}

/// The job that the options stand for.
fn written(args: &Run) -> Result<Value, Failure> {
    if args.dataset.is_empty() {
        let failure = Failure::from("no job file and no dataset");
        return Err(failure.hint(Some(
            "write `rollout run job.yaml`, or `rollout run -d TASKS -a AGENT -m MODEL`; `rollout run --help` shows all options",
        )));
    }
    let mut job = Map::new();
    let settings = [
        ("n_attempts", args.attempts.map(Value::from)),
        ("n_concurrent_trials", args.concurrency.map(Value::from)),
        ("environment", args.environment.as_ref().map(|kind| json!({"type": kind}))),
    ];
    job.extend(settings.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));
    job.insert("agents".to_owned(), agents(args)?.into());
    job.insert("datasets".to_owned(), datasets(args)?.into());
    Ok(job.into())
}

/// A job as the text of a job file, with one line for each agent and each dataset.
fn yaml(job: &Value) -> String {
    let mut lines = Vec::new();
    for (key, value) in job.as_object().into_iter().flatten() {
        match value.as_array().filter(|entries| !entries.is_empty()) {
            Some(entries) => {
                lines.push(format!("{}:", plain(key)));
                lines.extend(entries.iter().map(|entry| format!("  - {}", flow(entry))));
            }
            None => lines.push(format!("{}: {}", plain(key), flow(value))),
        }
    }
    lines.join("\n") + "\n"
}

fn agents(args: &Run) -> Result<Vec<Value>, Failure> {
    if args.agent.is_empty() && args.model.is_empty() {
        let hint = "set the agent with -a, such as `-a claude-code`, `-a oracle` or the path of a preset; \
                    with -m and without -a, the model itself attempts the tasks";
        return Err(Failure::from("no agent and no model").hint(Some(hint)));
    }
    let model = |name: &String| match &args.base_url {
        Some(url) => json!({"name": name, "base_url": url, "api_key": "${OPENAI_API_KEY:-}"}),
        None => json!(name),
    };
    let several = args.model.len() > 1;
    let mut agents = Vec::new();
    for agent in &args.agent {
        if RESERVED.contains(&agent.as_str()) {
            agents.push(json!({"name": agent}));
            continue;
        }
        let preset = if is_preset_path(agent) { found_from(args, agent)? } else { agent.clone() };
        if args.model.is_empty() {
            agents.push(json!({"preset": preset}));
        }
        for name in &args.model {
            let mut entry = json!({"preset": preset, "model": model(name)});
            if several {
                let last =
                    |text: &str| Path::new(text).file_stem().map(|stem| stem.to_string_lossy().into_owned());
                let agent =
                    if is_preset_path(agent) { last(agent).unwrap_or_default() } else { agent.clone() };
                entry["name"] = json!(format!("{agent}-{}", name.rsplit('/').next().unwrap_or(name)));
            }
            agents.push(entry);
        }
    }
    if args.agent.is_empty() {
        agents.extend(args.model.iter().map(|name| json!({"model": model(name)})));
    }
    Ok(agents)
}

fn datasets(args: &Run) -> Result<Vec<Value>, Failure> {
    args.dataset.iter().map(|text| dataset_argument::entry(text, |path| found_from(args, path))).collect()
}

/// A path as the job file finds it. A file that is saved elsewhere needs absolute ones.
fn found_from(args: &Run, path: &str) -> Result<String, Failure> {
    let elsewhere =
        args.save.as_deref().and_then(Path::parent).is_some_and(|dir| !dir.as_os_str().is_empty());
    if !elsewhere {
        return Ok(path.to_owned());
    }
    let absolute = std::path::absolute(path)?;
    absolute.to_str().map(str::to_owned).ok_or_else(|| format!("{path:?} cannot be written in a file").into())
}

/// A value on one line of YAML.
fn flow(value: &Value) -> String {
    match value {
        Value::Object(entries) => {
            let entries: Vec<_> =
                entries.iter().map(|(key, value)| format!("{}: {}", plain(key), flow(value))).collect();
            format!("{{{}}}", entries.join(", "))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(flow).collect::<Vec<_>>().join(", ")),
        Value::String(text) => plain(text),
        value => value.to_string(),
    }
}

/// A text of YAML, in quotes only where it needs them.
fn plain(text: &str) -> String {
    if is_plain(text) { text.to_owned() } else { Value::from(text).to_string() }
}

/// Whether YAML reads a text without quotes as that text.
fn is_plain(text: &str) -> bool {
    text.starts_with(|char: char| char.is_ascii_alphabetic() || char == '/')
        && text.chars().all(|char| char.is_ascii_alphanumeric() || "/-_.@".contains(char))
        && !["true", "false", "null", "yes", "no", "on", "off"].contains(&text.to_ascii_lowercase().as_str())
}
