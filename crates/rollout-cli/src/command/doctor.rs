//! `rollout doctor`: checks what this machine can run, and suggests fixes.

use std::{error::Error, fs::File, path::Path};

use rollout::environment::docker::{EngineError, EngineFacts};
use rollout_sandbox::{
    EngineOptions, ExitStatus, LimitBacking, Mode, Network, SandboxCommand, SandboxEngine, SandboxLimits,
    SandboxSpec, Stdio, Support,
};

use crate::{
    args::Doctor,
    disk::{MAKE_ROOM, room_at},
    engine::{self, Found},
    exit::{Exit, Failure},
    report::text::{BAD, BOLD, DIM, GOOD, ODD, count, paint, size},
    state::state_dir,
};

/// The result of one check.
#[derive(Debug)]
struct Finding {
    name: &'static str,
    standing: Standing,
    /// The state, or the reason why it does not work.
    text: String,
    /// Details and advice.
    notes: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Good,
    /// Missing, but not needed.
    Without,
    /// Jobs run, with restrictions.
    Partly,
    Bad,
}

/// Runs all checks, and prints the results.
#[cfg_attr(
    not(feature = "kubernetes"),
    expect(unused_variables, reason = "all arguments are for kubernetes")
)]
pub(crate) async fn run(args: Doctor) -> Result<Exit, Failure> {
    let state_dir = state_dir()?;
    let probed = probe(&state_dir).await;
    let found = engine::find().await;
    let mut findings = vec![native(&probed)];
    findings.extend(probed.as_ref().ok().map(limits));
    findings.push(docker(&found));
    #[cfg(feature = "kubernetes")]
    findings.extend(kubernetes(&args.cluster.choice()).await);
    findings.extend([jobs(probed.is_ok(), &found), disk(&state_dir), git().await]);
    super::print(&render(&findings))?;
    let something = probed.is_ok() || matches!(found, Found::Engine(_));
    Ok(if something { Exit::Success } else { Exit::Wrong })
}

fn render(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.name.len()).max().unwrap_or(0);
    let mut lines = Vec::new();
    for finding in findings {
        let mark = match finding.standing {
            Standing::Good => paint(GOOD, "✓"),
            Standing::Without => paint(DIM, "–"),
            Standing::Partly => paint(ODD, "!"),
            Standing::Bad => paint(BAD, "✗"),
        };
        lines.push(format!("{mark} {}  {}", paint(BOLD, &format!("{:<width$}", finding.name)), finding.text));
        lines.extend(finding.notes.iter().map(|note| format!("  {:<width$}  {note}", "")));
    }
    lines.join("\n")
}

/// Reports whether the native engine works.
fn native(probed: &Result<Support, Box<dyn Error + Send + Sync>>) -> Finding {
    let finding = |standing, text: String, notes| Finding { name: "native", standing, text, notes };
    match probed {
        Ok(support) => {
            let text = match support.mode {
                Mode::Root => "works, as root",
                Mode::User => "works, as an ordinary user in user namespaces",
            };
            let standing = if support.notes.is_empty() { Standing::Good } else { Standing::Partly };
            finding(standing, text.to_owned(), support.notes.clone())
        }
        Err(error) => {
            let causes = std::iter::successors(error.source(), |&cause| cause.source());
            finding(Standing::Bad, error.to_string(), causes.map(|cause| format!("cause: {cause}")).collect())
        }
    }
}

