//! A metric with all that it needs: it scores answers, or rollouts as a rubric.

use serde_json::{Map, Value};

use super::{Judgement, LlmJudge, Metric, extract_final_answer};
use crate::{
    Error, Rubric,
    parser::{Parser as _, Plain},
    rubric::Scene,
};

/// The field of a state with the answer that is scored. Without it, the answer is found in the model's last message.
pub const PREDICTED_ANSWER: &str = "predicted_answer";
/// The field of a state with what is to be said about its score, if anything is: what a judge found, or why it failed.
pub const SCORE_DETAILS: &str = "score_details";

/// Scores answers by a metric.
#[derive(Debug, Clone)]
pub struct Scorer(Kind);

#[derive(Debug, Clone)]
enum Kind {
    Plain(Metric),
    Judge(LlmJudge),
}

/// How good an answer was.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Score {
    /// From 0 to 1.
    pub value: f64,
    /// What a judge found: `correct`, `reasoning` and `raw`, its words; or `error`. Empty for all other metrics.
    pub details: Map<String, Value>,
}

/// A judge is needed and there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("`llm_judgement` needs a model that judges; name one and where its server is")]
pub struct JudgeMissing;

impl Scorer {
    /// Scores by this metric. Only [`Metric::LlmJudgement`] takes the judge.
    pub fn new(metric: Metric, judge: Option<LlmJudge>) -> Result<Self, JudgeMissing> {
        Ok(Self(match metric {
            Metric::LlmJudgement => Kind::Judge(judge.ok_or(JudgeMissing)?),
            metric => Kind::Plain(metric),
        }))
    }

    /// By what it scores.
    pub fn metric(&self) -> Metric {
        match &self.0 {
            Kind::Plain(metric) => *metric,
            Kind::Judge(_) => Metric::LlmJudgement,
        }
    }

    /// Scores an answer. Only a judge looks at the question, and only a judge can fail.
    ///
    /// A judge that fails for one answer may do better for the next: [`Score::failed`] is what to make of it. If its key
    /// is refused ([`ErrorKind::Unauthorized`](crate::ErrorKind::Unauthorized)), it will not.
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

    /// A rubric with this metric as its only function, of the metric's name.
    ///
    /// It scores the field [`PREDICTED_ANSWER`] of a state against the right answer, and without that field what
    /// [`extract_final_answer`] finds in the model's last message. The question is the last message of the prompt. What
    /// there is to say about the score gets into the field [`SCORE_DETAILS`]. An example without a right answer cannot
    /// be scored: that is a failure of the function, and gives 0.
    pub fn rubric(self) -> Rubric {
        Rubric::new()
            .reward_later(self.metric().as_str(), 1.0, async move |scene| self.score_scene(scene).await)
    }

    async fn score_scene(&self, scene: &Scene<'_>) -> Result<f64, Box<dyn std::error::Error + Send + Sync>> {
        let truth = scene.state.input.answer.as_deref().ok_or("the example has no right answer")?;
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
    /// What an answer gets whose judge failed: 0, with the reason as its details.
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
