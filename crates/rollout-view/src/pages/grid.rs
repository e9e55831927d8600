//! The grid of a job: tasks as rows, agents as columns, attempts as cells coloured by outcome.

use std::ops::Range;

use rollout_core::display::{fine_span, number};
use rollout_record::{notes::NoteTag, saved::TrialStatus};

use super::Here;
use crate::{
    html::Html,
    job::JobView,
    links::{Address, encoded},
};

/// The most cells of a page.
const MAX_CELLS: usize = 10_000;

/// A row of the grid.
#[derive(Debug)]
pub(crate) struct GridRow {
    pub(crate) task: String,
    /// The cells of each agent.
    pub(crate) agents: Vec<Html>,
    /// The outcomes in the row, for filters.
    pub(crate) outcomes: String,
}

/// How many tasks are on each page, and how many pages there are.
pub(crate) fn pages(job: &JobView) -> (usize, usize) {
    let header = job.saved.header();
    let most_attempts = header.tasks.iter().map(|task| header.attempts_of(task)).max().unwrap_or(1).max(1);
    let per_task = header.agents.len().max(1) * most_attempts as usize;
    let tasks = (MAX_CELLS / per_task).max(1);
    (tasks, header.tasks.len().div_ceil(tasks).max(1))
}

/// The rows of a page, counted from 1.
pub(crate) fn rows(job: &JobView, page: usize, here: &Here) -> Vec<GridRow> {
    let header = job.saved.header();
    let (per_page, _) = pages(job);
    let first = (page.max(1) - 1) * per_page;
    let last = (first + per_page).min(header.tasks.len());
    let several = job.datasets().len() > 1;
    // The links of all cells begin the same way.
    let base = here.to(&Address::Job { job: job.name.clone(), grid: 1 });
    let base = base.trim_end_matches("index.html");
    (first.min(last)..last)
        .map(|task| {
            let planned = &header.tasks[task];
            let name = match several {
                true => format!("{}/{}", planned.dataset, planned.name),
                false => planned.name.clone(),
            };
            let mut outcomes: Vec<&str> = Vec::new();
            let agents = (0..header.agents.len()).map(|agent| cells(job, agent, task, base, &mut outcomes));
            let agents = agents.collect();
            GridRow { task: name, agents, outcomes: outcomes.join(" ") }
        })
        .collect()
}

/// The cells of an agent's attempts at a task.
pub(crate) fn cells(
    job: &JobView,
    agent: usize,
    task: usize,
    base: &str,
    outcomes: &mut Vec<&'static str>,
) -> Html {
    let header = job.saved.header();
    let planned = &header.tasks[task];
    let attempts: Range<u32> = 0..header.attempts_of(planned);
    let mut html = Html::default();
    for attempt in attempts.map(|attempt| attempt + 1) {
        let name = &header.agents[agent];
        let Some(index) = job.saved.index(name, &planned.dataset, &planned.name, attempt) else { continue };
        let status = job.status(index);
        if !outcomes.contains(&status.as_str()) {
            outcomes.push(status.as_str());
        }
        let mut title = format!("{name}, attempt {attempt}: {}", status.as_str());
        if let Some(summary) = job.summary(index) {
            if let Some(reward) = summary.reward {
                title.push_str(&format!(", reward {}", number(reward)));
            }
            if let Some(error) = summary.error.filter(|_| status == TrialStatus::Failed) {
                title.push_str(&format!(", {error}"));
            }
            title.push_str(&format!(", {}", fine_span(summary.seconds)));
        }
        let notes = job.notes(index);
        if let Some(notes) = notes {
            let tags: Vec<&str> = notes.tags.iter().map(NoteTag::as_str).collect();
            title.push_str(&format!(
                ", {}",
                if tags.is_empty() { "commented".to_owned() } else { tags.join(" ") }
            ));
        }
        html.push_format(format_args!(
            "<a class=\"cell {}{}\" href=\"{base}trials/{}/{}/{}/index.html\" title=\"",
            status.as_str(),
            if notes.is_some() { " noted" } else { "" },
            encoded(name),
            encoded(&planned.dataset),
            encoded(&format!("{}__{attempt}", planned.name)),
        ));
        html.push_text(&title);
        html.push_markup("\"></a>");
    }
    html
}
