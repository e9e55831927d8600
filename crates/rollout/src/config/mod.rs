//! Job and task configuration: typed, validated, every problem with its source line.
//!
//! A file of any format becomes one tree of values with positions. Typed readers walk the tree, note
//! what is wrong and go on, so that all of it is told at once, as [`Problems`].

mod benchmark;
mod diagnostic;
mod document;
mod expand;
mod include;
mod interaction;
mod job;
mod load_agents;
mod load_benchmark;
mod load_datasets;
mod load_interaction;
mod load_job;
mod load_model;
mod load_rubric;
mod load_task;
mod load_tools;
mod model_agent;
mod overrides;
mod reader;
mod record;
mod record_benchmark;
mod record_model;
mod schema;
mod schema_benchmark;
mod schema_model;
mod task;
mod toml_file;
mod tree;
mod yaml;

pub use benchmark::*;
pub use diagnostic::{Code, Diagnostic, Problems, Severity};
pub use document::Document;
pub use expand::{ExpandError, Expanded, env_value, expand};
pub use interaction::*;
pub use job::*;
pub use load_benchmark::{
    LoadedBenchmark, is_benchmark, load_benchmark, load_benchmark_record, load_benchmark_text, load_config,
};
pub use load_job::{LoadedJob, load_job, load_job_record, load_job_text};
pub use load_task::load_task_config;
pub use model_agent::*;
pub use overrides::{Override, OverrideError};
pub use rollout_core::{address::is_loopback, quantity::*, result::JobMetric};
pub use rollout_env::{EnvironmentConfig, EnvironmentKind, PreservePolicy};
pub use rollout_model::tool::container::ContainerTool;
pub use rollout_record::identity::agent_identity;
pub use schema::{job_schema, task_schema};
pub use schema_benchmark::benchmark_schema;
pub use schema_model::interaction_schema;
pub use task::*;
