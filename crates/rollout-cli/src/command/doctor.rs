//! `rollout doctor`: what this machine can run and, for what it cannot, why and what to change.

use std::{error::Error, ffi::OsStr, fs::File, path::Path, process::Stdio as ChildStdio};

use rollout_sandbox::{
    Command, Enforced, Engine, EngineOptions, ExitStatus, Limits, Mode, Network, SandboxSpec, Stdio,
};

use crate::{
    exit::{Exit, Failure},
    report::text::{BAD, BOLD, GOOD, ODD, paint, size},
    state::state_dir,
};

/// Less room than this, and a first build may fail.
const LITTLE_ROOM: u64 = 1 << 30;

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
    let (native, probed) = native(&state_dir).await;
    let can_run = native.standing != Standing::Bad;
    let findings = [native, limits(probed), disk(&state_dir), git().await, docker()];
    super::print(&render(&findings))?;
    Ok(if can_run { Exit::Success } else { Exit::Wrong })
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

/// Starts the engine, makes an environment and runs a command in it.
async fn native(state_dir: &Path) -> (Finding, Option<(Mode, Enforced)>) {
    let finding = |standing, text: String, notes| Finding { name: "native", standing, text, notes };
    match probe(state_dir).await {
        Ok((mode, notes, enforced)) => {
            let text = match mode {
                Mode::Root => "works, as root",
                Mode::User => "works, as an ordinary user in user namespaces",
            };
            let standing = if notes.is_empty() { Standing::Good } else { Standing::Partly };
            (finding(standing, text.to_owned(), notes), Some((mode, enforced)))
        }
        Err(error) => {
            let mut causes = Vec::new();
            let mut source = error.source();
            while let Some(cause) = source {
                causes.push(format!("cause: {cause}"));
                source = cause.source();
            }
            (finding(Standing::Bad, error.to_string(), causes), None)
        }
    }
}

async fn probe(state_dir: &Path) -> Result<(Mode, Vec<String>, Enforced), Box<dyn Error + Send + Sync>> {
    let engine = start_engine(state_dir).await?;
    let spec = SandboxSpec {
        name: "doctor".to_owned(),
        image: engine.host_image().await?,
        network: Network::None,
        limits: Limits { cpus_millis: Some(1000), memory_bytes: Some(64 << 20), pids: Some(64) },
    };
    let sandbox = engine.create(spec).await?;
    let enforced = *sandbox.enforced();
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
        ExitStatus::Code(0) => Ok((engine.support().mode, engine.support().notes.clone(), enforced)),
        status => Err(format!("an environment starts, but `true` ends with {status:?} in it").into()),
    }
}

/// The engine, with this very program as its helper.
pub(crate) async fn start_engine(state_dir: &Path) -> Result<Engine, Box<dyn Error + Send + Sync>> {
    let options = EngineOptions { helper: std::env::current_exe()?, state_dir: state_dir.to_owned() };
    Ok(Engine::start(options).await?)
}

fn limits(probed: Option<(Mode, Enforced)>) -> Finding {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let version = cgroup_version(&mounts);
    let Some((mode, enforced)) = probed else {
        let notes = vec!["whether limits hold is known once native works".to_owned()];
        return Finding { name: "limits", standing: Standing::Partly, text: version.to_owned(), notes };
    };
    let list = |holds: bool| {
        let all = [("cpus", enforced.cpus), ("memory", enforced.memory), ("processes", enforced.pids)];
        all.into_iter()
            .filter(|(_, held)| *held == holds)
            .map(|(name, _)| name)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let (held, lost) = (list(true), list(false));
    let text = match held.as_str() {
        "" => format!("{version}; none can be enforced"),
        held => format!("{version}; enforced: {held}"),
    };
    if lost.is_empty() {
        return Finding { name: "limits", standing: Standing::Good, text, notes: Vec::new() };
    }
    let mut notes = vec![format!("not enforced: {lost}. Trials run all the same, and their results say so")];
    if mode == Mode::User {
        let own = "systemd-run --user --scope -p Delegate=yes rollout …";
        notes.push(format!("run as root, or in a cgroup of your own: {own}"));
    }
    Finding { name: "limits", standing: Standing::Partly, text, notes }
}

fn cgroup_version(mounts: &str) -> &'static str {
    let has = |kind: &str| mounts.lines().any(|line| line.split(' ').nth(2) == Some(kind));
    match (has("cgroup"), has("cgroup2")) {
        (true, true) => "cgroup v1, with v2 beside it",
        (true, false) => "cgroup v1",
        (false, true) => "cgroup v2",
        (false, false) => "no cgroup file system is mounted",
    }
}

fn disk(state_dir: &Path) -> Finding {
    let finding = |standing, text, notes| Finding { name: "disk", standing, text, notes };
    // The directory itself may not exist yet.
    let there = state_dir.ancestors().find(|path| path.exists()).unwrap_or(state_dir);
    match rustix::fs::statvfs(there) {
        Ok(room) => {
            let free = room.f_bavail.saturating_mul(room.f_frsize);
            let text = format!("{} free for {}", size(free), state_dir.display());
            if free < LITTLE_ROOM {
                let note = "make room, or set ROLLOUT_STATE_DIR to a directory with more of it".to_owned();
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
    use super::*;

    #[test]
    fn each_finding_is_a_line_with_what_to_do_beneath() {
        let findings = [
            Finding {
                name: "native",
                standing: Standing::Bad,
                text: "this machine does not allow sandboxes: making a user namespace failed".into(),
                notes: vec!["cause: Operation not permitted".into()],
            },
            limits(None),
            limits(Some((Mode::Root, Enforced { cpus: true, memory: true, pids: true }))),
            limits(Some((Mode::User, Enforced { cpus: true, memory: false, pids: false }))),
        ];
        let text = anstream::adapter::strip_str(&render(&findings)).to_string();
        insta::with_settings!({ filters => vec![("cgroup v1, with v2 beside it|cgroup v[12]|no cgroup.*mounted", "[cgroup]")] }, {
            insta::assert_snapshot!(text, @"
            ✗ native  this machine does not allow sandboxes: making a user namespace failed
                      cause: Operation not permitted
            ! limits  [cgroup]
                      whether limits hold is known once native works
            ✓ limits  [cgroup]; enforced: cpus, memory, processes
            ! limits  [cgroup]; enforced: cpus
                      not enforced: memory, processes. Trials run all the same, and their results say so
                      run as root, or in a cgroup of your own: systemd-run --user --scope -p Delegate=yes rollout …
            ");
        });
    }

    #[test]
    fn the_cgroup_version_is_read_from_the_mounts() {
        assert_eq!(cgroup_version("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"), "cgroup v2");
        assert_eq!(cgroup_version("cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n"), "cgroup v1");
        assert_eq!(cgroup_version("proc /proc proc rw 0 0\n"), "no cgroup file system is mounted");
    }
}
