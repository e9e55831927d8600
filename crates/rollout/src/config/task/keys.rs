//! The keys of task.toml.

use serde_json::{Map, Value as Json, json};

use super::{
    forms::{
        artifacts, check_hostname, check_image, hosts, metadata, min_reward, task_amount, tpu, user,
        variables, version,
    },
    parts::{
        ArtifactConfig, CollectConfig, HealthcheckConfig, NETWORK_MODES, NetworkMode, STEP_REWARDS,
        StepConfig, StepRewards, TaskAmount, TestsEnvironment, network,
    },
};
use crate::config::{
    job::{VERIFIER_ENVIRONMENTS, VerifierEnvironment, check_absolute},
    mcp_servers::{TaskMcpServer, mcp_servers},
};
use rollout_core::quantity::Cpus;
use rollout_settings::{
    Entry, Form, Section, Settings as _,
    declare::entry,
    forms::{
        cpus, filled, flag, list, mapping, number, number_or_text, open_section, some_section, text, texts,
        timeout, whole, word,
    },
};

rollout_settings::settings! {
    /// The configuration of a task.
    pub(in super::super) struct TaskKeys {
        /// The version of the task format.
        ///
        /// `schema_version` is another name for it, and marks a task that is [made for Harbor](#tasks-made-for-harbor).
        /// Any version other than 1 or 1.x gives a warning, and is read as 1.0.
        pub(super) version: String = number_or_text()
            .alias("schema_version", "Another name for `version`. Harbor's rules apply to the task.", number_or_text().shown_default("1.0"))
            .read_by(|root, _| version(root))
            .kind("string or number")
            .default("1.0".to_owned()),
        /// The origin of the task.
        pub(super) source: Option<String> = text().optional(),
        /// Any data that the author of the task wants to record.
        pub(super) metadata: Map<String, Json> = mapping().read_by(metadata),
        /// Files and directories that the agent leaves.
        ///
        /// Each is a path in the environment, or a [table](#artifacts). They are copied to `artifacts/` of the trial, and
        /// to a separate environment of the tests. `/logs/artifacts` is always one of them.
        pub(super) artifacts: Vec<ArtifactConfig> = artifacts(),
        /// How the rewards of steps become the reward of the trial.
        ///
        /// `mean`: the mean over the steps that were attempted. `final`: the reward of the last step.
        pub(super) multi_step_reward_strategy: StepRewards = word(&STEP_REWARDS).default(StepRewards::Mean),
        /// The steps of the task, in order.
        ///
        /// See [steps](#steps).
        pub(super) steps: Vec<StepConfig> = list(entry::<TaskStep>, |section, key| {
            Some(section.sections::<TaskStep>(key).iter().filter_map(step).collect())
        }),
        /// How an attempt is graded.
        pub(super) verifier: TaskVerifier = open_section::<TaskVerifier>(),
        /// Limits of the agent.
        pub(super) agent: TaskAgent = open_section::<TaskAgent>(),
        /// Where the task is attempted.
        pub(super) environment: TaskEnvironment = open_section::<TaskEnvironment>(),
        /// How the oracle runs the solution.
        pub(super) solution: TaskSolution = open_section::<TaskSolution>(),
    }
}

