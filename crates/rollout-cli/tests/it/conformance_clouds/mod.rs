//! The provider conformance suite, and tests of faults, for each cloud against its fake.

mod faults;

/// Creates all tests of a cloud for an expression that makes a [`Cloud`].
macro_rules! cloud_tests {
    ($cloud:expr) => {
        rollout_testkit::conformance!($cloud; phases rewards processes separate errors images missing limits hostile
            cancel preserve files commands tunnel models isolation verdict losses);

        $crate::conformance_clouds::faults::cloud_faults!($cloud);
    };
}

#[cfg(feature = "daytona")]
mod daytona;
#[cfg(feature = "e2b")]
mod e2b;
#[cfg(feature = "fly")]
mod fly;
#[cfg(feature = "modal")]
mod modal;

use std::{path::Path, sync::Arc};

use async_trait::async_trait;
use rollout::{
    config::EnvironmentConfig,
    environment::{CloudAccess, ConnectError, DockerAccess, HostPaths, KubernetesAccess, Provider, connect},
};
use rollout_testkit::{
    CloudFake, TestEngine, TestJob,
    conformance::{Ability, Subject},
};
use serde_json::{Value, json};

/// A cloud whose server is a fake.
pub(crate) struct Cloud {
    fake: Arc<dyn CloudFake>,
    /// The missing abilities that not all vendors lack.
    lacks: Vec<Ability>,
}

impl Cloud {
    pub(crate) fn new(fake: impl CloudFake) -> Self {
        Self::shared(Arc::new(fake))
    }

    /// A cloud whose server a test uses, too.
    pub(crate) fn shared(fake: Arc<impl CloudFake>) -> Self {
        Self { fake, lacks: Vec::new() }
    }

    /// Declares a missing ability.
    pub(crate) fn lacking(mut self, ability: Ability) -> Self {
        self.lacks.push(ability);
        self
    }

    /// The server.
    pub(crate) fn fake(&self) -> Arc<dyn CloudFake> {
        Arc::clone(&self.fake)
    }

    /// A job that the command runs.
    pub(crate) fn command_job(&self) -> TestJob {
        let mut job = TestJob::new(env!("CARGO_BIN_EXE_rollout")).set("environment", self.environment());
        let engine = match self.fake.needs_engine() {
            true => TestEngine::shared().host().to_owned(),
            false => "unix:///nonexistent/engine.sock".to_owned(),
        };
        job = job.env("DOCKER_HOST", &engine);
        for (name, value) in self.fake.variables() {
            job = job.env(name, &value);
        }
        job
    }

    /// Connects with the credentials of the fake.
    pub(crate) async fn connect(
        &self,
        config: &EnvironmentConfig,
        state_dir: &Path,
    ) -> Result<Arc<dyn Provider>, ConnectError> {
        let variables = self.fake.variables();
        let variable = |name: &str| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.clone().into())
        };
        let engine = self.fake.needs_engine().then(|| TestEngine::shared().host().to_owned());
        let place = HostPaths {
            state_dir: state_dir.to_owned(),
            helper: "unused".into(),
            docker: DockerAccess { host: engine, ..DockerAccess::default() },
            kubernetes: KubernetesAccess::default(),
            clouds: CloudAccess::from_variables(variable),
        };
        connect(config, &place).await
    }
}

#[async_trait]
impl Subject for Cloud {
    fn environment(&self) -> Value {
        let mut settings = self.fake.settings();
        settings.insert("network".to_owned(), json!("open"));
        settings.insert("start_timeout_sec".to_owned(), json!(120));
        json!({"type": self.fake.kind(), "provider_config": settings})
    }

    async fn provider(&self, config: &EnvironmentConfig, state_dir: &Path) -> Arc<dyn Provider> {
        self.connect(config, state_dir).await.expect("connect to the cloud")
    }

    fn leftovers(&self, job: &str, _state_dir: &Path) -> Vec<String> {
        let live = self.fake.sandboxes().into_iter();
        let left = live.filter(|sandbox| sandbox.job().starts_with(job) && !sandbox.is_kept());
        left.map(|sandbox| sandbox.id).collect()
    }

    fn end_environments(&self, job: &str, _state_dir: &Path) {
        for sandbox in self.fake.sandboxes() {
            if sandbox.job().starts_with(job) {
                self.fake.end(&sandbox.id);
            }
        }
    }

    fn forget(&self, place: &str) {
        self.fake.end(place);
    }

    fn lacks(&self, ability: Ability) -> Option<&'static str> {
        match ability {
            Ability::LimitProcesses => Some("the limit on processes is not enforced"),
            Ability::Snapshots => Some("installations of agents are not stored"),
            Ability::Terminals => Some("terminals are opened with the program of"),
            // The machines of the fakes are sandboxes, which refuse namespaces to their processes.
            Ability::SurvivesKills => Some("an agent that kills every process ends its sandbox"),
            Ability::FractionsOfCpus => {
                self.lacks.contains(&ability).then_some("rounded up to a size that the vendor offers")
            }
            Ability::NoNetwork => {
                self.lacks.contains(&ability).then_some("does not support environments without a network")
            }
            Ability::LimitCpus | Ability::LimitMemory | Ability::OtherUsers => None,
        }
    }
}
