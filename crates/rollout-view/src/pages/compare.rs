//! The comparison of two agents or two jobs, task by task.

use std::collections::HashMap;

use askama::Template;
use rollout_core::{
    display::{fine_span, number, percent},
    statistics::Interval,
};
use rollout_record::{
    compare::{self, Comparison, Difference, Differences},
    saved::TrialStatus,
};

use super::{Frame, Here, Link, NOTHING, grid, or_nothing, render};
use crate::{
    error::ViewError,
    html::Html,
    job::{JobLine, JobView},
    library::{Library, lock},
    links::{Address, COMPARE_FORM, SideName},
    svg::{self, ChartRow, Marks},
};

/// The most agents of a job whose pairs are offered.
const MAX_AGENTS: usize = 6;

#[derive(Debug, Template)]
#[template(path = "compare.html")]
struct ComparePage {
    frame: Frame,
    sides: [SideView; 2],
    /// The job or the agent that both sides have.
    same_part: String,
    chart: Html,
    differences: Vec<DifferenceRow>,
    ratios: String,
    warnings: Vec<String>,
    changed: Vec<TaskRow>,
    same: Vec<TaskRow>,
    only: Vec<(String, Vec<String>)>,
    swapped: String,
    choice: Option<SideChoice>,
    /// Links to other comparisons, in an export.
    others: Vec<Link>,
}

/// Two sides that are compared.
pub(crate) type Pair = (SideName, SideName);

#[derive(Debug)]
struct SideView {
    link: Link,
    name: String,
    pass_rate: String,
    interval: String,
    mean_reward: String,
    trials: u64,
    failed: u64,
    time: String,
}

#[derive(Debug)]
struct DifferenceRow {
    what: &'static str,
    difference: String,
    interval: String,
    p: String,
}

#[derive(Debug)]
struct TaskRow {
    task: String,
    cells: [Html; 2],
    rates: [String; 2],
    change: &'static str,
}

/// The comparisons of a job with those before it: for each agent, the last job with the same datasets that has an agent
/// of this name. Jobs are in the order of the list, the newest first.
pub(crate) fn with_previous(jobs: &[JobLine], number: usize) -> Vec<Pair> {
    let Some(job) = jobs.get(number) else { return Vec::new() };
    let earlier = || jobs[number + 1..].iter().filter(|other| other.datasets == job.datasets);
    let pair = |agent: &String| {
        let other = earlier().find(|other| other.agents.contains(agent))?;
        let side = |job: &JobLine| SideName { job: job.name.clone(), agent: agent.clone() };
        Some((side(other), side(job)))
    };
    job.agents.iter().filter_map(pair).collect()
}

/// The pairs of agents of a job, as far as there is a link to each.
pub(crate) fn between_agents(job: &str, agents: &[String]) -> Vec<Pair> {
    let side = |agent: &String| SideName { job: job.to_owned(), agent: agent.clone() };
    let mut pairs = Vec::new();
    for (number, left) in agents.iter().enumerate().take(MAX_AGENTS) {
        pairs.extend(agents.iter().take(MAX_AGENTS).skip(number + 1).map(|right| (side(left), side(right))));
    }
    pairs
}

/// The comparisons of a job that an export has: with earlier jobs, and between its agents.
pub(crate) fn exported(jobs: &[JobLine], number: usize) -> Vec<Pair> {
    let mut pairs = with_previous(jobs, number);
    pairs.extend(jobs.get(number).into_iter().flat_map(|job| between_agents(&job.name, &job.agents)));
    pairs
}

/// Two sides to choose, in a form that works without scripts.
#[derive(Debug)]
pub(crate) struct SideChoice {
    pub(crate) action: String,
    pub(crate) sides: [SideSelect; 2],
}

/// The jobs and agents that one side may be.
#[derive(Debug)]
pub(crate) struct SideSelect {
    pub(crate) name: &'static str,
    pub(crate) label: &'static str,
    pub(crate) jobs: Vec<(String, Vec<SideOption>)>,
}

#[derive(Debug)]
pub(crate) struct SideOption {
    pub(crate) agent: String,
    pub(crate) value: String,
    pub(crate) is_chosen: bool,
}

impl SideChoice {
    /// The choice among these jobs. Without sides, it begins with those of the newest comparison. None in an export, which
    /// has no server, and if there is nothing to choose.
    pub(crate) fn new(jobs: &[JobLine], chosen: Option<[&SideName; 2]>, here: &Here) -> Option<Self> {
        if here.is_exported() || jobs.iter().map(|job| job.agents.len()).sum::<usize>() < 2 {
            return None;
        }
        let newest = (0..jobs.len()).find_map(|number| exported(jobs, number).into_iter().next());
        let chosen = chosen.or(newest.as_ref().map(|(left, right)| [left, right]));
        let select = |place: usize, name, label| SideSelect {
            name,
            label,
            jobs: jobs
                .iter()
                .map(|job| {
                    let option = |agent: &String| {
                        let side = SideName { job: job.name.clone(), agent: agent.clone() };
                        let is_chosen = chosen.is_some_and(|chosen| *chosen[place] == side);
                        SideOption { agent: agent.clone(), value: side.value(), is_chosen }
                    };
                    (job.name.clone(), job.agents.iter().map(option).collect())
                })
                .collect(),
        };
        Some(Self {
            action: here.root_of(COMPARE_FORM),
            sides: [select(0, "left", "Compare"), select(1, "right", "with")],
        })
    }
}