/// Starts the engine, creates an environment and runs a command in it.
async fn probe(state_dir: &Path) -> Result<Support, Box<dyn Error + Send + Sync>> {
    let options = EngineOptions { helper: std::env::current_exe()?, state_dir: state_dir.to_owned() };
    let engine = SandboxEngine::start(options).await?;
    let spec = SandboxSpec {
        name: "doctor".to_owned(),
        image: engine.host_image().await?,
        network: Network::None,
        limits: SandboxLimits { cpus_millis: Some(1000), memory_bytes: Some(64 << 20), pids: Some(64) },
        private_dirs: vec!["/tests".to_owned()],
        hosts: Vec::new(),
    };
    let sandbox = engine.create(spec).await?;
    let nowhere = || File::options().write(true).open("/dev/null");
    let command = SandboxCommand {
        argv: vec!["true".to_owned()],
        env: vec![("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".to_owned())],
        cwd: "/".to_owned(),
        user: None,
        stdin: Stdio::Null,
        stdout: nowhere()?.into(),
        stderr: nowhere()?.into(),
        tty: false,
        nested: true,
    };
    let exit = sandbox.exec(command).await?.wait().await?;
    sandbox.destroy().await?;
    match exit.status {
        ExitStatus::Code(0) => Ok(engine.support().clone()),
        status => Err(format!("an environment starts, but the command `true` ends with {status:?}").into()),
    }
}

fn limits(support: &Support) -> Finding {
    let limits = [("cpus", support.cpus), ("memory", support.memory), ("processes", support.pids)];
    let by = |backing| {
        limits.iter().filter(|(_, by)| *by == backing).map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
    };
    let held: Vec<String> = [(LimitBacking::CgroupV2, "cgroup v2"), (LimitBacking::CgroupV1, "cgroup v1")]
        .into_iter()
        .map(|(backing, name)| (by(backing), name))
        .filter(|(limits, _)| !limits.is_empty())
        .map(|(limits, name)| format!("{limits} by {name}"))
        .collect();
    let text = if held.is_empty() { "none can be enforced".to_owned() } else { held.join("; ") };
    if by(LimitBacking::None).is_empty() {
        return Finding { name: "limits", standing: Standing::Good, text, notes: Vec::new() };
    }
    // The engine's notes list the limits that are not enforced.
    let own = "systemd-run --user --scope -p Delegate=yes rollout …";
    let advice = (support.mode == Mode::User).then(|| format!("run as root, or in your own cgroup: {own}"));
    Finding { name: "limits", standing: Standing::Partly, text, notes: advice.into_iter().collect() }
}

fn disk(state_dir: &Path) -> Finding {
    let finding = |standing, text, notes| Finding { name: "disk", standing, text, notes };
    match room_at(state_dir) {
        Ok(room) => {
            let text = format!("{} of {} free in {}", size(room.free), size(room.total), state_dir.display());
            if room.is_low() {
                let note = format!(
                    "free space with `{MAKE_ROOM}`, or set ROLLOUT_STATE_DIR to a directory on a larger disk"
                );
                finding(Standing::Partly, text, vec![note])
            } else {
                finding(Standing::Good, text, Vec::new())
            }
        }
        Err(error) => {
            let text = format!("cannot read the free space of {}: {error}", state_dir.display());
            finding(Standing::Partly, text, Vec::new())
        }
    }
}

async fn git() -> Finding {
    let (standing, text, notes) = match rollout::task::git_version(Path::new("git")).await {
        Ok(output) if output.status.success() => {
            (Standing::Good, String::from_utf8_lossy(&output.stdout).trim().to_owned(), Vec::new())
        }
        _ => {
            let note = "needed only for registries with tasks in git repositories; install git 2.29 or newer"
                .to_owned();
            (Standing::Partly, "not found".to_owned(), vec![note])
        }
    };
    Finding { name: "git", standing, text, notes }
}

/// Reports the Docker engine that jobs use, or the addresses that were tried.
fn docker(found: &Found) -> Finding {
    let finding = |standing, text: String, notes| Finding { name: "docker", standing, text, notes };
    match found {
        Found::Engine(engine) => answering(engine.facts()),
        Found::None(error) => finding(Standing::Without, first(error), rest(error)),
        Found::Missing(error) | Found::Unusable(error) => {
            let mut notes = rest(error);
            notes.extend(error.hint().map(str::to_owned));
            finding(Standing::Partly, first(error), notes)
        }
    }
}

