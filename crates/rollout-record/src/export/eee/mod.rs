//! Every Eval Ever, schema 0.3.0: for each agent on each dataset, a file of scores and a file with a line for each
//! trial.
//!
//! The files are `data/<dataset>/<developer>/<model>/<uuid>.json` and `<uuid>_samples.jsonl`. The id depends only on
//! the job, agent and dataset, so the same job always gives the same files.

mod aggregate;
mod evaluated;
mod instance;

use std::{collections::BTreeMap, io::Write as _, path::PathBuf};

use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use self::{evaluated::Evaluated, instance::Sample};
use super::{Export, ExportError, Exported, NewFile};
use crate::{
    saved::{SavedJob, SavedTrial},
    stats::report::{Report, ReportTask, ReportTrial},
};
use rollout_core::{
    message::ToolDef,
    result::{Standing, TrialSummary},
    text::hex,
};

/// The version of the schemas.
const SCHEMA: &str = "0.3.0";

/// Metadata that a job does not contain.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EeeOptions {
    /// The organization that ran the evaluation; `unknown` if None.
    pub organization: Option<String>,
    /// The relationship between that organization and the model's developer.
    pub relationship: Relationship,
    /// The model's developer, if it is not a part of the model's name.
    pub developer: Option<String>,
}

/// The relationship between the organization that ran the evaluation and the model's developer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Relationship {
    /// The organization developed the model.
    FirstParty,
    /// The organization is independent of the developer.
    ThirdParty,
    /// The organization worked with the developer.
    Collaborative,
    /// Any other or an unknown relationship.
    #[default]
    Other,
}

impl Relationship {
    fn as_str(self) -> &'static str {
        match self {
            Self::FirstParty => "first_party",
            Self::ThirdParty => "third_party",
            Self::Collaborative => "collaborative",
            Self::Other => "other",
        }
    }
}

/// The trials of one agent on one dataset.
struct Group<'a> {
    agent: &'a str,
    dataset: &'a str,
    evaluated: Evaluated,
    evaluation_id: String,
    /// The path of the file of scores without its extension, relative to the output directory.
    stem: String,
    /// The file of lines; None before the first line.
    samples: Option<NewFile>,
    checksum: Sha256,
    rows: u64,
    unscored: u64,
    /// Trials that failed because of the infrastructure or the task.
    excluded: u64,
    /// The tools of the first trial that had tools.
    tools: Vec<ToolDef>,
}

/// Writes a file of scores and one of samples for each agent on each dataset.
///
/// The scores are those of the job's headline. A trial that failed because of the agent or the tests has a line with
/// its error and the score 0. Trials that failed because of the infrastructure or the task and unscored trials have no
/// line.
pub fn write(export: &Export<'_>, options: &EeeOptions) -> Result<Exported, ExportError> {
    let job = export.job;
    let mut groups: BTreeMap<(u32, &str), Group<'_>> = BTreeMap::new();
    for (agent, dataset) in job.groups() {
        let number = agent_number(job, agent);
        groups.insert((number, dataset), Group::new(job, options, agent, dataset));
    }
    let mut trials = Vec::with_capacity(job.len());
    // Trials are sorted by agent and dataset, so only one file is open at a time.
    let mut open: Option<(u32, &str)> = None;
    for trial in export.trials()? {
        let trial = trial?;
        let agent = agent_number(job, trial.id.agent.as_str());
        trials.push(ReportTrial {
            agent,
            task: trial.task as u32,
            outcome: TrialSummary::from(&trial.result),
        });
        let pair = (agent, job.task(&trial).dataset.as_str());
        if let Some(group) = open.replace(pair).filter(|earlier| *earlier != pair) {
            groups.get_mut(&group).map(Group::end).transpose()?;
        }
        if let Some(group) = groups.get_mut(&pair) {
            group.add(export, &trial)?;
        }
    }
    if let Some(group) = open {
        groups.get_mut(&group).map(Group::end).transpose()?;
    }
    let tasks = job.header().tasks.iter().map(|task| ReportTask {
        dataset: task.dataset.clone().into(),
        name: task.name.clone().into(),
        category: None,
        difficulty: None,
    });
    let statistics = Report::new(job.header().agents.clone(), tasks.collect(), trials).statistics();

    let mut exported = Exported::default();
    for group in groups.into_values() {
        let Group { agent, dataset, unscored, excluded, .. } = group;
        if unscored > 0 {
            exported.left_out.push(format!("unscored trials of {agent} on {dataset} ({unscored})"));
        }
        if excluded > 0 {
            exported.left_out.push(format!(
                "trials of {agent} on {dataset} that failed because of the infrastructure or the task ({excluded})"
            ));
        }
        let figures = &statistics.agents[agent].datasets.get(dataset);
        if let Some(figures) = figures.filter(|figures| figures.headline.mean_reward.is_some()) {
            let rows = group.rows;
            exported.files.push(group.finish(export, options, figures, statistics.bootstrap)?);
            exported.rows += rows;
        }
    }
    if exported.files.is_empty() {
        return Err(export.nothing("no scores, only ", &exported.left_out));
    }
    Ok(exported)
}

fn agent_number(job: &SavedJob, agent: &str) -> u32 {
    let place = job.header().agents.iter().position(|name| name == agent);
    place.unwrap_or_default() as u32
}

