//! Scores rollouts with a rubric, one by one or as a group.

use std::{any::Any, future::Future, panic::AssertUnwindSafe, time::Instant};

use futures_util::{
    FutureExt as _,
    future::{BoxFuture, join_all},
};
use serde_json::{Map, Value};

use rollout_core::advantage::{GroupMember, group_advantages};

use super::{BoxError, Function, Kind, Rubric, RubricError, Scene, monitor};
use crate::{Cause, Error, ErrorKind, State, parser::Parser, python::PythonError};

impl Rubric {
    /// Scores a single rollout: sets reward, metrics and the duration of scoring. There is no advantage without a
    /// group.
    ///
    /// Turns without a reward get that of the rollout.
    pub fn score_rollout<'a>(&'a self, state: &'a mut State) -> BoxFuture<'a, Result<(), RubricError>> {
        Box::pin(async move {
            self.check_alone()?;
            self.score(std::slice::from_mut(state), &[]).await;
            state.is_excluded = !self.includes_errors && state.is_cut_short();
            Ok(())
        })
    }

    /// Scores the rollouts of one example together: sets rewards, metrics, advantages and the duration of scoring,
    /// which is the same for all of them.
    ///
    /// Functions run one after the other, each on all rollouts at once. Turns without a reward or advantage get those
    /// of the rollout.
    ///
    /// Rollouts that failed or timed out are scored, but excluded from the baseline and without an advantage, unless
    /// the rubric [includes errors](Self::include_errors).
    pub fn score_group<'a>(&'a self, states: &'a mut [State]) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            self.score(states, &[]).await;
            self.set_advantages(states);
        })
    }

    /// Scores rollouts when an earlier run has scored some of them, as their metrics show. Functions over the group get
    /// all of them. A function of a single rollout keeps its earlier score, if only one function has its name.
    pub fn score_resumed_group<'a>(
        &'a self,
        states: &'a mut [State],
        is_scored: &'a [bool],
    ) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            self.score(states, is_scored).await;
            self.set_advantages(states);
        })
    }

    fn set_advantages(&self, states: &mut [State]) {
        let members: Vec<_> = states
            .iter_mut()
            .map(|state| {
                state.is_excluded = !self.includes_errors && state.is_cut_short();
                GroupMember { reward: state.reward.unwrap_or(0.0), is_excluded: state.is_excluded }
            })
            .collect();
        match group_advantages(&*self.estimator, &members) {
            Ok(advantages) => {
                for (state, advantage) in states.iter_mut().zip(advantages) {
                    state.advantage = advantage;
                    if let Some(advantage) = advantage {
                        for step in &mut state.trajectory {
                            step.advantage.get_or_insert(advantage);
                        }
                    }
                }
            }
            Err(error) => {
                tracing::warn!(%error, "cannot compute the advantages of a group");
                let error = Error::new(ErrorKind::Any, error.to_string());
                states.iter_mut().for_each(|state| state.scoring_errors.push(error.clone()));
            }
        }
    }

    /// Sets everything except advantages. Some of the rollouts may already be scored.
    async fn score(&self, states: &mut [State], is_scored: &[bool]) {
        let start = Instant::now();
        let has_scored = !is_scored.is_empty();
        let is_scored = |place: usize| is_scored.get(place).copied().unwrap_or(false);
        // In the common case, nothing is known of any rollout.
        let known_states = states.iter_mut().enumerate().filter(|_| has_scored);
        let earlier: Vec<_> = known_states
            .map(|(place, state)| state.metrics.take().filter(|_| is_scored(place)).unwrap_or_default())
            .collect();
        for state in &mut *states {
            state.metrics = Some(Default::default());
            state.scoring_errors.clear();
        }
        let mut rewards = vec![0.0; states.len()];
        for function in &self.functions {
            let parser = function.parser.as_ref().unwrap_or(&self.parser);
            let is_alone = || self.functions.iter().filter(|other| other.name == function.name).count() == 1;
            let known: Vec<Option<f64>> = earlier
                .iter()
                .map(|metrics| metrics.get(&*function.name).copied().filter(|_| is_alone()))
                .collect();
            let outcomes = function.outcomes(states, parser.as_ref(), &known).await;
            for ((state, reward), outcome) in states.iter_mut().zip(&mut rewards).zip(outcomes) {
                *reward += function.weight * outcome.score;
                *state.metrics.get_or_insert_default().entry(function.name.to_string()).or_default() +=
                    outcome.score;
                state.fields.extend(outcome.notes);
                state.scoring_errors.extend(outcome.failure);
            }
        }
        for (place, (state, reward)) in states.iter_mut().zip(&mut rewards).enumerate() {
            *reward = finite(*reward).unwrap_or_else(|| {
                tracing::warn!(rollout = %state.trajectory_id, "the reward is not a finite number; it counts as 0");
                0.0
            });
            state.reward = Some(*reward);
            for step in &mut state.trajectory {
                step.reward.get_or_insert(*reward);
            }
            if self.monitors && !is_scored(place) {
                let counts = monitor::counts(state);
                let metrics = state.metrics.get_or_insert_default();
                for (name, count) in counts {
                    metrics.entry(name).or_insert(count);
                }
            }
        }
        // Other metrics of earlier runs, such as counts of turns, are kept: the turns may not be saved.
        for (state, earlier) in states.iter_mut().zip(earlier) {
            let metrics = state.metrics.get_or_insert_default();
            earlier.into_iter().for_each(|(name, value)| _ = metrics.entry(name).or_insert(value));
        }
        let scoring_ms = start.elapsed().as_secs_f64() * 1e3;
        let fresh = states.iter_mut().enumerate().filter(|(place, _)| !is_scored(*place));
        for (_, state) in fresh {
            state.timing.scoring_ms = scoring_ms;
            state.timing.total_ms = state.timing.generation_ms + scoring_ms;
        }
    }
}

