//! `rollout score`: scores saved answers again.

use std::path::{Path, PathBuf};

use rollout::{
    benchmark::score::{self, LoadRubricError, LoadedRubric, RubricScored, ScoreError, Scored},
    config::{LoadedBenchmark, Override, RolloutConfig, load_benchmark},
    model::metric::{Metric, Scorer},
    record::redact::Redactor,
};

use super::{
    load::{endpoint, refused, variable},
    progress::progress,
};
use crate::{
    args::Score,
    exit::{Exit, Failure},
    report::{
        self, Align,
        text::{BOLD, ODD, count, first_line, number, paint},
    },
};

/// What `score` requires and did not get.
#[derive(Debug, thiserror::Error)]
enum Missing {
    #[error("`llm_judgement` requires a judge model")]
    Model,
    #[error("rubric file {} not found", .0.display())]
    Rubric(PathBuf),
}

/// Scores the answers, and writes the evaluation files.
pub(crate) async fn run(args: &Score) -> Result<Exit, Failure> {
    let files = score::rows_in(&args.results)?;
    let mut exit = Exit::Success;
    if let Some(path) = &args.rubric {
        let rubric = rubric(path)?;
        for rows in &files {
            let scored =
                score::score_with_rubric(rows, &rubric, args.concurrency, progress("scored", "rollout"));
            let scored = scored
                .await
                .map_err(|error| failed(error, "check the `api_key` of each judge in the rubric"))?;
            if scored.evaluation.evaluations.iter().any(|found| !found.errors.is_empty()) {
                exit = Exit::Unmet;
            }
            let (report, evaluation) = (rubric_report(&scored), score::evaluation_file(rows));
            scored.evaluation.save(&evaluation).await?;
            print_report(&report, &evaluation)?;
        }
    } else {
        let (scorer, secrets) = scorer(args)?;
        for rows in &files {
            let scored = score::score(rows, &scorer, args.concurrency, progress("scored", "answer"));
            let hint = "pass the environment variable that contains the API key with --evaluator-api-key-var";
            let scored = scored.await.map_err(|error| failed(error, hint))?;
            if scored.judge_failures > 0 {
                exit = Exit::Unmet;
            }
            let (report, evaluation) = (report(&scored), score::evaluation_file(rows));
            scored.evaluation.masked(&secrets).save(&evaluation).await?;
            print_report(&report, &evaluation)?;
        }
    }
    Ok(exit)
}

fn failed(error: ScoreError, hint: &str) -> Failure {
    match error {
        ScoreError::Unauthorized(_) => Failure::from(error).hint(Some(hint)).while_running(),
        other => other.into(),
    }
}

fn rubric(path: &Path) -> Result<LoadedRubric, Failure> {
    if !path.is_file() {
        let hint = "pass an interaction file, like `interaction:` of a job";
        return Err(Failure::from(Missing::Rubric(path.to_owned())).hint(Some(hint)));
    }
    score::load_rubric(path, &variable).map_err(|error| match error {
        LoadRubricError::Problems(problems) => refused(path, &problems),
        other => other.into(),
    })
}

/// Returns the scorer, and a redactor for its secrets.
fn scorer(args: &Score) -> Result<(Scorer, Redactor), Failure> {
    let loaded = match (&args.config, args.metric) {
        (Some(path), _) => {
            let loaded = load_benchmark(path, &overrides(args), &variable);
            Some(loaded.map_err(|problems| refused(path, &problems))?)
        }
        (None, Some(Metric::LlmJudgement)) => Some(judge(args)?),
        (None, _) => None,
    };
    let of_config = loaded.as_ref().map(|loaded| loaded.config.evaluation_metric);
    let metric = args.metric.or(of_config).expect("without a configuration the metric is required");
    let judge = match &loaded {
        Some(loaded) if metric == Metric::LlmJudgement => Some(rollout::benchmark::judge(&loaded.config)?),
        _ => None,
    };
    let secrets = loaded.iter().flat_map(|loaded| &loaded.secrets).map(String::as_str);
    Ok((Scorer::new(metric, judge)?, Redactor::new(secrets)))
}

/// Returns the options of the judge as overrides of a benchmark configuration.
fn overrides(args: &Score) -> Vec<Override> {
    let text = |text: &String| serde_json::Value::from(text.as_str()).to_string();
    let settings = [
        ("evaluator_model_name", args.model.as_ref().map(text)),
        ("evaluator_base_url", args.base_url.as_ref().map(text)),
        ("evaluator_api_key", args.api_key_var.as_ref().map(|name| text(&format!("${{{name}}}")))),
        ("evaluator_temperature", args.temperature.map(|temperature| temperature.to_string())),
        ("evaluator_max_retries", args.max_retries.map(|retries| retries.to_string())),
        ("evaluator_include_question", args.include_question.then(|| "true".to_owned())),
    ];
    let setting =
        |(key, value): (&str, Option<String>)| Some(Override { key: key.to_owned(), value: value? });
    settings.into_iter().filter_map(setting).collect()
}

