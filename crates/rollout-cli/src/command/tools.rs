//! `rollout tools`: tools for models, over HTTP and one at a time.

use std::{
    io::{self, Write as _},
    net::SocketAddr,
    path::Path,
    sync::Arc,
};

use rollout::config::LogLevel;
use rollout_tools::{
    Helper, Params, ToolsConfig,
    server::{Action, Registry, Service, serve},
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::{guard::guard, load, run};
use crate::{
    args::{ToolsCall, ToolsCommand, ToolsList, ToolsServe},
    exit::{Exit, Failure},
    logging,
    report::text::{BOLD, count, paint},
    signals,
};

/// Whose sessions those of `tools call` are.
const WORKER: &str = "command";

/// Why tools cannot be served or called.
#[derive(Debug, thiserror::Error)]
enum ToolsError {
    #[error("the configuration of the tools cannot be used")]
    Config,
    #[error("cannot listen at {address}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("{what} is not a JSON object")]
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
    let danger = "anybody could run code and read files through the tools";
    let guard = guard(args.host, args.token_file.as_deref(), danger)?;
    let service = service(args.config.as_deref())?;
    let address = SocketAddr::new(args.host, args.port);
    let stop = cancel.graceful.clone();
    let listener = tokio::select! {
        biased;
        () = stop.cancelled() => return Ok(Exit::Cancelled),
        listener = listen(&service, address) => listener?,
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
            "requests and the token are not encrypted; let other machines in through a proxy with TLS",
        )?;
    }
    if args.until_stdin_closes {
        stop_with_stdin(stop.clone());
    }
    let warming = tokio::spawn(warm_up(Arc::clone(&service)));
    let ended = tokio::select! {
        biased;
        () = cancel.now.cancelled() => Ok(Exit::Cancelled),
        ended = serve(Arc::clone(&service), listener, guard, stop) => match ended {
            Ok(()) => Ok(Exit::Success),
            Err(error) => Err(error.into()),
        },
    };
    warming.abort();
    ended
}

/// Listens as soon as the names of all tools are known: those of MCP servers come from the servers.
async fn listen(service: &Service, address: SocketAddr) -> Result<TcpListener, Failure> {
    // Before that, so that a port that is taken is told at once.
    let listener = TcpListener::bind(address).await;
    let listener = listener.map_err(|source| ToolsError::Listen { address, source })?;
    connect(service).await?;
    Ok(listener)
}

/// Connects to the MCP servers, and tells which of them cannot be reached.
async fn connect(service: &Service) -> Result<(), Failure> {
    for (name, error) in service.warm_up(Some(&["mcp".to_owned()])).await {
        warn(&name, &error)?;
    }
    Ok(())
}

/// Looks for what the tools need, and tells what is missing.
async fn warm_up(service: Arc<Service>) {
    for (name, error) in service.warm_up(None).await {
        // Nobody may be reading.
        let _ = warn(&name, &error);
    }
}

fn warn(about: &str, message: &str) -> io::Result<()> {
    writeln!(anstream::stderr().lock(), "{}", load::line(about, message))
}

fn stop_with_stdin(stop: CancellationToken) {
    std::thread::spawn(move || {
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        stop.cancel();
    });
}

async fn list(args: &ToolsList) -> Result<Exit, Failure> {
    let service = service(args.config.as_deref())?;
    connect(&service).await?;
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
    let params = object("what the tool is called with", &args.params)?;
    let config = args.session_config.as_deref().map(|text| object("--session-config", text)).transpose()?;
    let service = service(args.config.as_deref())?;
    let called = async {
        connect(&service).await?;
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

/// The tools that a file describes, or those that need no file.
fn service(config: Option<&Path>) -> Result<Arc<Service>, Failure> {
    let config = match config {
        Some(path) => ToolsConfig::load(path, &load::variable)
            .map_err(|problems| Failure::from(ToolsError::Config).details(problems.render(true)))?,
        None => ToolsConfig::default(),
    };
    logging::start(LogLevel::Warn, &config.secrets, true);
    let server = config.server.clone();
    let place = run::place()?;
    let helper = Helper::new(&place.helper);
    Ok(Service::new(config.registry(place, &helper)?, server))
}
