//! The configuration of a job that grades another job again: that of the other job, from its record.

use std::{collections::BTreeSet, path::Path};

use rollout::{
    config::{EnvironmentKind, LoadedJob, Override, load_job_record},
    job::{JobError, Resumable},
    name::JobName,
    record::redact::MASK,
};
use serde_json::{Value, json};

use super::super::load;
use crate::{
    args::Regrade,
    exit::{Failure, hinted},
};

/// Loads the configuration of a finished job, with the changes of a regrade.
pub(super) fn of_regrade(args: &Regrade, finished: &Resumable) -> Result<LoadedJob, Failure> {
    let header = finished.header();
    let jobs_dir = match &args.jobs_dir {
        Some(dir) => dir.clone(),
        None => std::path::absolute(finished.directory())?.parent().unwrap_or(Path::new("/")).to_owned(),
    };
    let text = jobs_dir.to_str().ok_or_else(|| format!("the path {} is not UTF-8", jobs_dir.display()))?;
    let name = free_name(&jobs_dir, &header.job_name);
    JobName::new(&name)?;
    let mut settings = vec![
        ("name", json!(name)),
        ("jobs_dir", json!(text)),
        // The finished job keeps its environments. Copies of them are not kept.
        ("environment.preserve_env", json!("never")),
    ];
    if EnvironmentKind::from_name(&header.provider).is_some() {
        settings.push(("environment.type", json!(header.provider)));
    }
    settings.extend(args.concurrency.map(|trials| ("n_concurrent_trials", json!(trials))));
    let mut overrides = load::overrides(&args.set)?;
    if let Some(other) = overrides.iter().find(|set| !set.key.starts_with("verifier.")) {
        let failure = Failure::from(format!("{} cannot be changed: the agents do not run again", other.key));
        return Err(
            failure.hint(Some("only settings of the verifier can be changed, such as verifier.image"))
        );
    }
    overrides.extend(
        settings.iter().map(|(key, value)| Override { key: (*key).to_owned(), value: value.to_string() }),
    );
    load(finished, &overrides)
}

/// Loads the configuration of an interrupted regrade.
pub(crate) fn recorded(regrade: &Resumable) -> Result<LoadedJob, Failure> {
    load(regrade, &[])
}

/// Loads the recorded configuration of a job whose agents do not run: variables and secrets that only they use are not
/// needed.
fn load(job: &Resumable, overrides: &[Override]) -> Result<LoadedJob, Failure> {
    let mut record = job.config().map_err(hinted(JobError::hint))?;
    let mut of_agents = BTreeSet::new();
    for agent in record["agents"].as_array_mut().into_iter().flatten() {
        if let Some(env) = agent.get_mut("env").and_then(Value::as_object_mut) {
            env.retain(|_, value| !value.as_str().is_some_and(|text| text.contains(MASK)));
        }
        variables(agent, &mut of_agents);
    }
    let mut others = BTreeSet::new();
    for (_, section) in record.as_object().into_iter().flatten().filter(|(key, _)| *key != "agents") {
        variables(section, &mut others);
    }
    let value = |name: &str| {
        let unused = of_agents.contains(name) && !others.contains(name);
        load::variable(name).or_else(|| unused.then(String::new))
    };
    load_job_record(&job.header().job_file, &record, overrides, &value)
        .map_err(|problems| load::refused(&job.config_copy(), &problems))
}

/// Collects the names of variables in a value.
fn variables(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::String(text) => {
            for part in text.split("${").skip(1) {
                let end = part.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(part.len());
                found.insert(part[..end].to_owned());
            }
        }
        Value::Array(items) => items.iter().for_each(|item| variables(item, found)),
        Value::Object(entries) => entries.values().for_each(|item| variables(item, found)),
        _ => {}
    }
}

/// Returns the first free name of the form `<job>-regrade-<n>`.
fn free_name(dir: &Path, job: &str) -> String {
    let name = |number: u32| format!("{job}-regrade-{number}");
    (1..).map(name).find(|name| !dir.join(name).exists()).unwrap_or_else(|| name(0))
}
