//! The `rollout` command: arguments, what a person sees, and how it ends.

mod args;
mod command;
mod exit;
mod report;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

use args::{Cli, Command};
use exit::{Exit, Failure};

fn main() -> ExitCode {
    let cli = Cli::parse_from(args::with_default_command(std::env::args_os().collect()));
    run(cli.command).unwrap_or_else(|failure| failure.report()).into()
}

fn run(command: Command) -> Result<Exit, Failure> {
    match command {
        Command::Init(args) => command::init::run(&args),
        Command::Completions(args) => {
            let mut script = Vec::new();
            clap_complete::generate(args.shell, &mut Cli::command(), "rollout", &mut script);
            command::print(String::from_utf8_lossy(&script).trim_end())?;
            Ok(Exit::Success)
        }
        _ => Ok(Exit::Wrong),
    }
}
