//! `rollout compare`: compares jobs and agents.

use std::{
    fs,
    io::{self, Write as _},
    path::Path,
};

use rollout::{
    compare::{self, CompareError, Comparison, Contrast, Difference, Differences, SideFigures, TaskId},
    record::{layout::JobDir, notes::TagExclusion, saved::SavedJob},
    stats::Interval,
};

use crate::{
    args::{Answer, Compare},
    exit::{Exit, Failure, hinted},
    report::{
        Align, table,
        text::{BOLD, DIM, ODD, count, first_line, number, paint, percent},
    },
};

/// Printed instead of a missing number.
const NOTHING: &str = "—";

/// How many tasks are listed by name.
const MOST_NAMED: usize = 10;

/// Compares the jobs, and prints the result.
pub(crate) fn run(args: &Compare) -> Result<Exit, Failure> {
    let comparison = compare(args).map_err(hinted(CompareError::hint))?;
    if let Some(path) = &args.svg {
        draw(path, &comparison)?;
    }
    match args.output {
        Answer::Human => super::print(&human(&comparison))?,
        Answer::Json => super::print(&serde_json::to_string_pretty(&comparison)?)?,
    }
    Ok(Exit::Success)
}

fn compare(args: &Compare) -> Result<Comparison, CompareError> {
    let (mut sides, mut available) = (Vec::new(), Vec::new());
    for directory in &args.directories {
        let job = SavedJob::open(directory)?;
        for agent in &job.header().agents {
            if !available.contains(agent) {
                available.push(agent.clone());
            }
        }
        let exclusion = TagExclusion::read(&JobDir::new(directory), &args.exclude_tag)?;
        sides.extend(compare::read_without(&job, &args.agent, &exclusion)?);
    }
    match args.agent.iter().find(|agent| !available.contains(agent)) {
        Some(agent) => Err(CompareError::NoAgent { agent: agent.clone(), available: available.join(", ") }),
        None => Comparison::new(sides),
    }
}

/// Writes the chart. An existing file is not overwritten.
fn draw(path: &Path, comparison: &Comparison) -> Result<(), Failure> {
    let written =
        fs::File::create_new(path).and_then(|mut file| file.write_all(compare::svg(comparison).as_bytes()));
    written.map_err(|source| {
        let hint = match source.kind() {
            io::ErrorKind::AlreadyExists => Some("choose another file, or remove this one"),
            io::ErrorKind::NotFound => Some("create the directory first"),
            _ => None,
        };
        let error = NotDrawn { path: path.display().to_string(), source };
        Failure::from(error).hint(hint)
    })
}

/// The chart cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {path}")]
struct NotDrawn {
    path: String,
    source: io::Error,
}

fn human(comparison: &Comparison) -> String {
    let mut lines = sides(&comparison.sides);
    lines.extend(left_out(comparison));
    lines.extend(contrasts(comparison));
    for contrast in &comparison.contrasts {
        lines.extend(tasks(contrast));
    }
    for contrast in &comparison.contrasts {
        let warnings = contrast.warnings.iter().map(|warning| {
            format!("{} {}: {}", paint(ODD, "warning:"), first_line(&contrast.other), first_line(warning))
        });
        lines.extend(warnings);
    }
    lines.join("\n")
}

/// Says which trials are left out by their tags, if any tag was given.
fn left_out(comparison: &Comparison) -> Option<String> {
    let counts: Vec<String> = comparison
        .sides
        .iter()
        .filter_map(|side| Some(format!("{} of {}", side.excluded_by_tag?, first_line(&side.name))))
        .collect();
    let tags = comparison.excluded_tags.join(", ");
    (!tags.is_empty()).then(|| paint(DIM, &format!("trials left out by tag {tags}: {}", counts.join(", "))))
}

