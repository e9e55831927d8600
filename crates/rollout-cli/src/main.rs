//! The `rollout` command: arguments, output and exit status.

mod args;
mod command;
mod disk;
mod engine;
mod exit;
mod logging;
mod packages;
mod report;
mod runtime;
mod signals;
mod state;
mod terminal;

use std::process::ExitCode;

use clap::Parser as _;

use args::{Cli, Command};
use exit::{Exit, Failure};
use runtime::on_runtime;

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().collect();
    if args.get(1).is_some_and(|first| first == rollout_sandbox::HELPER_ARG) {
        rollout_sandbox::helper_main();
    }
    if args.get(1).is_some_and(|first| first == rollout_tools::HELPER_ARG) {
        return rollout_tools::helper_main(args);
    }
    let cli = Cli::parse_from(args::with_default_command(args));
    run(cli.command).unwrap_or_else(|failure| failure.report()).into()
}

fn run(command: Command) -> Result<Exit, Failure> {
    match command {
        Command::Run(args) => on_runtime(command::run::run(args)),
        Command::Eval(args) => on_runtime(command::eval::run(args)),
        Command::Ask(args) => on_runtime(command::ask::run(args)),
        Command::Resume(args) => on_runtime(command::resume::run(args)),
        Command::Score(args) => on_runtime(command::score::run(&args)),
        Command::Serve(args) => on_runtime(command::serve::run(&args)),
        Command::Gateway(args) => on_runtime(command::gateway::run(args.what)),
        Command::Agents(args) => on_runtime(command::agents::run(&args.what)),
        Command::Datasets(args) => on_runtime(command::datasets::run(args.what)),
        Command::Tools(args) => on_runtime(command::tools::run(args.what)),
        Command::List(args) => command::list::run(&args),
        Command::Show(args) => command::show::run(&args),
        Command::Logs(args) => command::logs::run(&args),
        Command::Note(args) => command::note::run(&args),
        Command::View(args) => on_runtime(command::view::run(args)),
        Command::Export(args) => command::export::run(&args),
        Command::Import(args) => match args.from {
            args::ImportFrom::Harbor(args) => command::import::harbor(&args),
        },
        Command::Compare(args) => command::compare::run(&args),
        Command::Investigate(args) => on_runtime(command::investigate::run(&args)),
        Command::Regrade(args) => on_runtime(command::regrade::run(args)),
        Command::Reproduce(args) => on_runtime(command::reproduce::run(args)),
        Command::Flakes(args) => on_runtime(command::flakes::run(args)),
        Command::Check(args) => on_runtime(command::check::run(args)),
        Command::Validate(args) => on_runtime(command::validate::run(&args)),
        Command::Shell(args) => on_runtime(command::shell::shell(&args)),
        Command::Attach(args) => on_runtime(command::shell::attach(&args)),
        Command::Init(args) => command::init::run(&args),
        Command::Schema(args) => command::schema::run(&args),
        Command::Doctor(args) => on_runtime(command::doctor::run(args)),
        Command::Clean(args) => command::clean::run(&args),
        Command::Completions(args) => command::completions(&args),
    }
}
