//! Arguments of `tools`.

use std::{net::IpAddr, path::PathBuf};

use clap::{Args, Subcommand};

const EXAMPLES: &str = "\
Examples:
  rollout tools serve                    Serve all tools at http://127.0.0.1:18890
  rollout tools list                     List the tools
  rollout tools call code:python '{\"code\": \"print(6 * 7)\"}'
                                         Call one tool without a server";

/// Arguments of `tools`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Tools {
    /// The subcommand.
    #[command(subcommand)]
    pub what: ToolsCommand,
}

/// The subcommands of `tools`.
#[derive(Debug, Subcommand)]
pub(crate) enum ToolsCommand {
    /// Serve the tools over HTTP; `sandbox_server_url` of a benchmark names the URL
    Serve(ToolsServe),
    /// List the tools and describe them
    List(ToolsList),
    /// Call one tool and print its result
    Call(ToolsCall),
}

/// Arguments of `tools serve`.
#[derive(Debug, Args)]
pub(crate) struct ToolsServe {
    /// The address to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub host: IpAddr,

    /// The port to listen on; 0 picks a free port
    #[arg(long, value_name = "PORT", default_value_t = 18890)]
    pub port: u16,

    /// The configuration of the tools, YAML or JSON; see docs/tools.md
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Require clients to send the token in this file as `Authorization: Bearer …`; mandatory if other
    /// machines can reach the address
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// Exit when stdin closes
    #[arg(long)]
    pub until_stdin_closes: bool,

    /// First read one line of JSON from stdin: the client token and additional roots
    #[arg(long, hide = true, requires = "until_stdin_closes", conflicts_with = "token_file")]
    pub settings_from_stdin: bool,
}

/// Arguments of `tools list`.
#[derive(Debug, Args)]
pub(crate) struct ToolsList {
    /// The configuration of the tools; see docs/tools.md
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Arguments of `tools call`.
#[derive(Debug, Args)]
pub(crate) struct ToolsCall {
    /// The tool, such as code:python
    pub tool: String,

    /// The parameters of the tool, as a JSON object
    #[arg(value_name = "JSON", default_value = "{}")]
    pub params: String,

    /// The configuration of the tools; see docs/tools.md
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// The configuration of the tool's session, as a JSON object
    #[arg(long, value_name = "JSON")]
    pub session_config: Option<String>,
}
