//! `rollout agents`: the agents that can be run by name.

use std::path::Path;

use rollout::{
    config::{
        PresetConfig, dialect_name, is_preset_path, load_preset_text, nearest, preset, preset_names,
        preset_text,
    },
    fetch_agent,
};
use serde_json::json;

use crate::{
    args::{AgentsCommand, Answer},
    exit::{Exit, Failure},
    packages::packages,
    report::{
        Align, table,
        text::{BOLD, paint},
    },
};

/// Lists the agents, or prints the preset of one.
pub(crate) async fn run(what: &AgentsCommand) -> Result<Exit, Failure> {
    match what {
        AgentsCommand::List { output: Answer::Human } => super::print(&list())?,
        AgentsCommand::List { output: Answer::Json } => {
            let agents: Vec<_> = presets().map(|preset| json_row(&preset)).collect();
            super::print(&serde_json::to_string(&agents)?)?;
        }
        AgentsCommand::Fetch { names, python, musl } => {
            let packages = packages()?;
            for name in names {
                let (name, version) = with_version(name);
                if version == Some("") {
                    let hint = format!("write {name}@VERSION, or {name} for the version of its preset");
                    return Err(Failure::from(format!("no version in {name}@")).hint(Some(hint)));
                }
                let preset = match is_preset_path(name) {
                    true => from_file(Path::new(name))?,
                    false => preset(name).ok_or_else(|| unknown(name))?,
                };
                if *musl && !preset.install.runs_on_musl() {
                    return Err(Failure::from(format!("{name} has no program for images with musl")));
                }
                let version = version.unwrap_or(preset.default_version());
                let fetched = fetch_agent(&packages, &preset, version, python.as_deref(), *musl).await?;
                super::print(&format!("{name} {fetched}"))?;
            }
        }
        AgentsCommand::Show { name } => {
            super::print(preset_text(name).ok_or_else(|| unknown(name))?.trim_end())?;
        }
    }
    Ok(Exit::Success)
}

/// The agent and its version in `agent@version`.
fn with_version(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once('@') {
        // A directory of a path may have an @ in its name.
        Some((name, version)) if !name.is_empty() && !version.contains('/') => (name, Some(version)),
        _ => (text, None),
    }
}

fn from_file(path: &Path) -> Result<PresetConfig, Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::from(format!("cannot read the preset {}: {error}", path.display())))
        .map_err(|failure| {
            failure.hint(Some("check the path; `rollout agents list` shows the agents without a file"))
        })?;
    load_preset_text(path, &text).map_err(|problems| super::load::refused(path, &problems))
}

fn unknown(name: &str) -> Failure {
    let known: Vec<&str> = preset_names().collect();
    let hint = match nearest(name, &known) {
        Some(near) => format!("did you mean {near}?"),
        None => "`rollout agents list` shows all agents".to_owned(),
    };
    Failure::from(format!("unknown agent {name:?}")).hint(Some(hint))
}

fn presets() -> impl Iterator<Item = PresetConfig> {
    preset_names().filter_map(preset)
}

fn list() -> String {
    let heading = ["agent", "version", "dialects", "status", "description"].map(str::to_owned).to_vec();
    let row = |preset: PresetConfig| {
        let status = if preset.untested { "untested" } else { "tested" };
        vec![
            preset.name.clone(),
            preset.default_version().to_owned(),
            Some(dialects(&preset).join(", "))
                .filter(|text| !text.is_empty())
                .unwrap_or_else(|| "none".to_owned()),
            status.to_owned(),
            preset.description,
        ]
    };
    let rows: Vec<_> = std::iter::once(heading).chain(presets().map(row)).collect();
    let mut lines = table(&[Align::Left; 5], &rows);
    lines[0] = paint(BOLD, &lines[0]);
    lines.join("\n")
}

fn json_row(preset: &PresetConfig) -> serde_json::Value {
    json!({
        "name": preset.name,
        "description": preset.description,
        "version": preset.default_version(),
        "tested": !preset.untested,
        "dialects": dialects(preset),
    })
}

fn dialects(preset: &PresetConfig) -> Vec<&'static str> {
    preset.dialects.iter().map(|dialect| dialect_name(*dialect)).collect()
}