impl<'a> Group<'a> {
    fn new(job: &SavedJob, options: &EeeOptions, agent: &'a str, dataset: &'a str) -> Self {
        let evaluated = Evaluated::new(job, agent, options.developer.as_deref());
        let others = job.header().agents.iter().filter(|other| *other != agent);
        let is_alone = others
            .map(|other| Evaluated::new(job, other, options.developer.as_deref()))
            .all(|other| other.id != evaluated.id);
        let evaluation = if is_alone { dataset.to_owned() } else { format!("{dataset}@{agent}") };
        let evaluation_id = format!("{evaluation}/{}/{}", evaluated.id, unix(retrieved_at(job)));
        let stem = format!(
            "data/{}/{}/{}/{}",
            evaluated::part(dataset),
            evaluated::part(&evaluated.developer),
            evaluated::part(&evaluated.name),
            uuid(job, agent, dataset)
        );
        Self {
            agent,
            dataset,
            evaluated,
            evaluation_id,
            stem,
            samples: None,
            checksum: Sha256::new(),
            rows: 0,
            unscored: 0,
            excluded: 0,
            tools: Vec::new(),
        }
    }

    /// Returns the id of the result that the lines belong to.
    fn result_id(&self) -> String {
        format!("{}#mean_reward", self.evaluation_id)
    }

    fn add(&mut self, export: &Export<'_>, trial: &SavedTrial) -> Result<(), ExportError> {
        let outcome = TrialSummary::from(&trial.result);
        let Some(score) = outcome.headline_reward() else {
            let left_out = match outcome.standing {
                Standing::Failed => &mut self.excluded,
                Standing::Completed | Standing::Skipped => &mut self.unscored,
            };
            *left_out += 1;
            return Ok(());
        };
        let conversation = export.job.conversation(trial)?;
        if let Some(conversation) = conversation.as_ref().filter(|_| self.tools.is_empty()) {
            self.tools = conversation.tools.to_vec();
        }
        let about = export.job.about(trial.task)?;
        let sample = Sample {
            evaluation_id: &self.evaluation_id,
            result_id: &self.result_id(),
            model_id: &self.evaluated.id,
            trial,
            task: export.job.task(trial),
            about: about.as_ref(),
            conversation: conversation.as_ref(),
            score,
        };
        let mut line = serde_json::to_vec(&sample.line()).expect("plain data with string keys");
        line.push(b'\n');
        let file = match &mut self.samples {
            Some(file) => file,
            none => {
                let scores = export.dir().join(scores_path(&self.stem));
                if scores.symlink_metadata().is_ok() {
                    return Err(ExportError::Exists(scores));
                }
                none.insert(export.file(format!("{}_samples.jsonl", self.stem))?)
            }
        };
        file.write_all(&line).map_err(|error| file.failed(error))?;
        self.checksum.update(&line);
        self.rows += 1;
        Ok(())
    }

    /// Finishes the file of lines. Without a score there are no files.
    fn end(&mut self) -> Result<(), ExportError> {
        match self.samples.take() {
            Some(samples) => samples.finish().map(|_| ()),
            None => Ok(()),
        }
    }
}

/// Returns the time of the record: the end of the last run, so that every export is the same.
fn retrieved_at(job: &SavedJob) -> Timestamp {
    let last = job.runs().last();
    last.map_or(Timestamp::UNIX_EPOCH, |run| run.ended_at.unwrap_or(run.started_at))
}

/// Formats a time as seconds since 1970, as the schemas require.
fn unix(at: Timestamp) -> String {
    format!("{}.{:03}", at.as_second(), at.subsec_millisecond())
}

/// Returns an id in the form of a random UUID that depends on the job, agent and dataset.
fn uuid(job: &SavedJob, agent: &str, dataset: &str) -> String {
    let start = job.runs().first().map(|run| run.started_at.to_string()).unwrap_or_default();
    shaped(&[&job.header().job_name, &start, agent, dataset])
}

fn shaped(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let mut bytes: [u8; 16] = hash.finalize()[..16].try_into().expect("a hash has more bytes");
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let digits = hex(&bytes);
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}

/// Returns the path of a file of scores, relative to the output directory.
fn scores_path(stem: &str) -> PathBuf {
    PathBuf::from(format!("{stem}.json"))
}

#[cfg(test)]
mod tests {
    use proptest::prop_assert;

    use super::*;

    #[test]
    fn identifiers_depend_on_every_part() {
        assert_eq!(shaped(&["job", "agent"]), shaped(&["job", "agent"]));
        assert_ne!(shaped(&["job", "agent"]), shaped(&["joba", "gent"]));
        // Published results are found by their id, so it must not change.
        assert_eq!(shaped(&["job", "agent", "é"]), "37c13591-b113-4a9f-8d21-2f0e974c7591");
    }

    #[test]
    fn moments_are_seconds() {
        assert_eq!(unix("2026-01-01T00:00:00.25Z".parse().unwrap()), "1767225600.250");
    }

    proptest::proptest! {
        #[test]
        fn identifiers_have_the_form_of_random_ones(text: String) {
            let id = shaped(&[&text]);
            let form = regex::Regex::new("^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$").unwrap();
            prop_assert!(form.is_match(&id), "{}", id);
        }
    }
}
