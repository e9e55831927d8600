//! `rollout gateway serve`: a model for agents outside of jobs.

use std::{
    fs,
    io::{self, Write as _},
    net::SocketAddr,
    path::PathBuf,
};

use rollout::{
    gateway::{
        Budget, Dialect, Gateway, GatewayConfig, ModelRoute, SessionSpec, SessionSummary, Upstream,
        known_prices,
    },
    model::client::{Prices, RateLimit},
};

use super::{open_files, warnings};
use crate::{
    args::{GatewayCommand, GatewayServe},
    exit::{Exit, Failure},
    report::text,
    signals,
};

/// Why the gateway cannot be served.
#[derive(Debug, thiserror::Error)]
enum GatewayServeError {
    #[error("the environment variable {name} is not set")]
    NoKey { name: String },
    #[error("invalid route `{text}`: write PATTERN=NAME, such as 'claude-*=gpt-5'")]
    Route { text: String },
    #[error("no model is set")]
    NoModel,
    #[error("cannot read the prices {}", path.display())]
    Prices { path: PathBuf, source: io::Error },
}

/// Serves until it is stopped.
pub(crate) async fn run(what: GatewayCommand) -> Result<Exit, Failure> {
    let GatewayCommand::Serve(args) = what;
    serve(args).await
}

async fn serve(args: GatewayServe) -> Result<Exit, Failure> {
    let cancel = signals::listen()?;
    open_files::allow_connections();
    let prices = match &args.prices {
        Some(path) => {
            let text = fs::read_to_string(path)
                .map_err(|source| GatewayServeError::Prices { path: path.clone(), source })?;
            Prices::parse(&text)?
        }
        None => known_prices(),
    };
    let config = GatewayConfig {
        address: SocketAddr::new(args.host, args.port),
        prices,
        rate_limit: RateLimit {
            requests_per_minute: args.requests_per_minute,
            tokens_per_minute: args.tokens_per_minute,
        },
        max_concurrent_calls: args.concurrency,
        max_retries: args.retries,
        cache: args.cache.clone(),
        ..GatewayConfig::default()
    };
    let spec = SessionSpec {
        routes: routes(&args)?,
        budget: Budget { tokens: args.max_tokens, dollars: args.max_dollars, calls: args.max_calls },
        token_ids: args.token_ids,
        provider_tools: args.provider_tools,
        ..SessionSpec::new(&args.record, ModelRoute::all(upstream(&args)?, ""))
    };
    let gateway = Gateway::start(config).await?;
    let session = gateway.open(spec)?;
    let (address, token) = (gateway.address(), session.token());
    super::print(&format!(
        "gateway at http://{address} in front of {}\n\
         token   {token}\n\
         record  {}\n\n\
         OPENAI_BASE_URL=http://{address}/v1 OPENAI_API_KEY={token}\n\
         ANTHROPIC_BASE_URL=http://{address} ANTHROPIC_API_KEY={token}\n\
         GOOGLE_GEMINI_BASE_URL=http://{address} GEMINI_API_KEY={token}",
        rollout::model::client::shown_url(&args.upstream),
        args.record.display(),
    ))?;
    if !args.host.is_loopback() {
        let note =
            "requests and the token are not encrypted; for access from other machines, use a proxy with TLS";
        writeln!(anstream::stderr().lock(), "{}", warnings::line("gateway", note))?;
    }
    cancel.graceful.cancelled().await;
    let closed = tokio::select! {
        biased;
        () = cancel.now.cancelled() => return Ok(Exit::Cancelled),
        summary = session.close() => summary,
    };
    super::print(&summary(&closed))?;
    gateway.stop().await;
    Ok(Exit::Success)
}

fn upstream(args: &GatewayServe) -> Result<Upstream, Failure> {
    let host = args.upstream.split("://").nth(1).and_then(|rest| rest.split(['/', ':']).next());
    let dialect = match (args.dialect, host) {
        (Some(dialect), _) => dialect.into(),
        (None, Some("api.anthropic.com")) => Dialect::Messages,
        (None, Some("generativelanguage.googleapis.com")) => Dialect::Gemini,
        (None, _) => Dialect::Chat,
    };
    let upstream = Upstream::new(&args.upstream, dialect);
    let Some(name) = &args.key_variable else { return Ok(upstream) };
    match std::env::var(name) {
        Ok(key) if !key.is_empty() => Ok(upstream.with_key(key)),
        _ => {
            let hint = format!("set it, for example: {name}=… rollout gateway serve …");
            Err(Failure::from(GatewayServeError::NoKey { name: name.clone() }).hint(Some(hint)))
        }
    }
}

fn routes(args: &GatewayServe) -> Result<Vec<ModelRoute>, Failure> {
    let upstream = upstream(args)?;
    if let Some(model) = &args.model {
        return Ok(vec![ModelRoute::all(upstream, model)]);
    }
    if args.route.is_empty() {
        let hint = "add --model NAME, or --route PATTERN=NAME for each model";
        return Err(Failure::from(GatewayServeError::NoModel).hint(Some(hint)));
    }
    let routes = args.route.iter().map(|text| match text.split_once('=') {
        Some((pattern, model)) if !pattern.is_empty() && !model.is_empty() => {
            Ok(ModelRoute { pattern: pattern.to_owned(), ..ModelRoute::all(upstream.clone(), model) })
        }
        _ => Err(GatewayServeError::Route { text: text.clone() }.into()),
    });
    routes.collect()
}

/// What was used, in a few lines.
fn summary(closed: &SessionSummary) -> String {
    let usage = &closed.usage;
    let cost = closed.cost.map_or_else(|| "cost unknown".to_owned(), |cost| format!("${cost:.4}"));
    let mut lines = vec![format!(
        "{}, {} answered: {} read ({} cached), {} written, {cost}",
        text::count(closed.calls, "call"),
        closed.turns,
        text::count(usage.input_tokens(), "token"),
        usage.cached_tokens,
        usage.completion_tokens,
    )];
    for (kind, count) in &closed.errors {
        let kind = serde_json::to_value(kind).unwrap_or_default();
        lines.push(format!("{count} failed: {}", kind.as_str().unwrap_or_default().replace('_', " ")));
    }
    lines.join("\n")
}
