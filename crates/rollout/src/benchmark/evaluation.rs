//! Writes `evaluation.json`, the scores of a benchmark's answers, from the lines of `results.jsonl`.

use std::{cell::RefCell, io, path::Path};

use serde::{
    Deserialize, Serialize, Serializer,
    ser::{Error as _, SerializeSeq as _},
};
use serde_json::{Map, Value};

use super::score::{Evaluation, PERFECT, TaskEvaluation, mean};
use rollout_model::metric::Metric;
use rollout_record::{
    atomic::{self, WriteError},
    lines::Lines,
};

/// The fields of a line that are needed. Its conversation is skipped.
#[derive(Deserialize)]
struct Line {
    task_id: String,
    example_id: u64,
    #[serde(default)]
    predicted_answer: String,
    #[serde(default)]
    ground_truth: Option<String>,
    #[serde(default)]
    score: Option<f64>,
    #[serde(default)]
    details: Map<String, Value>,
    #[serde(default)]
    error: Option<String>,
}

/// The position of a question's line, and its score.
struct Place {
    example_id: u64,
    offset: u64,
    score: Option<f64>,
    judge_failed: bool,
}

/// Writes the evaluation of all answers in a file, ordered by question.
///
/// `total` is the number of questions; each should have a line. Returns the number of answers whose judge failed.
/// Memory per answer is a few numbers, however long its conversation is. Blocks while it works.
pub(crate) fn write(
    results: &Path,
    metric: Metric,
    total_tasks: u64,
    target: &Path,
) -> Result<u64, WriteError> {
    let failed = |source| WriteError { path: target.to_owned(), source };
    let mut lines = Lines::open(results).map_err(failed)?;
    let places = places(&mut lines).map_err(failed)?;
    let scores: Vec<f64> = places.iter().filter_map(|place| place.score).collect();
    let evaluated_tasks = scores.len() as u64;
    let file = Evaluation {
        metric,
        total_tasks,
        evaluated_tasks,
        average_score: mean(scores.iter().sum(), evaluated_tasks),
        perfect_matches: scores.iter().filter(|score| **score >= PERFECT).count() as u64,
        success_rate: mean(evaluated_tasks as f64, total_tasks),
        evaluations: Evaluations { metric, places: &places, lines: RefCell::new(lines) },
    };
    atomic::write_json(target, &file)?;
    Ok(places.iter().filter(|place| place.judge_failed).count() as u64)
}

/// The lines of a file by the number of their question. Other lines are ignored.
fn places(lines: &mut Lines) -> io::Result<Vec<Place>> {
    let mut places = Vec::new();
    while let Some(line) = lines.next_line()? {
        if let Ok(Line { example_id, score, details, .. }) = serde_json::from_slice(line.bytes) {
            let judge_failed = score.is_some() && details.contains_key("error");
            places.push(Place { example_id, offset: line.offset, score, judge_failed });
        }
    }
    // The sort is stable: of two lines for one question, the later one stays last, and counts.
    places.sort_by_key(|place| place.example_id);
    places.reverse();
    places.dedup_by_key(|place| place.example_id);
    places.reverse();
    Ok(places)
}

/// The answers, read while they are written.
struct Evaluations<'a> {
    metric: Metric,
    places: &'a [Place],
    lines: RefCell<Lines>,
}

impl Serialize for Evaluations<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut all = serializer.serialize_seq(Some(self.places.len()))?;
        let mut lines = self.lines.borrow_mut();
        for place in self.places {
            let line = lines.at(place.offset).map_err(S::Error::custom)?;
            let line: Line = serde_json::from_slice(line).map_err(S::Error::custom)?;
            let lacking = |error: &str| Map::from_iter([("error".to_owned(), error.into())]);
            let details = match (line.error, line.score) {
                (Some(error), _) => lacking(&error),
                (None, None) => lacking("missing ground truth"),
                (None, Some(_)) if line.details.is_empty() => self
                    .metric
                    .details(&line.predicted_answer, line.ground_truth.as_deref().unwrap_or_default()),
                (None, Some(_)) => line.details,
            };
            all.serialize_element(&TaskEvaluation {
                task_id: line.task_id,
                predicted: line.predicted_answer,
                ground_truth: line.ground_truth,
                score: line.score.unwrap_or_default(),
                metric: self.metric,
                details,
            })?;
        }
        all.end()
    }
}
