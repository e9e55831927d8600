//! The command line: subcommands, their arguments and their help texts.

mod agents;
mod check;
mod clean;
#[cfg(feature = "kubernetes")]
mod cluster;
mod compare;
mod datasets;
mod eval;
mod export;
mod flakes;
mod gateway;
mod import;
mod investigate;
#[cfg(test)]
mod reference;
mod regrade;
mod reproduce;
mod score;
mod tools;
mod viewing;

use std::{
    ffi::OsString,
    net::IpAddr,
    path::{Path, PathBuf},
    str::FromStr,
};

use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};

pub(crate) use agents::{Agents, AgentsCommand};
pub(crate) use check::Check;
pub(crate) use clean::{Clean, Doctor};
pub(crate) use compare::Compare;
pub(crate) use datasets::{Datasets, DatasetsCommand};
pub(crate) use eval::{Ask, Eval};
pub(crate) use export::{
    EeeRelationship, EvalLogDialect, Export, ExportEee, ExportEvalLog, ExportFormat, ExportRl, ExportWhat,
    FromJob,
};
pub(crate) use flakes::Flakes;
pub(crate) use gateway::{GatewayArgs, GatewayCommand, GatewayServe};
pub(crate) use import::{Import, ImportFrom, ImportHarbor};
pub(crate) use investigate::{Investigate, InvestigateOnly};
pub(crate) use regrade::Regrade;
pub(crate) use reproduce::Reproduce;
pub(crate) use score::Score;
pub(crate) use tools::{Tools, ToolsCall, ToolsCommand, ToolsList, ToolsServe};
pub(crate) use viewing::{List, LogPhase, Logs, Note, Show, SortBy, StatusFilter, View};

const USAGE: &str = "\
rollout <JOB> [OPTIONS]
       rollout <COMMAND>";

const EXAMPLES: &str = "\
Examples:
  rollout init job my-eval               Create a job that is ready to run
  rollout my-eval/job.yaml               Run it
  rollout my-eval/job.yaml --dry-run     Show what would run
  rollout run -d terminal-bench@2.0 -a codex -m openai/gpt-5.5
                                         Run an agent on a known dataset, without a job file
  rollout resume jobs/2026-01-15__10-30-00
                                         Continue after Ctrl-C or a crash
  rollout doctor                         Check what this machine can run

Exit status:
  0    every trial completed, with any reward
  1    a trial failed, or the result is below --fail-under
  2    nothing ran: the command, the configuration or the container engine has a problem
  130  cancelled";

const RUN_EXAMPLES: &str = "\
Examples:
  rollout run -d gsm8k -m openai/gpt-5.5
                                         Ask a model the questions of a known benchmark
  rollout run -d tasks/ -a claude-code -m anthropic/claude-sonnet-4-5
                                         Run an agent on tasks without a job file
  rollout run -d tasks/ -a oracle -k 3 --save job.yaml --dry-run
                                         Save the job as a file, without running it
  rollout job.yaml --agent oracle --task 'sort-*'
                                         Run part of the job
  rollout job.yaml --limit 5 --attempts 1 --set environment.preserve_env=always
                                         Run a few trials and keep their environments
  rollout job.yaml --fail-under pass_rate=0.9 --junit report.xml
                                         Fail a CI build if the pass rate is too low
  rollout job.yaml --output json | jq -c 'select(.event == \"trial_finished\")'
                                         Read the events with another program";

const RESUME_EXAMPLES: &str = "\
Examples:
  rollout resume jobs/nightly                    Run trials that have no result yet
  rollout resume jobs/nightly --rerun error      Run failed trials again
  rollout resume jobs/nightly --attempts 5       Raise the number of attempts to five
  rollout resume jobs/nightly --budget 100       Continue a job that stopped at its budget
  rollout resume jobs/nightly --with job.yaml    Add the new agents and tasks of the job file";

