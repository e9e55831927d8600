//! The list of a job's trials, with filters.

use askama::Template;
use rollout_core::{
    display::{count, dollars, number, span},
    name::TrialIndex,
};
use rollout_record::{notes::NoteTag, saved::TrialStatus};

use super::{Frame, Here, Link, Pager, or_nothing, render};
use crate::{
    error::ViewError,
    job::JobView,
    links::{Address, TrialFilter},
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
    statuses: Vec<(&'static str, String, bool)>,
    agents: Vec<String>,
    tags: Vec<NoteTag>,
    rows: Vec<TrialRow>,
    pager: Pager,
    all: String,
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

/// The trials that a filter selects, in the order of the plan.
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
    match filter.cause {
        Some(cause) => {
            let mut trials = job.causes().get(cause).map_or_else(Vec::new, |group| group.trials.clone());
            trials.sort_unstable();
            trials.retain(wanted);
            trials
        }
        None => job.indexes().filter(wanted).collect(),
    }
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
    let statuses = std::iter::once(("all", None))
        .chain(TrialStatus::ALL.map(|status| (status.as_str(), Some(status))))
        .map(|(name, status)| {
            let other = match here.is_exported() {
                true => TrialFilter { status, ..TrialFilter::default() },
                false => TrialFilter { status, ..filter.clone() },
            };
            (name, to(other, 1), filter.status == status)
        })
        .collect();
    let above = vec![
        here.link("Jobs", &Address::Jobs),
        here.link(job.name.clone(), &Address::Job { job: job.name.clone(), grid: 1 }),
    ];
    render(&TrialsPage {
        frame: here.frame(format!("Trials of {}", job.name), above, true),
        summary: match trials.len() {
            all if all == job.planned() => count(all as u64, "trial"),
            some => format!("{some} of {}", count(job.planned() as u64, "trial")),
        },
        cause: filter.cause.and_then(|number| job.causes().get(number)).map(|group| group.cause.to_string()),
        statuses,
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
        time: or_nothing(summary.map(|summary| span(summary.seconds))),
        cost: or_nothing(summary.and_then(|summary| summary.known_cost()).map(dollars)),
        why: why.unwrap_or_default(),
        tags: job.notes(index).map(|notes| notes.tags.iter().cloned().collect()).unwrap_or_default(),
        comments: job.notes(index).map_or(0, |notes| notes.comments.len()),
        link: here.link(trial.to_string(), &Address::Trial { job: job.name.clone(), trial, page: 1 }),
    })
}
