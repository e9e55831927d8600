//! A plan as text, for `--dry-run`, and its cost, which `run` prints before it starts.

use std::io::{self, Write as _};

use rollout::{
    environment::{EnvironmentOffer, Provider},
    job::{NoProvider, Plan, PlanTask},
    name::TrialIndex,
    trial::Timeouts,
};

use crate::report::{
    Align, table,
    text::{BOLD, DIM, count, dollars, first_line, fit, paint, span},
};

/// How many sizes of environments are listed.
const SIZES: usize = 5;

/// What the highest cost of environments leaves out.
const NOT_INCLUDED: &str =
    "models, retries, separate tests of another size, and the start of environments are not included";

/// How many trials are listed.
const LISTED: u64 = 10;

/// Renders the counts, the agents, datasets and provider, and the first trials with their timeouts.
pub(crate) fn render(plan: &Plan, provider: &dyn Provider) -> String {
    let config = plan.config();
    let agents: Vec<&str> = plan.agents().map(|name| name.as_str()).collect();
    let name = config.name.as_ref().map_or("the job", |name| name.as_str());
    let directory = match &config.name {
        Some(name) => config.jobs_dir.join(name.as_str()).display().to_string(),
        None => config.jobs_dir.join("<start time>").display().to_string(),
    };
    let mut lines = vec![
        format!(
            "{}: {} = {} × {} × {}, {} at a time",
            paint(BOLD, name),
            count(plan.len(), "trial"),
            count(agents.len() as u64, "agent"),
            count(plan.tasks().len() as u64, "task"),
            count(u64::from(plan.attempts()), "attempt"),
            config.n_concurrent_trials,
        ),
        String::new(),
    ];
    let facts = [
        ("agents", agents.join(", ")),
        ("datasets", datasets(plan)),
        ("provider", description(provider)),
        ("results", directory),
    ];
    lines.extend(facts.into_iter().chain(cost(plan, provider)).map(fact));
    lines.push(String::new());
    lines.extend(trials(plan));
    lines.push(String::new());
    lines.push("nothing was run".to_owned());
    lines.join("\n")
}

/// Prints what the environments of a job cost at most, if they have a price, before they are created.
pub(crate) fn print_cost(plan: &Plan, provider: &dyn Provider) -> io::Result<()> {
    let mut stderr = anstream::stderr().lock();
    cost(plan, provider).into_iter().try_for_each(|line| writeln!(stderr, "{}", fact(line)))
}

