//! Reads a job file, with the files that it needs before the job starts.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use serde_json::Value as Json;

use super::{
    AgentKind, Compat, DatasetSource, JobConfig, ModelConfig, harbor_job,
    include::{include, reaches_into_files},
    model::{SET_A_PRICE, unpriced},
};
use rollout_core::redact::Redactor;
use rollout_env::ConnectError;
use rollout_gateway::known_prices;
use rollout_settings::{
    Code, Diagnostic, Node, Override, Problems, Reader, Section, Settings as _, SourceFiles, Value, Written,
    diagnostic::nearest,
    read_text,
    record::{self, leave_out_unhashed, redact},
    yaml,
};

/// How many files of a directory are compared with a missing name.
const MAX_LISTED: usize = 10_000;

/// A valid job.
pub struct LoadedJob {
    /// The settings of the job file.
    pub config: JobConfig,
    /// The job file.
    pub path: PathBuf,
    /// The content of config.json: the job with its defaults filled in, `${VAR}` as written, literal secrets masked.
    /// [`load_job_record`] reads it again.
    pub record: serde_json::Value,
    /// Warnings about likely mistakes.
    pub warnings: Vec<Diagnostic>,
    /// `sha256:` and the hash of everything in the record that can change a result.
    pub hash: String,
    /// Values that must not appear in any output.
    pub secrets: Vec<String>,
}

impl LoadedJob {
    /// A job without a file.
    pub(crate) fn unwritten(config: JobConfig) -> Self {
        Self {
            config,
            path: PathBuf::new(),
            record: serde_json::Value::Null,
            warnings: Vec::new(),
            hash: String::new(),
            secrets: Vec::new(),
        }
    }
}

impl std::fmt::Debug for LoadedJob {
    /// Prints the record, without secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = f.debug_struct("LoadedJob");
        out.field("path", &self.path).field("hash", &self.hash).field("record", &self.record);
        out.field("warnings", &self.warnings).finish_non_exhaustive()
    }
}

/// Reads and checks a job file, YAML or JSON, and the scripts that it names.
///
/// Variables for `${VAR}` come from `vars`. Relative paths start at the job file.
pub fn load_job(
    path: &Path,
    overrides: &[Override],
    vars: &dyn Fn(&str) -> Option<String>,
) -> Result<LoadedJob, Problems> {
    let text = read_text(path).map_err(|message| {
        let problem = Diagnostic::about_file(path.display().to_string(), Code::Unreadable, message);
        Problems::new(vec![match similar(path) {
            Some(other) => problem.hint(format!("did you mean {}?", other.display())),
            None => problem,
        }])
    })?;
    load_job_text(path, &text, overrides, vars)
}

/// The existing file that a missing name is most similar to.
fn similar(path: &Path) -> Option<PathBuf> {
    if path.exists() {
        return None;
    }
    let dir = path.parent().unwrap_or(Path::new(""));
    let listed = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    let entries = std::fs::read_dir(listed).ok()?.flatten().take(MAX_LISTED);
    let names: Vec<String> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| [".yaml", ".yml", ".json"].iter().any(|end| name.ends_with(end)))
        .collect();
    let words: Vec<&str> = names.iter().map(String::as_str).collect();
    nearest(path.file_name()?.to_str()?, &words).map(|name| dir.join(name))
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

/// Reads a job from its record, if the job file at `path` no longer exists. Datasets are found relative to the record's
/// `base_dir`, or to `path` if it has none. A record with a masked secret is rejected.
pub fn load_job_record(
    path: &Path,
    record: &serde_json::Value,
    overrides: &[Override],
    vars: &dyn Fn(&str) -> Option<String>,
) -> Result<LoadedJob, Problems> {
    load(path, &format!("{record:#}"), overrides, vars, Origin::Record)
}

impl LoadedJob {
    /// The base of the job's relative paths, and the working directory of its Python processes.
    pub fn base_dir(&self) -> PathBuf {
        base_dir(&self.path, self.config.base_dir.as_deref())
    }

