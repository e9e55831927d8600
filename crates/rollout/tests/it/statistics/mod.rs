//! Statistics of random data agree with numpy, scipy and statsmodels: formulas to nine digits, resampling on the same
//! drawn numbers.

use std::collections::BTreeMap;

use rollout::{
    result::{Standing, TrialSummary},
    stats::{
        Clusters, Confidence, McNemar, Moments, Pairs, PassCurve, Sorted, holm,
        report::{Report, ReportTask, ReportTrial},
        seeded, wilson,
    },
};
use rollout_testkit::Python;
use serde_json::{Value, json};

type Numbers = BTreeMap<String, f64>;

/// Data for the other program, and what came out here.
type Case = (Value, Numbers);

fn numbers<const N: usize>(numbers: [(&str, f64); N]) -> Numbers {
    numbers.into_iter().map(|(name, number)| (name.to_owned(), number)).collect()
}

/// Compares every number of every case with the other program's.
fn check(cases: &[Case]) {
    let input: String = cases.iter().map(|(data, _)| format!("{data}\n")).collect();
    let output = Python::new().run(include_str!("reference.py"), &input);
    let expected: Vec<Numbers> = output.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(expected.len(), cases.len());
    for ((data, actual), expected) in cases.iter().zip(&expected) {
        assert!(actual.keys().eq(expected.keys()), "{actual:?}\n{expected:?}");
        for (name, number) in actual {
            let wanted = expected[name];
            assert!(
                (number - wanted).abs() <= 1e-9 * wanted.abs().max(1.0),
                "{name}: {number}, not {wanted}, of {data}"
            );
        }
    }
}

fn level(random: &mut fastrand::Rng) -> Confidence {
    Confidence::new(random.choice([0.5, 0.8, 0.9, 0.95, 0.99, 0.999]).unwrap()).unwrap()
}

/// Values as rewards, durations and costs are: shares, successes, large, small, with ties.
fn values(random: &mut fastrand::Rng, count: usize) -> Vec<f64> {
    let kind = random.u8(..4);
    (0..count)
        .map(|_| match kind {
            0 => random.f64(),
            1 => f64::from(random.u8(..2)),
            2 => 1e6 + 1e3 * random.f64(),
            _ => f64::from(random.u8(..5)) / 4.0,
        })
        .collect()
}

fn same_seed() -> fastrand::Rng {
    fastrand::Rng::with_seed(20_260_101)
}

#[test]
fn means_spreads_and_quantiles_agree() {
    let mut random = same_seed();
    let cases: Vec<Case> = [2, 3, 4, 5, 10, 101, 1_999, 2_000, 2_001, 2_002, 10_000]
        .iter()
        .flat_map(|count| [*count; 3])
        .map(|count| {
            let (values, level) = (values(&mut random, count), level(&mut random));
            let shares = [0.0, 0.05, 0.25, 0.5, 0.9, 0.99, 1.0, random.f64()];
            let sample: Moments = values.iter().copied().collect();
            let interval = sample.interval(level).unwrap();
            let mut numbers = numbers([
                ("mean", sample.mean().unwrap()),
                ("sd", sample.sd().unwrap()),
                ("standard error", sample.standard_error().unwrap()),
                ("low", interval.low),
                ("high", interval.high),
            ]);
            let sorted = Sorted::new(values.iter().copied()).unwrap();
            numbers.extend(shares.map(|share| (format!("quantile {share:?}"), sorted.quantile(share))));
            (json!({ "kind": "sample", "values": values, "level": level.level(), "shares": shares }), numbers)
        })
        // Equal values have no spread, and the other program no interval.
        .filter(|(_, numbers)| numbers["sd"] > 0.0)
        .collect();
    check(&cases);
}

#[test]
fn wilson_intervals_agree() {
    let mut random = same_seed();
    let cases: Vec<Case> = (0..200)
        .map(|_| {
            let trials = if random.bool() { random.u64(1..30) } else { random.u64(1..1_000_000) };
            let successes = random.choice([0, trials, random.clone().u64(..=trials)]).unwrap();
            let level = level(&mut random);
            let interval = wilson(successes, trials, level).unwrap();
            let data =
                json!({ "kind": "wilson", "successes": successes, "trials": trials, "level": level.level() });
            (data, numbers([("low", interval.low), ("high", interval.high)]))
        })
        .collect();
    check(&cases);
}

