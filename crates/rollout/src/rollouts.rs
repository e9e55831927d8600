//! Everything that rollouts of one kind share: interaction, dataset, rubric and limits.

use std::{fmt, sync::Arc};

use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use rollout_core::advantage::AdvantageEstimator;
use rollout_model::output::ResultForm;
use rollout_model::{
    Error, ErrorKind, Halt, Interaction, Limits, Model, RolloutInput, Rubric, RubricError, State,
    output::{self, ColumnError},
};
use rollout_record::stats::PassK;

/// An interaction with its dataset and its rubric, for training and evaluation of models. Cheap to clone.
///
/// ```
/// # use rollout_testkit::ModelServer;
/// use rollout::model::{
///     Client, Model, Rollouts, Rubric, RunOptions, Examples, SingleTurn,
///     client::ClientConfig,
///     dataset::{Format, rows},
/// };
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = ModelServer::arithmetic();
/// # let base_url = server.url();
/// let dataset = Format::default().inputs(rows(r#"{"question": "What is 2+2?", "answer": "4"}"#)?)?;
/// let rubric = Rubric::new().reward("right", 1.0, |scene| scene.parsed().contains(scene.answer));
/// let math = Rollouts::new(SingleTurn, rubric).dataset(dataset).env_id("math");
///
/// let model = Model::new(Client::new(ClientConfig::new(base_url))?, "gpt-4.1-mini");
/// let results = math.evaluate(Examples::first(100).rollouts(4), RunOptions::new(model)).await?;
/// println!("average reward: {}", results.metadata.avg_reward);
/// println!("pass@4: {}", results.metadata.pass_at_k["4"]);
/// # assert_eq!(results.outputs.len(), 4);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Rollouts {
    pub(crate) interaction: Arc<dyn Interaction>,
    pub(crate) rubric: Rubric,
    pub(crate) dataset: Arc<[RolloutInput]>,
    pub(crate) limits: Limits,
    pub(crate) env_id: Option<Arc<str>>,
    pub(crate) env_args: Map<String, Value>,
    pub(crate) state_columns: Arc<[String]>,
    pub(crate) pass_threshold: f64,
    pub(crate) independent_scoring: bool,
    /// Whether and how the dataset was shuffled, for the record.
    pub(crate) shuffled: Option<Option<u64>>,
    /// What is recorded for questions of a benchmark.
    pub(crate) results: Option<ResultForm>,
}

