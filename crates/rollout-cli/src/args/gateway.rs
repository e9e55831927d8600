//! Arguments of `gateway`.

use std::{net::IpAddr, num::NonZeroU32, path::PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use rollout::gateway::Dialect;

const EXAMPLES: &str = "\
Examples:
  rollout gateway serve --upstream https://api.openai.com/v1 --key-variable OPENAI_API_KEY --model gpt-5
      Use gpt-5 for every model name that an agent requests
  rollout gateway serve --upstream http://localhost:8000/v1 --model qwen3 --token-ids
      Use a vLLM server, and record token ids and log-probabilities
  rollout gateway serve --upstream https://api.anthropic.com --key-variable ANTHROPIC_API_KEY \\
      --route 'claude-haiku-*=claude-haiku-4-5' --route 'claude-*=claude-sonnet-4-5' --max-dollars 5
      Allow two models only, and reject further calls after five dollars

Give an agent the printed address as its base URL, and the printed token as its key. The agent may use Chat
Completions, Responses, Messages or generateContent: requests are translated if the upstream uses another API.
Each call is recorded as one line.";

/// Arguments of `gateway`.
#[derive(Debug, Args)]
pub(crate) struct GatewayArgs {
    /// The subcommand.
    #[command(subcommand)]
    pub what: GatewayCommand,
}

/// The subcommands of `gateway`.
#[derive(Debug, Subcommand)]
pub(crate) enum GatewayCommand {
    /// Serve a model to agents over HTTP, and record their calls; agents never see the real API key
    #[command(after_help = EXAMPLES)]
    Serve(GatewayServe),
}

/// The dialect of an upstream.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum UpstreamDialect {
    /// The Chat Completions API of OpenAI
    Chat,
    /// The Responses API of OpenAI
    Responses,
    /// The Messages API of Anthropic
    Messages,
    /// The generateContent API of Google
    Gemini,
}

impl From<UpstreamDialect> for Dialect {
    fn from(dialect: UpstreamDialect) -> Self {
        match dialect {
            UpstreamDialect::Chat => Self::Chat,
            UpstreamDialect::Responses => Self::Responses,
            UpstreamDialect::Messages => Self::Messages,
            UpstreamDialect::Gemini => Self::Gemini,
        }
    }
}

/// Arguments of `gateway serve`.
#[derive(Debug, Args)]
pub(crate) struct GatewayServe {
    /// The URL of the model server, such as https://api.openai.com/v1
    #[arg(long, value_name = "URL")]
    pub upstream: String,

    /// The API of the model server; by default messages for api.anthropic.com, gemini for Google, and chat
    /// for other servers
    #[arg(long, value_name = "DIALECT")]
    pub dialect: Option<UpstreamDialect>,

    /// The environment variable that contains the real API key
    #[arg(long, value_name = "NAME")]
    pub key_variable: Option<String>,

    /// The model of the server; it is used for every model name that an agent requests
    #[arg(long, value_name = "NAME", conflicts_with = "route")]
    pub model: Option<String>,

    /// Use a model of the server for all names that match a pattern, such as 'claude-*=gpt-5'; other names are
    /// rejected; can be repeated
    #[arg(long, value_name = "PATTERN=NAME")]
    pub route: Vec<String>,

    /// The file to record the calls in, as one line of JSON for each call
    #[arg(long, value_name = "FILE", default_value = "calls.jsonl")]
    pub record: PathBuf,

    /// Maximum number of calls
    #[arg(long, value_name = "N", help_heading = "Limits")]
    pub max_calls: Option<u64>,

    /// Maximum number of tokens, read and written
    #[arg(long, value_name = "N", help_heading = "Limits")]
    pub max_tokens: Option<u64>,

    /// Maximum cost in US dollars
    #[arg(long, value_name = "AMOUNT", help_heading = "Limits")]
    pub max_dollars: Option<f64>,

    /// Maximum number of requests per minute; further requests wait
    #[arg(long, value_name = "N", help_heading = "Limits")]
    pub requests_per_minute: Option<NonZeroU32>,

    /// Maximum number of tokens per minute; further requests wait
    #[arg(long, value_name = "N", help_heading = "Limits")]
    pub tokens_per_minute: Option<NonZeroU32>,

    /// Maximum number of calls at the same time; further calls wait
    #[arg(long, value_name = "N", default_value_t = 1024, help_heading = "Limits")]
    pub concurrency: usize,

    /// How often a call is retried after a temporary failure
    #[arg(long, value_name = "N", default_value_t = 5, help_heading = "Limits")]
    pub retries: u32,

    /// Save responses in this directory, and answer the same requests from it in later runs
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,

    /// A file with prices in US dollars per million tokens, with lines such as `gpt-5: {input: 1.25, output: 10}`;
    /// it replaces the built-in table
    #[arg(long, value_name = "FILE")]
    pub prices: Option<PathBuf>,

    /// Ask the server for token ids and log-probabilities
    #[arg(long)]
    pub token_ids: bool,

    /// Allow tools that run at the model's provider, such as web search; by default they are removed from requests
    #[arg(long)]
    pub provider_tools: bool,

    /// The address to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub host: IpAddr,

    /// The port to listen on; 0 picks a free port
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub port: u16,
}
