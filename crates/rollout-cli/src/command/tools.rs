//! `rollout tools`: serve tools to models over HTTP, list them, or call one.

use std::{
    io::{self, BufRead as _, Read as _, Write as _},
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rollout::config::LogLevel;
use rollout_http::{AccessGuard, AccessToken};
use rollout_tools::{
    Helper, Params, ToolsConfig,
    server::{Action, Registry, Service, serve},
};
use serde::Deserialize;
use tokio::{net::TcpListener, task::JoinSet};
use tokio_util::sync::CancellationToken;

use super::{guard::guard, load, open_files, warnings};
use crate::{
    args::{ToolsCall, ToolsCommand, ToolsList, ToolsServe},
    exit::{Exit, Failure},
    logging,
    report::text::{BOLD, count, paint},
    signals,
};

/// How long the server waits at its end for a warm-up that still runs.
const WARM_UP_GRACE: Duration = Duration::from_secs(10);

/// How long the server waits for MCP servers before it starts without their tools.
const MCP_PATIENCE: Duration = Duration::from_secs(10);

/// The maximum size of the settings on stdin, enough for thousands of paths.
const MAX_SETTINGS: u64 = 16 << 20;

/// The resource with the tools of MCP servers.
const MCP: &str = "mcp";

/// The resource that is not warmed up, because it starts a whole desktop.
const COSTLY: &str = "vm";

/// The worker id of `tools call`, which owns its sessions.
const WORKER: &str = "command";

/// Why a `tools` command failed.
#[derive(Debug, thiserror::Error)]
enum ToolsError {
    #[error("invalid tools configuration")]
    Config,
    #[error("invalid settings on stdin: expected one line of JSON with a `token`")]
    Settings,
    #[error("cannot listen on {address}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("invalid {what}: expected a JSON object")]
    NotAnObject { what: &'static str, source: Option<serde_json::Error> },
    #[error("{message} (code {code})")]
    Called { code: u16, message: String },
}

/// Serves, lists or calls tools.
pub(crate) async fn run(what: ToolsCommand) -> Result<Exit, Failure> {
    match what {
        ToolsCommand::Serve(args) => serve_tools(&args).await,
        ToolsCommand::List(args) => list(&args).await,
        ToolsCommand::Call(args) => call(&args).await,
    }
}

async fn serve_tools(args: &ToolsServe) -> Result<Exit, Failure> {
    let cancel = signals::listen()?;
    open_files::allow_connections();
    let danger = "anyone could run code and read files with the tools";
    let (guard, roots) = match args.settings_from_stdin {
        true => {
            let OwnerSettings { token, roots } = owner_settings()?;
            let token = AccessToken::new(&token).map_err(|_| ToolsError::Settings)?;
            (AccessGuard::new(args.host, Some(token)), roots)
        }
        false => (guard(args.host, args.token_file.as_deref(), danger)?, Vec::new()),
    };
    let service = service(args.config.as_deref(), &roots)?;
    let address = SocketAddr::new(args.host, args.port);
    let stop = cancel.graceful.clone();
    let mut connecting = JoinSet::new();
    let listener = tokio::select! {
        biased;
        () = stop.cancelled() => None,
        listener = listen(&service, address, &mut connecting) => Some(listener?),
    };
    let Some(listener) = listener else {
        connecting.shutdown().await;
        return Ok(Exit::Cancelled);
    };
    let kinds: Vec<&str> = service.registry().resources().map(|(name, _)| name).collect();
    super::print(&format!(
        "serving {} ({}) at http://{}",
        count(service.registry().len() as u64, "tool"),
        kinds.join(", "),
        listener.local_addr()?,
    ))?;
    if !args.host.is_loopback() {
        warn(
            "tools",
            "requests and the token are not encrypted; for access from other machines, use a proxy with TLS",
        )?;
    }
    if args.until_stdin_closes {
        stop_with_stdin(stop.clone());
    }
    let warming = tokio::spawn(prepare(Arc::clone(&service)));
    let ended = tokio::select! {
        biased;
        () = cancel.now.cancelled() => Ok(Exit::Cancelled),
        ended = serve(Arc::clone(&service), listener, guard, stop) => match ended {
            Ok(()) => Ok(Exit::Success),
            Err(error) => Err(error.into()),
        },
    };
    // Otherwise the processes of MCP servers that do not answer would stay.
    connecting.shutdown().await;
    if matches!(ended, Ok(Exit::Cancelled)) {
        return ended;
    }
    // A sandbox engine that is still starting would leave files behind.
    let _ = tokio::time::timeout(WARM_UP_GRACE, warming).await;
    ended
}

/// Settings from the process that started the server. They come from stdin, because other users can read the arguments
/// and the environment variables of a process.
#[derive(Deserialize)]
struct OwnerSettings {
    token: String,
    #[serde(default)]
    roots: Vec<PathBuf>,
}

fn owner_settings() -> Result<OwnerSettings, ToolsError> {
    let mut line = String::new();
    io::stdin().lock().take(MAX_SETTINGS).read_line(&mut line).map_err(|_| ToolsError::Settings)?;
    serde_json::from_str(&line).map_err(|_| ToolsError::Settings)
}

/// Listens as soon as the names of all tools are known, which for MCP tools come from the MCP servers. A slow MCP
/// server delays the start only for [`MCP_PATIENCE`]; its tools appear when it answers.
async fn listen(
    service: &Arc<Service>,
    address: SocketAddr,
    connecting: &mut JoinSet<()>,
) -> Result<TcpListener, ToolsError> {
    // Bind first, so that a port in use is reported immediately.
    let listener = TcpListener::bind(address).await;
    let listener = listener.map_err(|source| ToolsError::Listen { address, source })?;
    connecting.spawn(connect(Arc::clone(service)));
    if tokio::time::timeout(MCP_PATIENCE, connecting.join_next()).await.is_err() {
        // stderr may be closed.
        let _ = warn(MCP, "some MCP servers have not answered yet; their tools are missing until they do");
        service.registry().refresh();
    }
    Ok(listener)
}

/// Connects to the MCP servers, and warns about those that cannot be reached.
async fn connect(service: Arc<Service>) {
    warm_up(&service, &[MCP.to_owned()]).await;
}

/// Checks what the other tools need, and warns about missing programs.
async fn prepare(service: Arc<Service>) {
    let names = service.registry().resources().map(|(name, _)| name.to_owned());
    let names: Vec<String> = names.filter(|name| ![COSTLY, MCP].contains(&name.as_str())).collect();
    warm_up(&service, &names).await;
}

async fn warm_up(service: &Service, names: &[String]) {
    for (name, error) in service.warm_up(Some(names)).await {
        // stderr may be closed.
        let _ = warn(&name, &error);
    }
}

fn warn(about: &str, message: &str) -> io::Result<()> {
    writeln!(anstream::stderr().lock(), "{}", warnings::line(about, message))
}

fn stop_with_stdin(stop: CancellationToken) {
    std::thread::spawn(move || {
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        stop.cancel();
    });
}

async fn list(args: &ToolsList) -> Result<Exit, Failure> {
    let service = service(args.config.as_deref(), &[])?;
    connect(Arc::clone(&service)).await;
    super::print(&listing(service.registry()))?;
    service.stop().await;
    Ok(Exit::Success)
}

fn listing(registry: &Registry) -> String {
    let mut text = String::new();
    for (name, spec) in registry.tools() {
        let parameters =
            spec.parameters["properties"].as_object().map(|map| map.keys().cloned().collect::<Vec<_>>());
        let parameters = parameters.unwrap_or_default().join(", ");
        text.push_str(&format!("{}({parameters})\n", paint(BOLD, &name)));
        text.push_str(&format!("    {}\n", spec.description.replace('\n', "\n    ")));
    }
    text.trim_end().to_owned()
}

async fn call(args: &ToolsCall) -> Result<Exit, Failure> {
    let cancel = signals::listen()?;
    let params = object("tool parameters", &args.params)?;
    let config = args.session_config.as_deref().map(|text| object("--session-config", text)).transpose()?;
    let service = service(args.config.as_deref(), &[])?;
    let called = async {
        // The MCP servers are needed only if the name is not known yet.
        if service.registry().find(&args.tool).is_err() {
            connect(Arc::clone(&service)).await;
        }
        if let Some(config) = config {
            let found = service
                .registry()
                .find(&args.tool)
                .map_err(|error| failed(error.code as u16, error.message))?;
            let opened = service.open(WORKER, found.resource.name(), &config, None).await;
            opened.map_err(|error| failed(error.code as u16, error.message))?;
        }
        let action = Action { action: args.tool.clone(), params, ..Action::default() };
        let envelope = service.execute(WORKER, action).await;
        if !envelope.is_success() {
            return Err(failed(envelope.code, envelope.message));
        }
        super::print(&format!("{:#}", envelope.data))?;
        Ok(Exit::Success)
    };
    let outcome = tokio::select! {
        biased;
        () = cancel.graceful.cancelled() => Ok(Exit::Cancelled),
        outcome = called => outcome,
    };
    service.stop().await;
    outcome
}

fn failed(code: u16, message: String) -> Failure {
    Failure::from(ToolsError::Called { code, message }).while_running()
}

fn object(what: &'static str, text: &str) -> Result<Params, ToolsError> {
    match serde_json::from_str(text) {
        Ok(serde_json::Value::Object(map)) => Ok(map),
        Ok(_) => Err(ToolsError::NotAnObject { what, source: None }),
        Err(error) => Err(ToolsError::NotAnObject { what, source: Some(error) }),
    }
}

/// Returns the tools of a configuration file, or the default tools.
fn service(config: Option<&Path>, roots: &[PathBuf]) -> Result<Arc<Service>, Failure> {
    let mut config = match config {
        Some(path) => ToolsConfig::load(path, &load::variable)
            .map_err(|problems| Failure::from(ToolsError::Config).details(problems.render(true)))?,
        None => ToolsConfig::default(),
    };
    config.add_roots(roots);
    logging::start(LogLevel::Warn, &config.secrets, true);
    let server = config.server.clone();
    let place = load::place()?;
    let helper = Helper::new(&place.helper);
    Ok(Service::new(config.registry(place, &helper)?, server))
}
