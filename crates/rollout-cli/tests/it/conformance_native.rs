//! The provider conformance suite, in the native environment.

use std::{fs, path::Path, sync::Arc};

use async_trait::async_trait;
use rollout::{
    config::EnvironmentConfig,
    environment::{CloudAccess, DockerAccess, HostPaths, KubernetesAccess, Provider, connect},
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
        // A link of the job's own, which distinguishes its processes from those of other tests.
        fs::create_dir_all(state_dir).expect("make the state directory");
        let helper = state_dir.join("rollout");
        link_program(env!("CARGO_BIN_EXE_rollout").as_ref(), &helper);
        let place = HostPaths {
            state_dir: state_dir.to_owned(),
            helper,
            docker: DockerAccess::default(),
            kubernetes: KubernetesAccess::default(),
            clouds: CloudAccess::default(),
        };
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

    fn end_environments(&self, _job: &str, state_dir: &Path) {
        let helpers = helpers_in(state_dir);
        // The zygote's parent is no helper, and the first process of an environment has the zygote as its parent.
        let is_zygote = |pid: i32| helpers.contains(&pid) && !helpers.contains(&parent(pid));
        for first in helpers.iter().filter(|pid| is_zygote(parent(**pid))) {
            let first = rustix::process::Pid::from_raw(*first).expect("a pid is positive");
            rustix::process::kill_process(first, rustix::process::Signal::KILL).expect("kill it");
        }
    }
}

/// The processes of the native environment that belong to a state directory.
fn helpers_in(state_dir: &Path) -> Vec<i32> {
    let program = state_dir.join("rollout").display().to_string();
    let entries = fs::read_dir("/proc").expect("list processes").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_helper = |pid: &i32| {
        fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(program.as_bytes()))
    };
    pids.filter(is_helper).collect()
}

fn parent(pid: i32) -> i32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    parent.and_then(|parent| parent.trim().parse().ok()).unwrap_or(0)
}

rollout_testkit::conformance!(Native);
