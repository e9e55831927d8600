//! Scoring alone and in groups.

use std::{sync::Arc, time::Duration};

use rollout::model::{
    Advantage, Error, ErrorKind, Message, Rubric, RubricError, State, parser::Xml, rubric::Scene,
};
use serde_json::json;

use super::{calls, metrics, said, turns};

async fn scored(rubric: &Rubric, mut state: State) -> State {
    rubric.score_rollout(&mut state).await.unwrap();
    state
}

async fn group(rubric: &Rubric, said_: &[&str]) -> Vec<State> {
    let mut states: Vec<State> = said_.iter().map(|text| said(text)).collect();
    rubric.score_group(&mut states).await;
    states
}

fn rewards(states: &[State]) -> Vec<f64> {
    states.iter().map(|state| state.reward.unwrap()).collect()
}

fn advantages(states: &[State]) -> Vec<f64> {
    states.iter().map(|state| state.advantage.unwrap()).collect()
}

/// What the model said, as a number.
fn number(scene: &Scene<'_>) -> Result<f64, std::num::ParseFloatError> {
    scene.parsed().parse()
}

#[tokio::test]
async fn metrics_are_values_of_functions_and_the_reward_is_their_weighted_sum() {
    let rubric = Rubric::new()
        .reward("correct", 1.0, |scene| scene.parsed() == scene.answer)
        .reward("length", -0.25, |scene| scene.parsed().len())
        .metric("turns", |scene| scene.state.trajectory.len());
    let state = scored(&rubric, said("4")).await;
    assert_eq!(metrics(&state), [("correct", 1.0), ("length", 1.0), ("turns", 1.0)]);
    assert_eq!(state.reward, Some(0.75));
}

#[tokio::test]
async fn functions_take_any_part_of_a_rollout() {
    let xml = Xml::new(["answer".into()], "answer").unwrap();
    let rubric = Rubric::new()
        .parser(xml)
        .metric("prompt", |Scene { prompt, .. }| prompt[1].text() == "What is 2+2?")
        .metric("completion", |Scene { completion, .. }| completion[0].text() == "<answer>4</answer>")
        .metric("answer", |Scene { answer, .. }| *answer == "4")
        .metric("info", |Scene { info, .. }| info["level"] == json!(1))
        .metric("task", |Scene { task, .. }| *task == "sums")
        .metric("state", |Scene { state, .. }| state.input.example_id == 3)
        .metric("parser", |Scene { parser, completion, .. }| parser.format_reward(completion) == 1.0)
        .metric("column", |scene| scene.state.get("source") == Some(json!("book")))
        .metric("parsed", |scene| scene.parsed() == "4");
    let state = scored(&rubric, said("<answer>4</answer>")).await;
    assert!(metrics(&state).iter().all(|(_, score)| *score == 1.0), "{:?}", state.metrics);
}

#[tokio::test]
async fn usage_is_there_for_functions_to_weigh() {
    let rubric = Rubric::new().reward("efficient", 1.0, |scene| {
        let usage = &scene.state.usage;
        if usage.input_tokens + usage.output_tokens < 500.0 { 1.0 } else { 0.5 }
    });
    let mut state = said("4");
    (state.usage.input_tokens, state.usage.output_tokens) = (450.0, 80.0);
    assert_eq!(scored(&rubric, state).await.reward, Some(0.5));
}

#[tokio::test]
async fn a_function_that_fails_counts_as_zero_and_others_continue() {
    let rubric = Rubric::new()
        .reward("error", 1.0, |_| Err::<f64, _>("no idea"))
        .reward("panic", 1.0, |_| -> f64 { panic!("on purpose") })
        .reward_later("late_error", 1.0, async |_| Err::<f64, _>("no idea"))
        .reward_later("late_panic", 1.0, async |_| if true { panic!("on purpose") } else { 1.0 })
        .reward("nan", 1.0, |_| f64::NAN)
        .reward("infinite", 1.0, |_| f64::INFINITY)
        .reward("fine", 1.0, |_| true);
    let state = scored(&rubric, said("4")).await;
    let (failed, fine) = metrics(&state).into_iter().partition::<Vec<_>, _>(|(name, _)| *name != "fine");
    assert!(failed.len() == 6 && failed.iter().all(|(_, score)| *score == 0.0), "{failed:?}");
    assert_eq!((fine[0].1, state.reward), (1.0, Some(1.0)));
}

#[tokio::test]
async fn a_reward_that_is_not_finite_is_zero() {
    let rubric = Rubric::new().reward("a", f64::MAX, |_| 2.0);
    assert_eq!(scored(&rubric, said("4")).await.reward, Some(0.0));
}

