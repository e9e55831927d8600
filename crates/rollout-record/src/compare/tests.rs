//! Comparisons of sides built by hand.

use indexmap::IndexMap;

use super::{
    side::{Side, Sums},
    *,
};
use rollout_core::result::{ErrorType, Standing, TrialSummary};

/// One attempt: a reward, or None if it failed.
type Attempt = Option<f64>;

fn side(agent: &str, tasks: &[(&str, &[Attempt])]) -> Side {
    let mut sums: IndexMap<TaskId, Sums> = IndexMap::new();
    for (task, attempts) in tasks {
        let id = TaskId { dataset_name: "set".into(), task_name: (*task).into() };
        let sums = sums.entry(id).or_default();
        for reward in *attempts {
            let standing = if reward.is_some() { Standing::Completed } else { Standing::Failed };
            let error = reward.is_none().then_some(ErrorType::AgentExecutionFailed);
            sums.add(&TrialSummary {
                standing,
                reward: *reward,
                error,
                model_cost: Some(2.0),
                seconds: attempts.len() as f64,
                ..TrialSummary::SKIPPED
            });
        }
    }
    Side::of(agent, sums)
}

fn compared(sides: Vec<Side>) -> Comparison {
    Comparison::new(sides).unwrap()
}

#[test]
fn attempts_are_averaged_so_that_every_task_counts_once() {
    let first = side("first", &[("a", &[Some(1.0)]), ("b", &[Some(0.0)])]);
    let second = side("second", &[("a", &[Some(1.0), Some(0.0), Some(0.0), Some(0.0)]), ("b", &[Some(0.5)])]);
    let contrast = &compared(vec![first, second]).contrasts[0];
    let differences = &contrast.failed_excluded;
    assert_eq!(
        (differences.tasks, differences.mean_reward.mean, differences.pass_rate.mean),
        (2, -0.125, -0.375)
    );
    // Half a reward is not a pass, and a quarter of the attempts does not solve a task.
    let flipped: Vec<_> =
        differences.flipped.iter().map(|flip| (flip.task.to_string(), flip.is_won())).collect();
    assert_eq!(flipped, [("set/a".to_owned(), false)]);
    assert_eq!((differences.mcnemar.only_baseline, differences.mcnemar.only_other), (1, 0));
    assert_eq!((contrast.cost_ratio, contrast.duration_ratio), (Some(1.0), Some(2.5)));
    assert_eq!(contrast.headline, contrast.failed_excluded);
}

#[test]
fn failures_are_left_out_or_zeros_and_a_task_without_a_score_is_in_one_convention_only() {
    let first = side("first", &[("a", &[Some(1.0), None]), ("b", &[None]), ("c", &[Some(1.0)])]);
    let second = side("second", &[("a", &[Some(1.0)]), ("b", &[Some(1.0)]), ("d", &[Some(1.0)])]);
    let contrast = &compared(vec![first, second]).contrasts[0];
    assert_eq!(contrast.tasks_in_both, 2);
    let named = |tasks: &[TaskId]| tasks.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(
        (named(&contrast.only_in_baseline), named(&contrast.only_in_other)),
        (vec!["set/c".into()], vec!["set/d".into()])
    );
    let (excluded, zero) = (&contrast.failed_excluded, &contrast.headline);
    assert_eq!((excluded.tasks, excluded.mean_reward.mean, excluded.mean_reward.interval), (1, 0.0, None));
    assert_eq!((zero.tasks, zero.mean_reward.mean), (2, 0.75));
    let interval = zero.pass_rate.interval.unwrap();
    assert_eq!(interval.high, 1.0, "a difference of fractions is at most 1");
    assert!(zero.mean_reward.interval.unwrap().high > 1.0);
}

