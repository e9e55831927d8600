//! The provider conformance suite, in the native environment, as root and as an ordinary user.

use std::{fs, path::Path, process::Command, sync::Arc};

use async_trait::async_trait;
use rollout::{
    config::EnvironmentConfig,
    environment::{CloudAccess, DockerAccess, HostPaths, KubernetesAccess, Provider, connect},
};
use rollout_testkit::{
    conformance::{Ability, Subject, USER_PROGRAM},
    link_program, processes_and_mounts_below, runs_in,
};
use serde_json::{Value, json};

struct Native {
    /// Whether an ordinary user runs the jobs.
    is_user: bool,
}

const PROGRAM: &str = env!("CARGO_BIN_EXE_rollout");

#[async_trait]
impl Subject for Native {
    fn environment(&self) -> Value {
        json!({"type": "native", "provider_config": {"images": {"test": "host"}}})
    }

    async fn provider(&self, config: &EnvironmentConfig, state_dir: &Path) -> Arc<dyn Provider> {
        // A link of the job's own, which distinguishes its processes from those of other tests.
        fs::create_dir_all(state_dir).expect("make the state directory");
        let helper = state_dir.join("rollout");
        let program = std::env::var_os(USER_PROGRAM).unwrap_or(PROGRAM.into());
        link_program(program.as_ref(), &helper);
        let place = HostPaths {
            state_dir: state_dir.to_owned(),
            helper,
            docker: DockerAccess::default(),
            kubernetes: KubernetesAccess::default(),
            clouds: CloudAccess::default(),
        };
        connect(config, &place).await.expect("start the native provider")
    }

    fn program_of_ordinary_user(&self) -> Option<&Path> {
        self.is_user.then_some(Path::new(PROGRAM))
    }

    fn lacks(&self, ability: Ability) -> Option<&'static str> {
        let words = match ability {
            Ability::LimitCpus => "limits on CPUs are not enforced",
            Ability::LimitMemory => "limits on memory are not enforced",
            Ability::LimitProcesses => "limits on processes are not enforced",
            Ability::OtherUsers => "environments have only the user root and cannot change the host's files",
            Ability::FractionsOfCpus
            | Ability::NoNetwork
            | Ability::Snapshots
            | Ability::SurvivesKills
            | Ability::Terminals => return None,
        };
        // The user of the tests has no cgroup of its own.
        self.is_user.then_some(words)
    }

    fn leftovers(&self, _job: &str, state_dir: &Path) -> Vec<String> {
        let mut found = processes_and_mounts_below(state_dir);
        found.extend(runs_in(state_dir));
        found
    }

    fn forget(&self, place: &str) {
        // overlayfs closes a directory of its own to an ordinary user.
        let opened = Command::new("chmod").args(["-R", "u+rwx", place]).status().expect("run chmod");
        assert!(opened.success(), "{place} cannot be opened");
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

rollout_testkit::conformance!(Native { is_user: false });

mod as_ordinary_user {
    use super::*;

    rollout_testkit::conformance!(Native { is_user: true });
}
