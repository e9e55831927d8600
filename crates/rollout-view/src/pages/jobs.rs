//! The list of jobs.

use askama::Template;
use rollout_core::display::{count, dollars, percent};

use super::{
    Frame, Here, Link,
    compare::{SideChoice, with_previous},
    or_nothing, render, time,
};
use crate::{error::ViewError, job::JobLine, library::Library, links::Address};

#[derive(Debug, Template)]
#[template(path = "jobs.html")]
struct JobsPage {
    frame: Frame,
    summary: String,
    jobs: Vec<JobRow>,
    damaged: Vec<(String, String)>,
    statuses: Vec<&'static str>,
    choice: Option<SideChoice>,
}

#[derive(Debug)]
struct JobRow {
    link: Link,
    started: String,
    status: &'static str,
    done: String,
    share: u64,
    failed: u64,
    pass_rate: String,
    cost: String,
    agents: String,
    datasets: String,
    /// The comparisons with jobs of the same datasets before it, by job.
    changes: Vec<Changes>,
}

/// The comparisons with an earlier job, one for each agent.
#[derive(Debug)]
struct Changes {
    since: String,
    agents: Vec<Link>,
}

impl Changes {
    fn of(lines: &[JobLine], number: usize, here: &Here) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for (left, right) in with_previous(lines, number).into_iter().take(MAX_CHANGES) {
            let (since, agent) = (left.job.clone(), right.agent.clone());
            let link = here.link(agent, &Address::Compare { left, right });
            match all.iter_mut().find(|changes| changes.since == since) {
                Some(changes) => changes.agents.push(link),
                None => all.push(Self { since, agents: vec![link] }),
            }
        }
        all
    }
}

/// The most agents of a job that have a link in the list.
const MAX_CHANGES: usize = 6;

/// Renders the list.
pub(crate) fn page(library: &Library, here: &Here) -> Result<String, ViewError> {
    let (mut lines, mut damaged) = (Vec::new(), Vec::new());
    for job in library.list()? {
        match job {
            Ok(line) => lines.push(line),
            Err((name, error)) => damaged.push((name, error.to_string())),
        }
    }
    let mut statuses: Vec<&'static str> = Vec::new();
    for line in &lines {
        if !statuses.contains(&line.status) {
            statuses.push(line.status);
        }
    }
    let row = |(number, line): (usize, &JobLine)| JobRow {
        link: here.link(line.name.clone(), &Address::Job { job: line.name.clone(), grid: 1 }),
        started: or_nothing(line.started_at.map(time)),
        status: line.status,
        done: format!("{}/{}", line.finished, line.planned),
        share: (line.finished * 100).checked_div(line.planned).unwrap_or(100),
        failed: line.failed,
        pass_rate: or_nothing(line.pass_rate.map(percent)),
        cost: or_nothing(line.cost.map(dollars)),
        agents: line.agents.join(", "),
        datasets: line.datasets.join(", "),
        changes: Changes::of(&lines, number, here),
    };
    let jobs: Vec<JobRow> = lines.iter().enumerate().map(row).collect();
    let summary = count(jobs.len() as u64, "job");
    // The page is always live, because a job may start later.
    let frame = here.frame("Jobs", Vec::new(), true);
    let choice = SideChoice::new(&lines, None, here);
    render(&JobsPage { frame, summary, jobs, damaged, statuses, choice })
}
