//! Reads a job file, with everything it names that must be known before a job can start.

use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use super::{
    AgentKind, Compat, DatasetSource, JobConfig, ModelConfig,
    include::{include, reaches_into_files},
};
use rollout_core::redact::Redactor;
use rollout_settings::{
    Code, Diagnostic, Node, Override, Problems, Reader, Section, Settings as _, SourceFiles, Value, Written,
    read_text,
    record::{self, leave_out_unhashed, redact},
    yaml,
};

/// A job that can be started.
pub struct LoadedJob {
    /// What the job file says.
    pub config: JobConfig,
    /// The job file.
    pub path: PathBuf,
    /// What config.json holds: the job with its defaults filled in, `${VAR}` as written, literal
    /// secrets masked. [`load_job_record`] reads it again.
    pub record: serde_json::Value,
    /// What may not be as its author meant.
    pub warnings: Vec<Diagnostic>,
    /// `sha256:` and the hash of everything in the record that can change a result.
    pub hash: String,
    /// Values that must not appear in any output.
    pub secrets: Vec<String>,
}

impl std::fmt::Debug for LoadedJob {
    /// Shows what the record shows, and no secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = f.debug_struct("LoadedJob");
        out.field("path", &self.path).field("hash", &self.hash).field("record", &self.record);
        out.field("warnings", &self.warnings).finish_non_exhaustive()
    }
}

/// Reads and checks a job file, YAML or JSON, and the scripts that it names.
///
/// Variables for `${VAR}` come from `vars`. Relative inputs are found beside the job file.
pub fn load_job(
    path: &Path,
    overrides: &[Override],
    vars: &dyn Fn(&str) -> Option<String>,
) -> Result<LoadedJob, Problems> {
    let text = read_text(path).map_err(|message| {
        Problems::new(vec![Diagnostic::about_file(path.display().to_string(), Code::Unreadable, message)])
    })?;
    load_job_text(path, &text, overrides, vars)
}

/// Reads and checks a job from text, as if it were the content of the file at `path`.
pub fn load_job_text(
    path: &Path,
    text: &str,
    overrides: &[Override],
    vars: &dyn Fn(&str) -> Option<String>,
) -> Result<LoadedJob, Problems> {
    load(path, text, overrides, vars, Origin::Author)
}

/// Reads a job from its record, for when the job file at `path` is gone. Scripts and datasets are
/// found beside `path`; a record in which a secret was masked is refused.
pub fn load_job_record(
    path: &Path,
    record: &serde_json::Value,
    vars: &dyn Fn(&str) -> Option<String>,
) -> Result<LoadedJob, Problems> {
    load(path, &format!("{record:#}"), &[], vars, Origin::Record)
}

/// What a job directory's copy of its configuration is called.
pub(super) const COPY: &str = "config.json";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Author,
    Record,
}

fn load(
    path: &Path,
    text: &str,
    overrides: &[Override],
    vars: &dyn Fn(&str) -> Option<String>,
    origin: Origin,
) -> Result<LoadedJob, Problems> {
    let mut sources = SourceFiles::default();
    let name = match origin {
        Origin::Author => path.display().to_string(),
        // The lines are those of the copy, which may be all that is left.
        Origin::Record => COPY.to_owned(),
    };
    let mut tree = yaml::parse_file(&mut sources, &name, path, text)?;
    let dir = path.parent().unwrap_or(Path::new(""));
    let mut refused = Vec::new();
    for over in overrides {
        if reaches_into_files(over) {
            // What cannot be included is told below, unless a later setting replaces it.
            let _ = include(&mut tree, dir, &mut sources);
        }
        refused.extend(over.apply(&mut tree, &mut sources).err().map(|problem| *problem));
    }
    refused.extend(include(&mut tree, dir, &mut sources));

    let reader = Reader::new(&sources, dir, vars);
    refused.into_iter().for_each(|problem| reader.report(problem));
    reader.check_duplicates(&tree);
    if origin == Origin::Record {
        reader.check_masks(&tree);
    }
    let read = read(&reader, &tree);
    let secrets = reader.take_secrets();
    let (found, failed) = reader.finish();
    let Some(config) = read.filter(|_| !failed) else { return Err(Problems::new(found)) };
    let mut record = JobConfig::record(&config, Written::root(&tree, &sources)).into();
    redact(&mut record, &Redactor::new(secrets.iter().map(String::as_str)));
    Ok(LoadedJob {
        hash: hash(&record),
        config,
        path: path.to_owned(),
        record,
        warnings: found,
        secrets: secrets.into_iter().collect(),
    })
}

fn read(reader: &Reader<'_>, tree: &Node) -> Option<JobConfig> {
    let root = reader.section::<JobConfig>(tree, "")?;
    let mut config = JobConfig::read(&root)?;
    if config.compat == Some(Compat::Harbor) {
        config.verifier.follow_harbor(&root.inside("verifier"));
    }
    refuse_idle_agents(&root, &config);
    override_containers(&mut config);
    Some(config)
}

/// The hash of what a record says about results.
fn hash(record: &Json) -> String {
    let mut record = record.clone();
    leave_out_unhashed::<JobConfig>(&mut record);
    for agent in record["agents"].as_array_mut().into_iter().flatten() {
        agent.get_mut("model").into_iter().for_each(leave_out_unhashed::<ModelConfig>);
    }
    for dataset in record["datasets"].as_array_mut().into_iter().flatten() {
        let rubric = dataset.pointer_mut("/interaction/rubric").and_then(Json::as_array_mut);
        for entry in rubric.into_iter().flatten() {
            entry.pointer_mut("/judge/model").into_iter().for_each(leave_out_unhashed::<ModelConfig>);
        }
    }
    record::hash(record)
}

/// Gives the containers of interactions what the job has for those of all tasks.
fn override_containers(config: &mut JobConfig) {
    for dataset in &mut config.datasets {
        if let DatasetSource::Interaction(interaction) = &mut dataset.source
            && let Some(container) = &mut interaction.environment
        {
            container.cpus = config.environment.override_cpus.unwrap_or(container.cpus);
            container.memory = config.environment.override_memory.unwrap_or(container.memory);
        }
    }
}

/// Notes every agent that can attempt none of the datasets.
fn refuse_idle_agents(root: &Section<'_>, config: &JobConfig) {
    let interaction = |source: &DatasetSource| matches!(source, DatasetSource::Interaction(_));
    let listed = root.list("datasets").map_or(0, <[_]>::len);
    let all = config.datasets.len() == listed && listed > 0;
    if !all || !config.datasets.iter().all(|dataset| interaction(&dataset.source)) {
        return;
    }
    let nodes = root.list("agents").unwrap_or_default();
    for agent in config.agents.iter().filter(|agent| !matches!(agent.kind, AgentKind::Model(_))) {
        let named = |node: &&Node| matches!(node.get("name"), Some(Node { value: Value::String(name), .. }) if name == agent.name.as_str());
        let Some(node) = nodes.iter().find(named).and_then(|node| node.get("name")) else { continue };
        let message = format!("the agent `{}` can attempt none of the datasets", agent.name);
        let hint = "interactions are for agents with a `model:`, so leave this one out";
        root.reader
            .report(Diagnostic::error(root.reader.sources, node.span, Code::Conflict, message).hint(hint));
    }
}