#[tokio::test]
async fn a_group_function_that_fails_counts_as_zeros() {
    let rubric = Rubric::new()
        .group_reward("error", 1.0, |_| Err::<Vec<f64>, _>("no idea"))
        .group_reward("panic", 1.0, |_| -> Vec<f64> { panic!("on purpose") })
        .group_reward("short", 1.0, |_| vec![1.0])
        .group_reward("long", 1.0, |scenes| vec![1.0; scenes.len() + 1])
        .group_reward_later("late", 1.0, async |_| Err::<Vec<f64>, _>("no idea"))
        .group_reward("nan", 1.0, |_| vec![f64::NAN, 1.0]);
    assert_eq!(rewards(&group(&rubric, &["1", "2"]).await), [0.0, 1.0]);
}

#[tokio::test]
async fn group_functions_see_all_rollouts_in_order() {
    let rubric = Rubric::new().group_reward("rank", 1.0, |scenes| {
        let lengths: Vec<usize> = scenes.iter().map(|scene| scene.parsed().len()).collect();
        lengths
            .iter()
            .map(|length| lengths.iter().filter(|other| *other < length).count())
            .collect::<Vec<_>>()
    });
    assert_eq!(rewards(&group(&rubric, &["aaa", "a", "aa"]).await), [2.0, 0.0, 1.0]);
}

#[tokio::test]
async fn a_rollout_is_not_scored_alone_by_group_functions_or_by_nothing() {
    let by_group = Rubric::new().reward("fine", 1.0, |_| 1.0).group_reward("best", 1.0, |_| vec![1.0]);
    assert!(by_group.needs_group());
    let mut state = said("4");
    let refused = by_group.score_rollout(&mut state).await.unwrap_err();
    insta::assert_snapshot!(refused, @"`best` scores a whole group, so rollouts cannot be scored one by one; turn `independent_scoring` off");
    let refused = Rubric::new().score_rollout(&mut state).await.unwrap_err();
    assert_eq!(refused, RubricError::Empty);
    insta::assert_snapshot!(refused, @"the rubric has no functions; add one that scores rollouts");
    assert_eq!((state.reward, state.metrics), (None, None));
}

#[tokio::test]
async fn advantages_are_rewards_above_the_mean_on_states_and_turns() {
    let rubric = Rubric::new().reward("number", 1.0, number);
    let states = group(&rubric, &["2", "0", "0", "1"]).await;
    assert_eq!(advantages(&states), [1.25, -0.75, -0.75, 0.25]);
    for state in &states {
        let step = &state.trajectory[0];
        assert_eq!((step.reward, step.advantage), (state.reward, state.advantage));
    }
}

#[tokio::test]
async fn advantages_are_not_divided_by_how_rewards_vary() {
    let rubric = Rubric::new().reward("number", 1.0, number);
    assert_eq!(advantages(&group(&rubric, &["100", "0"]).await), [50.0, -50.0]);
    assert_eq!(advantages(&group(&rubric, &["7"]).await), [0.0]);
}

#[tokio::test]
async fn turns_keep_rewards_and_advantages_of_their_own() {
    let rubric = Rubric::new().reward("fixed", 1.0, |_| 1.0);
    let mut state = turns(&[], vec![Message::assistant("a"), Message::assistant("b")]);
    state.trajectory[0].reward = Some(0.3);
    state.trajectory[0].advantage = Some(-2.0);
    let mut states = [state];
    rubric.score_group(&mut states).await;
    let steps: Vec<_> = states[0].trajectory.iter().map(|step| (step.reward, step.advantage)).collect();
    assert_eq!(steps, [(Some(0.3), Some(-2.0)), (Some(1.0), Some(0.0))]);
}

#[tokio::test]
async fn a_rollout_scored_alone_has_no_advantage() {
    let state = scored(&Rubric::new().reward("fixed", 1.0, |_| 1.0), said("4")).await;
    assert_eq!((state.advantage, state.trajectory[0].advantage), (None, None));
    assert_eq!(state.trajectory[0].reward, Some(1.0));
}

#[tokio::test]
async fn each_function_goes_over_all_rollouts_at_once() {
    let all_are_there = Arc::new(tokio::sync::Barrier::new(3));
    let rubric = Rubric::new().reward_later("meet", 1.0, async move |_| {
        all_are_there.wait().await;
        1.0
    });
    let states = tokio::time::timeout(Duration::from_secs(600), group(&rubric, &["1", "2", "3"])).await;
    assert_eq!(rewards(&states.expect("the functions wait for each other")), [1.0; 3]);
}

