//! Rubrics score rollouts.
//!
//! A [`Rubric`] is a list of functions, each with a weight. A function gets a [`Scene`] of a rollout and uses the parts
//! that it needs:
//!
//! ```
//! use rollout::model::{Rubric, rubric::Scene};
//!
//! let rubric = Rubric::new()
//!     .reward("correct", 1.0, |scene| scene.parsed() == scene.answer)
//!     .reward("brief", 0.2, |Scene { completion, .. }| completion.len() < 4)
//!     .metric("letters", |scene| scene.parsed().len());
//! assert!(!rubric.needs_group());
//! ```
//!
//! The value of a function is a metric of the rollout; the reward is their weighted sum. A function that fails, panics,
//! or returns a number that is not finite is logged and counts as 0. Functions with the same name add up.
//!
//! [`Judge`] grades with a model, [`Command`] with a program in any language; [`Match`] compares with the correct
//! answer.

mod command;
mod judge;
mod matching;
pub mod math;
mod monitor;
mod python;
mod sandbox;
mod scene;
mod score;

use futures_util::future::BoxFuture;
use std::{fmt, future::ready, sync::Arc};

pub use command::{Command, CommandError};
pub use judge::Judge;
pub use matching::Match;
pub use python::PythonReward;
pub use sandbox::SandboxCheck;
pub use scene::{IntoScore, IntoScores, Scene};

use self::scene::{BoxError, Score, Scores};
use super::AsyncHook;
use super::parser::{Boxed, Parser, Plain};
use rollout_core::advantage::{Advantage, AdvantageEstimator};

/// Scores rollouts with weighted functions. Cheap to clone.
#[derive(Clone)]
pub struct Rubric {
    parser: Arc<dyn Parser>,
    functions: Vec<Function>,
    monitors: bool,
    estimator: Arc<dyn AdvantageEstimator>,
    includes_errors: bool,
}

#[derive(Clone)]
struct Function {
    name: Arc<str>,
    weight: f64,
    /// The parser of the rubric, unless the function has its own.
    parser: Option<Arc<dyn Parser>>,
    kind: Kind,
}

#[derive(Clone)]
enum Kind {
    Each(Arc<Each>),
    Group(Arc<Group>),
}

type Each = dyn for<'a> Fn(&'a Scene<'a>) -> BoxFuture<'a, Score> + Send + Sync;
type Group = dyn for<'a> Fn(&'a [Scene<'a>]) -> BoxFuture<'a, Scores> + Send + Sync;

/// Why a rubric cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RubricError {
    /// A function scores a whole group.
    #[error(
        "`{function}` scores a whole group, so rollouts cannot be scored one by one; turn `independent_scoring` off"
    )]
    NeedsGroup {
        /// The name of such a function.
        function: String,
    },
    /// There are no functions.
    #[error("the rubric has no functions; add one that scores rollouts")]
    Empty,
}

impl Default for Rubric {
    fn default() -> Self {
        Self {
            parser: Arc::new(Plain),
            functions: Vec::new(),
            monitors: true,
            estimator: Arc::new(Advantage::default()),
            includes_errors: false,
        }
    }
}

impl Rubric {
    /// A rubric without functions. It counts turns and tool calls.
    pub fn new() -> Self {
        Self::default()
    }

    /// Compares the answer in the last `\boxed{…}` with the correct one, with [`math::equal`].
    ///
    /// ```
    /// let rubric = rollout::model::Rubric::math();
    /// assert_eq!(format!("{rubric:?}"), r#"Rubric([("correct_answer", 1.0)])"#);
    /// ```
    pub fn math() -> Self {
        Self::new().parser(Boxed).matching("correct_answer", 1.0, Match::Math)
    }

    /// Sets the parser of answers. Without one, the answer is the model's last message.
    #[must_use]
    pub fn parser(self, parser: impl Parser + 'static) -> Self {
        self.shared_parser(Arc::new(parser))
    }

    /// Sets a parser of answers that is shared with others.
    #[must_use]
    pub fn shared_parser(self, parser: Arc<dyn Parser>) -> Self {
        Self { parser, ..self }
    }

    /// Leaves out the counts of turns and tool calls, and the seconds spent in an environment.
    #[must_use]
    pub fn without_monitors(self) -> Self {
        Self { monitors: false, ..self }
    }

    /// Sets the estimator of advantages: a named one, or your own.
    ///
    /// ```
    /// use rollout::model::{Advantage, Rubric};
    ///
    /// let named = Rubric::math().advantage(Advantage::LeaveOneOut);
    /// let own = Rubric::math().advantage(|rewards: &[f64]| rewards.iter().map(|reward| reward - 0.5).collect());
    /// # let _ = (named, own);
    /// ```
    #[must_use]
    pub fn advantage(self, estimator: impl AdvantageEstimator + 'static) -> Self {
        Self { estimator: Arc::new(estimator), ..self }
    }

    /// Sets whether rollouts that failed or timed out count in the baseline of their group and give samples.
    #[must_use]
    pub fn include_errors(self, includes_errors: bool) -> Self {
        Self { includes_errors, ..self }
    }

    /// The estimator of advantages, and whether rollouts that failed or timed out count in the baseline.
    pub fn baseline(&self) -> (&dyn AdvantageEstimator, bool) {
        (&*self.estimator, self.includes_errors)
    }

