//! The provider conformance suite, on the Docker engine.

use std::{path::Path, sync::Arc};

use async_trait::async_trait;
use rollout::{
    config::EnvironmentConfig,
    environment::{DockerPlace, Place, Provider, connect},
};
use rollout_testkit::{Engine, conformance::Subject};
use serde_json::{Value, json};

struct Docker;

#[async_trait]
impl Subject for Docker {
    fn environment(&self) -> Value {
        json!({"type": "docker", "provider_config": {"network": "host"}})
    }

    async fn provider(&self, config: &EnvironmentConfig, state_dir: &Path) -> Arc<dyn Provider> {
        let docker = DockerPlace { host: Some(Engine::shared().host().to_owned()), ..DockerPlace::default() };
        let place = Place { state_dir: state_dir.to_owned(), helper: "/nonexistent".into(), docker };
        connect(config, &place).await.expect("reach the engine")
    }

    fn leftovers(&self, job: &str, _state_dir: &Path) -> Vec<String> {
        let all = ["ps", "--all", "--filter", "label=rollout.owner"];
        let format = ["--format", "{{.Label \"rollout.job\"}} {{.Names}}"];
        let containers = Engine::shared().docker(&[&all[..], &format[..]].concat());
        let of_job = containers.lines().filter(|line| line.starts_with(job));
        of_job.filter(|line| !line.contains(" rollout-kept-")).map(str::to_owned).collect()
    }

    fn forget(&self, place: &str) {
        Engine::shared().docker(&["rm", "--force", "--volumes", place]);
    }
}

rollout_testkit::conformance!(Docker);