rollout_settings::settings! {
    /// How an attempt is graded.
    pub(in super::super) struct TaskVerifier {
        /// Seconds that test.sh may take.
        pub(super) timeout_sec: f64 = timeout().default(600.0),
        /// Where test.sh runs.
        ///
        /// `shared`: in the agent's environment. `separate`: in a fresh environment, with the artifacts copied in. A
        /// job may override it.
        pub(super) environment_mode: Option<VerifierEnvironment> =
            word(&VERIFIER_ENVIRONMENTS).optional().unset("`separate` where an image is given, else `shared`"),
        /// The image of a separate environment for test.sh.
        pub(super) image: Option<String> = text().filter(|image| !image.is_empty()).check(|image, section, key| check_image(image, section, key)).optional().unset("the task's"),
        /// The hostname of the agent's environment for test.sh.
        ///
        /// With it, the agent's processes keep running during the tests. Only for a separate environment.
        pub(super) agent_hostname: Option<String> = text().check(|name, section, key| check_hostname(name, section, key)).optional(),
        /// Variables for test.sh. `${VAR}` and `${VAR:-default}` are expanded when a job is planned.
        ///
        /// See [variables](jobs.md#variables-and-secrets).
        pub(super) env: Vec<(String, String)> = variables(),
        /// The user that runs test.sh.
        pub(super) user: Option<String> = user(),
        /// Commands that prepare artifacts after the agent has ended.
        ///
        /// Each is a table with `command`, and optionally `timeout_sec`, `user` and `service`. A failure is recorded in
        /// `notes`.
        pub(super) collect: Vec<CollectConfig> = list(entry::<CollectKeys>, |section, key| {
            Some(section.sections::<CollectKeys>(key).iter().filter_map(collect).collect())
        }),
        /// The network while test.sh runs.
        pub(super) network_mode: Option<NetworkMode> = word(&NETWORK_MODES).optional().unset("the environment's"),
        /// The hosts that test.sh may reach: names, `*.` and a domain, addresses, or networks such as `10.0.0.0/8`.
        pub(super) allowed_hosts: Vec<String> = hosts(),
        /// A separate environment for test.sh.
        ///
        /// The settings of `[environment]` do not apply to it. See
        /// [its keys](#tests-in-an-environment-of-their-own).
        pub(super) environment: Option<TestsEnvironment> = tests_environment().optional(),
    }
}

rollout_settings::settings! {
    /// A separate environment for test.sh.
    pub(in super::super) struct TestsEnvironmentKeys {
        /// An image that has the tests in `/tests`.
        ///
        /// Without it, the image is built from `tests/Dockerfile`, which also has to put the tests there. If this file is
        /// missing, the task's image is used, and the tests are copied into it.
        docker_image: Option<String> = text().filter(|image| !image.is_empty()).check(|image, section, key| check_image(image, section, key)).optional(),
        /// CPUs.
        cpus: Option<Cpus> = cpus().optional().unset("`1`; no limit for Harbor"),
        /// Memory.
        memory: Option<TaskAmount> = task_amount("memory_mb", "Memory, in MiB.").optional().unset("`2G`; no limit for Harbor"),
        /// Storage.
        storage: Option<TaskAmount> = task_amount("storage_mb", "Storage, in MiB.").optional().unset("`10G`; no limit for Harbor"),
        /// Variables for test.sh. `${VAR}` and `${VAR:-default}` are expanded when a job is planned.
        env: Vec<(String, String)> = variables(),
        /// The directory in which test.sh starts. It is created if it is missing.
        workdir: Option<String> = filled().kind("absolute path").check(|path, section, key| check_absolute(path, section, key)).optional().unset("the image's"),
        /// The network.
        network_mode: Option<NetworkMode> = word(&NETWORK_MODES).optional().unset("the job's"),
        /// The hosts that can be reached: names, `*.` and a domain, addresses, or networks such as `10.0.0.0/8`.
        allowed_hosts: Vec<String> = hosts(),
        /// `false` means `network_mode = "no-network"`.
        allow_internet: bool = flag(true),
    }
}

/// Keys of an environment that have no meaning for tests. Harbor does not use them either.
const MEANINGLESS_FOR_TESTS: [&str; 5] =
    ["build_timeout_sec", "healthcheck", "mcp_servers", "skills_dir", "gpu_types"];

