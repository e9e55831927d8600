//! Limits on a kernel with cgroup v2, in a virtual machine: most machines of users have cgroup v2, and a machine has only
//! one of the two versions.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown},
    path::Path,
    process::{Command, Output},
};

use rollout_sandbox::{Enforced, LimitBacking, Mode, SandboxLimits};

use crate::common::{Host, sh};

/// Set inside the machine: the name of the user that runs the tests.
const USER: &str = "ROLLOUT_TEST_MACHINE_USER";

const TEST: &str = "machine::all_limits_hold_with_cgroup_v2";
const NOBODY: u32 = 65534;

#[tokio::test]
async fn all_limits_hold_with_cgroup_v2() {
    match std::env::var(USER).as_deref() {
        Err(_) => in_machine(),
        Ok("root") => {
            every_limit_is_enforced(Mode::Root).await;
            again_as_ordinary_user();
        }
        Ok(_) => every_limit_is_enforced(Mode::User).await,
    }
}

/// Runs this test and those of limits in a machine.
fn in_machine() {
    let program = std::env::current_exe().unwrap();
    let files = tempfile::NamedTempFile::new().unwrap();
    let mut tar = Command::new("tar");
    tar.args(["--directory", "/", "--create", "--file"]).arg(files.path());
    for file in [program.as_path(), Path::new(env!("CARGO_BIN_EXE_rollout-sandbox-helper"))] {
        tar.arg(file.strip_prefix("/").unwrap());
    }
    assert!(tar.status().unwrap().success());
    let command = format!("{USER}=root {} --test-threads 1 --color never {TEST} limits::", program.display());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/machine");
    let output = Command::new(script).arg(files.path()).arg(command).output().unwrap();
    expect_passed(&output);
}

/// Runs the tests as `nobody`, in a cgroup that belongs to this user, as systemd delegates one.
fn again_as_ordinary_user() {
    let delegated = Path::new("/sys/fs/cgroup/delegated");
    let session = delegated.join("session");
    fs::create_dir_all(&session).unwrap();
    for dir in [delegated, &session] {
        for file in ["", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"] {
            chown(dir.join(file), Some(NOBODY), Some(NOBODY)).unwrap();
        }
    }
    let program = std::env::current_exe().unwrap();
    // The build directory may be below a home that only root can enter.
    let helper = Path::new(env!("CARGO_BIN_EXE_rollout-sandbox-helper"));
    for dir in program.ancestors().chain(helper.ancestors()) {
        let mode = fs::metadata(dir).unwrap().permissions().mode();
        fs::set_permissions(dir, PermissionsExt::from_mode(mode | 0o055)).unwrap();
    }
    let command = format!(
        "echo $$ > {}/cgroup.procs && exec setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups {} \
         --test-threads 1 --color never {TEST} limits::",
        session.display(),
        program.display()
    );
    let output =
        Command::new("sh").args(["-c", &command]).env(USER, "nobody").current_dir("/").output().unwrap();
    expect_passed(&output);
}

#[track_caller]
fn expect_passed(output: &Output) {
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    // This test and the five of limits: a filter that matches nothing would succeed too.
    assert!(output.status.success() && text.contains("test result: ok. 6 passed"), "{text}{errors}");
}

async fn every_limit_is_enforced(mode: Mode) {
    let host = Host::start().await;
    let support = host.engine.support();
    assert_eq!(support.mode, mode);
    assert_eq!([support.cpus, support.memory, support.pids], [LimitBacking::CgroupV2; 3]);
    let mut spec = host.spec().await;
    spec.limits = SandboxLimits { cpus_millis: Some(200), memory_bytes: Some(256 << 20), pids: Some(64) };
    let sandbox = host.engine.create(spec).await.unwrap();
    assert_eq!(*sandbox.enforced(), Enforced { cpus: true, memory: true, pids: true });
    sh(&sandbox, "for i in $(seq 20000); do :; done").await;
    let dir = find(Path::new("/sys/fs/cgroup"), sandbox.id()).expect("the sandbox has a cgroup");
    let statistics = fs::read_to_string(dir.join("cpu.stat")).unwrap();
    let throttled = statistics.lines().find_map(|line| line.strip_prefix("nr_throttled ")).unwrap();
    assert_ne!(throttled, "0", "{statistics}");
    sandbox.destroy().await.unwrap();
}

/// The cgroup of a name, wherever it is.
pub(crate) fn find(parent: &Path, name: &str) -> Option<std::path::PathBuf> {
    let entries = fs::read_dir(parent).ok()?.filter_map(Result::ok);
    let dirs = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    dirs.map(|entry| entry.path()).find_map(|dir| match dir.ends_with(name) {
        true => Some(dir),
        false => find(&dir, name),
    })
}
