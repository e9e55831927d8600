//! What can be written after `rollout`.

mod compare;
mod eval;
mod export;
mod flakes;
mod investigate;
mod reproduce;
mod score;
mod tools;

use std::{
    ffi::OsString,
    net::IpAddr,
    path::{Path, PathBuf},
    str::FromStr,
};

use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};

pub(crate) use compare::Compare;
pub(crate) use eval::{Ask, Eval};
pub(crate) use export::{
    EeeRelationship, EvalLogDialect, Export, ExportEee, ExportEvalLog, ExportFormat, ExportRl, ExportWhat,
    FromJob,
};
pub(crate) use flakes::Flakes;
pub(crate) use investigate::{Investigate, InvestigateOnly};
pub(crate) use reproduce::Reproduce;
pub(crate) use score::Score;
pub(crate) use tools::{Tools, ToolsCall, ToolsCommand, ToolsList, ToolsServe};

const USAGE: &str = "\
rollout <JOB> [OPTIONS]
       rollout <COMMAND>";

const EXAMPLES: &str = "\
Examples:
  rollout init job my-eval               Make a job that runs as it is
  rollout my-eval/job.yaml               Run it
  rollout my-eval/job.yaml --dry-run     See what would run
  rollout resume jobs/2026-01-15__10-30-00
                                         Go on after Ctrl-C or a crash
  rollout doctor                         See what this machine can run

Exit status:
  0    every trial completed, whatever its reward
  1    some trial failed, or --fail-under was not met
  2    the command, the configuration or the engine is wrong, and nothing ran
  130  cancelled";

const RUN_EXAMPLES: &str = "\
Examples:
  rollout job.yaml --agent oracle --task 'sort-*'
                                         Run a part of the job
  rollout job.yaml --limit 5 --attempts 1 --set environment.preserve_env=always
                                         Look closer at a few trials
  rollout job.yaml --fail-under pass_rate=0.9 --junit report.xml
                                         Use the job as a gate in CI
  rollout job.yaml --output json | jq -c 'select(.event == \"trial_finished\")'
                                         Follow it with a program";

const RESUME_EXAMPLES: &str = "\
Examples:
  rollout resume jobs/nightly                    Run what has no result yet
  rollout resume jobs/nightly --rerun error      Run failed trials again
  rollout resume jobs/nightly --attempts 5       Attempt each task up to five times
  rollout resume jobs/nightly --with job.yaml    Add what the job file has gained since";

const EVAL_EXAMPLES: &str = "\
Examples:
  rollout eval config.json                 Ask all questions, and score the answers
  rollout eval config.json --max-tasks 10 --output-dir results/try
                                           Try it with a few
  rollout eval config.json --metric f1_score --set max_workers=16 --set parallel=true
                                           Score otherwise, and ask 16 questions at a time
  rollout resume results/my_eval           Go on after Ctrl-C or a crash";

const ASK_EXAMPLES: &str = "\
Examples:
  rollout ask 'What is the capital of France?'
                                           Ask the model at OPENAI_BASE_URL, with the key in OPENAI_API_KEY
  rollout ask 'What is new in Rust?' --tools web:search,web:browse
                                           Let it use tools of `rollout tools serve`";

/// Run agents against tasks in isolated environments, and score them
///
/// `rollout job.yaml` is short for `rollout run job.yaml`.
#[derive(Debug, Parser)]
#[command(name = "rollout", version, override_usage = USAGE, after_help = EXAMPLES, max_term_width = 100)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a job
    #[command(after_help = RUN_EXAMPLES)]
    Run(Run),
    /// Ask the questions of a benchmark, and score the answers
    #[command(after_help = EVAL_EXAMPLES)]
    Eval(Eval),
    /// Ask one question
    #[command(after_help = ASK_EXAMPLES)]
    Ask(Ask),
    /// Continue a job or a benchmark that was cut short, or add to a job
    #[command(after_help = RESUME_EXAMPLES)]
    Resume(Resume),
    /// Score saved answers by another metric, another judge or a rubric
    Score(Score),
    /// Run rollouts of a model for a training loop, over HTTP
    Serve(Serve),
    /// Serve tools for models over HTTP: code, documents, databases, the web
    Tools(Tools),
    /// Turn the results of a job into files for other programs
    Export(Export),
    /// Compare jobs or agents task by task: differences, and whether they can be chance
    #[command(after_help = compare::EXAMPLES)]
    Compare(Compare),
    /// Have a model say why trials of a job failed
    Investigate(Investigate),
    /// Run one trial again, and tell what differs
    Reproduce(Reproduce),
    /// Find tasks whose oracle does not always pass, or that reward doing nothing
    Flakes(Flakes),
    /// Check a job, a task, a dataset or a benchmark without running anything
    Validate(Validate),
    /// Open a shell in a fresh environment of a task
    Shell(Shell),
    /// Open a shell in the environment that a trial left behind
    Attach(Attach),
    /// Make a job or a task that runs as it is
    Init(Init),
    /// Print the JSON Schema of a file, for editors
    Schema(Schema),
    /// Tell what this machine can run, and what to change where it cannot
    Doctor,
    /// Remove what ended runs left behind
    Clean(Clean),
    /// Print a completion script for a shell
    Completions(Completions),
}