struct Outcome {
    score: f64,
    failure: Option<Error>,
    notes: Map<String, Value>,
}

impl Function {
    /// The results of the function for each rollout, in order. Some may be known from an earlier run.
    async fn outcomes(&self, states: &[State], parser: &dyn Parser, known: &[Option<f64>]) -> Vec<Outcome> {
        let scenes: Vec<Scene<'_>> = states.iter().map(|state| Scene::new(state, parser)).collect();
        let scores: Vec<Result<f64, Error>> = match &self.kind {
            Kind::Each(each) => {
                join_all(scenes.iter().enumerate().map(|(place, scene)| async move {
                    match known.get(place).copied().flatten() {
                        Some(known) => Ok(known),
                        None => {
                            let score = calmly(async { each(scene).await }).await;
                            self.checked(scene, score)
                        }
                    }
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
            .and_then(|score| finite(score).ok_or_else(|| format!("{score} is not a finite number").into()))
            .map_err(|error| self.failure(&scene.state.trajectory_id, &error))
    }

    /// Logs a failure and converts it for the state. Only failures of the infrastructure keep their kind.
    fn failure(&self, rollout: &str, error: &BoxError) -> Error {
        let mut text = error.to_string();
        let mut next = error.source();
        while let Some(cause) = next {
            text.push_str(": ");
            text.push_str(&cause.to_string());
            next = cause.source();
        }
        tracing::warn!(function = %self.name, rollout, error = text, "a function of the rubric failed; it counts as 0");
        let kind = infrastructure_kind(error).unwrap_or(ErrorKind::Any);
        let name = error.downcast_ref::<Error>().map_or("Error", |error| error.kind.as_str());
        Error::new(kind, format!("`{}` of the rubric failed", self.name)).because(Cause::new(name, text))
    }
}

/// The kind of an error that the infrastructure causes, not the function or the response that it scores.
fn infrastructure_kind(error: &BoxError) -> Option<ErrorKind> {
    if let Some(error) = error.downcast_ref::<PythonError>() {
        return error.is_infrastructure().then_some(ErrorKind::infrastructure("PythonError"));
    }
    let kind = &error.downcast_ref::<Error>()?.kind;
    match kind {
        ErrorKind::Unauthorized => Some(ErrorKind::Unauthorized),
        // An empty response of a judge is no fault of the model that it judges.
        kind if kind.is(ErrorKind::Model) || *kind == ErrorKind::Unsupported => Some(ErrorKind::Model),
        kind => kind.is(ErrorKind::Infra).then(|| kind.clone()),
    }
}

fn finite(number: f64) -> Option<f64> {
    number.is_finite().then_some(number)
}

/// Converts a panic to an error.
async fn calmly<T>(future: impl Future<Output = Result<T, BoxError>>) -> Result<T, BoxError> {
    // After a panic, only the notes are used, and they are consistent.
    AssertUnwindSafe(future).catch_unwind().await.unwrap_or_else(|panic| Err(panic_text(&*panic).into()))
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text =
        panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("it panicked: {}", text.unwrap_or("without a message"))
}
