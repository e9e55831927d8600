//! `rollout serve`: rollouts of a model for a training loop, over HTTP.

mod policy;
mod problem;
mod request;
mod service;
mod source;
mod stream;

use std::{
    io::{self, Write as _},
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use globset::Glob;
use rollout::{
    config::{AgentConfig, AgentKind, DatasetConfig, DatasetSource, JobConfig, LoadedJob, ModelAgentConfig},
    job::Selection,
    model::{Limits, TaskRollouts},
    task::{DatasetError, Resolved},
};
use rollout_http::ConnectionLimits;
use tokio::net::TcpListener;

use self::{policy::Policy, request::Offer, service::Service, source::Source};
use super::{guard::guard, load, warnings};
use crate::{
    args::Serve,
    command::sources::sources,
    exit::{Exit, Failure, hinted},
    logging,
    report::text,
    signals,
};

/// How long responses may take when the service stops: running rollouts are cleaned up before the last line is sent.
const GRACE: Duration = Duration::from_secs(60);

/// Why a job cannot be served.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error("a service needs one model and one dataset, but {} has {models} and {datasets}", path.display())]
    NotOne { path: PathBuf, models: String, datasets: String },
    #[error("cannot listen on {address}")]
    Listen { address: SocketAddr, source: io::Error },
}

/// Serves a job until it is stopped.
pub(crate) async fn run(args: &Serve) -> Result<Exit, Failure> {
    let cancel = signals::listen()?;
    let danger = "anyone could send requests to the model";
    let guard = guard(args.host, args.token_file.as_deref(), danger)?;
    let loaded = load::job(&args.job, &[])?;
    let config = loaded.config.clone();
    let Parts { agent, model, dataset } = parts(&args.job, &config)?;
    let secrets = loaded.secrets.clone();
    logging::start(config.log_level, &secrets, true);
    let (source, limits) = tokio::select! {
        biased;
        () = cancel.graceful.cancelled() => return Ok(Exit::Cancelled),
        source = source(loaded, agent, dataset) => source?,
    };
    let offer = Offer {
        source,
        policy: Policy::new(&model.model)?,
        per_example: config.n_attempts,
        concurrency: config.n_concurrent_trials,
        secrets,
    };
    let (count, noun) = (offer.source.len() as u64, offer.source.noun());
    let limits = limits.unwrap_or(model.limits);
    let service = Service::new(dataset.name.to_string(), limits, offer, cancel.clone());

    let address = SocketAddr::new(args.host, args.port);
    let listening = TcpListener::bind(address).await;
    let listener = listening.map_err(|source| ServeError::Listen { address, source })?;
    super::print(&format!(
        "serving {} ({}) with {} at http://{}",
        dataset.name,
        text::count(count, noun),
        model.model.name,
        listener.local_addr()?,
    ))?;
    if !args.host.is_loopback() {
        let note =
            "requests and the token are not encrypted; for access from other machines, use a proxy with TLS";
        writeln!(anstream::stderr().lock(), "{}", warnings::line("serve", note))?;
    }

    let service = Arc::new(service);
    let router = service::router(Arc::clone(&service), guard);
    let limits = ConnectionLimits { grace: GRACE, ..ConnectionLimits::default() };
    let ended = async {
        rollout_http::serve(listener, router, limits, cancel.graceful.clone()).await?;
        // Rollouts whose clients went away may still be cleaning up.
        service.idle().await;
        Ok::<_, io::Error>(())
    };
    tokio::select! {
        biased;
        () = cancel.now.cancelled() => Ok(Exit::Cancelled),
        ended = ended => {
            ended?;
            Ok(Exit::Success)
        }
    }
}

/// What of a job is served.
struct Parts<'a> {
    agent: &'a AgentConfig,
    model: &'a ModelAgentConfig,
    dataset: &'a DatasetConfig,
}

/// The one model and the one dataset of a job.
fn parts<'a>(path: &Path, config: &'a JobConfig) -> Result<Parts<'a>, Failure> {
    let models = config.agents.iter().filter_map(|agent| match &agent.kind {
        AgentKind::Model(model) => Some((agent, model)),
        AgentKind::Oracle | AgentKind::Nop | AgentKind::Script { .. } | AgentKind::Preset(_) => None,
    });
    let models: Vec<_> = models.collect();
    match (&models[..], &config.datasets[..]) {
        ([(agent, model)], [dataset]) => Ok(Parts { agent, model, dataset }),
        (_, datasets) => {
            let error = ServeError::NotOne {
                path: path.to_owned(),
                models: text::count(models.len() as u64, "model"),
                datasets: text::count(datasets.len() as u64, "dataset"),
            };
            let hint =
                "write a job file with one model and one dataset, and start one service for each such pair";
            Err(Failure::from(error).hint(Some(hint)))
        }
    }
}

/// The examples or tasks to serve, and the timeout of a rollout if the dataset has one.
async fn source(
    loaded: LoadedJob,
    agent: &AgentConfig,
    dataset: &DatasetConfig,
) -> Result<(Source, Option<Limits>), Failure> {
    match &dataset.source {
        DatasetSource::Interaction(interaction) => {
            for warning in &loaded.warnings {
                writeln!(anstream::stderr().lock(), "{}", warning.render(true))?;
            }
            let context = load::interaction_context(&loaded, None).await?;
            let only = std::slice::from_ref(dataset);
            let fetched = sources(false)?.load(only, &Resolved::default(), &load::progress).await;
            let fetched = fetched.map_err(hinted(DatasetError::hint))?.pop();
            let fetched = fetched.expect("one dataset was loaded");
            let examples =
                load::examples(&loaded, &dataset.name, interaction, fetched, context.as_ref()).await?;
            let source = Source::of_interaction(interaction, examples, loaded.config.retry)?;
            Ok((source, Some(interaction.limits)))
        }
        DatasetSource::Path(_)
        | DatasetSource::Git(_)
        | DatasetSource::Named { .. }
        | DatasetSource::Registry { .. } => {
            let only = Glob::new(&globset::escape(agent.name.as_str()))?.compile_matcher();
            let selection = Selection { agents: vec![only], ..Selection::default() };
            let (plan, provider) =
                load::planned(loaded, Vec::new(), &selection, sources(false)?, false).await?;
            Ok((Source::Tasks(Arc::new(TaskRollouts::new(plan, provider))), None))
        }
    }
}