/// Arguments of `run`.
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The job file, a directory with a job.yaml, or - for standard input
    #[arg(value_name = "JOB")]
    pub job: PathBuf,

    /// Show the plan and run nothing
    #[arg(long)]
    pub dry_run: bool,

    /// Refuse the job if any of its tasks is invalid, or means something that Rollout would ignore
    #[arg(long)]
    pub strict: bool,

    /// Run only agents whose name matches; can be given several times
    #[arg(long, value_name = "GLOB", help_heading = "What runs")]
    pub agent: Vec<String>,

    /// Run only tasks whose name matches; can be given several times
    #[arg(long, value_name = "GLOB", help_heading = "What runs")]
    pub task: Vec<String>,

    /// Run only datasets whose name matches; can be given several times
    #[arg(long, value_name = "GLOB", help_heading = "What runs")]
    pub dataset: Vec<String>,

    /// Run at most this many tasks of each dataset
    #[arg(long, value_name = "N", help_heading = "What runs")]
    pub limit: Option<usize>,

    /// Attempt each task this often, instead of n_attempts
    #[arg(long, value_name = "N", help_heading = "How it runs")]
    pub attempts: Option<u32>,

    /// Run this many trials at the same time, instead of n_concurrent_trials
    #[arg(long, value_name = "N", help_heading = "How it runs")]
    pub concurrency: Option<u32>,

    /// Replace a value of the job file, by its dotted key; can be given several times
    #[arg(long, value_name = "KEY=VALUE", help_heading = "How it runs")]
    pub set: Vec<String>,

    /// Exit with 1 if the headline pass_rate or mean_reward is below this, such as pass_rate=0.9
    #[arg(long, value_name = "RATE=BOUND", help_heading = "What comes out")]
    pub fail_under: Vec<FailUnder>,

    /// Write a JUnit report; an unsolved trial is a failure, a failed trial an error
    #[arg(long, value_name = "FILE", help_heading = "What comes out")]
    pub junit: Option<PathBuf>,

    /// Choose who reads the output
    #[arg(
        long,
        value_name = "FOR",
        default_value = "human",
        hide_default_value = true,
        help_heading = "What comes out"
    )]
    pub output: Output,
}

/// Arguments of `resume`.
#[derive(Debug, Args)]
pub(crate) struct Resume {
    /// The job's directory
    #[arg(value_name = "JOB_DIR")]
    pub directory: PathBuf,

    /// Run again: trials that are missing, ended in an error, or have a reward below 1
    #[arg(long, value_name = "WHICH", value_delimiter = ',', default_value = "missing")]
    pub rerun: Vec<RerunWhich>,

    /// Attempt each task this often: keep what has run, and run the new attempts
    #[arg(long, value_name = "N")]
    pub attempts: Option<u32>,

    /// Add the agents, datasets, tasks and attempts of this job file that the job does not have
    #[arg(long, value_name = "JOB")]
    pub with: Option<PathBuf>,

    /// Choose who reads the output
    #[arg(long, value_name = "FOR", default_value = "human")]
    pub output: Output,
}

/// Which trials `resume` runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RerunWhich {
    /// Trials without a result
    Missing,
    /// Trials that failed
    Error,
    /// Trials with a reward below 1
    Unsolved,
}

/// Who reads the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// A person: a live display on a terminal, lines in a pipe or in CI
    Human,
    /// A program: one event per line
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