/// Run agents on tasks in isolated environments, and score the results
///
/// `rollout job.yaml` is short for `rollout run job.yaml`.
#[derive(Debug, Parser)]
#[command(name = "rollout", version, override_usage = USAGE, after_help = EXAMPLES, max_term_width = 100)]
pub(crate) struct Cli {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a job: every agent attempts every task
    #[command(after_help = RUN_EXAMPLES)]
    Run(Run),
    /// Run a benchmark: ask a model its questions, and score the answers
    #[command(after_help = eval::EVAL_EXAMPLES)]
    Eval(Eval),
    /// Ask a model one question
    #[command(after_help = eval::ASK_EXAMPLES)]
    Ask(Ask),
    /// Continue an interrupted job or benchmark, or add trials to a job
    #[command(after_help = RESUME_EXAMPLES)]
    Resume(Resume),
    /// Score saved answers with another metric, judge or rubric
    Score(Score),
    /// Serve model rollouts to a training loop over HTTP
    Serve(Serve),
    /// Serve a model to agents over HTTP, with records and limits
    Gateway(GatewayArgs),
    /// List, fetch and describe the agents that can be run by name
    Agents(Agents),
    /// List, show and fetch datasets that can be run by name
    Datasets(Datasets),
    /// Serve tools to models over HTTP: code, documents, databases, the web
    Tools(Tools),
    /// List jobs, or the trials of a job
    #[command(after_help = viewing::LIST_EXAMPLES)]
    List(List),
    /// Show one trial: outcome, error, phases, output, cost
    #[command(after_help = viewing::SHOW_EXAMPLES)]
    Show(Show),
    /// Print the output of a trial, also while it runs
    #[command(after_help = viewing::LOGS_EXAMPLES)]
    Logs(Logs),
    /// Tag and comment trials, or list their notes
    #[command(after_help = viewing::NOTE_EXAMPLES)]
    Note(Note),
    /// Show jobs and trials in a browser
    #[command(after_help = viewing::VIEW_EXAMPLES)]
    View(View),
    /// Export the results of a job to files for other programs
    Export(Export),
    /// Convert a job directory of another program, to compare, view and export it here
    Import(Import),
    /// Compare jobs or agents task by task, with statistical tests
    #[command(after_help = compare::EXAMPLES)]
    Compare(Compare),
    /// Ask a model why trials of a job were not solved
    Investigate(Investigate),
    /// Run the tests of a finished job again, without its agents, and report what changed
    Regrade(Regrade),
    /// Run one trial again, and report what differs
    Reproduce(Reproduce),
    /// Find tasks whose own solution does not always pass, or that pass without any work
    Flakes(Flakes),
    /// Check the quality of tasks: solutions, tests, leaks, pinned versions, time and size
    Check(Check),
    /// Check a job, a task, a dataset or a benchmark without running anything
    Validate(Validate),
    /// Open a shell in a new environment of a task
    Shell(Shell),
    /// Open a shell in the preserved environment of a trial
    Attach(Attach),
    /// Create a job or a task that is ready to run
    Init(Init),
    /// Print the JSON Schema of a file, for editors
    Schema(Schema),
    /// Check what this machine can run, and suggest fixes
    Doctor(Doctor),
    /// Remove containers and files left by earlier runs
    Clean(Clean),
    /// Print a completion script for a shell
    Completions(Completions),
}

/// Arguments of `run`.
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The job file, a directory with a job.yaml, or - for stdin; without it, --dataset, --agent and
    /// --model define the job
    #[arg(value_name = "JOB")]
    pub job: Option<PathBuf>,

    /// Show the plan without running it
    #[arg(long)]
    pub dry_run: bool,

    /// Reject the job if a task is invalid or uses an unsupported setting
    #[arg(long)]
    pub strict: bool,

    /// Also run tasks with unsupported settings; each result lists these settings
    #[arg(long)]
    pub allow_unsupported: bool,

    /// Run only agents whose name matches this pattern. Without a job file: the agent to run, which is a
    /// name of `rollout agents list`, oracle, nop, or the path of a preset. Can be repeated
    #[arg(short, long, value_name = "AGENT", help_heading = "Selection")]
    pub agent: Vec<String>,

    /// Run only tasks whose name matches this pattern; can be repeated
    #[arg(long, value_name = "GLOB", help_heading = "Selection")]
    pub task: Vec<String>,

    /// Run only datasets whose name matches this pattern. Without a job file: a name of `rollout datasets
    /// list`, a directory of tasks, a task, an interaction file, git+URL, or hf:OWNER/NAME. Can be repeated
    #[arg(short, long, value_name = "DATASET", help_heading = "Selection")]
    pub dataset: Vec<String>,

    /// Run at most this many tasks of each dataset
    #[arg(long, value_name = "N", help_heading = "Selection")]
    pub limit: Option<usize>,

    /// The model of the agents, such as anthropic/claude-sonnet-4-5; without --agent, the model itself
    /// attempts the tasks; can be repeated
    #[arg(short, long, value_name = "MODEL", conflicts_with = "job", help_heading = "Without a job file")]
    pub model: Vec<String>,

    /// The URL of an OpenAI-compatible model server; its API key is read from OPENAI_API_KEY
    #[arg(long, value_name = "URL", requires = "model", help_heading = "Without a job file")]
    pub base_url: Option<String>,

    /// Save the job as a new job file
    #[arg(long, value_name = "FILE", conflicts_with = "job", help_heading = "Without a job file")]
    pub save: Option<PathBuf>,

    /// Number of attempts per task; overrides n_attempts
    #[arg(short = 'k', long, value_name = "N", help_heading = "Execution")]
    pub attempts: Option<u32>,

    /// Number of trials that run at the same time; overrides n_concurrent_trials
    #[arg(short = 'n', long, value_name = "N", help_heading = "Execution")]
    pub concurrency: Option<u32>,

    /// The environment provider, such as docker or native; overrides environment.type
    #[arg(short, long, value_name = "PROVIDER", help_heading = "Execution")]
    pub environment: Option<String>,

    /// Read variables for ${VAR} from a file with lines of the form NAME=value; variables of the
    /// environment take precedence
    #[arg(long, value_name = "FILE", help_heading = "Execution")]
    pub env_file: Option<PathBuf>,

    /// Find datasets without a network; reject the job if a file is not on this machine
    #[arg(long, help_heading = "Execution")]
    pub offline: bool,

    /// Override a setting of the job file, such as environment.type=docker; can be repeated
    #[arg(long, value_name = "KEY=VALUE", help_heading = "Execution")]
    pub set: Vec<String>,

    /// Exit with status 1 if the pass_rate or the mean_reward is lower than this bound, such as
    /// pass_rate=0.9; can be repeated
    #[arg(long, value_name = "RATE=BOUND", help_heading = "Output")]
    pub fail_under: Vec<FailUnder>,

    /// Write a JUnit report: an unsolved trial is a failure, a failed trial is an error
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub junit: Option<PathBuf>,

    /// Output format
    #[arg(
        long,
        value_name = "FORMAT",
        default_value = "human",
        hide_default_value = true,
        help_heading = "Output"
    )]
    pub output: Output,
}

