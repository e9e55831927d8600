//! The page of a job: rates, failures by cause, the grid of trials, and charts.

use askama::Template;
use rollout_core::{
    display::{count, dollars, fine_span, number, percent},
    result::ErrorType,
    statistics::Figures,
};
use rollout_record::{causes::CauseGroup, saved::TrialStatus};

use super::{
    Frame, Here, Link, Pager, compare,
    grid::{self, GridRow},
    or_nothing, render, time,
};
use crate::{
    error::ViewError,
    html::Html,
    job::{JobLine, JobView},
    links::{Address, CauseNumber, SideName, TrialFilter},
    svg::{self, ChartRow, Marks},
};

/// How many causes of failures are shown.
const MAX_CAUSES: usize = 12;

#[derive(Debug, Template)]
#[template(path = "job.html")]
struct JobPage {
    frame: Frame,
    name: String,
    status: &'static str,
    facts: Vec<(&'static str, String)>,
    counts: Vec<StatusCount>,
    agents: Vec<AgentRow>,
    causes: Vec<CauseList>,
    agent_names: Vec<String>,
    rows: Vec<GridRow>,
    pager: Pager,
    charts: Vec<(String, Html)>,
    changes: Option<Link>,
    comparisons: Vec<Link>,
    all: String,
    tags: Vec<(String, u64, String)>,
    warnings: Vec<String>,
}

#[derive(Debug)]
struct StatusCount {
    status: &'static str,
    trials: u64,
    href: String,
}

/// Why trials failed, or why they are unsolved.
#[derive(Debug)]
struct CauseList {
    title: &'static str,
    /// The status of the trials.
    kind: &'static str,
    rows: Vec<CauseRow>,
    /// What is not among the rows.
    others: String,
}

#[derive(Debug)]
struct AgentRow {
    name: String,
    changes: Option<Link>,
    href: String,
    trials: u64,
    solved: u64,
    failed: u64,
    excluded: u64,
    pass_rate: String,
    interval: String,
    mean_reward: String,
    time: String,
    cost: String,
    pass_at: String,
}

#[derive(Debug)]
struct CauseRow {
    trials: String,
    kind: &'static str,
    evidence: String,
    href: String,
    example: Option<Link>,
}

/// Renders the page. The grid has pages, counted from 1.
pub(crate) fn page(
    job: &JobView,
    others: &[JobLine],
    grid_page: usize,
    here: &Here,
) -> Result<String, ViewError> {
    let header = job.saved.header();
    let (_, grid_pages) = grid::pages(job);
    if grid_page > grid_pages {
        return Err(ViewError::NotFound(format!("page {grid_page} of the grid")));
    }
    let trials = |filter| here.to(&Address::Trials { job: job.name.clone(), filter, page: 1 });
    let tags = job.tags().into_iter().map(|(tag, number)| {
        let filter = TrialFilter { tag: Some(tag.clone()), ..TrialFilter::default() };
        (tag.to_string(), number, trials(filter))
    });
    let above = vec![here.link("Jobs", &Address::Jobs)];
    let page = JobPage {
        frame: here.frame(job.name.clone(), above, job.is_running()),
        name: job.name.clone(),
        status: job.saved.status_name(),
        facts: facts(job),
        counts: counts(job, &trials),
        agents: agents(job, others, here),
        causes: causes(job, here),
        agent_names: header.agents.clone(),
        rows: grid::rows(job, grid_page, here),
        pager: Pager::new(grid_page, grid_pages, |grid| {
            here.to(&Address::Job { job: job.name.clone(), grid })
        }),
        charts: charts(job),
        changes: changes(job, others, here),
        comparisons: comparisons(job, here),
        all: trials(TrialFilter::default()),
        tags: tags.collect(),
        warnings: job.excluded_note().into_iter().chain(job.notes_problem().map(str::to_owned)).collect(),
    };
    render(&page)
}

fn causes(job: &JobView, here: &Here) -> Vec<CauseList> {
    let (failed, unsolved) = job
        .causes()
        .into_iter()
        .partition::<Vec<_>, _>(|(number, _)| matches!(number, CauseNumber::Failed(_)));
    let lists = [
        ("Why trials failed", TrialStatus::Failed, failed, job.failed_causes().others()),
        ("Why trials are unsolved", TrialStatus::Unsolved, unsolved, job.ungrouped()),
    ];
    let lists = lists.into_iter().filter(|(_, _, groups, _)| !groups.is_empty());
    lists
        .map(|(title, status, groups, ungrouped)| {
            let rest = groups.iter().skip(MAX_CAUSES).map(|(_, group)| group.trials.len() as u64);
            let others = rest.sum::<u64>() + ungrouped;
            CauseList {
                title,
                kind: status.as_str(),
                others: if others == 0 { String::new() } else { count(others, "more trial") },
                rows: groups
                    .iter()
                    .take(MAX_CAUSES)
                    .map(|(number, group)| cause_row(job, *number, group, here))
                    .collect(),
            }
        })
        .collect()
}

fn cause_row(job: &JobView, number: CauseNumber, group: &CauseGroup, here: &Here) -> CauseRow {
    let filter = TrialFilter { cause: Some(number), ..TrialFilter::default() };
    CauseRow {
        trials: count(group.trials.len() as u64, "trial"),
        kind: group.cause.kind.map_or("", ErrorType::as_str),
        evidence: group.cause.text.clone(),
        href: here.to(&Address::Trials { job: job.name.clone(), filter, page: 1 }),
        example: group.trials.first().and_then(|index| job.id(*index)).map(|trial| {
            let text = trial.to_string();
            here.link(text, &Address::Trial { job: job.name.clone(), trial, page: 1 })
        }),
    }
}

fn facts(job: &JobView) -> Vec<(&'static str, String)> {
    let (totals, header) = (job.totals(), job.saved.header());
    let headline = totals.headline();
    let mut facts = vec![
        ("pass rate", or_nothing(headline.pass_rate.map(percent))),
        ("done", format!("{} of {}", job.saved.len(), job.planned())),
    ];
    if totals.known_cost_trials > 0 {
        facts.push(("cost", dollars(totals.total_cost)));
    }
    facts.push(("started", or_nothing(job.saved.runs().first().map(|run| time(run.started_at)))));
    facts.push(("agents", header.agents.len().to_string()));
    facts.push(("tasks", header.tasks.len().to_string()));
    facts.push(("environment", header.provider.clone()));
    facts
}

fn counts(job: &JobView, trials: &impl Fn(TrialFilter) -> String) -> Vec<StatusCount> {
    let mut numbers = [0_u64; TrialStatus::ALL.len()];
    for index in job.indexes() {
        numbers[job.status(index) as usize] += 1;
    }
    TrialStatus::ALL
        .into_iter()
        .zip(numbers)
        .filter(|(_, trials)| *trials > 0)
        .map(|(status, number)| StatusCount {
            status: status.as_str(),
            trials: number,
            href: trials(TrialFilter { status: Some(status), ..TrialFilter::default() }),
        })
        .collect()
}

fn agents(job: &JobView, others: &[JobLine], here: &Here) -> Vec<AgentRow> {
    let place = others.iter().position(|line| line.name == job.name);
    let changes = place.map(|place| compare::with_previous(others, place)).unwrap_or_default();
    let trials = |filter| here.to(&Address::Trials { job: job.name.clone(), filter, page: 1 });
    let row = |(name, figures): (&String, &Figures)| {
        let change = changes.iter().find(|(_, right)| right.agent == *name).map(|(left, right)| {
            let text = format!("since {}", left.job);
            here.link(text, &Address::Compare { left: left.clone(), right: right.clone() })
        });
        let rate = figures.headline.pass_rate;
        let at_most = figures.headline.pass_k.last().filter(|point| point.k > 1);
        AgentRow {
            name: name.clone(),
            changes: change,
            href: trials(TrialFilter { agent: Some(name.clone()), ..TrialFilter::default() }),
            trials: figures.completed + figures.failed,
            solved: figures.headline.solved,
            failed: figures.failed,
            excluded: figures.excluded,
            pass_rate: or_nothing(rate.map(|rate| percent(rate.rate))),
            interval: rate.map_or(String::new(), |rate| {
                format!("{:.1}–{}", rate.interval.low * 100.0, percent(rate.interval.high))
            }),
            mean_reward: or_nothing(figures.headline.mean_reward.map(|mean| number(mean.mean))),
            time: or_nothing(figures.duration_sec.map(|spread| fine_span(spread.p50))),
            cost: or_nothing(figures.cost_usd.map(|spread| dollars(spread.mean * spread.n as f64))),
            pass_at: or_nothing(at_most.map(|point| format!("{} at {}", percent(point.at_k), point.k))),
        }
    };
    job.saved.header().agents.iter().zip(job.figures()).map(row).collect()
}

fn charts(job: &JobView) -> Vec<(String, Html)> {
    let agents = || job.saved.header().agents.iter().zip(job.figures());
    let mut charts = Vec::new();
    let rates: Vec<_> = agents()
        .filter_map(|(name, figures)| {
            let rate = figures.headline.pass_rate?;
            let label = percent(rate.rate);
            Some(ChartRow { name, marks: Marks::Estimate(rate.rate, Some(rate.interval)), label })
        })
        .collect();
    if !rates.is_empty() {
        let title = "Pass rate, with 95% intervals".to_owned();
        charts.push((
            title.clone(),
            svg::chart(&title, &rates, Some(1.0), |value| format!("{:.0}%", value * 100.0)),
        ));
    }
    let counted = job.indexes().filter(|index| !job.is_excluded(*index));
    let rewards: Vec<f64> = counted.filter_map(|index| job.summary(index)?.reward).collect();
    if rewards.iter().any(|reward| *reward != 0.0 && *reward != 1.0) {
        charts.push(("Rewards".to_owned(), svg::histogram("Rewards", &rewards, number)));
    }
    let times: Vec<_> = agents()
        .filter_map(|(name, figures)| {
            let spread = figures.duration_sec?;
            Some(ChartRow { name, marks: Marks::Spread(spread), label: fine_span(spread.p50) })
        })
        .collect();
    if !times.is_empty() {
        let title = "Time of a trial: median, middle half, range".to_owned();
        charts.push((title.clone(), svg::chart(&title, &times, None, fine_span)));
    }
    let costs: Vec<_> = agents()
        .filter_map(|(name, figures)| {
            let spread = figures.cost_usd?;
            Some(ChartRow { name, marks: Marks::Spread(spread), label: dollars(spread.p50) })
        })
        .collect();
    if !costs.is_empty() {
        let title = "Cost of a trial: median, middle half, range".to_owned();
        charts.push((title.clone(), svg::chart(&title, &costs, None, dollars)));
    }
    charts
}

/// The comparison with the job before.
fn changes(job: &JobView, others: &[JobLine], here: &Here) -> Option<Link> {
    let number = others.iter().position(|line| line.name == job.name)?;
    let (left, right) = compare::with_previous(others, number).into_iter().next()?;
    Some(here.link(format!("Changes since {}", left.job), &Address::Compare { left, right }))
}

/// The comparisons between agents of the job.
fn comparisons(job: &JobView, here: &Here) -> Vec<Link> {
    let link = |(left, right): (SideName, SideName)| {
        let text = format!("{} and {}", left.agent, right.agent);
        here.link(text, &Address::Compare { left, right })
    };
    let pairs = compare::between_agents(&job.name, &job.saved.header().agents);
    pairs.into_iter().map(link).collect()
}