    /// The content of config.json: the record, and the base of its relative paths, so that it can be run from anywhere.
    pub fn copy(&self) -> Json {
        let mut copy = self.record.clone();
        if let Some(base) = copy.get_mut("base_dir") {
            let dir = self.base_dir();
            // A path that is not text cannot be written in JSON.
            if let Some(dir) = std::path::absolute(&dir).ok().as_deref().and_then(Path::to_str) {
                *base = Json::from(dir);
            }
        }
        copy
    }
}

/// The base of the relative paths of a job file.
fn base_dir(file: &Path, own: Option<&Path>) -> PathBuf {
    let beside = file.parent().unwrap_or(Path::new(""));
    let dir = own.map_or_else(|| beside.to_owned(), |own| beside.join(own));
    // An empty path cannot be made absolute.
    if dir.as_os_str().is_empty() { PathBuf::from(".") } else { dir }
}

/// The `base_dir` of a job file, before it is read as a whole.
fn written_base_dir(tree: &Node) -> Option<&Path> {
    match tree.get("base_dir").map(|node| &node.value) {
        Some(Value::String(dir)) => Some(Path::new(dir)),
        _ => None,
    }
}

/// The name of the copy of the configuration in a job directory.
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
        // The lines are those of the copy, which may be the only remaining file.
        Origin::Record => COPY.to_owned(),
    };
    let mut tree = yaml::parse_file(&mut sources, &name, path, text)?;
    let beside = path.parent().unwrap_or(Path::new("")).to_owned();
    let dir = |tree: &Node| written_base_dir(tree).map_or_else(|| beside.clone(), |own| beside.join(own));
    let mut refused = match origin {
        Origin::Author => harbor_job::translate(&mut tree, &sources, &beside),
        Origin::Record => Vec::new(),
    };
    for over in overrides {
        if reaches_into_files(over) {
            // A file that cannot be included is reported below, unless a later setting replaces it.
            let dir = dir(&tree);
            let _ = include(&mut tree, &dir, &mut sources);
        }
        refused.extend(over.apply(&mut tree, &mut sources).err().map(|problem| *problem));
    }
    let dir = dir(&tree);
    refused.extend(include(&mut tree, &dir, &mut sources));

    let reader = Reader::new(&sources, &dir, vars);
    refused.into_iter().for_each(|problem| reader.report(problem));
    reader.check_duplicates(&tree);
    // The copy of an earlier job: a masked secret would be passed to the agent as text.
    if origin == Origin::Record || tree.get("base_dir").is_some_and(|node| !node.is_null()) {
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
    check_provider_config(&root, &config);
    refuse_unpriced(&root, &config);
    override_containers(&mut config);
    Some(config)
}

/// The hash of the settings that affect results.
fn hash(record: &Json) -> String {
    record::hash(hashed(record))
}

/// The settings that affect results.
pub(crate) fn hashed(record: &Json) -> Json {
    let mut record = record.clone();
    leave_out_unhashed::<JobConfig>(&mut record);
    for agent in record.get_mut("agents").and_then(Json::as_array_mut).into_iter().flatten() {
        agent.get_mut("model").into_iter().for_each(leave_out_unhashed::<ModelConfig>);
    }
    for dataset in record.get_mut("datasets").and_then(Json::as_array_mut).into_iter().flatten() {
        dataset
            .pointer_mut("/interaction/user/model")
            .into_iter()
            .for_each(leave_out_unhashed::<ModelConfig>);
        let rubric = dataset.pointer_mut("/interaction/rubric").and_then(Json::as_array_mut);
        for entry in rubric.into_iter().flatten() {
            entry.pointer_mut("/judge/model").into_iter().for_each(leave_out_unhashed::<ModelConfig>);
        }
    }
    record
}

/// Applies the job's overrides to the containers of interactions.
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

