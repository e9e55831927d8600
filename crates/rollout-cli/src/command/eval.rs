//! `rollout eval`: runs a benchmark and prints its summary.

use std::{fs, io::Write as _, path::Path};

use rollout::{
    benchmark::{EvalError, Run},
    config::{LoadedBenchmark, LogLevel, Override, RolloutOverrides, load_benchmark, load_benchmark_record},
    job::{Cancel, Rerun, Resumable},
    preflight,
    record::redact::Redactor,
};

use super::{hub_questions, load, run, warnings::findings};
use crate::{
    args::Eval,
    exit::{Exit, Failure, hinted},
    logging::{self, LogFile},
    report::Form,
    signals,
};

/// Loads the configuration, asks the questions, and scores the answers.
pub(crate) async fn run(args: Eval) -> Result<Exit, Failure> {
    let cancel = signals::listen()?;
    let form = run::form(args.output);
    let mut overrides = overrides(&args)?;
    let mut loaded = configuration(&args.config, &overrides)?;
    let of_hub = hub_questions::overrides(&loaded).await?;
    if !of_hub.is_empty() {
        overrides.extend(of_hub);
        loaded = configuration(&args.config, &overrides)?;
    }
    // The source line in a warning may contain the API key.
    let redactor = Redactor::new(loaded.secrets.iter().map(String::as_str));
    for warning in &loaded.warnings {
        writeln!(anstream::stderr().lock(), "{}", redactor.text(&warning.render(true)))?;
    }
    let unreachable = tokio::select! {
        biased;
        () = cancel.graceful.cancelled() => return Ok(Exit::Cancelled),
        unreachable = preflight::unreachable_models_of_benchmark(&loaded.config) => unreachable,
    };
    super::preflight::print_warnings(&findings(&unreachable, false))?;
    let log = start_logging(&loaded, form);
    let recorded = overrides.iter().map(|Override { key, value }| format!("{key}={value}")).collect();
    let program = std::env::current_exe()?;
    let run = tokio::select! {
        biased;
        () = cancel.graceful.cancelled() => return Ok(Exit::Cancelled),
        run = Run::create(&loaded, recorded, &program) => run.map_err(hinted(EvalError::hint))?,
    };
    carry_out(run, form, &log, cancel).await
}

/// Opens an interrupted benchmark, and asks the remaining questions.
pub(super) async fn resume(
    resumable: Resumable,
    rerun: &[Rerun],
    form: Form,
    cancel: Cancel,
) -> Result<Exit, Failure> {
    let header = resumable.header();
    let overrides = load::overrides(&header.overrides)?;
    let loaded = match header.job_file.is_file() {
        true => configuration(&header.job_file, &overrides)?,
        // The configuration file is missing, so its copy is used.
        false => {
            let record = serde_json::from_slice(&fs::read(resumable.config_copy())?)?;
            load_benchmark_record(&header.job_file, &record, &load::variable)
                .map_err(|problems| load::refused(&resumable.config_copy(), &problems))?
        }
    };
    let log = start_logging(&loaded, form);
    let program = std::env::current_exe()?;
    let run = tokio::select! {
        biased;
        () = cancel.graceful.cancelled() => return Ok(Exit::Cancelled),
        run = Run::resume(resumable, &loaded, rerun, &program) => run.map_err(hinted(EvalError::hint))?,
    };
    carry_out(run, form, &log, cancel).await
}

async fn carry_out(mut run: Run, form: Form, log: &LogFile, cancel: Cancel) -> Result<Exit, Failure> {
    run::begin(run.job(), log)?;
    let run = |events, cancel| async { run.run(events, cancel).await.map_err(hinted(EvalError::hint)) };
    let (outcome, _) = run::watch(form, None, cancel, run).await?;
    // The score 0 of an answer that the judge failed on is not a real score.
    let unjudged = outcome.summary.is_some_and(|summary| summary.judge_failures > 0);
    Ok(match run::judge(&outcome.result, &[]) {
        Exit::Success if unjudged => Exit::Unmet,
        exit => exit,
    })
}

fn configuration(path: &Path, overrides: &[Override]) -> Result<LoadedBenchmark, Failure> {
    load_benchmark(path, overrides, &load::variable).map_err(|problems| load::refused(path, &problems))
}

fn start_logging(loaded: &LoadedBenchmark, form: Form) -> LogFile {
    logging::start(LogLevel::default(), &loaded.secrets, form != Form::Live)
}

/// Returns all overrides of the configuration. Dedicated options come last, so they override `--set`.
fn overrides(args: &Eval) -> Result<Vec<Override>, Failure> {
    let mut overrides = load::overrides(&args.set)?;
    let given = RolloutOverrides {
        data_path: args.data_path.clone(),
        output_dir: args.output_dir.clone(),
        model_name: args.model.clone(),
        max_tasks: args.max_tasks,
        task_ids: args.task_ids.clone(),
        evaluate: args.no_evaluate.then_some(false),
        metric: args.metric,
    };
    overrides.extend(given.settings()?);
    Ok(overrides)
}
