//! task.toml.

mod forms;
mod keys;
mod parts;
mod unknown;

use std::{collections::HashSet, path::Path};

use serde_json::{Value as Json, json};

use super::{
    job::{VerifierConfig, VerifierEnvironment},
    mcp_servers::TaskMcpServer,
};
use rollout_core::quantity::{Bytes, Cpus};
use rollout_settings::{
    Entry, Node, Reader, Section, Settings as _, SourceFiles, Span,
    diagnostic::{Code, Diagnostic, Problems, Severity, quoted},
    toml_file,
};

pub(super) use self::keys::TaskKeys;
#[cfg(test)]
pub(super) use self::keys::{
    ArtifactKeys, CollectKeys, HealthcheckKeys, StepAgentKeys, StepVerifierKeys, TaskAgent, TaskEnvironment,
    TaskSolution, TaskStep, TaskVerifier, TestsEnvironmentKeys,
};
pub use self::parts::{
    ArtifactConfig, CollectConfig, HealthcheckConfig, NetworkPolicy, ResourceBounds, StepConfig, StepRewards,
    TaskAmount, TestsEnvironment,
};

/// The maximum size of a task.toml.
const MAX_BYTES: usize = 1 << 20;

/// The maximum length of the name of a directory.
const MAX_NAME_BYTES: usize = 255;

/// The default CPUs and memory of an environment.
const CPUS: Cpus = Cpus { millis: 1000 };
pub(super) const MEMORY: Bytes = Bytes(2_000_000_000);

/// The default timeouts of installing and running an agent, in seconds.
const INSTALL_TIMEOUT_SEC: f64 = 300.0;
const HARBOR_INSTALL_TIMEOUT_SEC: f64 = 360.0;
const AGENT_TIMEOUT_SEC: f64 = 600.0;

/// A validated task.toml.
#[derive(Debug, Clone)]
pub struct TaskConfig {
    /// The version of the format; `1.0` when absent.
    pub version: String,
    /// Whether the task is made for Harbor: `schema_version` gives its version.
    pub is_made_for_harbor: bool,
    /// The origin of the task, as its author describes it.
    pub source: Option<String>,
    /// The author's data under `[metadata]`.
    pub metadata: serde_json::Map<String, serde_json::Value>,
    /// Seconds that test.sh may take.
    pub verifier_timeout_sec: f64,
    /// Variables for test.sh, as written: `${VAR}` is expanded when a job is planned, so that a task can be loaded and
    /// validated even if the variables are not set.
    pub verifier_env: Vec<(String, String)>,
    /// Where test.sh runs, if the task sets it.
    pub verifier_environment: Option<VerifierEnvironment>,
    /// The image that test.sh runs in.
    pub verifier_image: Option<String>,
    /// The hostname of the agent's environment for test.sh.
    pub verifier_agent_hostname: Option<String>,
    /// The user that runs test.sh.
    pub verifier_user: Option<String>,
    /// The network while test.sh runs.
    pub verifier_network: Option<NetworkPolicy>,
    /// The separate environment of test.sh.
    pub verifier_own_environment: Option<TestsEnvironment>,
    /// Commands that prepare artifacts.
    pub collect: Vec<CollectConfig>,
    /// Files that the agent leaves.
    pub artifacts: Vec<ArtifactConfig>,
    /// The steps.
    pub steps: Vec<StepConfig>,
    /// How the rewards of steps become one.
    pub step_rewards: StepRewards,
    /// Seconds that installing the agent may take, if the task sets it.
    pub agent_install_timeout_sec: Option<f64>,
    /// Seconds that the agent may take, if the task sets it.
    pub agent_timeout_sec: Option<f64>,
    /// The user that installs and runs the agent.
    pub agent_user: Option<String>,
    /// The network while the agent works.
    pub agent_network: Option<NetworkPolicy>,
    /// Variables for the solution, as written.
    pub solution_env: Vec<(String, String)>,
    /// Seconds that building the image may take.
    pub build_timeout_sec: f64,
    /// A prebuilt image, used instead of environment/Dockerfile.
    pub docker_image: Option<String>,
    /// CPUs of the environment, if the task sets them.
    pub cpus: Option<Cpus>,
    /// Memory of the environment, if the task sets it.
    pub memory: Option<TaskAmount>,
    /// Storage of the environment, if the task sets it.
    pub storage: Option<TaskAmount>,
    /// Variables for all commands, as written.
    pub environment_env: Vec<(String, String)>,
    /// The directory in which all commands start.
    pub workdir: Option<String>,
    /// A command that must succeed before the agent starts.
    pub healthcheck: Option<HealthcheckConfig>,
    /// The network of the environment.
    pub network: Option<NetworkPolicy>,
    /// The number of GPUs.
    pub gpus: u64,
    /// The kinds of GPUs.
    pub gpu_types: Vec<String>,
    /// TPUs, as written.
    pub tpu: Option<serde_json::Value>,
    /// The operating system, in lower case.
    pub os: String,
    /// MCP servers for the agent.
    pub mcp_servers: Vec<TaskMcpServer>,
    /// A directory of the environment with skills for the agent.
    pub skills_dir: Option<String>,
    /// Unknown keys, by their dotted path.
    pub unknown: serde_json::Map<String, serde_json::Value>,
}

