//! `rollout doctor`: what this machine can run and, for what it cannot, why and what to change.

use std::{error::Error, ffi::OsStr, fs::File, path::Path, process::Stdio as ChildStdio};

use rollout_sandbox::{
    Command, Engine, EngineOptions, ExitStatus, LimitBacking, Limits, Mode, Network, SandboxSpec, Stdio,
    Support,
};

use crate::{
    disk::{MAKE_ROOM, Room},
    exit::{Exit, Failure},
    report::text::{BAD, BOLD, GOOD, ODD, paint, size},
    state::state_dir,
};

/// What was found out about one thing.
#[derive(Debug)]
struct Finding {
    name: &'static str,
    standing: Standing,
    /// What there is, or why it cannot be used.
    text: String,
    /// What to know or to change.
    notes: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Good,
    /// Jobs run, but not all that could be.
    Partly,
    Bad,
}

/// Looks at everything and prints what was found.
pub(crate) async fn run() -> Result<Exit, Failure> {
    let state_dir = state_dir()?;
    let probed = probe(&state_dir).await;
    let mut findings = vec![native(&probed)];
    findings.extend(probed.as_ref().ok().map(limits));
    findings.extend([disk(&state_dir), git().await, docker()]);
    super::print(&render(&findings))?;
    // Native is all there is, so without it nothing can run.
    Ok(if probed.is_ok() { Exit::Success } else { Exit::Wrong })
}

fn render(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.name.len()).max().unwrap_or(0);
    let mut lines = Vec::new();
    for finding in findings {
        let mark = match finding.standing {
            Standing::Good => paint(GOOD, "✓"),
            Standing::Partly => paint(ODD, "!"),
            Standing::Bad => paint(BAD, "✗"),
        };
        lines.push(format!("{mark} {}  {}", paint(BOLD, &format!("{:<width$}", finding.name)), finding.text));
        lines.extend(finding.notes.iter().map(|note| format!("  {:<width$}  {note}", "")));
    }
    lines.join("\n")
}

/// What the engine found out about itself, and that it works.
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

/// Starts the engine, makes an environment and runs a command in it.
async fn probe(state_dir: &Path) -> Result<Support, Box<dyn Error + Send + Sync>> {
    let options = EngineOptions { helper: std::env::current_exe()?, state_dir: state_dir.to_owned() };
    let engine = Engine::start(options).await?;
    let spec = SandboxSpec {
        name: "doctor".to_owned(),
        image: engine.host_image().await?,
        network: Network::None,
        limits: Limits { cpus_millis: Some(1000), memory_bytes: Some(64 << 20), pids: Some(64) },
    };
    let sandbox = engine.create(spec).await?;
    let nowhere = || File::options().write(true).open("/dev/null");
    let command = Command {
        argv: vec!["true".to_owned()],
        env: vec![("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".to_owned())],
        cwd: "/".to_owned(),
        user: None,
        stdin: Stdio::Null,
        stdout: nowhere()?.into(),
        stderr: nowhere()?.into(),
        tty: false,
    };
    let exit = sandbox.exec(command).await?.wait().await;
    sandbox.destroy().await?;
    match exit.status {
        ExitStatus::Code(0) => Ok(engine.support().clone()),
        status => Err(format!("an environment starts, but `true` ends with {status:?} in it").into()),
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
    // What is not enforced is among the engine's own notes.
    let own = "systemd-run --user --scope -p Delegate=yes rollout …";
    let advice =
        (support.mode == Mode::User).then(|| format!("run as root, or in a cgroup of your own: {own}"));
    Finding { name: "limits", standing: Standing::Partly, text, notes: advice.into_iter().collect() }
}

fn disk(state_dir: &Path) -> Finding {
    let finding = |standing, text, notes| Finding { name: "disk", standing, text, notes };
    match Room::at(state_dir) {
        Ok(room) => {
            let text =
                format!("{} of {} free for {}", size(room.free), size(room.total), state_dir.display());
            if room.is_little() {
                let note = format!(
                    "`{MAKE_ROOM}` makes room; or set ROLLOUT_STATE_DIR to a directory with more of it"
                );
                finding(Standing::Partly, text, vec![note])
            } else {
                finding(Standing::Good, text, Vec::new())
            }
        }
        Err(error) => {
            finding(Standing::Partly, format!("cannot look at {}: {error}", state_dir.display()), Vec::new())
        }
    }
}

async fn git() -> Finding {
    let output =
        tokio::process::Command::new("git").arg("--version").stdin(ChildStdio::null()).output().await;
    let (standing, text, notes) = match output {
        Ok(output) if output.status.success() => {
            (Standing::Good, String::from_utf8_lossy(&output.stdout).trim().to_owned(), Vec::new())
        }
        _ => {
            let note =
                "only registries whose tasks lie in git repositories need it; install git 2.25 or later"
                    .to_owned();
            (Standing::Partly, "not found".to_owned(), vec![note])
        }
    };
    Finding { name: "git", standing, text, notes }
}

fn docker() -> Finding {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let (standing, text) = match find("docker", &path) {
        Some(found) => (
            Standing::Partly,
            format!("{found} is there, but docker environments are not supported in this version"),
        ),
        None => {
            (Standing::Good, "not found, and not supported in this version; jobs run on native".to_owned())
        }
    };
    Finding { name: "docker", standing, text, notes: Vec::new() }
}

fn find(program: &str, path: &OsStr) -> Option<String> {
    std::env::split_paths(path)
        .map(|dir| dir.join(program))
        .find(|path| path.is_file())
        .map(|p| p.display().to_string())
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn each_finding_is_a_line_with_what_to_know_or_do_beneath() {
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
        let failed = io::Error::new(io::ErrorKind::PermissionDenied, "making a user namespace failed");
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
                  run as root, or in a cgroup of your own: systemd-run --user --scope -p Delegate=yes rollout …
        ✗ native  making a user namespace failed
        ");
    }
}
