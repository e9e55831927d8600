//! Scores saved answers again, with another metric, another judge or a rubric. No model is asked for new answers.
//!
//! ```
//! use std::num::NonZeroUsize;
//!
//! use rollout::{benchmark::score, model::metric::{Metric, Scorer}};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let job_dir = dir.path();
//! # std::fs::write(job_dir.join("results.jsonl"), r#"{"task_id": "q1", "predicted_answer": "巴黎市", "success": true, "ground_truth": "巴黎", "score": 0.0}"#)?;
//! let scorer = Scorer::new(Metric::CharF1, None)?;
//! for rows in score::rows_in(job_dir)? {
//!     let scored = score::score(&rows, &scorer, NonZeroUsize::MIN, |_| ()).await?;
//!     assert_eq!((scored.evaluation.evaluated_tasks, scored.evaluation.average_score), (1, 0.8));
//!     scored.evaluation.save(&score::evaluation_file(&rows)).await?;
//! }
//! # Ok(())
//! # }
//! ```

mod answers;
mod rubric;

use std::{
    fs, io,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    pin::pin,
};

use futures_util::StreamExt as _;
use serde::Serialize;
use serde_json::{Map, Value};

use self::answers::{Answer, Line};
pub use self::rubric::{
    LoadRubricError, LoadedRubric, RolloutEvaluation, RubricEvaluation, RubricScored, load_rubric,
    score_with_rubric,
};
use rollout_core::redact::Redactor;
use rollout_env::blocking::blocking;
use rollout_model::{
    Error, ErrorKind,
    metric::{Metric, Score, Scorer},
};
use rollout_record::{
    atomic::{self, WriteError},
    rows,
};

/// Answers with at least this score count as perfect.
pub(super) const PERFECT: f64 = 0.99;

/// The scores of a benchmark's answers: the content of `evaluation.json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Evaluation<E = Vec<TaskEvaluation>> {
    /// The metric.
    pub metric: Metric,
    /// The number of all questions.
    pub total_tasks: u64,
    /// The number of scored questions: those that did not fail and have a correct answer.
    pub evaluated_tasks: u64,
    /// The mean over scored questions; 0 if there are none.
    pub average_score: f64,
    /// The number of questions with a score of at least 0.99.
    pub perfect_matches: u64,
    /// The share of scored questions.
    pub success_rate: f64,
    /// Every question, ordered by number, or as in the file if there are no numbers.
    pub evaluations: E,
}

/// The score of one answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TaskEvaluation {
    /// The id of the question.
    pub task_id: String,
    /// The answer.
    pub predicted: String,
    /// The correct answer, if there is one.
    pub ground_truth: Option<String>,
    /// From 0 to 1; 0 without a score.
    pub score: f64,
    /// The metric.
    pub metric: Metric,
    /// What was compared, the judgement of a judge, or in `error` why there is no score.
    pub details: Map<String, Value>,
}

/// The result of scoring a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Scored {
    /// The scores.
    pub evaluation: Evaluation,
    /// The previous scores of the same answers, if any had one.
    pub before: Option<Before>,
    /// The number of questions that failed; they have no score.
    pub failed: u64,
    /// The number of questions without a correct answer; they have no score.
    pub without_truth: u64,
    /// The number of answers whose judge failed. They count as 0.
    pub judge_failures: u64,
    /// The number of lines that are not answers.
    pub foreign_lines: u64,
}

/// The previous scores of answers.
#[derive(Debug, Clone, PartialEq)]
pub struct Before {
    /// The metric, if the file names one and it is the same for all.
    pub metric: Option<String>,
    /// The number of answers that have a score now and had one before.
    pub tasks: u64,
    /// Their mean before.
    pub average: f64,
    /// Their mean now.
    pub average_now: f64,
}