#[test]
fn clustered_errors_and_bootstrap_intervals_agree() {
    let mut random = same_seed();
    let cases: Vec<Case> = (0..40)
        .map(|seed| {
            let (tasks, attempts, level) = (random.usize(2..40), random.usize(1..6), level(&mut random));
            // Every task at least once, and some more often.
            let tasks: Vec<usize> =
                (0..tasks).chain((0..tasks * (attempts - 1)).map(|_| random.usize(..tasks))).collect();
            let values = values(&mut random, tasks.len());
            let clusters: Clusters<usize> = tasks.iter().copied().zip(values.iter().copied()).collect();
            let (mut draw, mut drawn) = (seeded(seed), Vec::new());
            let bootstrap = clusters.bootstrap(200, level, |below| {
                drawn.push(draw(below));
                drawn[drawn.len() - 1]
            });
            let (bootstrap, clustered) = (bootstrap.unwrap(), clusters.estimate(level).unwrap());
            let level = level.level();
            (
                json!({ "kind": "clusters", "tasks": tasks, "values": values, "drawn": drawn, "level": level }),
                numbers([
                    ("clustered", clustered.standard_error),
                    ("clustered low", clustered.interval.low),
                    ("clustered high", clustered.interval.high),
                    ("bootstrap", bootstrap.standard_error),
                    ("low", bootstrap.interval.low),
                    ("high", bootstrap.interval.high),
                ]),
            )
        })
        .collect();
    check(&cases);
}

#[test]
fn paired_comparisons_agree() {
    let mut random = same_seed();
    let cases: Vec<Case> = (0..30)
        .map(|seed| {
            // More tasks than are tried exactly differ for certain only where no two values are equal.
            let many = seed % 2 == 0;
            let count = if many { random.usize(21..60) } else { random.usize(2..12) };
            let first: Vec<f64> = (0..count).map(|_| 1.0 + random.f64()).collect();
            let second: Vec<f64> = first
                .iter()
                .map(
                    |value| if many { 1.1 + random.f64() } else { value + f64::from(random.i8(-2..4)) / 4.0 },
                )
                .collect();
            let level = level(&mut random);
            let pairs = Pairs::new(first.iter().copied().zip(second.iter().copied())).unwrap();
            let (mut draw, mut drawn) = (seeded(seed), Vec::new());
            let test = pairs
                .sign_flip(500, |below| {
                    drawn.push(draw(below));
                    drawn[drawn.len() - 1]
                })
                .unwrap();
            assert_eq!(test.exact, !many);
            let difference = pairs.mean_difference(level).unwrap();
            let level = level.level();
            (
                json!({ "kind": "pairs", "first": first, "second": second, "drawn": drawn, "level": level }),
                numbers([
                    ("mean", difference.mean),
                    ("standard error", difference.standard_error),
                    ("low", difference.interval.low),
                    ("high", difference.interval.high),
                    ("p", test.p),
                    ("ratio", pairs.ratio_of_totals().unwrap()),
                ]),
            )
        })
        .filter(|(_, numbers)| numbers["standard error"] > 0.0)
        .collect();
    check(&cases);
}

#[test]
fn adjustments_for_several_tests_agree() {
    let mut random = same_seed();
    let cases: Vec<Case> = (0..50)
        .map(|_| {
            let ties = random.bool();
            let p: Vec<f64> = (0..random.usize(1..12))
                .map(|_| if ties { f64::from(random.u8(..5)) / 8.0 } else { random.f64().powi(4) })
                .collect();
            let adjusted = holm(&p).into_iter().enumerate();
            let numbers = adjusted.map(|(place, p)| (place.to_string(), p)).collect();
            (json!({ "kind": "several", "p": p }), numbers)
        })
        .collect();
    check(&cases);
}

/// Trials of one agent as they come: tasks of uneven numbers of attempts, failures, and rewards of every kind.
fn trials(random: &mut fastrand::Rng) -> Vec<ReportTrial> {
    let attempts: Vec<u32> = (0..random.u32(2..30)).flat_map(|task| vec![task; random.usize(1..6)]).collect();
    attempts
        .into_iter()
        .map(|task| {
            let standing = if random.u8(..5) == 0 { Standing::Failed } else { Standing::Completed };
            let reward = random.choice([0.0, 1.0, 1.0, 0.25, -0.5]);
            let outcome = TrialSummary {
                standing,
                reward: reward.filter(|_| standing == Standing::Completed),
                model_cost: random.bool().then(|| random.f64()),
                seconds: 100.0 * random.f64(),
                ..TrialSummary::SKIPPED
            };
            ReportTrial { agent: 0, task, outcome }
        })
        .collect()
}

