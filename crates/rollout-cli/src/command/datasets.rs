//! `rollout datasets`: the datasets that can be run by name, and their files.

use std::{fs::File, io, path::Path};

use globset::{Glob, GlobMatcher};
use rollout::{
    catalogue::{CatalogueEntry, CatalogueKind, catalogue, definition_names, definition_text},
    config::{
        DatasetConfig, DatasetSource, ExamplesConfig, HubAddress, NamedDataset, is_git_address,
        is_hub_address, load_job_text, nearest,
    },
    task::{Dataset, DatasetError, HubDataError, HubDataset, RegistryEntry, Resolved, Sources, TaskEntry},
    text::chain,
};
use serde_json::{Value, json};

use super::{
    dataset_argument,
    load::{self, progress},
};
use crate::{
    args::{Answer, DatasetsCommand},
    command::sources::sources,
    exit::{Exit, Failure, hinted},
    report::{
        Align, table,
        text::{BOLD, DIM, ODD, count, paint},
    },
};

/// The origin of definitions that are part of the program.
const READY: &str = "rollout";

/// Lists, shows or fetches datasets.
pub(crate) async fn run(what: DatasetsCommand) -> Result<Exit, Failure> {
    match what {
        DatasetsCommand::List { pattern, offline, output } => {
            list(pattern.as_deref(), &sources(offline)?, output).await
        }
        DatasetsCommand::Show { dataset, offline, output } => {
            show(&dataset, &sources(offline)?, output).await
        }
        DatasetsCommand::Download { datasets, out, offline, output } => {
            if out.is_some() && datasets.len() > 1 {
                return Err(Failure::from("--out writes the rows of one dataset"));
            }
            let sources = sources(offline)?;
            let mut fetched = Vec::new();
            for dataset in &datasets {
                fetched.push(download(dataset, out.as_deref(), &sources).await?);
            }
            match output {
                Answer::Json => super::print(&serde_json::to_string(&fetched)?)?,
                Answer::Human => {
                    for one in &fetched {
                        super::print(&fetched_line(one))?;
                    }
                }
            }
            Ok(Exit::Success)
        }
    }
}

/// A line of the list.
struct Listed {
    name: String,
    version: Option<String>,
    versions: usize,
    kind: CatalogueKind,
    size: Option<u64>,
    origin: String,
    description: Option<String>,
}

async fn list(pattern: Option<&str>, sources: &Sources, output: Answer) -> Result<Exit, Failure> {
    let glob = pattern.map(Glob::new).transpose()?.map(|glob| glob.compile_matcher());
    let is_wanted = |name: &str| glob.as_ref().is_none_or(|glob: &GlobMatcher| glob.is_match(name));
    let known = sources.list(&progress).await;
    let mut listed: Vec<Listed> = definition_names().filter(|name| is_wanted(name)).map(ready).collect();
    for entry in known.entries.into_iter().filter(|entry| is_wanted(&entry.name)) {
        match listed.last_mut().filter(|last| last.name == entry.name && last.origin != READY) {
            Some(last) => last.versions += 1,
            None => listed.push(of_registry(entry)),
        }
    }
    match output {
        Answer::Json => {
            let rows: Vec<Value> = listed.iter().map(Listed::json).collect();
            super::print(&serde_json::to_string(&json!({"datasets": rows, "unread": known.unread}))?)?;
        }
        Answer::Human => {
            super::print(&render(&listed))?;
            for reason in &known.unread {
                super::print(&format!("\n{} {reason}", paint(ODD, "not listed:")))?;
            }
        }
    }
    Ok(Exit::Success)
}

fn ready(name: &str) -> Listed {
    let entry = catalogue().into_iter().find(|entry| entry.name == name);
    Listed {
        name: name.to_owned(),
        version: None,
        versions: 1,
        kind: CatalogueKind::Questions,
        size: entry.as_ref().and_then(|entry| entry.size),
        origin: READY.to_owned(),
        description: entry.map(|entry| entry.measures),
    }
}