/// The other comparisons with one of two jobs, for the pages of an export.
fn others(jobs: &[JobLine], left: &SideName, right: &SideName, here: &Here) -> Vec<Link> {
    if !here.is_exported() {
        return Vec::new();
    }
    let pairs = (0..jobs.len()).flat_map(|number| exported(jobs, number));
    let is_near = |side: &SideName| side.job == left.job || side.job == right.job;
    pairs
        .filter(|(one, other)| (is_near(one) || is_near(other)) && (one, other) != (left, right))
        .map(|(left, right)| {
            let text = match left.job == right.job {
                true => format!("{}: {} and {}", left.job, left.agent, right.agent),
                false => format!("{}: {} and {}", left.agent, left.job, right.job),
            };
            here.link(text, &Address::Compare { left, right })
        })
        .collect()
}

/// Renders the comparison.
pub(crate) fn page(
    library: &Library,
    left: &SideName,
    right: &SideName,
    here: &Here,
) -> Result<String, ViewError> {
    let lines: Vec<JobLine> = library.list()?.into_iter().filter_map(Result::ok).collect();
    let jobs = [library.job(&left.job)?, library.job(&right.job)?];
    let mut sides = Vec::new();
    for (job, side) in jobs.iter().zip([left, right]) {
        let job = lock(job);
        let read = compare::read_without(&job.saved, std::slice::from_ref(&side.agent), &job.exclusion())?;
        if read.is_empty() {
            return Err(ViewError::NotFound(format!("the agent {} of {}", side.agent, side.job)));
        }
        sides.extend(read);
    }
    let comparison = Comparison::new(sides)?;
    let contrast = &comparison.contrasts[0];
    let (mut changed, mut same) = (Vec::new(), Vec::new());
    for row in tasks(&jobs, left, right, here) {
        if row.change == "same" { same.push(row) } else { changed.push(row) }
    }
    let ratio = |name: &str, ratio: Option<f64>| ratio.map(|ratio| format!("{name} ×{ratio:.2}"));
    let ratios = [ratio("cost", contrast.cost_ratio), ratio("time", contrast.duration_ratio)];
    let only = [
        (format!("Only in {}", contrast.baseline), &contrast.only_in_baseline),
        (format!("Only in {}", contrast.other), &contrast.only_in_other),
    ];
    // The shortest names that differ.
    let names = [left, right].map(|side| match (left.job == right.job, left.agent == right.agent) {
        (true, _) => side.agent.clone(),
        (false, true) => side.job.clone(),
        (false, false) => format!("{}/{}", side.job, side.agent),
    });
    let same_part = match (left.job == right.job, left.agent == right.agent) {
        (true, _) => left.job.clone(),
        (false, true) => left.agent.clone(),
        (false, false) => String::new(),
    };
    let side = |place: usize, side: &SideName| {
        let figures = &comparison.sides[place].figures;
        SideView {
            link: here.link(names[place].clone(), &Address::Job { job: side.job.clone(), grid: 1 }),
            name: names[place].clone(),
            pass_rate: or_nothing(figures.headline.pass_rate.map(|rate| percent(rate.rate))),
            interval: or_nothing(
                figures
                    .headline
                    .pass_rate
                    .map(|rate| format!("{:.1}–{}", rate.interval.low * 100.0, percent(rate.interval.high))),
            ),
            mean_reward: or_nothing(figures.headline.mean_reward.map(|mean| number(mean.mean))),
            trials: figures.completed + figures.failed,
            failed: figures.failed,
            time: or_nothing(figures.duration_sec.map(|spread| fine_span(spread.p50))),
        }
    };
    let rates: Vec<_> = comparison
        .sides
        .iter()
        .zip(&names)
        .filter_map(|(side, name)| {
            let rate = side.figures.headline.pass_rate?;
            let label = percent(rate.rate);
            Some(ChartRow { name, marks: Marks::Estimate(rate.rate, Some(rate.interval)), label })
        })
        .collect();
    render(&ComparePage {
        frame: here.frame(
            format!("{} and {}", names[0], names[1]),
            vec![here.link("Jobs", &Address::Jobs)],
            false,
        ),
        chart: svg::chart("Pass rates", &rates, Some(1.0), |value| format!("{:.0}%", value * 100.0)),
        differences: differences(&contrast.headline),
        ratios: ratios.into_iter().flatten().collect::<Vec<_>>().join(", "),
        warnings: left_out(&comparison).into_iter().chain(contrast.warnings.iter().cloned()).collect(),
        only: only
            .into_iter()
            .filter(|(_, tasks)| !tasks.is_empty())
            .map(|(title, tasks)| (title, tasks.iter().map(ToString::to_string).collect()))
            .collect(),
        choice: SideChoice::new(&lines, Some([left, right]), here),
        others: others(&lines, left, right, here),
        sides: [side(0, left), side(1, right)],
        same_part,
        changed,
        same,
        swapped: here.to(&Address::Compare { left: right.clone(), right: left.clone() }),
    })
}