/// A separate environment for test.sh.
fn tests_environment() -> Form<TestsEnvironment> {
    let read = |section: &Section<'_>, key: &str| {
        let own = section.mapping(key)?;
        let TestsEnvironmentKeys {
            docker_image,
            cpus,
            memory,
            storage,
            env,
            workdir,
            network_mode,
            allowed_hosts,
            allow_internet,
        } = TestsEnvironmentKeys::read(&own)?;
        let known = TestsEnvironmentKeys::keys();
        let is_supported = |entry: &&Entry| {
            let name = entry.key.as_str();
            let value = super::plain_json(&entry.node);
            known.iter().any(|known| known.name == name)
                || MEANINGLESS_FOR_TESTS.contains(&name)
                || name == "gpus" && value == json!(0)
                || name == "os" && value.as_str().is_some_and(|os| os.eq_ignore_ascii_case("linux"))
        };
        let unsupported = own.entries.iter().filter(|entry| !is_supported(entry));
        Some(TestsEnvironment {
            docker_image,
            cpus,
            memory,
            storage,
            env,
            workdir,
            network: network(network_mode, &allowed_hosts, allow_internet),
            unsupported: unsupported.map(|entry| entry.key.clone()).collect(),
        })
    };
    open_section::<TestsEnvironmentKeys>().read_into(read, |_, written| written.plain())
}

rollout_settings::settings! {
    /// Limits of the agent.
    pub(in super::super) struct TaskAgent {
        /// Seconds that installing the agent may take.
        pub(super) install_timeout_sec: Option<f64> = timeout().optional().unset("300; 360 for Harbor"),
        /// Seconds that the agent may take.
        ///
        /// For the oracle, the timeout of the solution.
        pub(super) timeout_sec: Option<f64> = timeout().optional().unset("600; none for Harbor"),
        /// The user that installs and runs the agent.
        pub(super) user: Option<String> = user(),
        /// The network while the agent works.
        pub(super) network_mode: Option<NetworkMode> = word(&NETWORK_MODES).optional().unset("the environment's"),
        /// The hosts that the agent may reach: names, `*.` and a domain, addresses, or networks such as `10.0.0.0/8`.
        pub(super) allowed_hosts: Vec<String> = hosts(),
    }
}

rollout_settings::settings! {
    /// Where the task is attempted.
    pub(in super::super) struct TaskEnvironment {
        /// Seconds that building the image may take.
        ///
        /// Waiting time is included.
        pub(super) build_timeout_sec: f64 = timeout().default(600.0),
        /// A prebuilt image, used instead of environment/Dockerfile.
        pub(super) docker_image: Option<String> = text().filter(|image| !image.is_empty()).check(|image, section, key| check_image(image, section, key)).optional(),
        /// CPUs of the environment.
        pub(super) cpus: Option<Cpus> = cpus().optional().unset("`1`; no limit for Harbor"),
        /// Memory of the environment.
        pub(super) memory: Option<TaskAmount> = task_amount("memory_mb", "Memory of the environment, in MiB.").optional().unset("`2G`; no limit for Harbor"),
        /// Storage of the environment.
        pub(super) storage: Option<TaskAmount> = task_amount("storage_mb", "Storage of the environment, in MiB.").optional().unset("`10G`; no limit for Harbor"),
        /// Variables for all commands in the environment. `${VAR}` and `${VAR:-default}` are expanded when a job is planned.
        pub(super) env: Vec<(String, String)> = variables(),
        /// The directory in which all commands start. It is created if it is missing.
        pub(super) workdir: Option<String> = filled().kind("absolute path").check(|path, section, key| check_absolute(path, section, key)).optional().unset("the image's"),
        /// A command that must succeed before the agent starts.
        ///
        /// A table with `command`, and optionally `interval_sec` (5), `timeout_sec` (30), `start_period_sec` (0),
        /// `start_interval_sec` (5) and `retries` (3).
        pub(super) healthcheck: Option<HealthcheckConfig> = some_section::<HealthcheckKeys>().optional(),
        /// The network of the environment.
        ///
        /// `public`: the network of the job. `no-network`: loopback only. `allowlist`: the hosts in `allowed_hosts`,
        /// through a proxy. See [networks](#networks).
        pub(super) network_mode: Option<NetworkMode> = word(&NETWORK_MODES).optional().unset("the job's"),
        /// The hosts that can be reached: names, `*.` and a domain, addresses, or networks such as `10.0.0.0/8`.
        pub(super) allowed_hosts: Vec<String> = hosts(),
        /// `false` means `network_mode = "no-network"`.
        pub(super) allow_internet: bool = flag(true),
        /// The number of GPUs.
        ///
        /// Only docker and kubernetes support them.
        pub(super) gpus: u64 = whole(0..=1024).default(0),
        /// The kinds of GPUs. Not supported by any provider.
        pub(super) gpu_types: Vec<String> = texts(),
        /// TPUs. Not supported by any provider.
        pub(super) tpu: Option<Json> = tpu(),
        /// The operating system. Only `linux` is supported.
        pub(super) os: String = text().default("linux".to_owned()),
        /// MCP servers for the agent.
        ///
        /// See [MCP servers and skills](tasks.md#mcp-servers-and-skills).
        pub(super) mcp_servers: Vec<TaskMcpServer> = mcp_servers(),
        /// A directory of the environment with skills for the agent.
        pub(super) skills_dir: Option<String> = text().kind("path").filter(|path| !path.is_empty()).check(|path, section, key| check_absolute(path, section, key)).optional(),
    }
}