/// The limits of a task's environments and agents, by its own rules. `None` means no limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TaskBounds {
    /// CPUs.
    pub cpus: Option<Cpus>,
    /// Memory.
    pub memory: Option<Bytes>,
    /// Storage.
    pub storage: Option<Bytes>,
    /// Seconds that installing the agent may take.
    pub install_timeout_sec: f64,
    /// Seconds that the agent may take.
    pub agent_timeout_sec: Option<f64>,
}

impl TaskConfig {
    /// The image that has the tests in it, if the task names one.
    pub(crate) fn tests_image(&self) -> Option<&str> {
        self.verifier_own_environment.as_ref()?.docker_image.as_deref()
    }

    /// Whether test.sh runs in a separate environment, if the job does not decide.
    pub(crate) fn is_separate(&self) -> bool {
        match self.verifier_environment {
            Some(mode) => mode == VerifierEnvironment::Separate,
            None => self.verifier_image.is_some() || self.verifier_own_environment.is_some(),
        }
    }

    /// Whether test.sh of a step runs in a separate environment, if the job does not decide.
    pub(crate) fn is_step_separate(&self, step: &StepConfig) -> bool {
        match step.verifier_environment {
            Some(mode) => mode == VerifierEnvironment::Separate,
            None => step.verifier_own_environment.is_some() || self.is_separate(),
        }
    }

    /// Whether test.sh runs in a separate environment in a job with these settings.
    pub(crate) fn is_separate_in(&self, job: &VerifierConfig) -> bool {
        match job.environment {
            Some(mode) => mode == VerifierEnvironment::Separate,
            None => self.is_separate() || self.verifier_environment.is_none() && job.image.is_some(),
        }
    }

    /// Whether test.sh of a step runs in a separate environment in a job with these settings.
    pub(crate) fn is_step_separate_in(&self, step: &StepConfig, job: &VerifierConfig) -> bool {
        match (job.environment, step.verifier_environment) {
            (Some(mode), _) => mode == VerifierEnvironment::Separate,
            (None, Some(_)) => self.is_step_separate(step),
            (None, None) => self.is_step_separate(step) || self.is_separate_in(job),
        }
    }

    /// The limits of the task, by the rules of Harbor or by those of Rollout.
    pub fn bounds(&self, is_harbor: bool) -> TaskBounds {
        let ResourceBounds { cpus, memory, storage } =
            ResourceBounds::new(self.cpus, self.memory, self.storage, is_harbor);
        if is_harbor {
            TaskBounds {
                cpus,
                memory,
                storage,
                install_timeout_sec: self.agent_install_timeout_sec.unwrap_or(HARBOR_INSTALL_TIMEOUT_SEC),
                agent_timeout_sec: self.agent_timeout_sec,
            }
        } else {
            TaskBounds {
                cpus,
                memory,
                storage,
                install_timeout_sec: self.agent_install_timeout_sec.unwrap_or(INSTALL_TIMEOUT_SEC),
                agent_timeout_sec: Some(self.agent_timeout_sec.unwrap_or(AGENT_TIMEOUT_SEC)),
            }
        }
    }
}

/// The JSON Schema of task.toml.
pub fn task_schema() -> Json {
    let mut schema = rollout_settings::titled::<TaskKeys>("Rollout task");
    schema["additionalProperties"] = json!(true);
    schema
}

/// Reads the text of a task.toml. The path is only for messages.
///
/// Unknown keys are kept; those that are known to other tools give warnings.
pub fn load_task_config(path: &Path, text: &str) -> Result<(TaskConfig, Vec<Diagnostic>), Problems> {
    let file = path.display().to_string();
    if text.len() > MAX_BYTES {
        let message = format!("the file has {} bytes; the limit is {MAX_BYTES}", text.len());
        return Err(Problems::new(vec![Diagnostic::about_file(file, Code::Unreadable, message)]));
    }
    let mut sources = SourceFiles::default();
    let source = sources.add(&file, text);
    let tree = toml_file::parse(text, source).map_err(|errors| {
        let error = |error: toml_file::TomlError| {
            let span = error.span.unwrap_or(Span { source, start: 0, end: 0 });
            let message = format!("invalid TOML: {}", error.message);
            let problem = Diagnostic::error(&sources, span, Code::Syntax, message);
            match error.first {
                Some(first) => problem.related(&sources, first, "first written here"),
                None => problem,
            }
        };
        Problems::new(errors.into_iter().map(error).collect())
    })?;
    let reader = Reader::new(&sources, "", &|_| None);
    let config = read(&reader, &tree);
    let (mut found, failed) = reader.finish();
    // Errors come first, because some callers show only the first line.
    found.sort_by_key(|found| found.severity != Severity::Error);
    match config {
        Some(config) if !failed => Ok((config, found)),
        _ => Err(Problems::new(found)),
    }
}

