//! A metric with its dependencies: it scores answers, or rollouts as a rubric.

use serde_json::{Map, Value};

use super::{Judgement, LlmJudge, Metric, extract_final_answer};
use crate::{
    Error, Rubric,
    parser::{Parser as _, Plain},
    rubric::Scene,
};

/// The field of a state with the answer to score. Without it, the answer is found in the model's last message.
pub const PREDICTED_ANSWER: &str = "predicted_answer";
/// The field of a state with details of its score: the judgement of a judge, or why it failed.
pub const SCORE_DETAILS: &str = "score_details";

/// Scores answers by a metric.
#[derive(Debug, Clone)]
pub struct Scorer(Kind);

#[derive(Debug, Clone)]
enum Kind {
    Plain(Metric),
    Judge(LlmJudge),
}

/// The score of an answer.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Score {
    /// From 0 to 1.
    pub value: f64,
    /// The judgement of a judge: `correct`, `reasoning` and `raw`, its reply; or `error`. Empty for all other metrics.
    pub details: Map<String, Value>,
}

/// A judge is required and missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("`llm_judgement` requires a judge; set its model and base URL")]
pub struct JudgeMissing;

impl Scorer {
    /// Scores with this metric. The judge is used only for [`Metric::LlmJudgement`].
    pub fn new(metric: Metric, judge: Option<LlmJudge>) -> Result<Self, JudgeMissing> {
        Ok(Self(match metric {
            Metric::LlmJudgement => Kind::Judge(judge.ok_or(JudgeMissing)?),
            metric => Kind::Plain(metric),
        }))
    }

    /// The metric.
    pub fn metric(&self) -> Metric {
        match &self.0 {
            Kind::Plain(metric) => *metric,
            Kind::Judge(_) => Metric::LlmJudgement,
        }
    }

    /// Scores an answer. Only a judge uses the question, and only a judge can fail.
    ///
    /// If a judge fails for one answer, it may succeed for the next: use [`Score::failed`]. If its key is rejected
    /// ([`ErrorKind::Unauthorized`](crate::ErrorKind::Unauthorized)), it will always fail.
    pub async fn score(
        &self,
        question: &str,
        predicted: &str,
        truth: &str,
        session: &str,
    ) -> Result<Score, Error> {
        match &self.0 {
            Kind::Plain(metric) => {
                let value = metric.score(predicted, truth).expect("only the judge needs a model");
                Ok(Score { value, details: Map::new() })
            }
            Kind::Judge(judge) => {
                judge.judge(question, predicted, truth, session).await.map(|found| Score::from(&found))
            }
        }
    }

    /// A rubric with this metric as its only function, under the metric's name.
    ///
    /// It compares the field [`PREDICTED_ANSWER`] of a state with the correct answer, or without that field what
    /// [`extract_final_answer`] finds in the model's last message. The question is the last message of the prompt.
    /// Details of the score are stored in the field [`SCORE_DETAILS`]. For an example without a correct answer, the
    /// function fails and the score is 0.
    pub fn rubric(self) -> Rubric {
        Rubric::new()
            .reward_later(self.metric().as_str(), 1.0, async move |scene| self.score_scene(scene).await)
    }

    async fn score_scene(&self, scene: &Scene<'_>) -> Result<f64, Box<dyn std::error::Error + Send + Sync>> {
        let truth = scene.state.input.answer.as_deref().ok_or("the example has no correct answer")?;
        let predicted = match scene.state.fields.get(PREDICTED_ANSWER).and_then(Value::as_str) {
            Some(predicted) => predicted.to_owned(),
            None => extract_final_answer(&Plain.parse_answer(scene.completion).unwrap_or_default()),
        };
        let question = scene.prompt.last().map(|message| message.text()).unwrap_or_default();
        let score = self.score(&question, &predicted, truth, &scene.state.trajectory_id).await;
        let noted = score.as_ref().map_or_else(Score::failed, Score::clone);
        if !noted.details.is_empty() {
            scene.note(SCORE_DETAILS, noted.details);
        }
        Ok(score?.value)
    }
}

impl Score {
    /// The score of an answer whose judge failed: 0, with the error as its details.
    pub fn failed(error: &Error) -> Self {
        let details = Map::from_iter([("error".to_owned(), error.to_string().into())]);
        Self { value: 0.0, details }
    }
}

impl From<&Judgement> for Score {
    fn from(judgement: &Judgement) -> Self {
        let details = Map::from_iter([
            ("correct".to_owned(), judgement.correct.into()),
            ("reasoning".to_owned(), judgement.reasoning.as_str().into()),
            ("raw".to_owned(), judgement.raw.as_str().into()),
        ]);
        Self { value: judgement.score(), details }
    }
}