fn sides(sides: &[SideFigures]) -> Vec<String> {
    let heading = ["", "tasks", "trials", "failed", "excluded", "pass rate", "95%", "mean reward"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for SideFigures { name, figures, .. } in sides {
        let (rate, mean) = (figures.headline.pass_rate, figures.headline.mean_reward);
        let or_nothing = |text: Option<String>| text.unwrap_or_else(|| NOTHING.to_owned());
        rows.push(vec![
            first_line(name),
            figures.tasks.to_string(),
            figures.trials.to_string(),
            figures.failed.to_string(),
            figures.excluded.to_string(),
            or_nothing(rate.map(|rate| percent(rate.rate))),
            or_nothing(
                rate.map(|rate| format!("{:.1}–{}", rate.interval.low * 100.0, percent(rate.interval.high))),
            ),
            or_nothing(mean.map(|mean| number(mean.mean))),
        ]);
    }
    with_heading(&rows)
}

/// Renders a table for each baseline, and an explanation of the numbers.
fn contrasts(comparison: &Comparison) -> Vec<String> {
    let mut baselines: Vec<&str> = Vec::new();
    for contrast in &comparison.contrasts {
        if !baselines.contains(&contrast.baseline.as_str()) {
            baselines.push(&contrast.baseline);
        }
    }
    let mut lines = Vec::new();
    for baseline in baselines {
        let contrasts = comparison.contrasts.iter().filter(|contrast| contrast.baseline == baseline);
        lines.push(String::new());
        lines.extend(against(baseline, contrasts));
    }
    let adjusted = match comparison.contrasts.len() {
        0 | 1 => String::new(),
        several => format!(", adjusted by Holm's method for {several} comparisons"),
    };
    lines.push(paint(
        DIM,
        &format!(
            "differences are means over tasks, with 95% confidence intervals; p is from a permutation test{adjusted};\n\
             a task is won if at least half of its attempts are solved, and fewer than half in the baseline"
        ),
    ));
    lines
}

/// Renders a row for each side, and a second row over completed trials if failed trials change the result.
fn against<'c>(baseline: &str, contrasts: impl Iterator<Item = &'c Contrast>) -> Vec<String> {
    let mut heading: Vec<String> = vec![format!("against {}", first_line(baseline))];
    let names = ["tasks", "mean reward", "p", "pass rate", "p", "won", "lost", "McNemar p", "cost", "time"];
    heading.extend(names.map(str::to_owned));
    let mut rows = vec![heading];
    for contrast in contrasts {
        let ratio = |ratio: Option<f64>| ratio.map_or(NOTHING.to_owned(), |ratio| format!("×{ratio:.2}"));
        let mut row = vec![first_line(&contrast.other)];
        row.extend(differences(&contrast.headline));
        row.extend([ratio(contrast.cost_ratio), ratio(contrast.duration_ratio)]);
        rows.push(row);
        if contrast.headline != contrast.failed_excluded {
            let mut row = vec!["  completed only".to_owned()];
            row.extend(differences(&contrast.failed_excluded));
            rows.push(row);
        }
    }
    with_heading(&rows)
}

fn differences(differences: &Differences) -> Vec<String> {
    let test = &differences.mcnemar;
    let points = |value: f64| format!("{:+.1}", value * 100.0 + 0.0);
    let signed = |value: f64| {
        let text = number(value);
        if text.starts_with('-') || text == "0" { text } else { format!("+{text}") }
    };
    let cell = |difference: &Difference, unit: &str, form: &dyn Fn(f64) -> String| match difference.interval {
        _ if differences.tasks == 0 => NOTHING.to_owned(),
        Some(Interval { low, high }) => {
            format!("{}{unit} ({} to {})", form(difference.mean), form(low), form(high))
        }
        None => format!("{}{unit}", form(difference.mean)),
    };
    let p = |p: Option<f64>| match p {
        None => NOTHING.to_owned(),
        Some(p) if p < 0.001 => "< 0.001".to_owned(),
        Some(p) => format!("{p:.3}"),
    };
    vec![
        differences.tasks.to_string(),
        cell(&differences.mean_reward, "", &signed),
        p(differences.mean_reward.p_holm.or(differences.mean_reward.p)),
        cell(&differences.pass_rate, "%", &points),
        p(differences.pass_rate.p_holm.or(differences.pass_rate.p)),
        test.only_other.to_string(),
        test.only_baseline.to_string(),
        p(test.p_holm.or(test.p)),
    ]
}

fn with_heading(rows: &[Vec<String>]) -> Vec<String> {
    let mut columns = vec![Align::Left];
    columns.resize(rows[0].len(), Align::Right);
    let mut lines = table(&columns, rows);
    lines[0] = paint(BOLD, &lines[0]);
    lines
}

/// Lists the tasks that only one side solves, and those that only one side has.
fn tasks(contrast: &Contrast) -> Vec<String> {
    let flipped = &contrast.headline.flipped;
    let of =
        |won: bool| flipped.iter().filter(move |flip| flip.is_won() == won).map(|flip| &flip.task).collect();
    let lists: [(String, Vec<&TaskId>); 4] = [
        (format!("only {} solves", contrast.other), of(true)),
        (format!("only {} solves", contrast.baseline), of(false)),
        (format!("only {} has", contrast.other), contrast.only_in_other.iter().collect()),
        (format!("only {} has", contrast.baseline), contrast.only_in_baseline.iter().collect()),
    ];
    let mut lines = Vec::new();
    for (what, tasks) in lists.into_iter().filter(|(_, tasks)| !tasks.is_empty()) {
        lines.push(String::new());
        lines.push(format!("{} {}", first_line(&what), count(tasks.len() as u64, "task")));
        lines
            .extend(tasks.iter().take(MOST_NAMED).map(|task| format!("  {}", first_line(&task.to_string()))));
        if tasks.len() > MOST_NAMED {
            lines.push(format!("  and {} more", tasks.len() - MOST_NAMED));
        }
    }
    if !contrast.warnings.is_empty() {
        lines.push(String::new());
    }
    lines
}
