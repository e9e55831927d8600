//! `rollout resume`: a job that was cut short, carried on.

use std::{fs, sync::Arc};

use rollout::{
    config::{LoadedJob, load_job_record},
    environment::Provider,
    event::JobKind,
    job::{Job, NoProvider, Plan, Rerun, Resumable, ResumeError, Selection},
};

use super::{eval, execute, load, run};
use crate::{
    args::{RerunWhich, Resume},
    exit::{Exit, Failure, hinted},
    logging,
    report::Form,
    signals,
};

/// Opens the job and runs what is missing.
pub(crate) async fn run(args: Resume) -> Result<Exit, Failure> {
    let cancel = signals::listen()?;
    let form = execute::form(args.output);
    let resumable = Resumable::open(&args.directory).map_err(hinted(ResumeError::hint))?;
    let rerun = rerun(&args.rerun);
    if resumable.header().kind == JobKind::Benchmark {
        return eval::resume(resumable, &rerun, form, cancel).await;
    }
    let loaded = configuration(&resumable)?;
    let log = logging::start(loaded.config.log_level, &loaded.secrets, form != Form::Live);
    let job = tokio::select! {
        biased;
        () = cancel.graceful.cancelled() => return Ok(Exit::Cancelled),
        job = open(resumable, loaded, &rerun) => job?,
    };
    execute::execute(job, form, None, &[], &log, cancel).await
}

/// The job file, as it must still be, or the copy in the job's directory where the file is gone.
fn configuration(resumable: &Resumable) -> Result<LoadedJob, Failure> {
    let header = resumable.header();
    let overrides = load::overrides(&header.overrides)?;
    if header.job_file.exists() {
        let loaded = load::job(&header.job_file, &overrides)?;
        resumable.check_config(&loaded).map_err(hinted(ResumeError::hint))?;
        return Ok(loaded);
    }
    let record = serde_json::from_slice(&fs::read(resumable.config_copy())?)?;
    load_job_record(&header.job_file, &record, &load::variable)
        .map_err(|problems| load::refused(&resumable.config_copy(), &problems))
}

async fn open(resumable: Resumable, loaded: LoadedJob, rerun: &[Rerun]) -> Result<Job, Failure> {
    let header = resumable.header();
    let pins = header.pins.clone();
    let overrides = header.overrides.clone();
    let provider: Arc<dyn Provider> = if header.provider == NoProvider.name() {
        Arc::new(NoProvider)
    } else {
        run::provider(&loaded.config.environment).await?
    };
    let surroundings = run::surroundings(&loaded.config, Some(Arc::clone(&provider))).await?;
    let datasets = load::datasets(&loaded, &pins, surroundings.as_ref()).await?;
    let models = load::models(&loaded)?;
    let plan =
        Plan::new(loaded, overrides, datasets, &Selection::default(), &load::variable)?.with_models(models);
    resumable.resume(plan, provider, rerun).await.map_err(hinted(ResumeError::hint))
}

fn rerun(which: &[RerunWhich]) -> Vec<Rerun> {
    let rerun = which.iter().map(|which| match which {
        RerunWhich::Missing => Rerun::Missing,
        RerunWhich::Error => Rerun::Error,
        RerunWhich::Unsolved => Rerun::Unsolved,
    });
    rerun.collect()
}
