//! The provider conformance suite, by the docker command.

use std::{path::Path, sync::Arc};

use async_trait::async_trait;
use rollout::{config::EnvironmentConfig, environment::Provider};
use rollout_example_provider::{DockerCommand, DockerProgram};
use rollout_testkit::{TestEngine, conformance::Subject};
use serde_json::{Value, json};

struct Command(TestEngine);

#[async_trait]
impl Subject for Command {
    fn environment(&self) -> Value {
        json!({"provider_config": {"network": "host"}})
    }

    async fn provider(&self, config: &EnvironmentConfig, state_dir: &Path) -> Arc<dyn Provider> {
        let program = self.0.client().get_program().into();
        let client = DockerProgram { program, host: Some(self.0.host().to_owned()) };
        Arc::new(DockerCommand::connect(client, config, state_dir).await.expect("connect to the engine"))
    }

    fn leftovers(&self, job: &str, _state_dir: &Path) -> Vec<String> {
        let format = "{{.Label \"rollout-example.job\"}} {{.Names}} {{.Status}}";
        let containers = self.0.docker(&["ps", "--all", "--format", format]);
        let ours = containers.lines().filter(|line| line.starts_with(job) && !line.contains("-kept-"));
        ours.map(str::to_owned).collect()
    }

    fn end_environments(&self, job: &str, _state_dir: &Path) {
        let format = "{{.Label \"rollout-example.job\"}} {{.Names}}";
        let running = self.0.docker(&["ps", "--format", format]);
        for line in running.lines().filter(|line| line.starts_with(job)) {
            self.0.docker(&["kill", line.rsplit(' ').next().expect("a name")]);
        }
    }

    fn forget(&self, place: &str) {
        self.0.docker(&["rm", "--force", "--volumes", place]);
    }
}

rollout_testkit::conformance!(Command(TestEngine::shared()));