fn fact((what, text): (&'static str, String)) -> String {
    format!("{}  {text}", paint(DIM, &format!("{what:<8}")))
}

fn description(provider: &dyn Provider) -> String {
    match provider.name() == NoProvider.name() {
        true => "none: no trial needs an environment".to_owned(),
        false => provider.description(),
    }
}

/// The environments of some tasks.
struct Offered {
    offer: EnvironmentOffer,
    tasks: u64,
    /// The time of all their trials, in seconds, as far as it is limited.
    seconds: f64,
    /// The longest time of one trial; `None` if it is not limited.
    longest: Option<f64>,
}

/// What the environments cost if every trial uses all of its time: a line for each size, and the sum. Nothing if they
/// cost nothing.
fn cost(plan: &Plan, provider: &dyn Provider) -> Vec<(&'static str, String)> {
    let config = plan.config();
    let trials_per_task = plan.len() as f64 / plan.tasks().len().max(1) as f64;
    let (mut offered, mut unknown) = (Vec::<Offered>::new(), 0);
    for task in plan.tasks().iter().filter_map(|task| task.container()) {
        let Ok(offer) = provider.offer(task.limits(&config.environment)) else {
            unknown += 1;
            continue;
        };
        let time = Timeouts::of_environments(config, task).map(|time| time.as_secs_f64());
        let known = offered.iter().position(|known| known.offer == offer);
        let number = known.unwrap_or_else(|| {
            offered.push(Offered { offer, tasks: 0, seconds: 0.0, longest: Some(0.0) });
            offered.len() - 1
        });
        let of_size = &mut offered[number];
        of_size.tasks += 1;
        of_size.seconds += trials_per_task * time.unwrap_or_default();
        of_size.longest = of_size.longest.zip(time).map(|(longest, time)| longest.max(time));
    }
    if offered.iter().all(|of_size| of_size.offer.hourly_cost == 0.0) {
        return Vec::new();
    }
    let mut lines = Vec::new();
    for Offered { offer: EnvironmentOffer { size, hourly_cost }, tasks, longest, .. } in
        offered.iter().take(SIZES)
    {
        let size = size.as_ref().map(|size| format!("{size}; ")).unwrap_or_default();
        let most =
            longest.map(|longest| format!(", at most {} a trial", dollars(hourly_cost * longest / 3600.0)));
        let price = format!("{} an hour{}", dollars(*hourly_cost), most.unwrap_or_default());
        lines.push(("size", format!("{}: {size}{price}", count(*tasks, "task"))));
    }
    if let Some(more @ 1..) = offered.len().checked_sub(SIZES) {
        lines.push(("size", format!("and {more} more")));
    }
    if unknown > 0 {
        let tasks = count(unknown, "task");
        lines.push(("size", format!("{tasks}: the size is not available, so the cost is not included")));
    }
    let sum: f64 = offered.iter().map(|of_size| of_size.seconds * of_size.offer.hourly_cost / 3600.0).sum();
    let is_limited = offered.iter().all(|of_size| of_size.longest.is_some());
    let cost = match is_limited {
        true => format!("at most {} if every trial uses all of its time", dollars(sum)),
        false => "not limited, because tasks have no timeouts".to_owned(),
    };
    lines.push(("cost", format!("{cost}; {NOT_INCLUDED}")));
    lines
}

fn datasets(plan: &Plan) -> String {
    let mut datasets: Vec<(&str, u64, u64)> = Vec::new();
    for task in plan.tasks() {
        let broken = u64::from(task.problem().is_some());
        match datasets.last_mut() {
            Some((name, tasks, invalid)) if *name == task.dataset().as_str() => {
                *tasks += 1;
                *invalid += broken;
            }
            _ => datasets.push((task.dataset().as_str(), 1, broken)),
        }
    }
    let text = |(name, tasks, invalid): (&str, u64, u64)| match invalid {
        0 => format!("{name} ({})", count(tasks, "task")),
        _ => format!("{name} ({}, {invalid} invalid)", count(tasks, "task")),
    };
    datasets.into_iter().map(text).collect::<Vec<_>>().join(", ")
}

fn trials(plan: &Plan) -> Vec<String> {
    let heading = ["first trials", "build", "install", "agent", "verifier"].map(str::to_owned).to_vec();
    let mut rows = vec![heading];
    let mut problems = Vec::new();
    for index in plan.indexes().take(LISTED as usize) {
        let trial = plan.trial(index).to_string();
        match task_of(plan, index) {
            Ok(None) => rows.push(vec![trial]),
            Ok(Some(timeouts)) => {
                let Timeouts { build, install, execute, verify } = timeouts;
                let times = [build, install, execute, verify].map(|time| match time {
                    Timeouts::UNLIMITED => "none".to_owned(),
                    time => span(time.as_secs_f64()),
                });
                rows.push([trial].into_iter().chain(times).collect());
            }
            Err(problem) => {
                rows.push(vec![trial, "invalid".to_owned()]);
                problems.push(problem);
            }
        }
    }
    if rows[1..].iter().all(|row| row.len() == 1) {
        rows[0].truncate(1);
    }
    let columns = [Align::Left, Align::Right, Align::Right, Align::Right, Align::Right];
    let mut lines = table(&columns, &rows);
    lines[0] = paint(BOLD, &lines[0]);
    if plan.len() > LISTED {
        lines.push(paint(DIM, &format!("and {} more", plan.len() - LISTED)));
    }
    problems.dedup();
    lines.extend(problems.iter().map(|problem| fit(&first_line(problem), 200)));
    lines
}

/// Returns the timeouts of a trial's task, None for an example of an interaction, or the problem of an invalid task.
fn task_of(plan: &Plan, index: TrialIndex) -> Result<Option<Timeouts>, String> {
    let trial = plan.trial(index);
    let is_its = |task: &&PlanTask| task.dataset() == &trial.dataset && task.name() == trial.task.as_str();
    let task = plan.tasks().iter().find(is_its);
    match task.map(|task| (task.container(), task.problem())) {
        Some((Some(task), _)) => Ok(Some(Timeouts::new(plan.config(), task))),
        Some((_, Some(problem))) => Err(problem.to_string()),
        Some((None, None)) => Ok(None),
        None => unreachable!("a trial's task is a task of its plan"),
    }
}