/// Why saved answers cannot be scored.
#[derive(Debug, thiserror::Error)]
pub enum ScoreError {
    /// The path does not exist.
    #[error("{} does not exist; name a file of answers, or the directory of a job", .0.display())]
    NotFound(PathBuf),
    /// The directory has no answers.
    #[error(
        "{} has neither results.jsonl nor outputs.jsonl; name the directory of a benchmark or of a job with models",
        .0.display()
    )]
    NoFile(PathBuf),
    /// The file has no answers.
    #[error(
        "{} has no answers: a line must have `predicted_answer`, or `completion` like the rows of a model's job",
        .0.display()
    )]
    NoRows(PathBuf),
    /// No conversation was saved.
    #[error(
        "{} has no conversations to score with a rubric; save them with `save_trajectories: true`",
        .0.display()
    )]
    NoConversations(PathBuf),
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The server of a judge rejects its key. Nothing was saved.
    #[error("the server rejected the API key of the judge")]
    Unauthorized(#[source] Error),
    /// The evaluation cannot be saved.
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl ScoreError {
    fn read(path: &Path) -> impl Fn(io::Error) -> Self {
        move |source| match source.kind() {
            io::ErrorKind::NotFound => Self::NotFound(path.to_owned()),
            _ => Self::Read { path: path.to_owned(), source },
        }
    }
}

/// The files with answers at a path: the file itself, that of a job's directory, or those of its agents and datasets.
pub fn rows_in(path: &Path) -> Result<Vec<PathBuf>, ScoreError> {
    let read = ScoreError::read(path);
    if !fs::metadata(path).map_err(&read)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let file_in = |dir: &Path| Some(rows::file_in(dir)).filter(|file| file.is_file());
    if let Some(file) = file_in(path) {
        return Ok(vec![file]);
    }
    let mut files = Vec::new();
    for agent in directories(path).map_err(&read)? {
        for dataset in directories(&agent).map_err(&read)? {
            files.extend(file_in(&dataset));
        }
    }
    if files.is_empty() { Err(ScoreError::NoFile(path.to_owned())) } else { Ok(files) }
}

/// The subdirectories, sorted. Symbolic links are ignored, because they may lead elsewhere.
fn directories(path: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

/// The evaluation file of a file of answers: in the same directory.
pub fn evaluation_file(rows: &Path) -> PathBuf {
    rows.with_file_name(rows::EVALUATION)
}

/// Scores every answer of a file: lines of a benchmark's `results.jsonl`, also those of other programs, or rows of a
/// model's job, whose answers are found in the model's last message.
///
/// Failed questions and those without a correct answer are not scored; a correct answer may be empty. `concurrency`
/// answers are judged at the same time; `progress` gets the number of finished answers. Nothing is written.
pub async fn score(
    rows: &Path,
    scorer: &Scorer,
    concurrency: NonZeroUsize,
    mut progress: impl FnMut(u64),
) -> Result<Scored, ScoreError> {
    let fates = answers::read(rows).map(|line| async move {
        match line.map_err(ScoreError::read(rows))? {
            Line::Foreign => Ok(None),
            Line::Answer(answer) => {
                let fate = Fate::of(&answer, scorer).await?;
                Ok::<_, ScoreError>(Some((answer, fate)))
            }
        }
    });
    let mut fates = pin!(fates.buffered(concurrency.get()));
    let (mut answers, mut foreign_lines) = (Vec::new(), 0);
    while let Some(fate) = fates.next().await {
        match fate? {
            None => foreign_lines += 1,
            Some(answered) => answers.push(answered),
        }
        progress(answers.len() as u64);
    }
    if answers.is_empty() {
        return Err(ScoreError::NoRows(rows.to_owned()));
    }
    let mut tally = Tally::default();
    for (answer, fate) in in_order(answers) {
        tally.add(answer, fate, scorer.metric());
    }
    Ok(tally.finish(scorer.metric(), foreign_lines))
}

/// The outcome of scoring an answer.
enum Fate {
    Scored(Score),
    /// It counts as 0.
    JudgeFailed(Error),
    Failed(String),
    WithoutTruth,
}

impl Fate {
    async fn of(answer: &Answer, scorer: &Scorer) -> Result<Self, ScoreError> {
        if let Some(error) = &answer.failure {
            return Ok(Self::Failed(error.clone()));
        }
        let Some(truth) = &answer.truth else { return Ok(Self::WithoutTruth) };
        match scorer.score(&answer.question, &answer.predicted, truth, &answer.task_id).await {
            Ok(score) => Ok(Self::Scored(score)),
            Err(error) if error.kind == ErrorKind::Unauthorized => Err(ScoreError::Unauthorized(error)),
            Err(error) => Ok(Self::JudgeFailed(error)),
        }
    }
}

/// Totals over scored answers.
#[derive(Default)]
struct Tally {
    evaluations: Vec<TaskEvaluation>,
    evaluated: u64,
    sum: f64,
    perfect: u64,
    before: Option<Before>,
    failed: u64,
    without_truth: u64,
    judge_failures: u64,
}

/// Sorts answers by question. If two lines have the same attempt, the later one counts, as in the run itself. Lines
/// without a question stay in order, after the others.
fn in_order(mut answers: Vec<(Answer, Fate)>) -> Vec<(Answer, Fate)> {
    answers.sort_by_key(|(answer, _)| (answer.place.is_none(), answer.place));
    answers.reverse();
    answers.dedup_by(|(later, _), (earlier, _)| later.place.is_some() && later.place == earlier.place);
    answers.reverse();
    answers
}

impl Tally {
    fn add(&mut self, answer: Answer, fate: Fate, metric: Metric) {
        let lacking = |error: String| Score {
            value: 0.0,
            details: Map::from_iter([("error".to_owned(), Value::String(error))]),
        };
        let (score, is_evaluated) = match fate {
            Fate::Scored(score) => (score, true),
            Fate::JudgeFailed(error) => {
                self.judge_failures += 1;
                (Score::failed(&error), true)
            }
            Fate::Failed(error) => {
                self.failed += 1;
                (lacking(error), false)
            }
            Fate::WithoutTruth => {
                self.without_truth += 1;
                (lacking("missing ground truth".to_owned()), false)
            }
        };
        if is_evaluated {
            self.evaluated += 1;
            self.sum += score.value;
            self.perfect += u64::from(score.value >= PERFECT);
            if let Some(before) = answer.score {
                self.compare(before, answer.metric, score.value);
            }
        }
        let truth = answer.truth.as_deref().unwrap_or_default();
        let details = match score.details.is_empty() {
            true => metric.details(&answer.predicted, truth),
            false => score.details,
        };
        self.evaluations.push(TaskEvaluation {
            task_id: answer.task_id,
            predicted: answer.predicted,
            ground_truth: answer.truth,
            score: score.value,
            metric,
            details,
        });
    }

    /// Records two scores of one answer. The averages are sums until the end.
    fn compare(&mut self, before: f64, metric: Option<String>, now: f64) {
        let all = self.before.get_or_insert_with(|| Before {
            metric: metric.clone(),
            tasks: 0,
            average: 0.0,
            average_now: 0.0,
        });
        if all.metric != metric {
            all.metric = None;
        }
        all.tasks += 1;
        all.average += before;
        all.average_now += now;
    }

    fn finish(self, metric: Metric, foreign_lines: u64) -> Scored {
        let total = self.evaluations.len() as u64;
        Scored {
            evaluation: Evaluation {
                metric,
                total_tasks: total,
                evaluated_tasks: self.evaluated,
                average_score: mean(self.sum, self.evaluated),
                perfect_matches: self.perfect,
                success_rate: mean(self.evaluated as f64, total),
                evaluations: self.evaluations,
            },
            before: self.before.map(|sums| Before {
                average: mean(sums.average, sums.tasks),
                average_now: mean(sums.average_now, sums.tasks),
                ..sums
            }),
            failed: self.failed,
            without_truth: self.without_truth,
            judge_failures: self.judge_failures,
            foreign_lines,
        }
    }
}

pub(super) fn mean(sum: f64, count: u64) -> f64 {
    if count == 0 { 0.0 } else { sum / count as f64 }
}

impl Evaluation {
    /// The same with secrets in the replies of judges masked.
    #[must_use]
    pub fn masked(mut self, secrets: &Redactor) -> Self {
        for value in self.evaluations.iter_mut().flat_map(|evaluation| evaluation.details.values_mut()) {
            *value = secrets.json(value.take());
        }
        self
    }

    /// Writes the evaluation to a file, atomically.
    pub async fn save(self, file: &Path) -> Result<(), ScoreError> {
        save(self, file).await
    }
}

async fn save(evaluation: impl Serialize + Send + 'static, file: &Path) -> Result<(), ScoreError> {
    let path = file.to_owned();
    let written = blocking(move || Ok(atomic::write_json(&path, &evaluation))).await;
    Ok(written.map_err(|source| WriteError { path: file.to_owned(), source })??)
}
