//! Arguments of `agents`.

use clap::{Args, Subcommand};

use super::Answer;

/// Arguments of `agents`.
#[derive(Debug, Args)]
pub(crate) struct Agents {
    /// What to show.
    #[command(subcommand)]
    pub what: AgentsCommand,
}

/// What `agents` shows.
#[derive(Debug, Subcommand)]
pub(crate) enum AgentsCommand {
    /// List the agents that can be run by name
    List {
        /// Output format
        #[arg(long, value_name = "FORMAT", default_value = "human")]
        output: Answer,
    },
    /// Fetch the packages of agents, so that jobs need no network for them
    Fetch {
        /// The names of the agents or the paths of presets, with `@VERSION` for another version than the tested one
        #[arg(required = true, value_name = "AGENT")]
        names: Vec<String>,

        /// The version of Python in the images of the tasks, for agents that are Python packages
        #[arg(long, value_name = "VERSION")]
        python: Option<String>,

        /// Fetch the programs for images with musl, such as Alpine
        #[arg(long)]
        musl: bool,
    },
    /// Print the preset of an agent, as a file that you can copy and change
    Show {
        /// The name of the agent
        name: String,
    },
}