fn differences(differences: &Differences) -> Vec<DifferenceRow> {
    let points = |value: f64| format!("{:+.1}%", value * 100.0 + 0.0);
    let plain = |value: f64| format!("{:+.3}", value + 0.0);
    let row = |what, difference: &Difference, form: &dyn Fn(f64) -> String| DifferenceRow {
        what,
        difference: form(difference.mean),
        interval: difference
            .interval
            .map_or(NOTHING.to_owned(), |Interval { low, high }| format!("{} to {}", form(low), form(high))),
        p: probability(difference.p),
    };
    let test = &differences.mcnemar;
    vec![
        row("pass rate", &differences.pass_rate, &points),
        row("mean reward", &differences.mean_reward, &plain),
        DifferenceRow {
            what: "tasks won and lost",
            difference: format!("{} won, {} lost", test.only_other, test.only_baseline),
            interval: NOTHING.to_owned(),
            p: probability(test.p),
        },
    ]
}

/// Says which trials are left out by their tags; None if no tag is excluded.
fn left_out(comparison: &Comparison) -> Option<String> {
    let sides = comparison.sides.iter();
    let counts: Vec<String> =
        sides.filter_map(|side| Some(format!("{} of {}", side.excluded_by_tag?, side.name))).collect();
    let tags = comparison.excluded_tags.join(", ");
    (!tags.is_empty()).then(|| format!("trials left out by tag {tags}: {}", counts.join(", ")))
}

fn probability(p: Option<f64>) -> String {
    match p {
        None => NOTHING.to_owned(),
        Some(p) if p < 0.001 => "< 0.001".to_owned(),
        Some(p) => format!("{p:.3}"),
    }
}

/// The tasks that both sides have, those with a change first.
fn tasks(
    jobs: &[crate::library::SharedJob; 2],
    left: &SideName,
    right: &SideName,
    here: &Here,
) -> Vec<TaskRow> {
    let mut right_tasks = side_tasks(&lock(&jobs[1]), right, here);
    let mut rows: Vec<TaskRow> = side_tasks(&lock(&jobs[0]), left, here)
        .into_iter()
        .filter_map(|(task, one)| {
            let other = right_tasks.remove(&task)?;
            let change = match (one.rate, other.rate) {
                (Some(one), Some(other)) if one < other => "better",
                (Some(one), Some(other)) if one > other => "worse",
                _ => "same",
            };
            Some(TaskRow {
                task,
                rates: [one.rate, other.rate].map(|rate| or_nothing(rate.map(percent))),
                cells: [one.cells, other.cells],
                change,
            })
        })
        .collect();
    rows.sort_by(|a, b| (order(a.change), &a.task).cmp(&(order(b.change), &b.task)));
    rows
}

fn order(change: &str) -> u8 {
    match change {
        "worse" => 0,
        "better" => 1,
        _ => 2,
    }
}

/// The attempts at a task on one side.
struct SideTask {
    cells: Html,
    rate: Option<f64>,
}

fn side_tasks(job: &JobView, side: &SideName, here: &Here) -> HashMap<String, SideTask> {
    let header = job.saved.header();
    let Some(agent) = header.agents.iter().position(|agent| *agent == side.agent) else {
        return HashMap::new();
    };
    let base = here.to(&Address::Job { job: job.name.clone(), grid: 1 });
    let base = base.trim_end_matches("index.html");
    let mut tasks = HashMap::new();
    for (task, planned) in header.tasks.iter().enumerate() {
        let attempts = 1..=header.attempts_of(planned);
        let statuses = attempts.filter_map(|attempt| {
            let index = job.saved.index(&side.agent, &planned.dataset, &planned.name, attempt)?;
            let summary = job.summary(index).filter(|_| !job.is_excluded(index))?;
            summary.headline_reward().map(|_| job.status(index) == TrialStatus::Solved)
        });
        let (solved, counted) =
            statuses.fold((0_u32, 0_u32), |(solved, all), is| (solved + u32::from(is), all + 1));
        let rate = (counted > 0).then(|| f64::from(solved) / f64::from(counted));
        let cells = grid::cells(job, agent, task, base, &mut Vec::new());
        tasks.insert(format!("{}/{}", planned.dataset, planned.name), SideTask { cells, rate });
    }
    tasks
}
