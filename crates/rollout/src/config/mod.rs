//! Configuration of jobs and tasks: typed, validated, every problem reported with its source line.
//!
//! Each setting is declared once, with [`rollout_settings::settings!`]: reading, the recorded configuration, the JSON
//! Schema and the tables in docs/ come from there.

mod address;
mod agent;
mod benchmark;
mod benchmark_forms;
mod columns;
mod dataset;
#[cfg(test)]
mod docs;
mod gateway;
mod harbor_job;
mod include;
mod interaction;
mod job;
mod known_servers;
mod load_benchmark;
mod load_job;
mod log_format;
mod mcp_servers;
mod model;
mod preset;
mod rubric;
mod shorthand;
mod stop;
mod task;
mod tool_files;
mod tools;
mod user;

pub use address::{AddressError, GitAddress, HubAddress, NamedDataset, is_git_address, is_hub_address};
pub use agent::{AgentConfig, AgentKind};
pub use benchmark::{NotText, RolloutConfig, RolloutOverrides, benchmark_schema};
pub use columns::{ColumnConfig, ColumnsConfig};
pub use dataset::{DatasetConfig, DatasetSource, RegistryLocation, TaskFilter};
pub use gateway::JobGatewayConfig;
pub use interaction::{
    ContainerConfig, ContainerImage, ExamplesConfig, InteractionConfig, InteractionKind, interaction_schema,
};
pub use job::{
    AfterAgentError, AgentProcesses, BudgetConfig, Compat, JobConfig, LogLevel, RetryConfig, VerifierConfig,
    VerifierEnvironment, job_schema,
};
pub use known_servers::{KNOWN_SERVERS, KnownServer};
pub use load_benchmark::{
    LoadedBenchmark, is_benchmark, load_benchmark, load_benchmark_record, load_benchmark_text, load_config,
};
pub(crate) use load_job::hashed;
pub use load_job::{LoadedJob, load_job, load_job_record, load_job_text};
pub use log_format::LogFormat;
pub use mcp_servers::{McpEndpoint, McpFormat, TaskMcpServer};
pub use model::{ModelAgentConfig, ModelConfig};
pub use preset::{
    PresetAgentConfig, PresetConfig, PresetInstall, dialect_name, is_preset_path, load_preset_text, preset,
    preset_names, preset_schema, preset_text,
};
pub use rollout_core::{
    address::is_loopback,
    quantity::{Bytes, Cpus, QuantityError},
    result::JobMetric,
};
pub use rollout_env::{EnvironmentConfig, EnvironmentKind, KeepImages, PreservePolicy};
pub use rollout_model::tool::container::ContainerTool;
pub use rollout_record::identity::agent_identity;
pub use rubric::{ParserConfig, RubricEntry, ScoreConfig};
pub use stop::{StopConfig, StopWhen};
pub use task::{
    ArtifactConfig, CollectConfig, HealthcheckConfig, NetworkPolicy, ResourceBounds, StepConfig, StepRewards,
    TaskAmount, TaskBounds, TaskConfig, TestsEnvironment, load_task_config, task_schema,
};
pub(crate) use tool_files::{each_path, names_files, resolve};
pub use tools::{CommandToolConfig, McpConfig, PythonToolConfig, ToolConfig};
pub use user::{UserConfig, UserKind};

pub use rollout_settings::{
    Code, Diagnostic, Document, Env, EnvValue, ExpandError, Expanded, Override, OverrideError, Problems,
    Severity, diagnostic::nearest, env_lines, env_value, expand,
};