/// Returns the judge from the command line alone.
fn judge(args: &Score) -> Result<LoadedBenchmark, Failure> {
    let hint = "pass --evaluator-model and --evaluator-base-url, or --config with a benchmark configuration";
    let model_name = args.model.clone().ok_or_else(|| Failure::from(Missing::Model).hint(Some(hint)))?;
    let who = "the judge";
    let (base_url, api_key) = endpoint(args.base_url.as_ref(), args.api_key_var.as_ref(), who, hint)?;
    let defaults = RolloutConfig::default();
    let config = RolloutConfig {
        model_name,
        base_url,
        api_key,
        evaluator_temperature: args.temperature.unwrap_or(defaults.evaluator_temperature),
        evaluator_max_retries: args.max_retries.unwrap_or(defaults.evaluator_max_retries),
        evaluator_include_question: args.include_question,
        ..defaults
    };
    LoadedBenchmark::new(config, &variable).map_err(|problems| {
        Failure::from("invalid judge settings").details(problems.render(true)).hint(Some(hint))
    })
}

fn print_report(report: &str, evaluation: &Path) -> Result<(), Failure> {
    super::print(&format!("{report}\n\nwritten to {}", evaluation.display()))?;
    Ok(())
}

fn report(scored: &Scored) -> String {
    let evaluation = &scored.evaluation;
    let before = scored.before.as_ref();
    let mut heading = cells(["metric", "tasks", "evaluated", "average", "perfect"]);
    let mut row = vec![
        evaluation.metric.to_string(),
        evaluation.total_tasks.to_string(),
        evaluation.evaluated_tasks.to_string(),
        match evaluation.evaluated_tasks {
            0 => "—".to_owned(),
            _ => number(evaluation.average_score),
        },
        evaluation.perfect_matches.to_string(),
    ];
    if let Some(before) = before {
        heading.extend(cells(["saved", "change"]));
        let metric = before.metric.as_ref().map(|metric| format!(" ({})", first_line(metric)));
        row.push(number(before.average) + &metric.unwrap_or_default());
        row.push(change(before.average_now - before.average));
    }
    let mut text = table(vec![heading, row]);
    if let Some(before) = before.filter(|before| before.tasks < evaluation.evaluated_tasks) {
        text.push_str(&format!(
            "\nthe change is computed over the {} with an earlier score",
            count(before.tasks, "answer")
        ));
    }
    let mut left_out = Vec::new();
    if scored.failed > 0 {
        left_out.push(format!("{} that failed", count(scored.failed, "question")));
    }
    if scored.without_truth > 0 {
        left_out.push(format!("{} without a ground truth", count(scored.without_truth, "question")));
    }
    if !left_out.is_empty() {
        text.push_str(&format!("\nnot evaluated: {}", left_out.join(", ")));
    }
    if scored.judge_failures > 0 {
        let failures = count(scored.judge_failures, "answer");
        let reason = evaluation.evaluations.iter().find_map(|found| found.details.get("error")?.as_str());
        let reason = first_line(reason.unwrap_or_default());
        let warning = paint(ODD, "warning:");
        text.push_str(&format!("\n{warning} the judge failed for {failures}, scored as 0: {reason}"));
    }
    text + &ignored(scored.foreign_lines)
}

fn rubric_report(scored: &RubricScored) -> String {
    let evaluation = &scored.evaluation;
    let mut heading = cells(["", "rollouts", "evaluated", "average"]);
    let counts = [evaluation.total_rollouts.to_string(), evaluation.evaluated_rollouts.to_string()];
    let mut reward = vec!["reward".to_owned()];
    reward.extend(counts);
    reward.push(number(evaluation.average_reward));
    if let Some((before, now)) = scored.before {
        heading.extend(cells(["saved", "change"]));
        reward.extend([number(before), change(now - before)]);
    }
    let mut rows = vec![heading, reward];
    rows.extend(
        evaluation
            .average_metrics
            .iter()
            .map(|(name, average)| vec![first_line(name), String::new(), String::new(), number(*average)]),
    );
    let mut text = table(rows);
    if scored.without_score > 0 {
        let rollouts = count(scored.without_score, "rollout");
        text.push_str(&format!(
            "\nnot evaluated: {rollouts} that failed or were saved without a conversation"
        ));
    }
    let failures = evaluation.evaluations.iter().filter(|found| !found.errors.is_empty());
    if let Some(reason) = failures.clone().find_map(|found| found.errors.first()) {
        let failures = count(failures.count() as u64, "rollout");
        let (warning, reason) = (paint(ODD, "warning:"), first_line(reason));
        text.push_str(&format!("\n{warning} parts of the rubric failed for {failures}: {reason}"));
    }
    text + &ignored(scored.foreign_lines)
}

fn ignored(foreign: u64) -> String {
    match foreign {
        0 => String::new(),
        1 => "\nignored: 1 line that is not an answer".to_owned(),
        lines => format!("\nignored: {lines} lines that are not answers"),
    }
}

fn cells<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

fn table(rows: Vec<Vec<String>>) -> String {
    let columns: Vec<Align> =
        (0..rows[0].len()).map(|column| if column == 0 { Align::Left } else { Align::Right }).collect();
    let mut lines = report::table(&columns, &rows);
    if let Some(heading) = lines.first_mut() {
        *heading = paint(BOLD, heading);
    }
    lines.join("\n")
}

fn change(difference: f64) -> String {
    let text = number(difference);
    if difference > 0.0 && text != "0" { format!("+{text}") } else { text }
}