/// Reports the Kubernetes cluster, if there is a kubeconfig file or the user has chosen a cluster.
#[cfg(feature = "kubernetes")]
async fn kubernetes(choice: &rollout::environment::kubernetes::ClusterChoice) -> Option<Finding> {
    use rollout::environment::kubernetes::{Cluster, ClusterChoice};
    let access = engine::clusters();
    let finding = |standing, text: String, notes| Finding { name: "kubernetes", standing, text, notes };
    match Cluster::connect(&access, choice).await {
        Ok(cluster) => {
            let text = format!(
                "works: {} at {}, namespace {}",
                cluster.version(),
                cluster.address(),
                cluster.namespace()
            );
            Some(finding(Standing::Good, text, Vec::new()))
        }
        Err(error) if error.is_absence() && *choice == ClusterChoice::default() => None,
        Err(error) => Some(finding(
            Standing::Partly,
            error.to_string(),
            error.hint().map(str::to_owned).into_iter().collect(),
        )),
    }
}

fn answering(facts: &EngineFacts) -> Finding {
    let EngineFacts { name, version, api_version, address, storage_driver, cgroup_version, .. } = facts;
    let below = facts.backing_filesystem.as_deref().map(|name| format!(" on {name}")).unwrap_or_default();
    let mut notes = vec![format!(
        "storage driver {storage_driver}{below}, cgroup v{cgroup_version}, {}, {} of memory",
        count(facts.cpus, "CPU"),
        size(facts.memory)
    )];
    let mut standing = Standing::Good;
    if let Some(disk) = facts.disk {
        let place = facts.root_dir.display();
        notes.push(format!("{} of {} free in {place}", size(disk.free), size(disk.total)));
        if disk.is_low() {
            standing = Standing::Partly;
            notes.push("`rollout clean --images` removes the images that Rollout built".to_owned());
        }
    }
    let text = format!("works: {name} {version}, API {api_version}, at {address}");
    Finding { name: "docker", standing, text, notes }
}

/// Reports where a job without `environment.type` runs.
fn jobs(native: bool, found: &Found) -> Finding {
    let (standing, text) = match found {
        Found::Engine(_) => (Standing::Good, "run on docker"),
        Found::Unusable(_) if native => (Standing::Partly, "are rejected; set `type: native`"),
        Found::None(_) | Found::Missing(_) if native => (Standing::Good, "run on native"),
        _ => (Standing::Bad, "cannot run: neither native nor docker works"),
    };
    let text = format!("without `environment.type` {text}");
    Finding { name: "jobs", standing, text, notes: Vec::new() }
}

/// Returns the first line of an error.
fn first(error: &EngineError) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

/// Returns the other lines of an error, and its causes.
fn rest(error: &EngineError) -> Vec<String> {
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    let causes = causes.map(|cause| format!("cause: {cause}"));
    error.to_string().lines().skip(1).map(|line| line.trim().to_owned()).chain(causes).collect()
}

#[cfg(test)]
mod tests {
    use std::io;

    use rollout::environment::docker::Disk;

    use super::*;

