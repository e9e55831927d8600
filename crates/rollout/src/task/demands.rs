//! The settings of a task that Rollout, or a provider, cannot honour.

use super::{
    Task,
    dir::{compose_file, has_startup},
};
use crate::config::{JobConfig, NetworkPolicy, TaskConfig, TestsEnvironment};
use rollout_env::{Demand, Provider};

/// A setting that changes the meaning of a task and is not supported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsupported {
    /// The setting or file.
    pub setting: String,
    /// Why it is not supported.
    pub reason: String,
}

impl std::fmt::Display for Unsupported {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}` is not supported: {}", self.setting, self.reason)
    }
}

/// Lists the settings of a task that are not supported in a job. Without a provider: those that none supports.
pub fn unsupported(task: &Task, job: &JobConfig, provider: Option<&dyn Provider>) -> Vec<Unsupported> {
    let mut found = Found { provider, all: Vec::new() };
    let config = &task.config;
    if config.os != "linux" {
        found.never("environment.os", "only Linux environments are supported");
    }
    if config.tpu.is_some() {
        found.never("environment.tpu", "no provider has TPUs");
    }
    if !config.gpu_types.is_empty() {
        found.never("environment.gpu_types", "the kind of a GPU cannot be chosen");
    }
    if config.gpus > 0 {
        found.demand("environment.gpus", Demand::Gpus);
    }
    networks(config, &mut found);
    if task.is_harbor && task.files.startup {
        found.demand("ENTRYPOINT or HEALTHCHECK of the Dockerfile", Demand::ImageStartup);
    }
    if task.is_harbor && tests_start_something(task, job) {
        found.demand("ENTRYPOINT or HEALTHCHECK of the Dockerfile of tests", Demand::ImageStartup);
    }
    for (setting, compose) in [
        ("environment/docker-compose.yaml", &task.compose),
        ("tests/docker-compose.yaml", &task.tests_compose),
    ] {
        let Some(compose) = compose else { continue };
        if !compose.is_plain() {
            found.demand(setting, Demand::Compose);
        }
        if let Some(service) = compose.privileged() {
            found.demand(&format!("services.{service} of {setting}"), Demand::Privileged);
        }
    }
    for (table, own) in tests_environments(config) {
        for key in &own.unsupported {
            found.never(&format!("{table}.{key}"), "an environment of tests does not have this setting");
        }
    }
    for step in config.steps.iter().filter(|step| config.is_step_separate(step)) {
        let tests = format!("steps/{}/tests", step.name);
        if task.is_harbor && compose_file(&task.dir.join(&tests)).is_some() {
            found.never(&format!("{tests}/docker-compose.yaml"), "only all steps together can have services");
        }
    }
    let artifacts = config.artifacts.iter().chain(config.steps.iter().flat_map(|step| &step.artifacts));
    if artifacts.filter_map(|artifact| artifact.service.as_deref()).any(|service| service != "main") {
        found.demand("artifacts.service", Demand::Compose);
    }
    let collect = config.collect.iter().chain(config.steps.iter().flat_map(|step| &step.collect));
    if collect.filter_map(|collect| collect.service.as_deref()).any(|service| service != "main") {
        found.demand("verifier.collect.service", Demand::Compose);
    }
    found.all
}

/// Whether the image of separate tests is built with an entrypoint or a health check of its own.
fn tests_start_something(task: &Task, job: &JobConfig) -> bool {
    let config = &task.config;
    if job.verifier.image.is_some() || config.verifier_image.is_some() {
        return false;
    }
    let of_task = || config.tests_image().is_none() && has_startup(&task.tests);
    if config.steps.is_empty() {
        return config.is_separate_in(&job.verifier) && of_task();
    }
    let mut separate = config.steps.iter().filter(|step| config.is_step_separate_in(step, &job.verifier));
    separate.any(|step| {
        let tests = task.dir.join("steps").join(&step.name).join("tests");
        let own = step.verifier_own_environment.as_ref();
        match own.is_some_and(|own| own.docker_image.is_some()) {
            true => false,
            false if tests.join("Dockerfile").is_file() => has_startup(&tests),
            false => of_task(),
        }
    })
}

/// The separate environments of tests that a task describes, with the names of their tables.
fn tests_environments(config: &TaskConfig) -> impl Iterator<Item = (&'static str, &TestsEnvironment)> {
    let of_task = config.verifier_own_environment.iter().map(|own| ("verifier.environment", own));
    let of_steps = config.steps.iter().filter_map(|step| step.verifier_own_environment.as_ref());
    of_task.chain(of_steps.map(|own| ("steps.verifier.environment", own)))
}

struct Found<'a> {
    provider: Option<&'a dyn Provider>,
    all: Vec<Unsupported>,
}

impl Found<'_> {
    fn never(&mut self, setting: &str, reason: &str) {
        self.all.push(Unsupported { setting: setting.to_owned(), reason: reason.to_owned() });
    }

    fn demand(&mut self, setting: &str, demand: Demand) {
        if let Some(reason) = self.provider.and_then(|provider| provider.refusal(demand)) {
            self.never(setting, &reason);
        }
    }
}

fn networks(config: &TaskConfig, found: &mut Found<'_>) {
    let steps = config.steps.iter().flat_map(|step| {
        let apart = config.is_step_separate(step);
        [
            ("steps.agent.network_mode", step.agent_network.as_ref(), false),
            ("steps.verifier.network_mode", step.verifier_network.as_ref(), apart),
        ]
    });
    let apart = config.is_separate();
    let phases = [
        ("agent.network_mode", config.agent_network.as_ref(), false),
        ("verifier.network_mode", config.verifier_network.as_ref(), apart),
    ];
    let whole = ("environment.network_mode", config.network.as_ref(), true);
    let of_tests = tests_environments(config).map(|(table, own)| match table {
        "verifier.environment" => ("verifier.environment.network_mode", own.network.as_ref(), true),
        _ => ("steps.verifier.environment.network_mode", own.network.as_ref(), true),
    });
    for (setting, mode, fixed) in [whole].into_iter().chain(phases).chain(steps).chain(of_tests) {
        let public = matches!(config.network, None | Some(NetworkPolicy::Public));
        // With an allow-list, a container has no network either: a proxy is its only way out.
        if let Some(NetworkPolicy::Allowlist(_)) = mode {
            found.demand(setting, Demand::Allowlist);
        }
        match mode {
            Some(NetworkPolicy::NoNetwork | NetworkPolicy::Allowlist(_)) if fixed => {
                found.demand(setting, Demand::NoNetwork);
            }
            Some(NetworkPolicy::NoNetwork | NetworkPolicy::Allowlist(_)) if public => {
                found.demand(setting, Demand::NetworkChanges);
            }
            Some(NetworkPolicy::Public) if !fixed && !public => found.demand(setting, Demand::NetworkChanges),
            _ => {}
        }
    }
}