fn of_registry(entry: RegistryEntry) -> Listed {
    let RegistryEntry { name, version, description, tasks, registry } = entry;
    Listed {
        name,
        version,
        versions: 1,
        kind: CatalogueKind::Tasks,
        size: Some(tasks as u64),
        origin: registry,
        description,
    }
}

impl Listed {
    fn json(&self) -> Value {
        json!({
            "name": self.name, "version": self.version, "versions": self.versions, "kind": self.kind,
            "size": self.size, "origin": self.origin, "description": self.description,
        })
    }
}

fn render(listed: &[Listed]) -> String {
    let heading = ["dataset", "version", "size", "origin"].map(str::to_owned).to_vec();
    let row = |one: &Listed| {
        let version = match (&one.version, one.versions) {
            (None, _) => "-".to_owned(),
            (Some(version), 1) => version.clone(),
            (Some(version), several) => format!("{version} (newest of {several})"),
        };
        let unit = if one.kind == CatalogueKind::Tasks { "task" } else { "question" };
        let size = one.size.map_or_else(|| "-".to_owned(), |size| count(size, unit));
        vec![one.name.clone(), version, size, one.origin.clone()]
    };
    let rows: Vec<_> = std::iter::once(heading).chain(listed.iter().map(row)).collect();
    let mut lines = table(&[Align::Left, Align::Left, Align::Right, Align::Left], &rows);
    lines[0] = paint(BOLD, &lines[0]);
    lines.join("\n")
}

/// A dataset as the command line names it.
pub(crate) fn parsed(text: &str) -> Result<DatasetConfig, Failure> {
    // Read as part of a job, so that it means the same here as in a job file.
    let dataset = dataset_argument::entry(text, |path| Ok(path.to_owned()))?;
    let model = json!({"name": "model", "model": {"name": "none", "base_url": "http://127.0.0.1/v1"}});
    let job = json!({"agents": [model], "datasets": [dataset]});
    let loaded = load_job_text(Path::new("<command line>"), &job.to_string(), &[], &load::variable);
    let loaded = loaded.map_err(|problems| load::refused(Path::new(text), &problems))?;
    loaded.config.datasets.into_iter().next().ok_or_else(|| Failure::from("no dataset is named"))
}

pub(crate) async fn fetch(config: &DatasetConfig, sources: &Sources) -> Result<Dataset, Failure> {
    let fetched = sources.load(std::slice::from_ref(config), &Resolved::default(), &progress).await;
    let fetched = fetched.map_err(hinted(DatasetError::hint))?.pop();
    fetched.ok_or_else(|| Failure::from("no dataset is named"))
}

async fn download(text: &str, out: Option<&Path>, sources: &Sources) -> Result<Value, Failure> {
    let config = parsed(text)?;
    let dataset = fetch(&config, sources).await?;
    let mut report = json!({"dataset": text, "resolved": dataset.resolved});
    match (&config.source, &dataset.rows) {
        (DatasetSource::Interaction(_), Some(rows)) => {
            let lines = io::BufRead::lines(io::BufReader::new(File::open(rows)?)).count();
            report["questions"] = json!(lines);
            report["file"] = json!(rows);
            if let Some(out) = out {
                write_questions(rows, out)
                    .map_err(|error| Failure::from(format!("cannot write {}: {error}", out.display())))?;
                report["file"] = json!(out);
            }
        }
        (DatasetSource::Interaction(interaction), None) => {
            let file = match &interaction.dataset {
                ExamplesConfig::File { path, .. } => json!(path),
                ExamplesConfig::Inline(_) | ExamplesConfig::Hub(_) => Value::Null,
            };
            report["file"] = file;
        }
        _ => {
            if out.is_some() {
                let failure = Failure::from(format!("{text} has tasks, not rows"));
                return Err(failure.hint(Some("without --out, its tasks are fetched to the cache")));
            }
            let broken = dataset.tasks.iter().filter(|entry| entry.task.is_err()).count();
            report["tasks"] = json!(dataset.tasks.len());
            report["invalid"] = json!(broken);
        }
    }
    Ok(report)
}