/// Who reads an answer that is given at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Answer {
    /// A person
    Human,
    /// A program: one object
    Json,
}

/// Arguments of `serve`.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// The job file; it has one model and one interaction
    #[arg(value_name = "JOB")]
    pub job: PathBuf,

    /// The address to listen at
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub host: IpAddr,

    /// The port to listen at; 0 for any that is free
    #[arg(long, value_name = "PORT", default_value_t = 8321)]
    pub port: u16,

    /// Let in only clients that send the content of this file as `Authorization: Bearer …`; needed for an
    /// address that other machines can reach
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

/// Arguments of `validate`.
#[derive(Debug, Args)]
pub(crate) struct Validate {
    /// A job file, the configuration of a benchmark, a task directory, or a directory of tasks
    #[arg(value_name = "PATH")]
    pub path: PathBuf,

    /// Count warnings as problems
    #[arg(long)]
    pub strict: bool,
}

/// Arguments of `shell`.
#[derive(Debug, Args)]
pub(crate) struct Shell {
    /// The task's directory
    #[arg(value_name = "TASK_DIR")]
    pub task: PathBuf,

    /// Where to make it; if not given, as a job that names no environment: on docker where an engine answers,
    /// else natively
    #[arg(long, value_name = "WHERE")]
    pub environment: Option<ShellEnvironment>,

    /// Put the tests in /tests, where agents never see them
    #[arg(long)]
    pub with_tests: bool,
}

/// Where `shell` makes an environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ShellEnvironment {
    /// On a Docker engine
    Docker,
    /// On this machine's own system
    Native,
}

/// Arguments of `attach`.
#[derive(Debug, Args)]
pub(crate) struct Attach {
    /// The trial's directory, in which its result.json is
    #[arg(value_name = "TRIAL_DIR")]
    pub trial: PathBuf,
}

/// Arguments of `init`.
#[derive(Debug, Args)]
pub(crate) struct Init {
    /// What to make
    pub kind: InitKind,

    /// The directory to make it in
    pub name: PathBuf,
}

/// What `init` makes.
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
    /// The file that it describes
    pub of: SchemaOf,
}

/// The files that have a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SchemaOf {
    /// job.yaml
    Job,
    /// task.toml
    Task,
    /// A file that `interaction:` of a dataset names
    Interaction,
    /// The configuration of a benchmark
    Benchmark,
}

/// Arguments of `clean`.
#[derive(Debug, Args)]
pub(crate) struct Clean {
    /// Remove also environments that jobs kept on purpose
    #[arg(long)]
    pub preserved: bool,

    /// Remove also images, layers and agent snapshots that neither a running job nor a preserved environment
    /// uses; on a Docker engine those that Rollout made
    #[arg(long)]
    pub images: bool,

    /// Remove also fetched repositories that no running job uses, and a Docker engine's whole build cache,
    /// which other builds share
    #[arg(long)]
    pub cache: bool,

    /// Show what would be removed
    #[arg(long)]
    pub dry_run: bool,
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
    /// What is bounded.
    pub rate: Rate,
    /// The least value that is good enough.
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
    /// The word for it on the command line.
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
            .ok_or_else(|| format!("unknown rate {rate:?}: it can be pass_rate or mean_reward"))?;
        match bound.trim().parse::<f64>() {
            Ok(bound) if bound.is_finite() => Ok(Self { rate, bound }),
            _ => Err(format!("{bound:?} is not a number")),
        }
    }
}

/// Puts `run` before a job file or an option of `run`, which may be left out.
pub(crate) fn with_default_command(mut args: Vec<OsString>) -> Vec<OsString> {
    let Some(first) = args.get(1).and_then(|first| first.to_str()) else { return args };
    let for_rollout = ["-h", "--help", "-V", "--version", "help"].contains(&first)
        || Cli::command().get_subcommands().any(|command| command.get_name() == first);
    let path = Path::new(first);
    let is_job = first.starts_with('-')
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
            ("cost=1", "unknown rate \"cost\": it can be pass_rate or mean_reward"),
            ("pass_rate=NaN", "\"NaN\" is not a number"),
            ("pass_rate=", "\"\" is not a number"),
        ] {
            assert_eq!(text.parse::<FailUnder>(), Err(problem.to_owned()));
        }
    }
}