#[tokio::test]
async fn functions_go_in_order_and_see_the_metrics_before_them() {
    let rubric = Rubric::new()
        .metric("first", number)
        .reward("second", 1.0, |scene| {
            scene.state.metrics.as_ref().map_or(-1.0, |metrics| metrics["first"] + 1.0)
        })
        .group_reward("third", 1.0, |scenes| {
            let second =
                |scene: &Scene<'_>| scene.state.metrics.as_ref().map_or(-1.0, |metrics| metrics["second"]);
            scenes.iter().map(second).collect::<Vec<_>>()
        });
    assert_eq!(rewards(&group(&rubric, &["1", "2"]).await), [4.0, 6.0]);
}

#[tokio::test]
async fn scoring_takes_the_same_time_for_all_and_is_part_of_the_total() {
    let rubric = Rubric::new().reward("fixed", 1.0, |_| 1.0);
    let mut states = group(&rubric, &["1", "2"]).await;
    states.push(scored(&rubric, said("3")).await);
    for state in &states {
        let timing = state.timing;
        assert!(timing.scoring_ms > 0.0);
        assert_eq!((timing.generation_ms, timing.total_ms), (5.0, 5.0 + timing.scoring_ms));
    }
    assert_eq!(states[0].timing.scoring_ms, states[1].timing.scoring_ms);
}

#[tokio::test]
async fn rubrics_together_add_up_and_keep_their_parsers() {
    let xml = Xml::new(["answer".into()], "answer").unwrap();
    let inner = Rubric::new().parser(xml).reward("number", 1.0, number).reward("fixed", 0.5, |_| 1.0);
    let outer = Rubric::new().reward("fixed", 1.0, |_| 1.0).metric("letters", |scene| scene.parsed().len());
    let states = group(&outer.and(inner), &["<answer>2</answer>", "<answer>4</answer>"]).await;
    assert_eq!(metrics(&states[0]), [("fixed", 2.0), ("letters", 18.0), ("number", 2.0)]);
    assert_eq!((rewards(&states), advantages(&states)), (vec![3.5, 5.5], vec![-1.0, 1.0]));
}

#[tokio::test]
async fn turns_and_tool_calls_are_counted() {
    let rubric = Rubric::new().reward("fixed", 1.0, |_| 1.0);
    let messages = vec![calls(&["add", "add"]), calls(&["mul", "unknown"]), Message::assistant("done")];
    let state = scored(&rubric, turns(&["add", "mul", "div"], messages)).await;
    let counts: Vec<_> =
        state.metrics.as_ref().unwrap().iter().map(|(name, count)| (name.as_str(), *count)).collect();
    assert_eq!(
        counts,
        [
            ("fixed", 1.0),
            ("num_turns", 3.0),
            ("total_tool_calls", 4.0),
            ("add_calls", 2.0),
            ("mul_calls", 1.0),
            ("div_calls", 0.0)
        ]
    );
    assert_eq!(state.reward, Some(1.0));
}

#[tokio::test]
async fn rollouts_without_tools_count_turns_only_and_functions_go_before_counts() {
    let rubric = Rubric::new().reward("fixed", 1.0, |_| 1.0);
    let state = scored(&rubric, said("4")).await;
    assert_eq!(state.metrics.unwrap().keys().collect::<Vec<_>>(), ["fixed", "num_turns"]);
    let state = scored(&rubric.clone().metric("num_turns", |_| 7.0), said("4")).await;
    assert_eq!(state.metrics.unwrap()["num_turns"], 7.0);
    let state = scored(&rubric.without_monitors(), said("4")).await;
    assert_eq!(state.metrics.unwrap().keys().collect::<Vec<_>>(), ["fixed"]);
}

#[tokio::test]
async fn a_rubric_of_no_functions_gives_a_group_counts_and_nothing() {
    let states = group(&Rubric::new(), &["1", "2"]).await;
    assert_eq!((rewards(&states), advantages(&states)), (vec![0.0, 0.0], vec![0.0, 0.0]));
    assert_eq!(states[0].metrics.as_ref().unwrap()["num_turns"], 1.0);
    Rubric::new().score_group(&mut []).await;
}

#[tokio::test]
async fn a_rollout_that_ended_in_an_error_is_scored_too() {
    let mut state = said("4");
    state.error = Some(Error::new(ErrorKind::Tool, "broke"));
    let rubric = Rubric::new().reward("correct", 1.0, |scene| scene.parsed() == scene.answer);
    assert_eq!(scored(&rubric, state).await.reward, Some(1.0));
    let mut state = turns(&[], vec![]);
    state.completion = None;
    assert_eq!(scored(&rubric, state).await.reward, Some(0.0));
}

#[tokio::test]
async fn functions_note_things_in_the_state() {
    let rubric = Rubric::new().reward("noting", 1.0, |scene| {
        scene.note("verdict", "fine");
        scene.state.get("verdict").is_none()
    });
    let state = scored(&rubric, said("4")).await;
    assert_eq!((state.get("verdict"), state.reward), (Some(json!("fine")), Some(1.0)));
}