/// Writes rows to a new file. Each gets an `id` if it has none, as `rollout eval` needs it.
pub(crate) fn write_questions(rows: &Path, out: &Path) -> io::Result<()> {
    let mut file = io::BufWriter::new(File::create_new(out)?);
    for (number, line) in io::BufRead::lines(io::BufReader::new(File::open(rows)?)).enumerate() {
        let mut row: serde_json::Map<String, Value> = serde_json::from_str(&line?)?;
        if !["id", "task_id"].iter().any(|key| row.contains_key(*key)) {
            row.shift_insert(0, "id".to_owned(), json!(number.to_string()));
        }
        serde_json::to_writer(&mut file, &row)?;
        io::Write::write_all(&mut file, b"\n")?;
    }
    io::Write::flush(&mut file)
}

fn fetched_line(report: &Value) -> String {
    let number = |key: &str| report[key].as_u64();
    let what = match (number("questions"), number("tasks")) {
        (Some(questions), _) => count(questions, "question"),
        (_, Some(tasks)) => count(tasks, "task"),
        _ => "nothing to fetch".to_owned(),
    };
    let invalid = match number("invalid") {
        None | Some(0) => String::new(),
        Some(invalid) => format!(", {invalid} invalid"),
    };
    let mut line = format!("{}: {what}{invalid}", report["dataset"].as_str().unwrap_or_default());
    if let Some(file) = report["file"].as_str() {
        line.push_str(&format!(", in {file}"));
    }
    line
}

async fn show(text: &str, sources: &Sources, output: Answer) -> Result<Exit, Failure> {
    let NamedDataset { name, version } = text.into();
    let known = catalogue().into_iter().find(|entry| entry.name == name);
    let mut facts = known.as_ref().map(catalogue_facts).unwrap_or_default();
    let mut notes = Vec::new();
    if is_hub_address(text) {
        facts.extend(hub_facts(&found_on_hub(&text.parse()?, sources).await?));
    } else if is_git_address(text) || Path::new(text).exists() {
        let dataset = fetch(&parsed(text)?, sources).await?;
        facts.extend(task_facts(&dataset.tasks));
        facts.extend(dataset.resolved.iter().map(|(what, commit)| (what.clone(), json!(commit))));
    } else if definition_text(&name).is_some() && version.is_none() {
        let config = parsed(text)?;
        if let DatasetSource::Interaction(interaction) = &config.source
            && let ExamplesConfig::Hub(address) = &interaction.dataset
        {
            match sources.find_on_hub(address, &progress).await {
                Ok(found) => facts.extend(hub_facts(&found)),
                Err(error) => notes.push(chain(&error)),
            }
        }
        facts.push(("run".to_owned(), json!(format!("rollout run -d {name} -m MODEL"))));
    } else {
        let list = sources.list(&progress).await;
        let of_name: Vec<_> = list.entries.iter().filter(|entry| entry.name == name).collect();
        let found = of_name.iter().find(|entry| version.is_none() || entry.version == version);
        notes.extend(list.unread.iter().map(|reason| format!("not searched: {reason}")));
        match found {
            Some(entry) => {
                let versions: Vec<_> = of_name.iter().filter_map(|entry| entry.version.as_deref()).collect();
                facts.extend(registry_facts(entry, &versions));
            }
            None if known.is_none() => return Err(unknown(text, &list.entries, &notes)),
            None => notes.push("not found in any registry that could be read".to_owned()),
        }
    }
    match output {
        Answer::Json => {
            let mut object: serde_json::Map<_, _> = facts.into_iter().collect();
            object.insert("name".to_owned(), json!(text));
            object.insert("notes".to_owned(), json!(notes));
            super::print(&Value::Object(object).to_string())?;
        }
        Answer::Human => {
            let mut lines = vec![paint(BOLD, text)];
            let text_of = |value: &Value| match value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let width = facts.iter().map(|(what, _)| what.chars().count()).max().unwrap_or_default().min(20);
            lines.extend(facts.iter().map(|(what, value)| {
                format!("{}  {}", paint(DIM, &format!("{what:<width$}")), text_of(value))
            }));
            lines.extend(notes.iter().map(|note| format!("{} {note}", paint(ODD, "note:"))));
            super::print(&lines.join("\n"))?;
        }
    }
    Ok(Exit::Success)
}

