//! What runs, in which groups, and what happens when things go wrong.

use std::{
    num::NonZeroU32,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use async_trait::async_trait;
use rollout::{
    config::RetryConfig,
    job::{Cancel, JobError},
    model::{
        Error, ErrorKind, Examples, GenerateError, Interaction, Rollouts, Rubric, RunOptions, Stop,
        rubric::Scene,
    },
};

use super::support::{Scripted, Shared, examples, model, right, right_but_first, rollouts, rubric};

fn at_once(max_attempts: u32) -> RetryConfig {
    RetryConfig {
        max_attempts: NonZeroU32::new(max_attempts).unwrap(),
        initial_delay_ms: 0,
        max_delay_ms: 0,
        multiplier: 1.0,
    }
}

#[tokio::test]
async fn a_single_rollout_is_generated_and_scored() {
    let state = rollouts(&right(), 3).rollout(examples(3).remove(2), model()).await.unwrap();
    assert_eq!(state.reward, Some(1.0));
    assert_eq!(state.completion.unwrap()[0].text(), "2");
    assert_eq!(state.trajectory.len(), 1);
    assert_eq!(state.metrics.unwrap()["right"], 1.0);
}

#[tokio::test]
async fn evaluate_gives_the_averages_and_the_rows_by_example() {
    let scripted = right_but_first();
    let results = rollouts(&scripted, 5)
        .evaluate(Examples::first(3).rollouts(4), RunOptions::new(model()).max_concurrent(1))
        .await
        .unwrap();
    let ids: Vec<_> = results.outputs.iter().map(|row| (row.example_id, row.attempt.unwrap())).collect();
    let expected: Vec<_> = (0..3).flat_map(|id| (1..=4).map(move |attempt| (id, attempt))).collect();
    assert_eq!(ids, expected);
    let metadata = results.metadata;
    assert_eq!((metadata.num_examples, metadata.rollouts_per_example), (3, 4));
    assert_eq!(metadata.avg_reward, 0.75);
    assert_eq!(metadata.avg_metrics["right"], 0.75);
    assert_eq!(metadata.avg_error, 0.0);
    assert_eq!(metadata.pass_at_k["1"], 0.75);
    assert_eq!(metadata.pass_at_k["4"], 1.0);
    assert_eq!(metadata.pass_all_k["4"], 0.0);
    assert_eq!(metadata.usage.unwrap().input_tokens, 10.0);
    assert_eq!(metadata.cost.unwrap().total_usd, 3.0);
    assert!(!results.cancelled);
}

#[tokio::test]
async fn generate_groups_inputs_by_example_and_counts_rollouts_per_example_whole() {
    let mut inputs = examples(2);
    inputs.extend(examples(2));
    inputs.push(examples(1).remove(0));
    let scripted = right();
    let results = rollouts(&scripted, 0).generate(inputs, RunOptions::new(model())).await.unwrap();
    let ids: Vec<_> = results.outputs.iter().map(|row| row.example_id).collect();
    assert_eq!(ids, [0, 0, 0, 1, 1]);
    assert_eq!(results.metadata.rollouts_per_example, 2);
    // Only the second example has exactly two.
    assert_eq!(results.metadata.pass_at_k["2"], 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limit_of_concurrency_counts_rollouts() {
    let scripted = right();
    let options = RunOptions::new(model()).max_concurrent(3);
    rollouts(&scripted, 6).evaluate(Examples::all().rollouts(5), options).await.unwrap();
    assert_eq!(scripted.calls(), 30);
    assert!((1..=3).contains(&scripted.most_running.load(SeqCst)));
}

#[tokio::test]
async fn without_a_limit_all_rollouts_run_at_the_same_time() {
    let scripted = right();
    rollouts(&scripted, 20).evaluate(Examples::all(), RunOptions::new(model())).await.unwrap();
    assert_eq!(scripted.most_running.load(SeqCst), 20);
}

fn group_sizes(seen: &Arc<Mutex<Vec<usize>>>) -> Rubric {
    let seen = Arc::clone(seen);
    rubric().group_reward("size", 0.0, move |scenes: &[Scene<'_>]| {
        seen.lock().unwrap().push(scenes.len());
        vec![0.0; scenes.len()]
    })
}

#[tokio::test]
async fn the_rollouts_of_an_example_are_scored_together_also_where_few_run_at_a_time() {
    let seen = Arc::default();
    let kinds = Rollouts::new(Shared(right()), group_sizes(&seen)).dataset(examples(3));
    kinds.evaluate(Examples::all().rollouts(4), RunOptions::new(model()).max_concurrent(2)).await.unwrap();
    assert_eq!(*seen.lock().unwrap(), [4, 4, 4]);
}

#[tokio::test]
async fn advantages_are_relative_to_the_group_and_absent_when_scored_alone() {
    for (independent, expected) in [(false, [Some(-0.5), Some(0.5)]), (true, [None, None])] {
        let results = rollouts(&right_but_first(), 1)
            .evaluate(
                Examples::all().rollouts(2),
                RunOptions::new(model())
                    .max_concurrent(1)
                    .state_columns(["advantage"])
                    .independent_scoring(independent),
            )
            .await
            .unwrap();
        let advantages: Vec<_> =
            results.outputs.iter().map(|row| row.columns["advantage"].as_f64()).collect();
        assert_eq!(advantages, expected, "independent scoring: {independent}");
    }
}

#[tokio::test]
async fn functions_over_groups_refuse_independent_scoring_before_anything_runs() {
    let scripted = right();
    let kinds =
        Rollouts::new(Shared(Arc::clone(&scripted)), group_sizes(&Arc::default())).dataset(examples(1));
    let error = kinds
        .evaluate(Examples::all(), RunOptions::new(model()).independent_scoring(true))
        .await
        .unwrap_err();
    assert!(matches!(error, GenerateError::Unusable(_)), "{error:?}");
    assert_eq!(scripted.calls(), 0);
}

#[tokio::test]
async fn progress_is_reported_after_each_group_with_all_rows_and_the_new_ones() {
    let reported = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&reported);
    let options = RunOptions::new(model()).max_concurrent(1).on_progress(async move |all, new, metadata| {
        heard.lock().unwrap().push((all.len(), new.len(), metadata.avg_reward));
    });
    rollouts(&right_but_first(), 3).evaluate(Examples::all().rollouts(2), options).await.unwrap();
    assert_eq!(*reported.lock().unwrap(), [(2, 2, 0.5), (4, 2, 0.5), (6, 2, 0.5)]);
}

#[tokio::test]
async fn the_run_waits_for_a_callback_that_takes_time() {
    let (sender, mut receiver) = tokio::sync::mpsc::channel(1);
    let reader = tokio::spawn(async move {
        let mut counts = Vec::new();
        while let Some(rows) = receiver.recv().await {
            tokio::task::yield_now().await;
            counts.push(rows);
        }
        counts
    });
    let options = RunOptions::new(model()).max_concurrent(1).on_progress(async move |all, _, _| {
        sender.send(all.len()).await.unwrap();
    });
    rollouts(&right(), 4).evaluate(Examples::all(), options).await.unwrap();
    assert_eq!(reader.await.unwrap(), [1, 2, 3, 4]);
}

#[tokio::test]
async fn a_callback_that_never_ends_does_not_keep_a_run_from_stopping_at_once() {
    let cancel = Cancel::default();
    let stop = cancel.clone();
    let options =
        RunOptions::new(model()).max_concurrent(1).cancel(cancel).on_progress(async move |_, _, _| {
            stop.now.cancel();
            std::future::pending().await
        });
    let results = rollouts(&right(), 4).evaluate(Examples::all(), options).await.unwrap();
    assert!(results.cancelled && !results.outputs.is_empty());
}

#[tokio::test]
async fn the_start_is_reported_with_the_number_of_rollouts() {
    let reported = Arc::new(Mutex::new(None));
    let heard = Arc::clone(&reported);
    let options =
        RunOptions::new(model()).on_start(move |all, left| *heard.lock().unwrap() = Some((all, left)));
    rollouts(&right(), 3).evaluate(Examples::all().rollouts(2), options).await.unwrap();
    assert_eq!(*reported.lock().unwrap(), Some((6, 6)));
}

#[tokio::test]
async fn errors_stay_with_their_rollout_which_is_scored_and_counted() {
    let scripted = Scripted::new(|state, _| match state.input.example_id {
        0 => Err(Error::new(ErrorKind::Model, "the server is ill")),
        _ => Ok("1".to_owned()),
    });
    let results = rollouts(&scripted, 2).evaluate(Examples::all(), RunOptions::new(model())).await.unwrap();
    let error = results.outputs[0].error.as_ref().unwrap();
    assert_eq!((error.error.as_str(), error.message.as_str()), ("ModelError", "the server is ill"));
    assert_eq!(results.outputs[0].stop_condition.as_deref(), Some("has_error"));
    assert_eq!(results.outputs[0].metrics["right"], 0.0);
    assert_eq!((results.metadata.avg_reward, results.metadata.avg_error), (0.5, 0.5));
}

#[tokio::test]
async fn only_temporary_errors_are_retried() {
    use ErrorKind as K;
    for (kind, calls) in [
        (K::Infra, 3),
        (K::Sandbox, 3),
        (K::EmptyModelResponse, 3),
        (K::Model, 1),
        (K::Tool, 1),
        (K::infrastructure("JammedError"), 3),
        (K::model_fault("CheatedError"), 1),
    ] {
        let own = kind.clone();
        let scripted = Scripted::new(move |_, call| match call {
            0 | 1 => Err(Error::new(own.clone(), "no luck")),
            _ => Ok("0".to_owned()),
        });
        let options = RunOptions::new(model()).retry(at_once(3));
        let results = rollouts(&scripted, 1).evaluate(Examples::all(), options).await.unwrap();
        assert_eq!(scripted.calls(), calls, "{kind}");
        assert_eq!(results.outputs[0].error.is_none(), calls == 3, "{kind}");
    }
}

#[tokio::test(start_paused = true)]
async fn waits_between_tries_start_at_a_second_and_double_and_vary_by_at_most_one() {
    let scripted = Scripted::new(|_, _| Err(Error::new(ErrorKind::Infra, "no luck")));
    let started = tokio::time::Instant::now();
    let options = RunOptions::new(model()).max_retries(7);
    rollouts(&scripted, 1).evaluate(Examples::all(), options).await.unwrap();
    assert_eq!(scripted.calls(), 8);
    // 1, 2, 4, 8, 16 and 32 seconds, and then a minute.
    let waited = started.elapsed().as_secs_f64();
    assert!((123.0..=130.1).contains(&waited), "{waited}");
}

#[tokio::test]
async fn the_last_error_counts_when_all_tries_are_used_up() {
    let scripted = Scripted::new(|_, call| Err(Error::new(ErrorKind::Infra, format!("try {call}"))));
    let options = RunOptions::new(model()).retry(at_once(3));
    let results = rollouts(&scripted, 1).evaluate(Examples::all(), options).await.unwrap();
    assert_eq!(results.outputs[0].error.as_ref().unwrap().message, "try 2");
}

#[tokio::test]
async fn a_rejected_key_stops_the_run_at_once() {
    let scripted = Scripted::new(|state, _| match state.input.example_id {
        2 => Err(Error::new(ErrorKind::Unauthorized, "no such key")),
        _ => Ok("0".to_owned()),
    });
    let options = RunOptions::new(model()).max_concurrent(1);
    let error = rollouts(&scripted, 50).evaluate(Examples::all(), options).await.unwrap_err();
    assert!(matches!(&error, GenerateError::Job(JobError::Unauthorized { .. })), "{error:?}");
    insta::assert_snapshot!(
        format!("{error}\n{}\n{}", std::error::Error::source(&error).unwrap(), error.hint().unwrap()),
        @r"
    the server rejected the API key of model org/scripted-1, so the job was stopped
    no such key
    set the correct api_key for this base_url, then resume the job with `rollout resume`: finished trials are kept
    "
    );
    assert_eq!(scripted.calls(), 3);
}

#[tokio::test]
async fn a_panic_in_an_interaction_costs_its_own_rollout_only() {
    let scripted = Scripted::new(|state, _| {
        assert_ne!(state.input.example_id, 1, "not this one");
        Ok(state.input.example_id.to_string())
    });
    let results = rollouts(&scripted, 3).evaluate(Examples::all(), RunOptions::new(model())).await.unwrap();
    let rewards: Vec<_> = results.outputs.iter().map(|row| row.reward).collect();
    assert_eq!(rewards, [1.0, 0.0, 1.0]);
    let message = &results.outputs[1].error.as_ref().unwrap().message;
    assert!(message.contains("panicked") && message.contains("not this one"), "{message}");
}

/// Cannot even say when it ends, the second time it is asked.
struct Moody(Shared, AtomicUsize);

#[async_trait]
impl Interaction for Moody {
    fn stops(&self) -> Vec<Stop> {
        assert_ne!(self.1.fetch_add(1, SeqCst), 1, "not today");
        Vec::new()
    }

    fn base(&self) -> Option<&dyn Interaction> {
        Some(&self.0)
    }
}

#[tokio::test]
async fn a_panic_outside_of_every_turn_leaves_the_others_of_its_group_scored() {
    let moody = Moody(Shared(right()), AtomicUsize::new(0));
    let seen = Arc::default();
    let rollouts = Rollouts::new(moody, group_sizes(&seen)).dataset(examples(1));
    let options = RunOptions::new(model()).max_concurrent(1);
    let results = rollouts.evaluate(Examples::all().rollouts(3), options).await.unwrap();
    assert_eq!(results.outputs.len(), 2);
    assert_eq!(*seen.lock().unwrap(), [2]);
}

#[tokio::test]
async fn a_cancelled_run_keeps_and_scores_finished_rollouts() {
    let cancel = Cancel::default();
    let stop = cancel.clone();
    let scripted = Scripted::new(move |state, call| {
        if (state.input.example_id, call) == (1, 1) {
            stop.graceful.cancel();
        }
        Ok(state.input.answer.clone().unwrap_or_default())
    });
    let seen = Arc::default();
    let kinds = Rollouts::new(Shared(Arc::clone(&scripted)), group_sizes(&seen)).dataset(examples(9));
    let options = RunOptions::new(model()).max_concurrent(1).cancel(cancel);
    let results = kinds.evaluate(Examples::all().rollouts(4), options).await.unwrap();
    assert!(results.cancelled);
    let sizes = seen.lock().unwrap().clone();
    assert_eq!(sizes[0], 4);
    assert_eq!(results.outputs.len(), sizes.iter().sum::<usize>());
    // The one that was under way may have ended just before it was cut off.
    assert!((5..=6).contains(&results.outputs.len()), "{sizes:?}");
    assert_eq!(scripted.calls(), 6);
}

#[tokio::test]
async fn there_must_be_examples() {
    let error = rollouts(&right(), 0).evaluate(Examples::all(), RunOptions::new(model())).await.unwrap_err();
    assert!(matches!(error, GenerateError::NoExamples));
}

#[tokio::test]
async fn a_sample_is_the_same_for_the_same_seed_and_grows_at_its_end() {
    let ids = async |sample: Examples| {
        let results = rollouts(&right(), 30).evaluate(sample, RunOptions::new(model())).await.unwrap();
        (results.outputs.iter().map(|row| row.example_id).collect::<Vec<_>>(), results.metadata)
    };
    let (some, metadata) = ids(Examples::first(5).shuffle(7)).await;
    assert_eq!((metadata.shuffle, metadata.shuffle_seed), (Some(true), Some(7)));
    assert_eq!(some, ids(Examples::first(5).shuffle(7)).await.0);
    assert_ne!(some, ids(Examples::first(5).shuffle(8)).await.0);
    let more = ids(Examples::first(10).shuffle(7)).await.0;
    assert!(some.iter().all(|id| more.contains(id)));
    assert_ne!(some, [0, 1, 2, 3, 4]);
    assert!(some.is_sorted(), "rows are in the order of their examples: {some:?}");
}
