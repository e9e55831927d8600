//! Rollout runs agents against tasks in isolated environments and returns rewards that can be trusted.
//!
//! ```text
//! job.yaml ─ config ─▶ plan ─▶ job ─▶ trial ─▶ result
//!                       ▲       │       ├─ environment   where
//!              tasks, agents    │       ├─ agent         who
//!                               │       └─ verifier      how good
//!                               └─ events ─▶ record and report
//! ```
//!
//! The tour, from a job file to its result:
//!
//! 1. [`config::load_job`] reads a job file into a [`config::LoadedJob`], or reports every problem at once.
//! 2. [`task::Sources`] turns the job's datasets into tasks on this machine.
//! 3. [`job::Plan`] enumerates the trials: agents × tasks × attempts.
//! 4. [`environment::connect`] finds the [`environment::Provider`] of the job's environments.
//! 5. [`job::Job`] creates the directory; [`job::Job::run`] runs the trials and sends [`event::Event`]s.
//! 6. [`trial`] is one trial: image, start, install, execute, verify, collect, teardown.
//! 7. [`result`] has the types of results, and [`record`] saves them.
//!
//! An agent may be a model, and then a task may also be an example of an interaction: a conversation without a
//! container, scored by a rubric. [`model`] leads from a single question to tools; start there to write environments in
//! Rust. Such trials also run as a [`job`].
//!
//! The library prints nothing, exits no process and reads neither `$HOME` nor the environment: the caller passes all
//! paths and variables. This is all of `rollout job.yaml`, without its terminal:
//!
//! ```no_run
//! use rollout::{config, environment, job, task};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let vars = |name: &str| std::env::var(name).ok();
//! let loaded = config::load_job("job.yaml".as_ref(), &[], &vars)?;
//! let sources = task::Sources::new("/var/cache/rollout");
//! let datasets = sources.load(&loaded.config.datasets, &task::Resolved::default(), &|_| ()).await?;
//! let place = environment::HostPaths {
//!     state_dir: "/var/cache/rollout".into(),
//!     helper: "/usr/bin/rollout".into(),
//!     docker: environment::DockerAccess::from_variables(|name| std::env::var_os(name)),
//!     kubernetes: environment::KubernetesAccess::from_variables(|name| std::env::var_os(name)),
//!     clouds: environment::CloudAccess::from_variables(|name| std::env::var_os(name)),
//! };
//! let provider = environment::connect(&loaded.config.environment, &place).await?;
//! let plan = job::Plan::new(loaded, Vec::new(), datasets, &job::Selection::default(), &vars)?;
//! let (events, _) = tokio::sync::mpsc::unbounded_channel();
//! let result = job::Job::create(plan, provider).await?.run(events, job::Cancel::default()).await?;
//! assert_eq!(result.totals.failed_trials, 0);
//! # Ok(())
//! # }
//! ```
#![deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)]

mod agent;
mod attempts;
pub mod benchmark;
pub mod build;
pub mod catalogue;
pub mod config;
mod download_client;
mod egress;
mod generate;
pub mod investigate;
pub mod job;
pub mod live;
pub mod model;
pub mod packages;
pub mod preflight;
mod rollouts;
mod rows;
pub mod task;
pub mod trial;

pub use agent::preset::fetch_agent;
pub use rollout_core::{display, event, headline, hosts, name, result, text, xml};
pub use rollout_env as environment;
pub use rollout_gateway as gateway;
pub use rollout_record::{compare, export, hub, import, stats};

/// The tutorial for interactions in Rust; its examples must compile.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/environments.md")]
mod environments {}

/// The job directory: layout, atomic writes, journal, captured output, redaction, and its readers.
pub mod record {
    pub use rollout_core::{moment, provenance, python_json, redact};
    pub use rollout_env::log;
    pub use rollout_record::{atomic, causes, journal, layout, notes, rows, saved, tasks};
}