type Facts = Vec<(String, Value)>;

fn catalogue_facts(entry: &CatalogueEntry) -> Facts {
    let CatalogueEntry {
        title, measures, source, revision, licence, size, reported, citation, checked, ..
    } = entry;
    let unit = if entry.kind == CatalogueKind::Tasks { "task" } else { "question" };
    let facts = [
        ("title", Some(title.clone())),
        ("measures", Some(measures.clone())),
        ("source", Some(source.clone())),
        ("revision", revision.clone()),
        ("licence", licence.clone()),
        ("size", size.map(|size| count(size, unit))),
        ("reported", Some(reported.clone())),
        ("citation", citation.clone()),
        ("checked", Some(checked.clone())),
    ];
    facts.into_iter().filter_map(|(what, value)| Some((what.to_owned(), json!(value?)))).collect()
}

fn registry_facts(entry: &RegistryEntry, versions: &[&str]) -> Facts {
    let named = match &entry.version {
        Some(version) => format!("{}@{version}", entry.name),
        None => entry.name.clone(),
    };
    let facts = [
        ("version", entry.version.clone()),
        ("versions", Some(versions.join(", "))),
        ("description", entry.description.clone()),
        ("tasks", Some(entry.tasks.to_string())),
        ("origin", Some(entry.registry.clone())),
        ("run", Some(format!("rollout run -d {named} -a AGENT -m MODEL"))),
    ];
    facts.into_iter().filter_map(|(what, value)| Some((what.to_owned(), json!(value?)))).collect()
}

fn hub_facts(found: &HubDataset) -> Facts {
    let size: u64 = found.files.iter().map(|file| file.size).sum();
    let missing = found.missing_bytes();
    let files: Vec<&str> = found.files.iter().map(|file| file.path.as_str()).collect();
    let cached = match missing {
        0 => "all of it".to_owned(),
        missing => format!("{} to download", bytes(missing)),
    };
    [
        ("address", json!(found.address.to_string())),
        ("commit", json!(found.commit)),
        ("files", json!(files.join(", "))),
        ("download", json!(bytes(size))),
        ("in the cache", json!(cached)),
    ]
    .map(|(what, value)| (what.to_owned(), value))
    .to_vec()
}

fn task_facts(tasks: &[TaskEntry]) -> Facts {
    let broken = tasks.iter().filter(|entry| entry.task.is_err()).count();
    let mut facts = vec![("tasks".to_owned(), json!(tasks.len()))];
    if broken > 0 {
        facts.push(("invalid".to_owned(), json!(broken)));
    }
    facts
}

async fn found_on_hub(address: &HubAddress, sources: &Sources) -> Result<HubDataset, Failure> {
    sources.find_on_hub(address, &progress).await.map_err(hinted(HubDataError::hint))
}

fn unknown(text: &str, entries: &[RegistryEntry], notes: &[String]) -> Failure {
    let mut names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
    definition_names().for_each(|name| names.push(name));
    let hint = match nearest(text.split('@').next().unwrap_or(text), &names) {
        Some(near) => format!("did you mean {near}?"),
        None => "`rollout datasets list` shows all datasets".to_owned(),
    };
    Failure::from(format!("there is no dataset {text:?}")).hint(Some(hint)).details(notes.join("\n"))
}

fn bytes(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}
