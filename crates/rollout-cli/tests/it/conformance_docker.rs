//! The provider conformance suite, on a Docker engine with each of its builders, and on Podman.

use std::{path::Path, sync::Arc};

use async_trait::async_trait;
use rollout::{
    config::EnvironmentConfig,
    environment::{CloudAccess, DockerAccess, HostPaths, KubernetesAccess, Provider, connect},
};
use rollout_testkit::{TestEngine, conformance::Subject};
use serde_json::{Value, json};

struct Docker {
    engine: TestEngine,
    /// What `provider_config` has beside the network.
    builder: Option<&'static str>,
}

#[async_trait]
impl Subject for Docker {
    fn environment(&self) -> Value {
        let mut config = json!({"network": "host"});
        if let Some(builder) = self.builder {
            config["builder"] = json!(builder);
        }
        json!({"type": "docker", "provider_config": config})
    }

    async fn provider(&self, config: &EnvironmentConfig, state_dir: &Path) -> Arc<dyn Provider> {
        let docker = DockerAccess { host: Some(self.engine.host().to_owned()), ..DockerAccess::default() };
        let place = HostPaths {
            state_dir: state_dir.to_owned(),
            helper: "unused".into(),
            docker,
            kubernetes: KubernetesAccess::default(),
            clouds: CloudAccess::default(),
        };
        connect(config, &place).await.expect("connect to the engine")
    }

    fn leftovers(&self, job: &str, _state_dir: &Path) -> Vec<String> {
        let format = "{{.Label \"rollout.job\"}} {{.Names}} {{.Status}}";
        let containers = self.engine.docker(&["ps", "--all", "--format", format]);
        let ours =
            containers.lines().filter(|line| line.starts_with(job) && !line.contains(" rollout-kept-"));
        ours.map(str::to_owned).collect()
    }

    fn end_environments(&self, job: &str, _state_dir: &Path) {
        let format = "{{.Label \"rollout.job\"}} {{.Names}}";
        let running = self.engine.docker(&["ps", "--format", format]);
        for line in running.lines().filter(|line| line.starts_with(job)) {
            self.engine.docker(&["kill", line.rsplit(' ').next().expect("a name")]);
        }
    }

    fn forget(&self, place: &str) {
        self.engine.docker(&["rm", "--force", "--volumes", place]);
    }
}

mod engine {
    use super::*;
    rollout_testkit::conformance!(Docker { engine: TestEngine::shared(), builder: None });
}

mod classic_builder {
    use super::*;
    rollout_testkit::conformance!(Docker { engine: TestEngine::shared(), builder: Some("classic") }; errors images missing);
}

mod podman {
    use super::*;
    rollout_testkit::conformance!(Docker { engine: TestEngine::podman(), builder: None }; phases processes tunnel models verdict losses);
}