/// Reports settings that the provider of the job rejects, each at its line.
fn check_provider_config(root: &Section<'_>, config: &JobConfig) {
    // A program may have its own provider, with settings unknown here.
    if config.environment.kind.is_none() || !config.needs_environment() {
        return;
    }
    let Err(ConnectError::Config(problems)) = rollout_env::check(&config.environment) else { return };
    let environment = root.inside("environment");
    let settings = environment.inside("provider_config");
    // If there are several, the first line is a count.
    let heading = usize::from(problems.lines().count() > 1);
    for problem in problems.lines().skip(heading) {
        let entry = problem.split('`').skip(1).step_by(2).find_map(|word| {
            let key = word.strip_prefix("provider_config.").unwrap_or(word);
            settings.entry(key.split('.').next().unwrap_or(key))
        });
        let span = entry.map_or_else(|| environment.value_span("provider_config"), |entry| entry.key_span);
        let message = problem.trim_start_matches("- ").trim();
        root.reader.report(Diagnostic::error(root.reader.sources, span, Code::InvalidValue, message));
    }
}

/// Reports every model without a price, if the job limits its cost in dollars: the limit would never be reached.
fn refuse_unpriced(root: &Section<'_>, config: &JobConfig) {
    let of_preset = || {
        config.agents.iter().filter_map(|agent| match &agent.kind {
            AgentKind::Preset(agent) => Some((agent.model.as_ref()?, agent.limits.max_cost)),
            _ => None,
        })
    };
    let gateway = root.inside("gateway");
    if config.gateway.max_cost.is_some() || of_preset().any(|(_, limit)| limit.is_some()) {
        let has_price = |name: &str| {
            known_prices().get(name).is_some()
                || of_preset()
                    .filter(|(_, limit)| config.gateway.max_cost.is_some() || limit.is_some())
                    .all(|(model, _)| config.price_at(model, name).is_some())
        };
        let mapped: BTreeSet<_> = config.gateway.models.values().flatten().collect();
        for name in mapped.into_iter().filter(|name| !has_price(name)) {
            let message = unpriced("max_cost", name);
            let hint =
                "use a model with a known price in `gateway.models`, or limit `max_total_tokens` instead";
            root.reader.error_with_hint(gateway.value_span("models"), Code::InvalidValue, message, hint);
        }
    }
    if config.gateway.max_cost.is_none() {
        return;
    }
    let unknown: BTreeSet<_> =
        of_preset().filter(|(model, _)| !model.is_priced()).map(|(model, _)| model.name.as_str()).collect();
    let span = gateway.value_span("max_cost");
    for name in unknown {
        let message = unpriced("gateway.max_cost", name);
        root.reader.error_with_hint(span, Code::InvalidValue, message, SET_A_PRICE);
    }
}

/// The values of a list. A wrong type was reported.
fn items<'r>(root: &Section<'r>, key: &str) -> &'r [Node] {
    match root.node(key).map(|node| &node.value) {
        Some(Value::List(items)) => items,
        _ => &[],
    }
}

/// Reports every agent that cannot attempt any of the datasets.
fn refuse_idle_agents(root: &Section<'_>, config: &JobConfig) {
    let interaction = |source: &DatasetSource| matches!(source, DatasetSource::Interaction(_));
    let listed = items(root, "datasets").len();
    let all = config.datasets.len() == listed && listed > 0;
    if !all || !config.datasets.iter().all(|dataset| interaction(&dataset.source)) {
        return;
    }
    let nodes = items(root, "agents");
    for agent in config.agents.iter().filter(|agent| !matches!(agent.kind, AgentKind::Model(_))) {
        let named = |node: &&Node| matches!(node.get("name"), Some(Node { value: Value::String(name), .. }) if name == agent.name.as_str());
        let Some(node) = nodes.iter().find(named).and_then(|node| node.get("name")) else { continue };
        let message = format!("the agent `{}` cannot attempt any of the datasets", agent.name);
        let hint = "an interaction needs an agent with a `model:`; remove this agent";
        root.reader
            .report(Diagnostic::error(root.reader.sources, node.span, Code::Conflict, message).hint(hint));
    }
}