rollout_settings::settings! {
    /// How the oracle runs the solution.
    pub(in super::super) struct TaskSolution {
        /// Variables for solve.sh. `${VAR}` and `${VAR:-default}` are expanded when a job is planned.
        pub(super) env: Vec<(String, String)> = variables(),
    }
}

rollout_settings::settings! {
    /// A step of a task.
    pub(in super::super) struct TaskStep {
        /// The name of its directory below `steps/`.
        pub(super) name: String = filled().required("write the name of the directory below `steps/`"),
        /// The lowest reward with which the next step starts: a number, or a table of named rewards.
        pub(super) min_reward: Vec<(String, f64)> = min_reward(),
        /// More artifacts, copied after this step.
        pub(super) artifacts: Vec<ArtifactConfig> = artifacts(),
        /// Limits of the agent in this step.
        pub(super) agent: StepAgentKeys = open_section::<StepAgentKeys>(),
        /// How this step is graded.
        pub(super) verifier: StepVerifierKeys = open_section::<StepVerifierKeys>(),
        /// A command that must succeed before the agent starts.
        pub(super) healthcheck: Option<HealthcheckConfig> = some_section::<HealthcheckKeys>().optional(),
    }
}

rollout_settings::settings! {
    /// Limits of the agent in a step.
    pub(in super::super) struct StepAgentKeys {
        /// Seconds that the agent may take.
        pub(super) timeout_sec: Option<f64> = timeout().optional().unset("the task's"),
        /// The user that runs the agent.
        pub(super) user: Option<String> = user(),
        /// The network while the agent works.
        pub(super) network_mode: Option<NetworkMode> = word(&NETWORK_MODES).optional().unset("the task's"),
        /// The hosts that the agent may reach: names, `*.` and a domain, addresses, or networks such as `10.0.0.0/8`.
        pub(super) allowed_hosts: Vec<String> = hosts(),
    }
}

rollout_settings::settings! {
    /// How a step is graded.
    pub(in super::super) struct StepVerifierKeys {
        /// Seconds that test.sh may take.
        pub(super) timeout_sec: f64 = timeout().default(600.0),
        /// Where test.sh runs.
        pub(super) environment_mode: Option<VerifierEnvironment> = word(&VERIFIER_ENVIRONMENTS).optional().unset("the task's"),
        /// More variables for test.sh.
        pub(super) env: Vec<(String, String)> = variables(),
        /// The user that runs test.sh.
        pub(super) user: Option<String> = user(),
        /// More commands that prepare artifacts.
        pub(super) collect: Vec<CollectConfig> = list(entry::<CollectKeys>, |section, key| {
            Some(section.sections::<CollectKeys>(key).iter().filter_map(collect).collect())
        }),
        /// The network while test.sh runs.
        pub(super) network_mode: Option<NetworkMode> = word(&NETWORK_MODES).optional().unset("the task's"),
        /// The hosts that test.sh may reach: names, `*.` and a domain, addresses, or networks such as `10.0.0.0/8`.
        pub(super) allowed_hosts: Vec<String> = hosts(),
        /// A separate environment for test.sh of this step.
        ///
        /// It has the same keys as `[verifier.environment]`, and the Dockerfile is `steps/<name>/tests/Dockerfile`. If the
        /// step has no image, the image of the task's tests is used.
        pub(super) environment: Option<TestsEnvironment> = tests_environment().optional().unset("the task's"),
    }
}