impl fmt::Debug for Rollouts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rollouts")
            .field("env_id", &self.env_id)
            .field("examples", &self.dataset.len())
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// Why a single rollout has no scored state.
#[derive(Debug, thiserror::Error)]
pub enum RolloutError {
    /// The server rejects the key.
    #[error("the server rejected the API key of the model")]
    Unauthorized(#[source] Error),
    /// The server does not support the settings of the model.
    #[error("the server does not support the settings of the model")]
    Unsupported(#[source] Error),
    /// It was cancelled.
    #[error("the rollout was cancelled")]
    Cancelled,
    /// The rubric cannot score a single rollout.
    #[error(transparent)]
    Rubric(#[from] RubricError),
}

impl From<Halt> for RolloutError {
    fn from(halt: Halt) -> Self {
        match halt {
            Halt::Unauthorized(error) if error.kind == ErrorKind::Unsupported => Self::Unsupported(error),
            Halt::Unauthorized(error) => Self::Unauthorized(error),
            Halt::Cancelled => Self::Cancelled,
        }
    }
}

impl Rollouts {
    /// An interaction and its rubric. Everything else has a default.
    pub fn new(interaction: impl Interaction + 'static, rubric: Rubric) -> Self {
        Self::shared(Arc::new(interaction), rubric)
    }

    /// The same for a shared interaction.
    pub fn shared(interaction: Arc<dyn Interaction>, rubric: Rubric) -> Self {
        Self {
            interaction,
            rubric,
            dataset: Arc::new([]),
            limits: Limits::default(),
            env_id: None,
            env_args: Map::new(),
            state_columns: Arc::new([]),
            pass_threshold: PassK::THRESHOLD,
            independent_scoring: false,
            shuffled: None,
            results: None,
        }
    }

    /// The examples for [`evaluate`](Self::evaluate).
    #[must_use]
    pub fn dataset(self, inputs: impl Into<Arc<[RolloutInput]>>) -> Self {
        Self { dataset: inputs.into(), ..self }
    }

    /// Limits that end a rollout.
    #[must_use]
    pub fn limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// The name in records and paths. Saved results are resumed only under the same name.
    #[must_use]
    pub fn env_id(self, env_id: impl Into<Arc<str>>) -> Self {
        Self { env_id: Some(env_id.into()), ..self }
    }

    /// The arguments of the environment, for the record.
    #[must_use]
    pub fn env_args(self, env_args: Map<String, Value>) -> Self {
        Self { env_args, ..self }
    }

    /// Fields of the state to include in the rows.
    #[must_use]
    pub fn state_columns<S: Into<String>>(self, columns: impl IntoIterator<Item = S>) -> Self {
        Self { state_columns: columns.into_iter().map(Into::into).collect(), ..self }
    }

    /// The lowest reward that counts as a success in pass@k; 0.5 by default.
    #[must_use]
    pub fn pass_threshold(self, pass_threshold: f64) -> Self {
        Self { pass_threshold, ..self }
    }

    /// Scores each rollout separately when it ends, instead of together with the others of its example.
    #[must_use]
    pub fn independent_scoring(self, independent_scoring: bool) -> Self {
        Self { independent_scoring, ..self }
    }

    /// How advantages are computed from the rewards of an example's rollouts: with a named estimator, or with your own.
    #[must_use]
    pub fn advantage(self, estimator: impl AdvantageEstimator + 'static) -> Self {
        Self { rubric: self.rubric.advantage(estimator), ..self }
    }

    /// Whether rollouts that failed or timed out count in the baseline of the advantages, and become training samples.
    #[must_use]
    pub fn include_errors(self, include_errors: bool) -> Self {
        Self { rubric: self.rubric.include_errors(include_errors), ..self }
    }

    /// The examples.
    pub fn examples(&self) -> &[RolloutInput] {
        &self.dataset
    }

    /// Runs one rollout and scores it separately.
    pub async fn rollout(
        &self,
        input: RolloutInput,
        model: impl Into<Arc<Model>>,
    ) -> Result<State, RolloutError> {
        self.rubric.check_alone()?;
        let never = CancellationToken::new();
        let mut state =
            rollout_model::rollout(&*self.interaction, &self.limits, input, model.into(), &never).await?;
        self.rubric.score_rollout(&mut state).await?;
        match state.refused_key() {
            Some(error) => Err(RolloutError::Unauthorized(error.clone())),
            None => Ok(state),
        }
    }

    /// The name in records.
    pub(crate) fn name(&self) -> &str {
        self.env_id.as_deref().unwrap_or("default")
    }

    /// Rejects rollouts that could not be scored or saved.
    pub(crate) fn check(&self) -> Result<(), Unusable> {
        output::check_columns(&self.state_columns)?;
        if self.independent_scoring {
            self.rubric.check_alone()?;
        }
        Ok(())
    }

    /// Whether a finished rollout is scored. A failed question has no answer to score, and without the correct answer
    /// it cannot be scored.
    pub(crate) fn scores(&self, state: &State) -> bool {
        self.results
            .is_none_or(|form| form.metric.is_some() && state.error.is_none() && state.input.answer.is_some())
    }
}

/// Why rollouts could not be scored or saved, determined before they run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// A column is invalid.
    #[error(transparent)]
    Column(#[from] ColumnError),
    /// Scoring each rollout separately needs functions that support it.
    #[error(transparent)]
    Rubric(#[from] RubricError),
}
