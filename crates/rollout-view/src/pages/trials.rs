//! The list of a job's trials, with filters.

use askama::Template;
use rollout_core::{
    display::{count, dollars, fine_span, number},
    name::TrialIndex,
    result::TrialSummary,
};
use rollout_record::{notes::NoteTag, saved::TrialStatus};

use super::{Frame, Here, Link, Pager, or_nothing, render};
use crate::{
    error::ViewError,
    job::JobView,
    links::{Address, TrialFilter, TrialSort},
};

/// How many trials are on a page.
const PER_PAGE: usize = 100;

#[derive(Debug, Template)]
#[template(path = "trials.html")]
struct TrialsPage {
    frame: Frame,
    summary: String,
    filter: TrialFilter,
    cause: Option<String>,
    statuses: Vec<StatusChip>,
    sorts: [TrialSort; 5],
    agents: Vec<String>,
    tags: Vec<NoteTag>,
    rows: Vec<TrialRow>,
    pager: Pager,
    all: String,
}

/// A link to the trials of a status.
#[derive(Debug)]
struct StatusChip {
    name: &'static str,
    href: String,
    trials: usize,
    is_chosen: bool,
}

#[derive(Debug)]
struct TrialRow {
    link: Link,
    status: &'static str,
    reward: String,
    time: String,
    cost: String,
    why: String,
    tags: Vec<NoteTag>,
    comments: usize,
}

/// The trials that a filter selects, in its order.
pub(crate) fn selected(job: &JobView, filter: &TrialFilter) -> Vec<TrialIndex> {
    let header = job.saved.header();
    let text = filter.text.to_lowercase();
    let wanted = |index: &TrialIndex| {
        let Some((agent, task, _)) = job.saved.parts(*index) else { return false };
        filter.status.is_none_or(|status| job.status(*index) == status)
            && filter.agent.as_ref().is_none_or(|name| header.agents[agent] == *name)
            && filter
                .tag
                .as_ref()
                .is_none_or(|tag| job.notes(*index).is_some_and(|notes| notes.tags.contains(tag)))
            && (text.is_empty() || header.tasks[task].name.to_lowercase().contains(&text))
    };
    let mut trials = match filter.cause {
        Some(cause) => {
            let mut trials = job.cause(cause).map_or_else(Vec::new, |group| group.trials.clone());
            trials.sort_unstable();
            trials.retain(wanted);
            trials
        }
        None => job.indexes().filter(wanted).collect(),
    };
    // Stable, so that equal trials are in the order of the plan. Values that are missing come last.
    let value = |index: TrialIndex, of: fn(&TrialSummary) -> Option<f64>| job.summary(index).and_then(of);
    let ascending = |index: TrialIndex, of| value(index, of).unwrap_or(f64::INFINITY);
    let descending = |index: TrialIndex, of| value(index, of).unwrap_or(f64::NEG_INFINITY);
    match filter.sort {
        TrialSort::Plan => {}
        TrialSort::Status => trials.sort_by_key(|index| job.status(*index)),
        TrialSort::Reward => {
            let reward = |index| ascending(index, |trial| trial.reward);
            trials.sort_by(|a, b| reward(*a).total_cmp(&reward(*b)));
        }
        TrialSort::Time => {
            let time = |index| descending(index, |trial| Some(trial.seconds));
            trials.sort_by(|a, b| time(*b).total_cmp(&time(*a)));
        }
        TrialSort::Cost => {
            let cost = |index| descending(index, TrialSummary::known_cost);
            trials.sort_by(|a, b| cost(*b).total_cmp(&cost(*a)));
        }
    }
    trials
}

