//! Arguments of `tools`.

use std::{net::IpAddr, path::PathBuf};

use clap::{Args, Subcommand};

const EXAMPLES: &str = "\
Examples:
  rollout tools serve                    Serve all tools at http://127.0.0.1:18890
  rollout tools list                     See what there is
  rollout tools call code:python '{\"code\": \"print(6 * 7)\"}'
                                         Try one without a server";

/// Arguments of `tools`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Tools {
    /// What to do.
    #[command(subcommand)]
    pub what: ToolsCommand,
}

/// What `tools` does.
#[derive(Debug, Subcommand)]
pub(crate) enum ToolsCommand {
    /// Serve the tools until stopped; benchmarks reach them as `sandbox_server_url`
    Serve(ToolsServe),
    /// List the tools with what they do
    List(ToolsList),
    /// Call one tool and print what comes of it
    Call(ToolsCall),
}

/// Arguments of `tools serve`.
#[derive(Debug, Args)]
pub(crate) struct ToolsServe {
    /// The address to listen at
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub host: IpAddr,

    /// The port to listen at; 0 for any that is free
    #[arg(long, value_name = "PORT", default_value_t = 18890)]
    pub port: u16,

    /// Which tools there are and what they may use, YAML or JSON; docs/tools.md describes it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Let in only clients that send the content of this file as `Authorization: Bearer …`; needed for an
    /// address that other machines can reach
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// Exit when stdin closes
    #[arg(long)]
    pub until_stdin_closes: bool,

    /// Read a line of JSON from stdin first, with the token of the clients and further roots
    #[arg(long, hide = true, requires = "until_stdin_closes", conflicts_with = "token_file")]
    pub settings_from_stdin: bool,
}

/// Arguments of `tools list`.
#[derive(Debug, Args)]
pub(crate) struct ToolsList {
    /// Which tools there are and what they may use
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Arguments of `tools call`.
#[derive(Debug, Args)]
pub(crate) struct ToolsCall {
    /// The tool, such as code:python
    pub tool: String,

    /// Its parameters, as a JSON object
    #[arg(value_name = "JSON", default_value = "{}")]
    pub params: String,

    /// Which tools there are and what they may use
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// What its session is opened with, as a JSON object
    #[arg(long, value_name = "JSON")]
    pub session_config: Option<String>,
}