/// Arguments of `resume`.
#[derive(Debug, Args)]
pub(crate) struct Resume {
    /// The job's directory
    #[arg(value_name = "JOB_DIR")]
    pub directory: PathBuf,

    /// Which trials to run
    #[arg(long, value_name = "WHICH", value_delimiter = ',', default_value = "missing")]
    pub rerun: Vec<RerunWhich>,

    /// New number of attempts per task; existing results are kept
    #[arg(long, value_name = "N")]
    pub attempts: Option<u32>,

    /// New budget in US dollars, for all runs of the job together; overrides budget.usd
    #[arg(long, value_name = "USD")]
    pub budget: Option<f64>,

    /// Add agents, datasets, tasks and attempts of this job file that are not in the job yet
    #[arg(long, value_name = "JOB")]
    pub with: Option<PathBuf>,

    /// Find datasets without a network; fail if a file is not on this machine
    #[arg(long)]
    pub offline: bool,

    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub output: Output,
}

/// Which trials `resume` runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RerunWhich {
    /// Trials without a result
    Missing,
    /// Trials that failed
    Error,
    /// Trials without a reward, or with a reward below the pass_threshold of their dataset
    Unsolved,
}

/// The output format of a command that reports progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// A live display on a terminal, lines of text in a pipe or in CI
    Human,
    /// One JSON event per line
    Json,
}

impl From<Answer> for Output {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Human => Self::Human,
            Answer::Json => Self::Json,
        }
    }
}

/// The output format of a command that prints one result at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Answer {
    /// Text
    Human,
    /// One JSON object
    Json,
}

/// Arguments of `serve`.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// The job file; it must have one model and one dataset
    #[arg(value_name = "JOB")]
    pub job: PathBuf,

    /// The address to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub host: IpAddr,

    /// The port to listen on; 0 picks a free port
    #[arg(long, value_name = "PORT", default_value_t = 8321)]
    pub port: u16,

    /// Require clients to send the token in this file as `Authorization: Bearer …`; mandatory if other
    /// machines can reach the address
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

/// Arguments of `validate`.
#[derive(Debug, Args)]
pub(crate) struct Validate {
    /// A job file, a benchmark configuration, a task directory, a directory of tasks, or the name of a dataset
    #[arg(value_name = "PATH")]
    pub path: PathBuf,

    /// Treat warnings as errors
    #[arg(long)]
    pub strict: bool,
}

/// Arguments of `shell`.
#[derive(Debug, Args)]
pub(crate) struct Shell {
    /// The task's directory
    #[arg(value_name = "TASK_DIR")]
    pub task: PathBuf,

    /// The environment provider; by default docker if a Docker engine is available, else native
    #[arg(long, value_name = "WHERE")]
    pub environment: Option<ShellEnvironment>,

    /// Also copy the tests to /tests; agents never see them
    #[arg(long)]
    pub with_tests: bool,
}

/// The environment provider of `shell`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ShellEnvironment {
    /// A container of a Docker engine
    Docker,
    /// A sandbox on this machine, without a container engine
    Native,
}

/// Arguments of `attach`.
#[derive(Debug, Args)]
pub(crate) struct Attach {
    /// The trial's directory, which contains its result.json
    #[arg(value_name = "TRIAL_DIR")]
    pub trial: PathBuf,
}