/// The links to the statuses of the trials that the rest of a filter selects. Those without trials are left out.
fn statuses(
    job: &JobView,
    filter: &TrialFilter,
    to: &impl Fn(TrialFilter, usize) -> String,
    is_exported: bool,
) -> Vec<StatusChip> {
    // An export has lists of each status for all trials, and for those of an agent.
    let others = match is_exported {
        true => TrialFilter { agent: filter.agent.clone(), ..TrialFilter::default() },
        false => TrialFilter { status: None, ..filter.clone() },
    };
    let others = match is_exported && (filter.cause.is_some() || filter.tag.is_some()) {
        true => TrialFilter::default(),
        false => others,
    };
    let mut counts = [0; TrialStatus::ALL.len()];
    let all = selected(job, &TrialFilter { sort: TrialSort::Plan, ..others.clone() });
    all.iter().for_each(|index| counts[job.status(*index) as usize] += 1);
    let chips = TrialStatus::ALL.into_iter().zip(counts);
    let chips = chips.map(|(status, trials)| (status.as_str(), Some(status), trials));
    std::iter::once(("all", None, all.len()))
        .chain(chips)
        .filter(|(_, status, trials)| *trials > 0 || status.is_none() || filter.status == *status)
        .map(|(name, status, trials)| {
            let href = to(TrialFilter { status, ..others.clone() }, 1);
            StatusChip { name, href, trials, is_chosen: filter.status == status }
        })
        .collect()
}

/// The number of pages of a list.
pub(crate) fn pages(trials: usize) -> usize {
    trials.div_ceil(PER_PAGE).max(1)
}

/// Renders a page of the list, counted from 1.
pub(crate) fn page(
    job: &JobView,
    filter: &TrialFilter,
    page: usize,
    here: &Here,
) -> Result<String, ViewError> {
    let trials = selected(job, filter);
    let pages = pages(trials.len());
    let to = |filter: TrialFilter, page| here.to(&Address::Trials { job: job.name.clone(), filter, page });
    let shown = trials.iter().skip((page.max(1) - 1) * PER_PAGE).take(PER_PAGE);
    let rows = shown.filter_map(|index| row(job, *index, here)).collect();
    let above = vec![
        here.link("Jobs", &Address::Jobs),
        here.link(job.name.clone(), &Address::Job { job: job.name.clone(), grid: 1 }),
    ];
    render(&TrialsPage {
        frame: here.frame(format!("Trials of {}", job.name), above, job.is_running()),
        summary: match trials.len() {
            all if all == job.planned() => count(all as u64, "trial"),
            some => format!("{some} of {}", count(job.planned() as u64, "trial")),
        },
        cause: filter.cause.and_then(|number| job.cause(number)).map(|group| group.cause.to_string()),
        statuses: statuses(job, filter, &to, here.is_exported()),
        sorts: TrialSort::ALL,
        agents: job.saved.header().agents.clone(),
        tags: job.tags().into_keys().cloned().collect(),
        rows,
        pager: Pager::new(page, pages, |page| to(filter.clone(), page)),
        all: to(TrialFilter::default(), 1),
        filter: filter.clone(),
    })
}

fn row(job: &JobView, index: TrialIndex, here: &Here) -> Option<TrialRow> {
    let trial = job.id(index)?;
    let (summary, status) = (job.summary(index), job.status(index));
    let why = match status {
        TrialStatus::Failed | TrialStatus::Unsolved => {
            let saved = job.saved.trial(index).ok().flatten();
            saved.and_then(|saved| job.saved.evidence(&saved)).map(|cause| cause.to_string())
        }
        _ => None,
    };
    Some(TrialRow {
        status: status.as_str(),
        reward: or_nothing(summary.and_then(|summary| summary.reward).map(number)),
        time: or_nothing(summary.map(|summary| fine_span(summary.seconds))),
        cost: or_nothing(summary.and_then(|summary| summary.known_cost()).map(dollars)),
        why: why.unwrap_or_default(),
        tags: job.notes(index).map(|notes| notes.tags.iter().cloned().collect()).unwrap_or_default(),
        comments: job.notes(index).map_or(0, |notes| notes.comments.len()),
        link: here.link(trial.to_string(), &Address::Trial { job: job.name.clone(), trial, page: 1 }),
    })
}
