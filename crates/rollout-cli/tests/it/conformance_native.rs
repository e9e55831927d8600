//! The provider conformance suite, in the native environment.

use std::{fs, path::Path, sync::Arc};

use async_trait::async_trait;
use rollout::{
    config::EnvironmentConfig,
    environment::{DockerAccess, HostPaths, Provider, connect},
};
use rollout_testkit::{conformance::Subject, link_program, processes_and_mounts_below, runs_in};
use serde_json::{Value, json};

struct Native;

#[async_trait]
impl Subject for Native {
    fn environment(&self) -> Value {
        json!({"type": "native", "provider_config": {"images": {"test": "host"}}})
    }

    async fn provider(&self, config: &EnvironmentConfig, state_dir: &Path) -> Arc<dyn Provider> {
        // A link of the job's own, so that its processes can be told from those of other tests.
        fs::create_dir_all(state_dir).expect("make the state directory");
        let helper = state_dir.join("rollout");
        link_program(env!("CARGO_BIN_EXE_rollout").as_ref(), &helper);
        let place = HostPaths { state_dir: state_dir.to_owned(), helper, docker: DockerAccess::default() };
        connect(config, &place).await.expect("start the native provider")
    }

    fn leftovers(&self, _job: &str, state_dir: &Path) -> Vec<String> {
        let mut found = processes_and_mounts_below(state_dir);
        found.extend(runs_in(state_dir));
        found
    }

    fn forget(&self, place: &str) {
        fs::remove_dir_all(place).expect("remove a preserved environment");
    }
}

rollout_testkit::conformance!(Native);
