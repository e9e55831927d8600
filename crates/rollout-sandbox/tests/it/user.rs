//! Sandboxes created by an ordinary user, in a user namespace.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use rollout_sandbox::{
    CopyIn, CopyLimits, EngineOptions, ExecError, FileLookup, Mode, Network, SandboxEngine, SandboxLimits,
    SandboxSpec, sweep,
};

use crate::common::{command, copy_out, home_files, installs_a_package, nested, out, start};

const DIRECTORY: &str = "ROLLOUT_SANDBOX_TEST_USER_DIR";
const NOBODY: u32 = 65534;

/// Reruns the named test as the user `nobody`, with copies of the programs that this user may read.
pub(crate) fn run_as_ordinary_user(test: &str) {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = |from: &Path, name: &str| {
        let to = dir.path().join(name);
        fs::copy(from, &to).unwrap();
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).unwrap();
        to
    };
    let program = copy(&std::env::current_exe().unwrap(), "test");
    copy(Path::new(env!("CARGO_BIN_EXE_rollout-sandbox-helper")), "helper");
    let state = dir.path().join("state");
    fs::create_dir(&state).unwrap();
    std::os::unix::fs::chown(&state, Some(NOBODY), Some(NOBODY)).unwrap();
    let output = std::process::Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(program)
        .args([test, "--exact", "--nocapture"])
        .env(DIRECTORY, dir.path())
        .env("TMPDIR", &state)
        .current_dir("/")
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    // A wrong name would run no test, and succeed.
    assert!(output.status.success() && printed.contains("1 passed"), "{printed}");
}

/// The directory prepared by [`run_as_ordinary_user`], or a new one if an ordinary user runs the test.
pub(crate) fn prepared() -> Option<std::path::PathBuf> {
    std::env::var_os(DIRECTORY).map(Into::into)
}

async fn check(engine: &SandboxEngine) {
    assert_eq!(engine.support().mode, Mode::User);
    let spec = SandboxSpec {
        name: "user".into(),
        image: engine.host_image().await.unwrap(),
        network: Network::None,
        limits: SandboxLimits::default(),
        private_dirs: Vec::new(),
        hosts: Vec::new(),
    };
    let sandbox = engine.create(spec.clone()).await.unwrap();
    assert_eq!(
        out(&sandbox, "id -u; ls -A /root; echo x > /root/file; touch /tmp/t; echo 1 > /dev/null").await,
        format!("0\n{}", home_files())
    );
    installs_a_package(&sandbox).await;

    let (mut as_user, _stdout, _stderr) = command(&["true"]);
    as_user.user = Some("nobody".into());
    let Err(error) = sandbox.exec(as_user).await else { panic!("another user exists") };
    assert!(matches!(error, ExecError::UserNotMapped { .. }), "{error:?}");

    let files = tempfile::tempdir().unwrap();
    fs::write(files.path().join("file"), "content").unwrap();
    sandbox.copy_in(files.path(), "/data", CopyIn::default()).await.unwrap();
    out(&sandbox, "chmod 0 /data; rm -rf /etc/apt").await;
    assert_eq!(sandbox.read_file("/data/file", 100).await.unwrap(), FileLookup::File(b"content".to_vec()));
    let limits = CopyLimits { bytes: 1000, entries: 10, file_bytes: 1000 };
    assert_eq!(copy_out(&sandbox, "/data", limits).await.unwrap().bytes, b"content");

    let process = start(&sandbox, "setsid sleep 1004 & sleep 1004").await;
    process.kill_tree().await.unwrap();
    assert_eq!(sandbox.survivors().await.unwrap(), []);

    let on_host_network =
        engine.create(SandboxSpec { network: Network::Host, ..spec.clone() }).await.unwrap();
    assert_eq!(out(&on_host_network, "echo fine").await, "fine\n");
    on_host_network.destroy().await.unwrap();

    let private = SandboxSpec { private_dirs: vec!["/tests".into()], ..spec.clone() };
    let nesting = engine.create(private).await.unwrap();
    nesting.write_file("/tests/file", b"secret\n", 0o755).await.unwrap();
    assert_eq!(
        nested(&nesting, "find /tests; ls /proc | grep -c '^1$'; rmdir /tests || true").await,
        "/tests\n1\n"
    );
    assert_eq!(out(&nesting, "cat /tests/file").await, "secret\n");
    nesting.destroy().await.unwrap();

    let layer = sandbox.commit(&engine.state_dir().join("layers/one")).await.unwrap();
    let image = spec.image.with_layer(&layer, "one");
    let sandbox = engine.create(SandboxSpec { image, ..spec }).await.unwrap();
    assert_eq!(out(&sandbox, "cat /root/file; ls -d /etc/apt 2>/dev/null | wc -l").await, "x\n0\n");
    let dir = sandbox.root_dir().to_owned();
    sandbox.destroy().await.unwrap();
    assert!(!dir.exists());
    assert_eq!(sweep(engine.state_dir()).unwrap().live, 1);
}

#[tokio::test]
async fn everything_but_other_users_works_without_root() {
    match prepared() {
        Some(dir) => {
            let options = EngineOptions { helper: dir.join("helper"), state_dir: dir.join("state") };
            check(&SandboxEngine::start(options).await.unwrap()).await;
        }
        None if rustix::process::geteuid().is_root() => {
            run_as_ordinary_user("user::everything_but_other_users_works_without_root");
        }
        None => {
            let state = tempfile::tempdir().unwrap();
            let helper = env!("CARGO_BIN_EXE_rollout-sandbox-helper").into();
            let options = EngineOptions { helper, state_dir: state.path().to_owned() };
            check(&SandboxEngine::start(options).await.unwrap()).await;
        }
    }
}
