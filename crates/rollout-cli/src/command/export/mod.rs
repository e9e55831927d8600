//! `rollout export`: writes the results of a job as files for other programs.

mod push;
mod rl;

use rollout::{
    export::{
        self, ExportError, Exported,
        eee::{self, Relationship},
        eval_log::RecordDialect,
        sft::SftOptions,
    },
    record::saved::SavedJob,
};

use self::push::pushing;
use super::progress::progress;
use crate::{
    args::{EeeRelationship, EvalLogDialect, Export, ExportEee, ExportEvalLog, ExportWhat, FromJob},
    exit::{Exit, Failure, hinted},
    report::text::{DIM, count, paint},
};

/// Runs the export.
pub(crate) fn run(args: &Export) -> Result<Exit, Failure> {
    match &args.what {
        ExportWhat::Rl(args) => pushing(&args.from, || rl::run(args)),
        ExportWhat::Csv(from) => write(from, "trial", export::csv::write),
        #[cfg(feature = "parquet")]
        ExportWhat::Parquet(from) => write(from, "trial", export::parquet::write),
        #[cfg(not(feature = "parquet"))]
        ExportWhat::Parquet(_) => Err(rl::no_parquet("export as csv, which has the same columns")),
        ExportWhat::Verifiers(from) => write(from, "row", export::verifiers::write),
        ExportWhat::Sft(args) => {
            let options = SftOptions { min_reward: args.min_reward, max_per_task: args.max_per_task };
            write(&args.from, "conversation", |export| export::sft::write(export, options))
        }
        ExportWhat::EvalLog(args) => eval_log(args),
        ExportWhat::Eee(args) => eee(args),
        ExportWhat::Inspect(from) => write(from, "sample", export::inspect::write),
        ExportWhat::Atif(from) => write(from, "trial", export::atif::write),
    }
}

fn eval_log(args: &ExportEvalLog) -> Result<Exit, Failure> {
    let dialect = match args.dialect {
        EvalLogDialect::Document => RecordDialect::Document,
        EvalLogDialect::CubeHarness => RecordDialect::CubeHarness,
    };
    let options = export::eval_log::EvalLogOptions { dialect, jsonl: args.jsonl };
    write(&args.from, "episode", |export| export::eval_log::write(export, options))
}

fn eee(args: &ExportEee) -> Result<Exit, Failure> {
    let options = eee::EeeOptions {
        organization: args.organization.clone(),
        relationship: match args.relationship {
            EeeRelationship::FirstParty => Relationship::FirstParty,
            EeeRelationship::ThirdParty => Relationship::ThirdParty,
            EeeRelationship::Collaborative => Relationship::Collaborative,
            EeeRelationship::Other => Relationship::Other,
        },
        developer: args.developer.clone(),
    };
    write(&args.from, "trial", |export| eee::write(export, &options))
}

/// Opens a job, writes its files, optionally pushes them, and prints what was written.
fn write(
    from: &FromJob,
    noun: &str,
    make: impl FnOnce(&export::Export<'_>) -> Result<Exported, ExportError>,
) -> Result<Exit, Failure> {
    pushing(from, || make_files(from, noun, make))
}

fn make_files(
    from: &FromJob,
    noun: &str,
    make: impl FnOnce(&export::Export<'_>) -> Result<Exported, ExportError>,
) -> Result<Exit, Failure> {
    let failed = hinted(ExportError::hint);
    let job = SavedJob::open(&from.directory).map_err(|error| failed(error.into()))?;
    let export = export::Export::new(&job, &from.out).and_then(|export| export.without(&from.exclude_tag));
    let export = export.map_err(&failed)?.progress(progress("read", "trial"));
    let made = make(&export).map_err(&failed)?;
    for file in &made.files {
        super::print(&file.display().to_string())?;
    }
    super::print(&count(made.rows, noun))?;
    for reason in &made.left_out {
        super::print(&paint(DIM, &format!("left out: {reason}")))?;
    }
    print_left_out(&export)?;
    Ok(Exit::Success)
}

/// Prints the number of trials that were left out by tags, and of unfinished trials, if the job was interrupted or still
/// runs.
fn print_left_out(export: &export::Export<'_>) -> Result<(), Failure> {
    let unfinished = export.unfinished();
    let unfinished = (unfinished > 0).then(|| count(unfinished, "unfinished trial"));
    for text in export.excluded().into_iter().chain(unfinished) {
        super::print(&paint(DIM, &format!("left out: {text}")))?;
    }
    Ok(())
}