rollout_settings::settings! {
    /// A file or directory that the agent leaves.
    pub(in super::super) struct ArtifactKeys {
        /// Its path in the environment. A path without `/` at its start is below `/`.
        pub(super) source: String = filled().kind("path").required("write the path in the environment"),
        /// The path of the copy below `artifacts/` of the trial.
        pub(super) destination: Option<String> = text().kind("path").filter(|path| !path.is_empty()).optional().unset("that of the source"),
        /// Names and patterns, such as `*.tmp`, that are not copied from a directory.
        pub(super) exclude: Vec<String> = texts(),
        /// The service of a compose file that contains the artifact; `main` is the agent's environment.
        pub(super) service: Option<String> = text().filter(|name| !name.is_empty()).optional().unset("`main`"),
    }
}

rollout_settings::settings! {
    /// A command that prepares artifacts.
    pub(in super::super) struct CollectKeys {
        /// The command, for `bash -c`.
        pub(super) command: String = filled().required("write the command that prepares artifacts"),
        /// The service of a compose file; `main` is the agent's environment.
        pub(super) service: Option<String> = filled().optional().unset("`main`"),
        /// Seconds that the command may take.
        pub(super) timeout_sec: f64 = timeout().default(60.0),
        /// The user that runs the command.
        pub(super) user: Option<String> = user(),
    }
}

/// The bounds of seconds that may be 0.
const SECONDS: std::ops::RangeInclusive<f64> = 0.0..=86_400.0;

rollout_settings::settings! {
    /// A command that must succeed before the agent starts.
    pub(in super::super) struct HealthcheckKeys for HealthcheckConfig {
        /// The command, for `bash -c`.
        command = filled().required("write the command that succeeds when the environment is ready"),
        /// Seconds between two runs.
        interval_sec = number(SECONDS).kind("seconds").default(5.0),
        /// Seconds that the command may take.
        timeout_sec = timeout().default(30.0),
        /// Seconds after the start in which failures do not count.
        start_period_sec = number(SECONDS).kind("seconds").default(0.0),
        /// Seconds between two runs in the start period.
        start_interval_sec = number(SECONDS).kind("seconds").default(5.0),
        /// How many failures in a row make the environment unusable.
        retries = whole(1..=10_000).default(3),
    }
}

fn step(section: &rollout_settings::Section<'_>) -> Option<StepConfig> {
    let TaskStep { name, min_reward, artifacts, agent, verifier, healthcheck } = TaskStep::read(section)?;
    Some(StepConfig {
        name,
        min_reward,
        artifacts,
        agent_timeout_sec: agent.timeout_sec,
        agent_user: agent.user,
        agent_network: network(agent.network_mode, &agent.allowed_hosts, true),
        verifier_timeout_sec: verifier.timeout_sec,
        verifier_environment: verifier.environment_mode,
        verifier_own_environment: verifier.environment,
        verifier_env: verifier.env,
        verifier_user: verifier.user,
        verifier_network: network(verifier.network_mode, &verifier.allowed_hosts, true),
        collect: verifier.collect,
        healthcheck,
    })
}

fn collect(section: &rollout_settings::Section<'_>) -> Option<CollectConfig> {
    let CollectKeys { command, service, timeout_sec, user } = CollectKeys::read(section)?;
    Some(CollectConfig { command, service, timeout_sec, user })
}
