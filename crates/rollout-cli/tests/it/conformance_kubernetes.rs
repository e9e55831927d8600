//! The provider conformance suite, on a real Kubernetes cluster.

use std::{path::Path, sync::Arc};

use async_trait::async_trait;
use rollout::{
    config::EnvironmentConfig,
    environment::{CloudAccess, DockerAccess, HostPaths, KubernetesAccess, Provider, connect},
};
use rollout_testkit::{
    TestCluster, TestEngine,
    conformance::{Ability, Subject},
};
use serde_json::{Value, json};

struct Kubernetes {
    cluster: TestCluster,
    base: String,
}

impl Kubernetes {
    fn new() -> Self {
        let cluster = TestCluster::shared();
        let base = format!("{}/test", cluster.registry());
        let engine = TestEngine::shared();
        engine.docker(&["tag", "test", &base]);
        engine.docker(&["push", "--quiet", &base]);
        Self { cluster, base }
    }

    /// The pods of jobs, as lines of job and name.
    fn pods(&self, job: &str) -> Vec<String> {
        let columns = r#"jsonpath={range .items[*]}{.metadata.annotations.rollout/job} {.metadata.name} kept={.metadata.labels.rollout/kept}{"\n"}{end}"#;
        let pods = self.cluster.kubectl(&["get", "pods", "-o", columns]);
        pods.lines().filter(|line| line.starts_with(job)).map(str::to_owned).collect()
    }
}

#[async_trait]
impl Subject for Kubernetes {
    fn environment(&self) -> Value {
        json!({"type": "kubernetes", "provider_config": {
            "network": "host",
            "registry": self.cluster.registry(),
            "kubeconfig": self.cluster.kubeconfig(),
            // The node is small, and tests run side by side.
            "cpu_request": 0.01,
            "memory_request": 0.01,
            "storage_request": 0,
            "start_timeout_sec": 120,
        }})
    }

    async fn provider(&self, config: &EnvironmentConfig, state_dir: &Path) -> Arc<dyn Provider> {
        let docker =
            DockerAccess { host: Some(TestEngine::shared().host().to_owned()), ..DockerAccess::default() };
        let place = HostPaths {
            state_dir: state_dir.to_owned(),
            helper: "unused".into(),
            docker,
            kubernetes: KubernetesAccess::default(),
            clouds: CloudAccess::default(),
        };
        connect(config, &place).await.expect("connect to the cluster")
    }

    fn base_image(&self) -> &str {
        &self.base
    }

    fn leftovers(&self, job: &str, _state_dir: &Path) -> Vec<String> {
        self.pods(job).into_iter().filter(|line| !line.ends_with("kept=true")).collect()
    }

    fn end_environments(&self, job: &str, _state_dir: &Path) {
        let engine = self.cluster.node_engine();
        for line in self.pods(job) {
            let pod = line.split(' ').nth(1).expect("a name");
            let filters =
                ["label=io.kubernetes.container.name=main", &format!("label=io.kubernetes.pod.name={pod}")];
            let container = engine.docker(&["ps", "--quiet", "--filter", filters[0], "--filter", filters[1]]);
            if !container.is_empty() {
                engine.docker(&["kill", &container]);
            }
        }
    }

    fn forget(&self, place: &str) {
        self.cluster.kubectl(&["delete", "pod", place, "--grace-period=1", "--wait=false"]);
    }

    fn lacks(&self, ability: Ability) -> Option<&'static str> {
        match ability {
            Ability::LimitProcesses => Some("the limit on processes is not enforced"),
            Ability::Snapshots => Some("kubernetes has no snapshots"),
            Ability::LimitCpus
            | Ability::FractionsOfCpus
            | Ability::LimitMemory
            | Ability::NoNetwork
            | Ability::OtherUsers
            | Ability::SurvivesKills
            | Ability::Terminals => None,
        }
    }
}

rollout_testkit::conformance!(Kubernetes::new(); phases rewards processes separate errors images missing limits hostile
    cancel preserve files commands tunnel models isolation verdict losses);