#[tokio::test]
async fn the_math_rubric_wants_a_box() {
    for (text, reward) in [
        (r"<think>\boxed{5}</think> It is \boxed{\frac{8}{2}}.", 1.0),
        (r"It is \boxed{5}.", 0.0),
        ("It is 4.", 0.0),
        (r"\boxed{4", 0.0),
    ] {
        assert_eq!(scored(&Rubric::math(), said(text)).await.reward, Some(reward), "{text}");
    }
    let endless = format!(r"\boxed{{4{}}}", "0".repeat(50_000));
    let mut state = said(&endless);
    state.input.answer = Some(endless[7..endless.len() - 1].to_owned());
    assert_eq!(scored(&Rubric::math(), state).await.reward, Some(0.0));
}

#[tokio::test]
async fn seconds_spent_on_an_environment_are_metrics_that_weigh_nothing() {
    let rubric = Rubric::new().reward("fixed", 1.0, |_| 1.0);
    let mut state = said("4");
    state.set("sandbox_ready_wait_time", 1.5).unwrap();
    state.set("sandbox_command_execution_time", 0.25).unwrap();
    let state = scored(&rubric, state).await;
    assert_eq!(
        metrics(&state),
        [("fixed", 1.0), ("sandbox_ready_wait_time", 1.5), ("sandbox_command_execution_time", 0.25)]
    );
    assert_eq!(state.reward, Some(1.0));
}

#[tokio::test]
async fn rollouts_that_failed_or_timed_out_are_scored_and_out_of_the_baseline() {
    let rubric = Rubric::new().reward("number", 1.0, number);
    let mut states: Vec<State> = ["1", "0", "0.5", "0"].map(said).into();
    states[1].error = Some(Error::new(ErrorKind::Model, "500"));
    states[3].timed_out = true;
    rubric.score_group(&mut states).await;
    assert_eq!(rewards(&states), [1.0, 0.0, 0.5, 0.0]);
    let advantages: Vec<_> = states.iter().map(|state| state.advantage).collect();
    assert_eq!(advantages, [Some(0.25), None, Some(-0.25), None]);
    assert_eq!(states.iter().map(|state| state.is_excluded).collect::<Vec<_>>(), [false, true, false, true]);
    assert_eq!(states[1].trajectory[0].advantage, None);

    let all = rubric.include_errors(true);
    states.iter_mut().for_each(|state| state.trajectory[0].advantage = None);
    all.score_group(&mut states).await;
    let advantages: Vec<_> = states.iter().map(|state| state.advantage.unwrap()).collect();
    assert_eq!(advantages, [0.625, -0.375, 0.125, -0.375]);
    assert!(states.iter().all(|state| !state.is_excluded));
}

#[tokio::test]
async fn an_error_that_is_the_models_fault_counts_in_the_baseline_and_one_of_the_infrastructure_does_not() {
    let rubric = Rubric::new().reward("number", 1.0, number);
    let mut states: Vec<State> = ["1", "0", "0"].map(said).into();
    states[1].error = Some(Error::new(ErrorKind::model_fault("CheatedError"), "it looked"));
    states[2].error = Some(Error::new(ErrorKind::infrastructure("JammedError"), "no paper"));
    rubric.score_group(&mut states).await;
    let advantages: Vec<_> = states.iter().map(|state| state.advantage).collect();
    assert_eq!(advantages, [Some(0.5), Some(-0.5), None]);
}

#[tokio::test]
async fn advantages_come_from_the_estimator_of_the_rubric() {
    let rubric = Rubric::new().reward("number", 1.0, number);
    let states = group(&rubric.clone().advantage(Advantage::LeaveOneOut), &["1", "0", "0"]).await;
    assert_eq!(advantages(&states), [1.0, -0.5, -0.5]);
    let states = group(&rubric.clone().advantage(Advantage::Normalised), &["3", "1"]).await;
    assert_eq!(advantages(&states), [1.0, -1.0]);
    let own = |rewards: &[f64]| rewards.iter().map(|reward| reward * 10.0).collect();
    let states = group(&rubric.clone().advantage(own), &["3", "1"]).await;
    assert_eq!(advantages(&states), [30.0, 10.0]);

    let none = |_: &[f64]| Vec::new();
    let states = group(&rubric.advantage(none), &["3", "1"]).await;
    assert_eq!((states[0].advantage, states[0].reward), (None, Some(3.0)));
    assert!(states[0].scoring_errors[0].to_string().contains("returned 0 numbers for 2 rewards"));
}
