//! Arguments of `gateway`.

use std::{net::IpAddr, num::NonZeroU32, path::PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use rollout::gateway::Dialect;

const EXAMPLES: &str = "\
Examples:
  rollout gateway serve --upstream https://api.openai.com/v1 --key-variable OPENAI_API_KEY --model gpt-5
      Every model name that an agent asks for becomes gpt-5
  rollout gateway serve --upstream http://localhost:8000/v1 --model qwen3 --token-ids
      A vLLM server; token ids and log-probabilities are recorded
  rollout gateway serve --upstream https://api.anthropic.com --key-variable ANTHROPIC_API_KEY \\
      --route 'claude-haiku-*=claude-haiku-4-5' --route 'claude-*=claude-sonnet-4-5' --max-dollars 5
      Two models, and nothing else; no further calls after five dollars

The agent gets the printed address as its base URL and the printed token as its key. It may speak Chat Completions,
Responses, Messages or generateContent, whatever the upstream speaks. Each call becomes a line of the record.";

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
    /// Serve a model to agents over HTTP, record their calls, and keep the real key
    #[command(after_help = EXAMPLES)]
    Serve(GatewayServe),
}

/// The dialect of an upstream.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum UpstreamDialect {
    /// Chat Completions
    Chat,
    /// OpenAI's Responses
    Responses,
    /// Anthropic's Messages
    Messages,
    /// Google's generateContent
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

    /// The protocol of the model server; the default is messages for api.anthropic.com, gemini for Google, else chat
    #[arg(long, value_name = "DIALECT")]
    pub dialect: Option<UpstreamDialect>,

    /// The environment variable with the real key
    #[arg(long, value_name = "NAME")]
    pub key_variable: Option<String>,

    /// The model at the server; every name that an agent asks for is mapped to it
    #[arg(long, value_name = "NAME", conflicts_with = "route")]
    pub model: Option<String>,

    /// Map model names to a model of the server, like 'claude-*=gpt-5'; other names are refused
    #[arg(long, value_name = "PATTERN=NAME")]
    pub route: Vec<String>,

    /// The file of the calls, one line of JSON each
    #[arg(long, value_name = "FILE", default_value = "calls.jsonl")]
    pub record: PathBuf,

    /// The most calls
    #[arg(long, value_name = "N", help_heading = "Limits")]
    pub max_calls: Option<u64>,

    /// The most tokens, read and written
    #[arg(long, value_name = "N", help_heading = "Limits")]
    pub max_tokens: Option<u64>,

    /// The most US dollars
    #[arg(long, value_name = "AMOUNT", help_heading = "Limits")]
    pub max_dollars: Option<f64>,

    /// The most requests per minute; further ones wait
    #[arg(long, value_name = "N", help_heading = "Limits")]
    pub requests_per_minute: Option<NonZeroU32>,

    /// The most tokens per minute; further requests wait
    #[arg(long, value_name = "N", help_heading = "Limits")]
    pub tokens_per_minute: Option<NonZeroU32>,

    /// The most calls at once; further ones wait
    #[arg(long, value_name = "N", default_value_t = 1024, help_heading = "Limits")]
    pub concurrency: usize,

    /// How often a failed call is tried again, if the failure may be temporary
    #[arg(long, value_name = "N", default_value_t = 5, help_heading = "Limits")]
    pub retries: u32,

    /// Save responses in this directory, and answer the same requests from it in later runs
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,

    /// Prices in dollars per million tokens, like `gpt-5: {input: 1.25, output: 10}`; they replace the built-in table
    #[arg(long, value_name = "FILE")]
    pub prices: Option<PathBuf>,

    /// Ask the server for token ids and log-probabilities
    #[arg(long)]
    pub token_ids: bool,

    /// Keep tools that run at the provider, such as web search; by default they are removed from requests
    #[arg(long)]
    pub provider_tools: bool,

    /// The address to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub host: IpAddr,

    /// The port to listen on; 0 picks a free port
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub port: u16,
}