/// Arguments of `init`.
#[derive(Debug, Args)]
pub(crate) struct Init {
    /// What to create
    pub kind: InitKind,

    /// The directory to create
    #[arg(value_name = "DIR")]
    pub name: PathBuf,
}

/// What `init` creates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum InitKind {
    /// A job with one task
    Job,
    /// A task
    Task,
}

/// Arguments of `schema`.
#[derive(Debug, Args)]
pub(crate) struct Schema {
    /// The kind of file that the schema describes
    #[arg(value_name = "KIND")]
    pub of: SchemaOf,
}

/// The kinds of file that have a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SchemaOf {
    /// job.yaml
    Job,
    /// task.toml
    Task,
    /// An interaction file, which a dataset names under `interaction:`
    Interaction,
    /// A benchmark configuration, for `rollout eval`
    Benchmark,
    /// A preset of an agent
    Preset,
}

/// Arguments of `completions`.
#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell
    pub shell: clap_complete::Shell,
}

/// A bound that a job's results must reach.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct FailUnder {
    /// The figure.
    pub rate: Rate,
    /// Its smallest accepted value.
    pub bound: f64,
}

/// A figure of the headline in the job's result.json.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rate {
    /// The share of counted trials that are solved.
    PassRate,
    /// The mean reward of counted trials.
    MeanReward,
}

impl Rate {
    /// The name on the command line.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::PassRate => "pass_rate",
            Self::MeanReward => "mean_reward",
        }
    }
}

impl FromStr for FailUnder {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (rate, bound) = text.split_once('=').ok_or("expected the form pass_rate=0.9")?;
        let rate = [Rate::PassRate, Rate::MeanReward]
            .into_iter()
            .find(|known| known.as_str() == rate.trim())
            .ok_or_else(|| format!("unknown rate {rate:?}: expected pass_rate or mean_reward"))?;
        match bound.trim().parse::<f64>() {
            Ok(bound) if bound.is_finite() => Ok(Self { rate, bound }),
            _ => Err(format!("{bound:?} is not a number")),
        }
    }
}

/// Inserts `run` if the first argument is a job file or an option of `run`.
pub(crate) fn with_default_command(mut args: Vec<OsString>) -> Vec<OsString> {
    let Some(first) = args.get(1).and_then(|first| first.to_str()) else { return args };
    let for_rollout = ["-h", "--help", "-V", "--version", "help"].contains(&first)
        || Cli::command().get_subcommands().any(|command| command.get_name() == first);
    let path = Path::new(first);
    let is_job = first.starts_with('-')
        || first.contains('/')
        || path.exists()
        || path
            .extension()
            .is_some_and(|extension| extension == "yaml" || extension == "yml" || extension == "json");
    if !for_rollout && is_job {
        args.insert(1, "run".into());
    }
    args
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(args: &[&str]) -> String {
        let args = std::iter::once("rollout").chain(args.iter().copied()).map(OsString::from).collect();
        with_default_command(args).join(" ".as_ref()).into_string().unwrap()
    }

    #[test]
    fn a_job_file_needs_no_command() {
        assert_eq!(expanded(&["job.yaml"]), "rollout run job.yaml");
        assert_eq!(expanded(&["a/b.json", "--dry-run"]), "rollout run a/b.json --dry-run");
        assert_eq!(expanded(&["--dry-run", "job.yml"]), "rollout run --dry-run job.yml");
        assert_eq!(expanded(&["Cargo.toml"]), "rollout run Cargo.toml");
        assert_eq!(expanded(&["src"]), "rollout run src");
        assert_eq!(expanded(&["jobs/missing"]), "rollout run jobs/missing");
        assert_eq!(expanded(&["-"]), "rollout run -");
        assert_eq!(expanded(&["/dev/stdin"]), "rollout run /dev/stdin");
        for other in [&["run", "job.yaml"][..], &["--version"], &["--help"], &["doctor"], &["jobb"], &[]] {
            assert_eq!(
                expanded(other),
                ["rollout"].iter().chain(other).copied().collect::<Vec<_>>().join(" ")
            );
        }
    }

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_bound_is_a_rate_and_a_number() {
        assert_eq!("pass_rate=0.9".parse(), Ok(FailUnder { rate: Rate::PassRate, bound: 0.9 }));
        assert_eq!("mean_reward = -1".parse(), Ok(FailUnder { rate: Rate::MeanReward, bound: -1.0 }));
        for (text, problem) in [
            ("0.9", "expected the form pass_rate=0.9"),
            ("cost=1", "unknown rate \"cost\": expected pass_rate or mean_reward"),
            ("pass_rate=NaN", "\"NaN\" is not a number"),
            ("pass_rate=", "\"\" is not a number"),
        ] {
            assert_eq!(text.parse::<FailUnder>(), Err(problem.to_owned()));
        }
    }
}
