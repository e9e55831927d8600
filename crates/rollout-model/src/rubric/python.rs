//! Python functions as functions of a rubric.

use std::time::Duration;

use serde_json::{Map, Value};

use super::{Rubric, Scene};
use crate::python::{Callable, PythonError, PythonFunction, PythonWorker, Takes, odd};

/// A Python function that scores rollouts.
///
/// It gets the arguments that its parameters name: `prompt`, `completion`, `response` (the answer that the parser
/// finds), `answer`, `info` and everything else that a [`Command`](super::Command) gets; `state` is all of it. It may
/// be `async`. For a group, each argument is a list with one item per rollout, also available under its plural name,
/// and `states` has all of it.
#[derive(Debug, Clone)]
pub struct PythonReward(Callable);

impl PythonReward {
    /// A function that is called by a worker.
    pub fn new(worker: &PythonWorker, function: PythonFunction) -> Self {
        Self(Callable::new(worker, function))
    }

    /// Sets the timeout of each call.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self(self.0.timeout(timeout))
    }

    /// Checks that the function exists and can be called. Starts Python.
    pub async fn check(&self) -> Result<(), PythonError> {
        self.0.takes().await.map(drop)
    }

    /// The score of one rollout.
    pub async fn score(&self, scene: &Scene<'_>) -> Result<f64, PythonError> {
        let score = self.0.ask("score", scene.shown()).await?;
        score.as_f64().ok_or_else(|| odd(&self.0.function, &score, "a number"))
    }

    /// The scores of a group.
    pub async fn score_group(&self, scenes: &[Scene<'_>]) -> Result<Vec<f64>, PythonError> {
        let given = lists(scenes, self.0.takes().await?);
        let scores = self.0.call("score_group", given, Some(scenes.len())).await?;
        serde_json::from_value(scores.clone())
            .map_err(|_| odd(&self.0.function, &scores, "a list of numbers"))
    }
}

impl Rubric {
    /// Adds a Python function that scores each rollout. With a weight of 0 it is only a metric.
    #[must_use]
    pub fn python(self, name: impl Into<String>, weight: f64, reward: PythonReward) -> Self {
        self.reward_later(name, weight, async move |scene| reward.score(scene).await)
    }

    /// Adds a Python function that scores the rollouts of an example together.
    #[must_use]
    pub fn group_python(self, name: impl Into<String>, weight: f64, reward: PythonReward) -> Self {
        self.group_reward_later(name, weight, async move |scenes| reward.score_group(scenes).await)
    }
}

/// The arguments of a function for a group, by name.
fn lists(scenes: &[Scene<'_>], takes: &Takes) -> Map<String, Value> {
    let shown: Vec<Value> =
        scenes.iter().map(|scene| serde_json::to_value(scene.shown()).unwrap_or_default()).collect();
    let of = |name: &str| -> Vec<Value> { shown.iter().map(|one| one[name].clone()).collect() };
    let known = shown.first().and_then(Value::as_object);
    let names = || known.into_iter().flat_map(Map::keys);
    let mut given = Map::new();
    for name in names() {
        let plural = format!("{name}s");
        for spelled in [name, &plural] {
            if takes.wants(spelled) {
                given.insert(spelled.clone(), of(name).into());
            }
        }
    }
    if takes.wants("states") {
        given.insert("states".to_owned(), shown.into());
    }
    given
}