#[test]
fn the_figures_of_a_job_agree_under_both_conventions() {
    let mut random = same_seed();
    let mut cases: Vec<Case> = Vec::new();
    for _ in 0..20 {
        let trials = trials(&mut random);
        let task = |number: u32| ReportTask {
            dataset: "set".into(),
            name: number.to_string().into(),
            category: None,
            difficulty: None,
        };
        let report = Report::new(vec!["agent".into()], (0..30).map(task).collect(), trials.clone());
        let statistics = report.statistics();
        let figures = &statistics.agents["agent"].figures;
        for (scores, zero) in [(&figures.failed_excluded, false), (&figures.headline, true)] {
            let counted: Vec<(u32, f64)> = trials
                .iter()
                .filter_map(|trial| Some((trial.task, trial.outcome.reward.or(zero.then_some(0.0))?)))
                .collect();
            let (tasks, values): (Vec<u32>, Vec<f64>) = counted.into_iter().unzip();
            let clusters = tasks.iter().collect::<std::collections::BTreeSet<_>>().len();
            let mut draw = seeded(statistics.bootstrap.seed);
            let drawn: Vec<usize> =
                (0..statistics.bootstrap.resamples as usize * clusters).map(|_| draw(clusters)).collect();
            let (mean, rate) = (scores.mean_reward.unwrap(), scores.pass_rate.unwrap());
            let (plain, clustered, bootstrap) =
                (mean.plain.unwrap(), mean.clustered.unwrap(), mean.bootstrap.unwrap());
            let data =
                json!({ "kind": "figures", "tasks": tasks, "values": values, "drawn": drawn, "level": 0.95 });
            cases.push((
                data,
                numbers([
                    ("rate", rate.rate),
                    ("rate low", rate.interval.low),
                    ("rate high", rate.interval.high),
                    ("mean", mean.mean),
                    ("plain", plain.standard_error),
                    ("plain low", plain.interval.low),
                    ("plain high", plain.interval.high),
                    ("clustered", clustered.standard_error),
                    ("clustered low", clustered.interval.low),
                    ("clustered high", clustered.interval.high),
                    ("bootstrap", bootstrap.standard_error),
                    ("low", bootstrap.interval.low),
                    ("high", bootstrap.interval.high),
                    ("at 1", scores.pass_k[0].at_k),
                    ("all 1", scores.pass_k[0].all_k),
                ]),
            ));
        }
    }
    check(&cases);
}

#[test]
fn mcnemars_tests_agree() {
    let mut random = same_seed();
    let cases: Vec<Case> = (0..200)
        .map(|_| {
            let most = random.choice([10, 100, 50_000]).unwrap();
            (random.u64(..most), random.u64(..most))
        })
        // The correction of the other program goes beyond equality, to a difference of one.
        .filter(|(first, second)| first != second)
        .map(|(only_first, only_second)| {
            let flipped = McNemar { only_first, only_second };
            let chi_square = flipped.chi_square().unwrap();
            (
                json!({ "kind": "flips", "first": only_first, "second": only_second }),
                numbers([
                    ("exact", flipped.exact_p()),
                    ("statistic", chi_square.statistic),
                    ("p", chi_square.p),
                ]),
            )
        })
        .collect();
    check(&cases);
}

#[test]
fn chances_of_success_agree() {
    let mut random = same_seed();
    let cases: Vec<Case> = (0..30)
        .map(|_| {
            let most = random.choice([3, 10, 100]).unwrap();
            let tasks: Vec<(u64, u64)> = (0..random.usize(1..20))
                .map(|_| {
                    let all = random.u64(1..=most);
                    (all, random.u64(..=all))
                })
                .collect();
            let mut curve = PassCurve::new();
            for (task, (all, correct)) in tasks.iter().enumerate() {
                (0..*all).for_each(|attempt| curve.add(task, attempt < *correct));
            }
            let numbers = curve.points().into_iter().flat_map(|point| {
                let k = point.k;
                [
                    (format!("tasks {k}"), point.tasks as f64),
                    (format!("at {k}"), point.at_k),
                    (format!("all {k}"), point.all_k),
                ]
            });
            (json!({ "kind": "passes", "tasks": tasks }), numbers.collect())
        })
        .collect();
    check(&cases);
}
