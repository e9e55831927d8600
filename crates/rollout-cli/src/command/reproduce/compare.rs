//! The differences between a trial and its repetition.

use std::path::PathBuf;

use rollout::record::{
    provenance::TrialProvenance,
    saved::{SavedJob, SavedTrial},
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::report::{
    Align, table,
    text::{BAD, DIM, GOOD, fit, paint, span},
};

/// The maximum width of a value in the table. Longer hashes are cut.
const WIDTH: usize = 48;

/// Two trials side by side.
#[derive(Debug, Serialize)]
pub(super) struct Comparison {
    trial: String,
    job: PathBuf,
    reproduced_in: PathBuf,
    /// Whether reward and error are the same.
    pub(super) same_outcome: bool,
    differences: Vec<Pair>,
    same: Vec<&'static str>,
    /// Facts that are missing in a record or in both trials.
    not_recorded: Vec<&'static str>,
    durations_sec: [f64; 2],
    notes: Vec<String>,
}

/// A fact that differs between the trials.
#[derive(Debug, Serialize)]
struct Pair {
    what: &'static str,
    before: Value,
    after: Value,
}

impl Comparison {
    pub(super) fn new(
        name: &str,
        before: (&SavedJob, &SavedTrial),
        after: (&SavedJob, &SavedTrial),
        [task, config]: [Value; 2],
        notes: Vec<String>,
    ) -> Self {
        let [old, mut new] = [before, after].map(|(job, trial)| facts(job, trial));
        // The name, the number of attempts and the selection of the new job always differ, so the hashes of the
        // current task and configuration are compared instead of those of the new job.
        for (what, value) in &mut new {
            match *what {
                "task" => *value = Some(task.clone()),
                "configuration" => *value = Some(config.clone()),
                _ => {}
            }
        }
        let mut comparison = Self {
            trial: name.to_owned(),
            job: before.0.path().to_owned(),
            reproduced_in: after.0.path().to_owned(),
            same_outcome: true,
            differences: Vec::new(),
            same: Vec::new(),
            not_recorded: Vec::new(),
            durations_sec: [before.1, after.1].map(|trial| trial.result.durations.total_sec),
            notes,
        };
        for ((what, old), (_, new)) in old.into_iter().zip(new) {
            // A missing reward or error is an outcome. Any other missing fact is not recorded.
            let is_known = |value: &Value| !value.is_null() || matches!(what, "reward" | "error");
            match (old, new) {
                (Some(before), Some(after)) if !is_known(&before) && !is_known(&after) => {
                    comparison.not_recorded.push(what);
                }
                (Some(before), Some(after)) if before == after => comparison.same.push(what),
                (Some(before), Some(after)) => {
                    comparison.same_outcome &= !matches!(what, "reward" | "error");
                    comparison.differences.push(Pair { what, before, after });
                }
                _ => comparison.not_recorded.push(what),
            }
        }
        comparison
    }

    /// Renders the comparison as text.
    pub(super) fn render(&self) -> String {
        let mut lines = vec![match self.same_outcome {
            true => format!("{} {}: same outcome", paint(GOOD, "✓"), self.trial),
            false => format!("{} {}: different outcome", paint(BAD, "✗"), self.trial),
        }];
        if !self.differences.is_empty() {
            let mut rows = vec![["differs", "before", "now"].map(str::to_owned).to_vec()];
            let cells = |pair: &Pair| vec![pair.what.to_owned(), shown(&pair.before), shown(&pair.after)];
            rows.extend(self.differences.iter().map(cells));
            lines.push(String::new());
            lines.extend(table(&[Align::Left, Align::Left, Align::Left], &rows));
        }
        lines.push(String::new());
        for (what, list) in [("same", &self.same), ("not recorded", &self.not_recorded)] {
            if !list.is_empty() {
                lines.push(format!("{} {}", paint(DIM, &format!("{what}:")), list.join(", ")));
            }
        }
        let [before, after] = self.durations_sec;
        lines.push(format!("{} {} (was {})", paint(DIM, "time:"), span(after), span(before)));
        lines.push(format!("{} {}", paint(DIM, "results:"), self.reproduced_in.display()));
        lines.join("\n")
    }
}

fn shown(value: &Value) -> String {
    let text = match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => text.clone(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        other => other.to_string(),
    };
    fit(&text, WIDTH)
}

/// Returns the facts of a trial. None means that the job's record does not contain the fact.
fn facts(job: &SavedJob, trial: &SavedTrial) -> Vec<(&'static str, Option<Value>)> {
    let result = &trial.result;
    let environment = result.environment.as_ref();
    let usage = result.usage.map(|usage| json!({"input": usage.input_tokens, "output": usage.output_tokens}));
    let provenance = job.provenance(trial);
    let asked = job.about(trial.task);
    let of = |fact: fn(&TrialProvenance) -> Value| provenance.as_ref().map(fact);
    let git = |fact: fn(&rollout::record::provenance::GitState) -> Value| {
        provenance.as_ref().map(|provenance| provenance.git.as_ref().map(fact).unwrap_or_default())
    };
    vec![
        ("reward", Some(json!(result.reward))),
        ("error", Some(json!(result.error.as_ref().map(|error| error.kind.as_str())))),
        ("rewards", Some(json!(result.rewards))),
        ("task", Some(json!(job.task(trial).content_hash))),
        ("configuration", Some(json!(job.header().config_hash))),
        ("image", Some(json!(environment.map(|found| &found.image)))),
        ("provider", Some(json!(job.header().provider))),
        ("limits", asked.ok().flatten().map(|about| json!(about.limits))),
        ("enforced limits", Some(environment.map(|found| found.enforced.clone()).unwrap_or_default())),
        ("agent version", of(|provenance| json!(provenance.agent_version))),
        ("agent install", of(|provenance| json!(provenance.agent_install_hash))),
        ("rollout version", of(|provenance| json!(provenance.rollout_version))),
        ("commit", git(|git| json!(git.commit))),
        ("uncommitted changes", git(|git| json!(git.is_dirty))),
        ("seeds", of(|provenance| json!(provenance.seeds))),
        ("tokens", Some(usage.unwrap_or_default())),
    ]
}
