//! Scoring rollouts with a rubric, alone or as a group.

use std::{any::Any, future::Future, panic::AssertUnwindSafe, time::Instant};

use futures_util::{FutureExt as _, future::join_all};
use serde_json::{Map, Value};

use super::{BoxError, Function, Kind, Rubric, RubricError, Scene, monitor};
use crate::{Cause, Error, ErrorKind, State, parser::Parser};

impl Rubric {
    /// Scores a rollout by itself: sets reward, metrics and the time that scoring took. Without a group there is
    /// nothing that it could have an advantage over.
    ///
    /// Turns without a reward of their own get that of the rollout.
    pub async fn score_rollout(&self, state: &mut State) -> Result<(), RubricError> {
        self.check_alone()?;
        self.score(std::slice::from_mut(state)).await;
        Ok(())
    }

    /// Scores the rollouts of one example together: sets rewards, metrics, advantages and the time that scoring took,
    /// which is the same for all of them.
    ///
    /// Functions go one after the other, each over all rollouts at once. An advantage is what a reward is above the
    /// mean of the group. Turns without a reward or advantage of their own get those of the rollout.
    pub async fn score_group(&self, states: &mut [State]) {
        let rewards = self.score(states).await;
        let mean = rewards.iter().sum::<f64>() / rewards.len() as f64;
        for (state, reward) in states.iter_mut().zip(rewards) {
            let advantage = reward - mean;
            state.advantage = Some(advantage);
            for step in &mut state.trajectory {
                step.advantage.get_or_insert(advantage);
            }
        }
    }

    /// Sets all but advantages, and gives the rewards.
    async fn score(&self, states: &mut [State]) -> Vec<f64> {
        let start = Instant::now();
        for state in &mut *states {
            state.metrics = Some(Default::default());
            state.scoring_errors.clear();
        }
        let mut rewards = vec![0.0; states.len()];
        for function in &self.functions {
            let parser = function.parser.as_ref().unwrap_or(&self.parser);
            let outcomes = function.outcomes(states, parser.as_ref()).await;
            for ((state, reward), outcome) in states.iter_mut().zip(&mut rewards).zip(outcomes) {
                *reward += function.weight * outcome.score;
                *state.metrics.get_or_insert_default().entry(function.name.to_string()).or_default() +=
                    outcome.score;
                state.fields.extend(outcome.notes);
                state.scoring_errors.extend(outcome.failure);
            }
        }
        for (state, reward) in states.iter_mut().zip(&mut rewards) {
            *reward = finite(*reward).unwrap_or_else(|| {
                tracing::warn!(rollout = %state.trajectory_id, "the reward is no finite number; it counts as 0");
                0.0
            });
            state.reward = Some(*reward);
            for step in &mut state.trajectory {
                step.reward.get_or_insert(*reward);
            }
            if self.monitors {
                let counts = monitor::counts(state);
                let metrics = state.metrics.get_or_insert_default();
                for (name, count) in counts {
                    metrics.entry(name).or_insert(count);
                }
            }
        }
        let scoring_ms = start.elapsed().as_secs_f64() * 1e3;
        for state in states {
            state.timing.scoring_ms = scoring_ms;
            state.timing.total_ms = state.timing.generation_ms + scoring_ms;
        }
        rewards
    }
}

struct Outcome {
    score: f64,
    failure: Option<Error>,
    notes: Map<String, Value>,
}

impl Function {
    /// What the function gives for each rollout, in their order.
    async fn outcomes(&self, states: &[State], parser: &dyn Parser) -> Vec<Outcome> {
        let scenes: Vec<Scene<'_>> = states.iter().map(|state| Scene::new(state, parser)).collect();
        let scores: Vec<Result<f64, Error>> = match &self.kind {
            Kind::Each(each) => {
                join_all(scenes.iter().map(|scene| async {
                    let score = calmly(async { each(scene).await }).await;
                    self.checked(scene, score)
                }))
                .await
            }
            Kind::Group(group) => {
                let scores = calmly(async { group(&scenes).await }).await.and_then(|scores| {
                    let (given, wanted) = (scores.len(), scenes.len());
                    let fits = given == wanted;
                    fits.then_some(scores)
                        .ok_or_else(|| format!("{given} scores for {wanted} rollouts").into())
                });
                match scores {
                    Ok(scores) => scenes
                        .iter()
                        .zip(scores)
                        .map(|(scene, score)| self.checked(scene, Ok(score)))
                        .collect(),
                    Err(error) => {
                        let failure = self.failure("a group", &error);
                        vec![Err(failure); scenes.len()]
                    }
                }
            }
        };
        scenes
            .into_iter()
            .zip(scores)
            .map(|(scene, score)| {
                let (score, failure) =
                    score.map_or_else(|failure| (0.0, Some(failure)), |score| (score, None));
                Outcome { score, failure, notes: scene.into_notes() }
            })
            .collect()
    }

    fn checked(&self, scene: &Scene<'_>, score: Result<f64, BoxError>) -> Result<f64, Error> {
        score
            .and_then(|score| finite(score).ok_or_else(|| format!("{score} is no finite number").into()))
            .map_err(|error| self.failure(&scene.state.trajectory_id, &error))
    }

    /// Logs a failure and makes it fit for a state. A key that was refused stays known as that.
    fn failure(&self, rollout: &str, error: &BoxError) -> Error {
        let mut text = error.to_string();
        let mut next = error.source();
        while let Some(cause) = next {
            text.push_str(": ");
            text.push_str(&cause.to_string());
            next = cause.source();
        }
        tracing::warn!(function = %self.name, rollout, error = text, "a function of the rubric failed; it counts as 0");
        let kind = match error.downcast_ref::<Error>() {
            Some(error) if error.kind == ErrorKind::Unauthorized => ErrorKind::Unauthorized,
            _ => ErrorKind::Any,
        };
        let name = error.downcast_ref::<Error>().map_or("Error", |error| error.kind.as_str());
        Error::new(kind, format!("`{}` of the rubric failed", self.name)).because(Cause::new(name, text))
    }
}

fn finite(number: f64) -> Option<f64> {
    number.is_finite().then_some(number)
}

/// Makes an error of a panic.
async fn calmly<T>(future: impl Future<Output = Result<T, BoxError>>) -> Result<T, BoxError> {
    // Nothing that the function could have left half done is looked at after a panic, except notes, which are whole.
    AssertUnwindSafe(future).catch_unwind().await.unwrap_or_else(|panic| Err(panic_text(&*panic).into()))
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text =
        panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("it panicked: {}", text.unwrap_or("for no stated reason"))
}