fn read(reader: &Reader<'_>, tree: &Node) -> Option<TaskConfig> {
    let root = reader.mapping(tree, "")?;
    let TaskKeys {
        version,
        source,
        metadata,
        artifacts,
        multi_step_reward_strategy,
        steps,
        verifier,
        agent,
        environment,
        solution,
    } = TaskKeys::read(&root)?;
    check_steps(&root, &steps);
    let is_shared = verifier.environment_mode == Some(VerifierEnvironment::Shared);
    if is_shared && verifier.environment.is_some() {
        let message = "`verifier.environment` is not allowed with `environment_mode = \"shared\"`";
        root.inside("verifier").invalid("environment", message);
    }
    Some(TaskConfig {
        version,
        is_made_for_harbor: root.node("schema_version").is_some(),
        source,
        metadata,
        verifier_timeout_sec: verifier.timeout_sec,
        verifier_env: verifier.env,
        verifier_environment: verifier.environment_mode,
        verifier_image: verifier.image,
        verifier_agent_hostname: verifier.agent_hostname,
        verifier_user: verifier.user,
        verifier_network: parts::network(verifier.network_mode, &verifier.allowed_hosts, true),
        verifier_own_environment: verifier.environment,
        collect: verifier.collect,
        artifacts,
        steps,
        step_rewards: multi_step_reward_strategy,
        agent_install_timeout_sec: agent.install_timeout_sec,
        agent_timeout_sec: agent.timeout_sec,
        agent_user: agent.user,
        agent_network: parts::network(agent.network_mode, &agent.allowed_hosts, true),
        solution_env: solution.env,
        build_timeout_sec: environment.build_timeout_sec,
        docker_image: environment.docker_image,
        cpus: environment.cpus,
        memory: environment.memory,
        storage: environment.storage,
        environment_env: environment.env,
        workdir: environment.workdir,
        healthcheck: environment.healthcheck,
        network: parts::network(
            environment.network_mode,
            &environment.allowed_hosts,
            environment.allow_internet,
        ),
        gpus: environment.gpus,
        gpu_types: environment.gpu_types,
        tpu: environment.tpu,
        os: environment.os.to_lowercase(),
        mcp_servers: environment.mcp_servers,
        skills_dir: environment.skills_dir,
        unknown: unknown::unknown(&root),
    })
}

/// Reports names of steps that cannot be directories, or that occur twice.
fn check_steps(root: &Section<'_>, steps: &[StepConfig]) {
    let mut seen = HashSet::new();
    for step in steps {
        let name = &step.name;
        let is_shared = step.verifier_environment == Some(VerifierEnvironment::Shared);
        if is_shared && step.verifier_own_environment.is_some() {
            let message = format!(
                "`steps.verifier.environment` of {} is not allowed with `environment_mode = \"shared\"`",
                quoted(name)
            );
            root.invalid("steps", message);
        }
        if !is_directory_name(name) {
            let message = format!("{} cannot be the name of a step", quoted(name));
            root.invalid_with_hint("steps", message, "use letters, digits, spaces, `-`, `_` and `.`");
        } else if !seen.insert(name.to_lowercase()) {
            let message = format!("two steps are named {}", quoted(name));
            root.invalid_with_hint(
                "steps",
                message,
                "names of steps differ in more than upper and lower case",
            );
        }
    }
}

/// Whether a name can be a directory on every system.
fn is_directory_name(name: &str) -> bool {
    let is_portable = |char: char| !char.is_control() && !"<>:\"/\\|?*".contains(char);
    let is_short = name.len() <= MAX_NAME_BYTES;
    is_short && name.chars().all(is_portable) && !name.ends_with(['.', ' ']) && !name.is_empty()
}

fn plain_json(node: &Node) -> Json {
    node.to_json("", &mut |_, text, _| Json::String(text.to_owned()))
}

fn plain_entry(entry: &Entry) -> (String, Json) {
    (entry.key.clone(), plain_json(&entry.node))
}