    #[test]
    fn each_finding_is_a_line_with_notes_below() {
        let support = |mode, memory, notes: &[&str]| Support {
            mode,
            changes_on_disk: true,
            cpus: LimitBacking::CgroupV1,
            memory,
            pids: LimitBacking::CgroupV1,
            notes: notes.iter().map(|&note| note.to_owned()).collect(),
        };
        let root = support(Mode::Root, LimitBacking::CgroupV2, &[]);
        let user = support(Mode::User, LimitBacking::None, &["programs of the host are read-only"]);
        let failed = io::Error::new(io::ErrorKind::PermissionDenied, "creating a user namespace failed");
        let findings = [
            native(&Ok(root.clone())),
            limits(&root),
            native(&Ok(user.clone())),
            limits(&user),
            native(&Err(Box::new(failed))),
        ];
        insta::assert_snapshot!(anstream::adapter::strip_str(&render(&findings)).to_string(), @"
        ✓ native  works, as root
        ✓ limits  memory by cgroup v2; cpus, processes by cgroup v1
        ! native  works, as an ordinary user in user namespaces
                  programs of the host are read-only
        ! limits  cpus, processes by cgroup v1
                  run as root, or in your own cgroup: systemd-run --user --scope -p Delegate=yes rollout …
        ✗ native  creating a user namespace failed
        ");
    }

    #[test]
    fn an_engine_is_reported_with_its_facts_and_a_missing_one_with_the_addresses_tried() {
        let facts = EngineFacts {
            address: "unix:///var/run/docker.sock".to_owned(),
            name: "docker",
            version: "27.1.0".to_owned(),
            api_version: "1.46".to_owned(),
            storage_driver: "overlay2".to_owned(),
            backing_filesystem: Some("extfs".to_owned()),
            cgroup_version: "2".to_owned(),
            os: "linux".to_owned(),
            arch: "amd64".to_owned(),
            cpus: 8,
            memory: 16 << 30,
            root_dir: "/var/lib/docker".into(),
            disk: Some(Disk { free: 20 << 30, total: 100 << 30 }),
        };
        let low = Some(Disk { free: 1 << 30, total: 100 << 30 });
        let remote = EngineFacts { disk: None, backing_filesystem: None, ..facts.clone() };
        let tried = |paths: &[&str]| EngineError::Absent {
            tried: paths
                .iter()
                .map(|path| ((*path).to_owned(), "there is no such socket".to_owned()))
                .collect(),
        };
        let none = Found::None(tried(&["unix:///var/run/docker.sock", "unix:///run/podman/podman.sock"]));
        let missing = Found::Missing(tried(&["unix:///elsewhere"]));
        let unusable = Found::Unusable(EngineError::Unusable {
            at: "tcp://far:2375".to_owned(),
            why: "its containers run windows, but tasks need linux".to_owned(),
        });
        let findings = [
            answering(&facts),
            answering(&EngineFacts { disk: low, ..facts.clone() }),
            answering(&remote),
            docker(&none),
            jobs(true, &none),
            jobs(false, &none),
            docker(&missing),
            jobs(true, &missing),
            docker(&unusable),
            jobs(true, &unusable),
        ];
        insta::assert_snapshot!(anstream::adapter::strip_str(&render(&findings)).to_string(), @"
        ✓ docker  works: docker 27.1.0, API 1.46, at unix:///var/run/docker.sock
                  storage driver overlay2 on extfs, cgroup v2, 8 CPUs, 16.0 GiB of memory
                  20.0 GiB of 100.0 GiB free in /var/lib/docker
        ! docker  works: docker 27.1.0, API 1.46, at unix:///var/run/docker.sock
                  storage driver overlay2 on extfs, cgroup v2, 8 CPUs, 16.0 GiB of memory
                  1.0 GiB of 100.0 GiB free in /var/lib/docker
                  `rollout clean --images` removes the images that Rollout built
        ✓ docker  works: docker 27.1.0, API 1.46, at unix:///var/run/docker.sock
                  storage driver overlay2, cgroup v2, 8 CPUs, 16.0 GiB of memory
        – docker  no Docker engine answers
                  unix:///var/run/docker.sock: there is no such socket
                  unix:///run/podman/podman.sock: there is no such socket
        ✓ jobs    without `environment.type` run on native
        ✗ jobs    without `environment.type` cannot run: neither native nor docker works
        ! docker  no Docker engine answers
                  unix:///elsewhere: there is no such socket
                  start the engine, or set DOCKER_HOST to its address; the native environment (`type: native`) needs no engine
        ✓ jobs    without `environment.type` run on native
        ! docker  the engine at tcp://far:2375 cannot be used: its containers run windows, but tasks need linux
                  write `type: native`, which needs no engine
        ! jobs    without `environment.type` are rejected; set `type: native`
        ");
    }
}