#[test]
fn sides_that_try_tasks_not_equally_often_are_not_tested_for_solving_more() {
    let first = side("first", &[("a", &[Some(1.0)]), ("b", &[Some(0.0)])]);
    let tried = [Some(1.0), Some(0.0)];
    let mut second = side("second", &[("a", &tried), ("b", &tried)]);
    second.attempts = 2;
    let contrast = &compared(vec![first, second]).contrasts[0];
    let Differences { mean_reward, mcnemar, .. } = &contrast.failed_excluded;
    assert_eq!((mean_reward.mean, mean_reward.p), (0.0, Some(1.0)));
    assert_eq!((mcnemar.only_other, mcnemar.p), (1, None));
    assert_eq!(contrast.warnings, ["attempts: 1 in first, 2 in second; McNemar's test is not computed"]);
}

#[test]
fn several_comparisons_make_each_less_certain() {
    let tasks: Vec<String> = (0..6).map(|number| number.to_string()).collect();
    let all = |agent: &str, reward: f64| {
        let attempts = [Some(reward)];
        let tasks: Vec<(&str, &[Attempt])> =
            tasks.iter().map(|task| (task.as_str(), &attempts[..])).collect();
        side(agent, &tasks)
    };
    let alone = compared(vec![all("none", 0.0), all("all", 1.0)]);
    let mcnemar = alone.contrasts[0].failed_excluded.mcnemar;
    assert_eq!((mcnemar.p, mcnemar.p_holm), (Some(0.03125), None));
    let three = compared(vec![all("none", 0.0), all("all", 1.0), all("half", 0.5)]);
    let p = |contrast: &Contrast| {
        let Differences { mean_reward, mcnemar, .. } = &contrast.failed_excluded;
        (mean_reward.p, mean_reward.p_holm, mcnemar.p_holm)
    };
    assert_eq!(p(&three.contrasts[0]), (Some(0.03125), Some(0.0625), Some(0.0625)));
    assert_eq!(p(&three.contrasts[1]), (Some(0.03125), Some(0.0625), Some(1.0)));
}

#[test]
fn agents_of_several_jobs_are_compared_by_name_and_others_with_the_first() {
    let of = |job: &str, agent: &str| {
        let mut side = side(agent, &[("a", &[Some(1.0)])]);
        side.job = job.to_owned();
        side
    };
    let pairs = |sides: Vec<Side>| -> Vec<(String, String)> {
        let named = |side: &Side| format!("{}/{}", side.job, side.agent);
        super::pairs(&sides).map(|(baseline, other)| (named(baseline), named(other))).collect()
    };
    let pair = |one: &str, two: &str| (one.to_owned(), two.to_owned());
    assert_eq!(
        pairs(vec![of("before", "x"), of("before", "y"), of("after", "x"), of("after", "y")]),
        [pair("before/x", "after/x"), pair("before/y", "after/y")]
    );
    assert_eq!(
        pairs(vec![of("before", "x"), of("before", "y"), of("after", "x"), of("after", "z")]),
        [pair("before/x", "before/y"), pair("before/x", "after/x"), pair("before/x", "after/z")]
    );
    assert_eq!(
        pairs(vec![of("a", "x"), of("b", "x"), of("c", "x")]),
        [pair("a/x", "b/x"), pair("a/x", "c/x")]
    );
}

#[test]
fn tasks_that_have_nothing_in_common_are_no_comparison() {
    let one = |agent: &str, task: &str| side(agent, &[(task, &[Some(1.0)])]);
    let nothing = Comparison::new(vec![one("a", "x"), one("b", "y"), one("c", "z")]);
    assert!(matches!(nothing, Err(CompareError::NothingInCommon { others, .. }) if others == "b, c"));
    // If there is something to compare, the other sides get a warning.
    let contrast = &compared(vec![one("a", "x"), one("b", "y"), one("c", "x")]).contrasts[0];
    assert_eq!(contrast.warnings, ["no task in common"]);
    assert_eq!((contrast.failed_excluded.mean_reward.p, contrast.failed_excluded.mcnemar.p), (None, None));
}

#[test]
fn one_side_alone_or_none_cannot_be_compared() {
    assert!(matches!(Comparison::new(Vec::new()), Err(CompareError::Nothing)));
    let alone = Comparison::new(vec![side("me", &[])]);
    assert!(matches!(alone, Err(CompareError::Alone(name)) if name == "me"));
}