    /// Adds a function that contributes to the reward.
    #[must_use]
    pub fn reward<S: IntoScore>(
        self,
        name: impl Into<String>,
        weight: f64,
        function: impl Fn(&Scene<'_>) -> S + Send + Sync + 'static,
    ) -> Self {
        self.each(name.into(), weight, move |scene| Box::pin(ready(function(scene).into_score())))
    }

    /// Adds a function that is only a metric.
    #[must_use]
    pub fn metric<S: IntoScore>(
        self,
        name: impl Into<String>,
        function: impl Fn(&Scene<'_>) -> S + Send + Sync + 'static,
    ) -> Self {
        self.reward(name, 0.0, function)
    }

    /// Adds an async function. With a weight of 0 it is only a metric.
    ///
    /// ```
    /// use rollout::model::Rubric;
    ///
    /// let rubric = Rubric::new().reward_later("exists", 1.0, async |scene| tokio::fs::try_exists(scene.answer).await);
    /// # let _ = rubric;
    /// ```
    #[must_use]
    pub fn reward_later<F, S: IntoScore + 'static>(
        self,
        name: impl Into<String>,
        weight: f64,
        function: F,
    ) -> Self
    where
        F: for<'a> AsyncFn(&'a Scene<'a>) -> S + for<'a> AsyncHook<'a, (&'a Scene<'a>,), S>,
    {
        self.each(name.into(), weight, move |scene| {
            let score = function.run((scene,));
            Box::pin(async move { score.await.into_score() })
        })
    }

    /// Adds a function over all rollouts of an example, which returns one score for each, in order. With a weight of 0
    /// it is only a metric.
    ///
    /// ```
    /// use rollout::model::Rubric;
    ///
    /// let rubric = Rubric::new().group_reward("shortest", 1.0, |scenes| {
    ///     let length = |scene: &rollout::model::rubric::Scene<'_>| scene.parsed().len();
    ///     let least = scenes.iter().map(length).min().unwrap_or(0);
    ///     scenes.iter().map(|scene| f64::from(length(scene) == least)).collect::<Vec<_>>()
    /// });
    /// assert!(rubric.needs_group());
    /// ```
    #[must_use]
    pub fn group_reward<S: IntoScores>(
        self,
        name: impl Into<String>,
        weight: f64,
        function: impl Fn(&[Scene<'_>]) -> S + Send + Sync + 'static,
    ) -> Self {
        self.group(name.into(), weight, move |scenes| Box::pin(ready(function(scenes).into_scores())))
    }

    /// Adds an async function over all rollouts of an example.
    #[must_use]
    pub fn group_reward_later<F, S: IntoScores + 'static>(
        self,
        name: impl Into<String>,
        weight: f64,
        function: F,
    ) -> Self
    where
        F: for<'a> AsyncFn(&'a [Scene<'a>]) -> S + for<'a> AsyncHook<'a, (&'a [Scene<'a>],), S>,
    {
        self.group(name.into(), weight, move |scenes| {
            let scores = function.run((scenes,));
            Box::pin(async move { scores.await.into_scores() })
        })
    }

    /// Adds the functions of another rubric, which keep their own parser. Rewards and metrics of the same name add up.
    ///
    /// ```
    /// use rollout::model::Rubric;
    ///
    /// let both = Rubric::math().and(Rubric::new().metric("length", |scene| scene.completion.len()));
    /// assert_eq!(format!("{both:?}"), r#"Rubric([("correct_answer", 1.0), ("length", 0.0)])"#);
    /// ```
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        let parser = other.parser;
        self.functions.extend(other.functions.into_iter().map(|mut function| {
            function.parser.get_or_insert_with(|| Arc::clone(&parser));
            function
        }));
        self
    }

    /// Whether rollouts must be scored with their group.
    pub fn needs_group(&self) -> bool {
        self.group_function().is_some()
    }

    /// Whether there are no functions. The counts of turns and tool calls do not matter.
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }

    /// Fails if single rollouts cannot be scored.
    pub fn check_alone(&self) -> Result<(), RubricError> {
        if let Some(function) = self.group_function() {
            return Err(RubricError::NeedsGroup { function: function.name.to_string() });
        }
        if self.is_empty() { Err(RubricError::Empty) } else { Ok(()) }
    }

    fn group_function(&self) -> Option<&Function> {
        self.functions.iter().find(|function| matches!(function.kind, Kind::Group(_)))
    }

    fn each(
        self,
        name: String,
        weight: f64,
        each: impl for<'a> Fn(&'a Scene<'a>) -> BoxFuture<'a, Score> + Send + Sync + 'static,
    ) -> Self {
        self.with(name, weight, Kind::Each(Arc::new(each)))
    }

    fn group(
        self,
        name: String,
        weight: f64,
        group: impl for<'a> Fn(&'a [Scene<'a>]) -> BoxFuture<'a, Scores> + Send + Sync + 'static,
    ) -> Self {
        self.with(name, weight, Kind::Group(Arc::new(group)))
    }

    fn with(mut self, name: String, weight: f64, kind: Kind) -> Self {
        self.functions.push(Function { name: name.into(), weight, parser: None, kind });
        self
    }
}

impl fmt::Debug for Rubric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let functions: Vec<_> =
            self.functions.iter().map(|function| (&*function.name, function.weight)).collect();
        f.debug_tuple("Rubric").field(&functions).finish()
    }
}
