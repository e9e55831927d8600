//! `rollout serve`: rollouts of a model for a training loop, over HTTP.

mod problem;
mod request;
mod service;
mod stream;

use std::{
    io::{self, Write as _},
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rollout::{
    config::{AgentKind, DatasetConfig, DatasetSource, InteractionConfig, JobConfig, ModelConfig},
    model::build,
};
use rollout_http::ConnectionLimits;
use tokio::net::TcpListener;

use self::service::Service;
use super::{guard::guard, load, run, warnings};
use crate::{
    args::Serve,
    exit::{Exit, Failure},
    logging,
    report::text::count,
    signals,
};

/// How long responses may take when the service stops: running rollouts are cleaned up before the last line is sent.
const GRACE: Duration = Duration::from_secs(60);

/// Why a job cannot be served.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error("a service has one model and one interaction, and {} has {models} and {interactions}", path.display())]
    NotOne { path: PathBuf, models: String, interactions: String },
    #[error("cannot listen at {address}")]
    Listen { address: SocketAddr, source: io::Error },
}

/// Serves a job until it is stopped.
pub(crate) async fn run(args: &Serve) -> Result<Exit, Failure> {
    let cancel = signals::listen()?;
    let danger = "anybody could spend the model's budget";
    let guard = guard(args.host, args.token_file.as_deref(), danger)?;
    let loaded = load::job(&args.job, &[])?;
    for warning in &loaded.warnings {
        writeln!(anstream::stderr().lock(), "{}", warning.render(true))?;
    }
    let (dataset, interaction, model) = parts(&args.job, &loaded.config)?;
    logging::start(loaded.config.log_level, &loaded.secrets, true);
    let surroundings = run::surroundings(&loaded, None).await?;
    let examples = build::examples(&dataset.name, interaction, surroundings.as_ref()).await?;
    let service = Service::new(&loaded, interaction, model, examples, cancel.clone())?;

    let address = SocketAddr::new(args.host, args.port);
    let listening = TcpListener::bind(address).await;
    let listener = listening.map_err(|source| ServeError::Listen { address, source })?;
    super::print(&format!(
        "serving {} ({}) with {} at http://{}",
        dataset.name,
        count(service.examples() as u64, "example"),
        model.name,
        listener.local_addr()?,
    ))?;
    if !args.host.is_loopback() {
        let note = "requests and the token are not encrypted; let other machines in through a proxy with TLS";
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

/// The one interaction and the one model of a job.
fn parts<'a>(
    path: &Path,
    config: &'a JobConfig,
) -> Result<(&'a DatasetConfig, &'a InteractionConfig, &'a ModelConfig), Failure> {
    let models = config.agents.iter().filter_map(|agent| match &agent.kind {
        AgentKind::Model(agent) => Some(&agent.model),
        AgentKind::Oracle | AgentKind::Nop | AgentKind::Script { .. } => None,
    });
    let interactions = config.datasets.iter().filter_map(|dataset| match &dataset.source {
        DatasetSource::Interaction(interaction) => Some((dataset, &**interaction)),
        DatasetSource::Path(_) | DatasetSource::Registry { .. } => None,
    });
    let (models, interactions): (Vec<_>, Vec<_>) = (models.collect(), interactions.collect());
    match (&models[..], &interactions[..]) {
        ([model], [(dataset, interaction)]) => Ok((dataset, interaction, model)),
        _ => {
            let error = ServeError::NotOne {
                path: path.to_owned(),
                models: count(models.len() as u64, "model"),
                interactions: count(interactions.len() as u64, "interaction"),
            };
            let hint = "write a job file with the pair that is trained; each pair has a service of its own";
            Err(Failure::from(error).hint(Some(hint)))
        }
    }
}
