//! Killed engines and zygotes: nothing of their sandboxes is left.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    time::Duration,
};

use crate::common::{Host, engine, out, start};
use rollout_sandbox::{CreateError, Image, ImageConfig, Layer, Network, SandboxLimits, SandboxSpec, sweep};

const STATE_DIR: &str = "ROLLOUT_SANDBOX_TEST_STATE_DIR";

/// Reruns the named test as a separate process that holds sandboxes until it is killed.
fn engine_process(test: &str, state_dir: &Path) -> (Child, PathBuf) {
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(STATE_DIR, state_dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let run_dir = lines.map(Result::unwrap).find_map(|line| line.strip_prefix("run dir ").map(PathBuf::from));
    (child, run_dir.expect("the engine process says where its sandboxes are"))
}

/// Holds sandboxes and never returns, in the process that [`engine_process`] started.
async fn hold_sandboxes_if_child(marker: &str) {
    let Some(state_dir) = std::env::var_os(STATE_DIR) else { return };
    let engine = engine(Path::new(&state_dir)).await;
    let mut sandboxes = Vec::new();
    for _ in 0..3 {
        let spec = SandboxSpec {
            name: "test".into(),
            image: engine.host_image().await.unwrap(),
            network: Network::None,
            limits: SandboxLimits { pids: Some(50), ..SandboxLimits::default() },
            private_dirs: Vec::new(),
            hosts: Vec::new(),
        };
        let sandbox = engine.create(spec).await.unwrap();
        let process =
            start(&sandbox, &format!("mkdir -p /a/b; setsid sleep {marker} & exec sleep {marker}")).await;
        sandboxes.push((sandbox, process));
    }
    println!("\nrun dir {}", sandboxes[0].0.root_dir().parent().unwrap().display());
    std::io::stdout().flush().unwrap();
    std::future::pending::<()>().await;
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

/// Whether a process has closed its files, reaped or not.
fn has_ended(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    status.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
}

fn zygote_of(engine: u32) -> u32 {
    let children = fs::read_to_string(format!("/proc/{engine}/task/{engine}/children")).unwrap_or_default();
    let mut all: Vec<u32> = children.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
    for task in fs::read_dir(format!("/proc/{engine}/task")).unwrap() {
        let children = fs::read_to_string(task.unwrap().path().join("children")).unwrap_or_default();
        all.extend(children.split_whitespace().map(|pid| pid.parse::<u32>().unwrap()));
    }
    let helper = |pid: &u32| {
        fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| String::from_utf8_lossy(&line).contains("__sandbox"))
    };
    all.into_iter().find(helper).expect("the engine has a zygote")
}

fn processes_with(marker: &str) -> usize {
    let entries = fs::read_dir("/proc").unwrap();
    let lines = entries.filter_map(|entry| fs::read(entry.ok()?.path().join("cmdline")).ok());
    lines.filter(|line| String::from_utf8_lossy(line).contains(marker)).count()
}

fn cgroups_of(run_dir: &Path) -> Vec<PathBuf> {
    let engine = run_dir.file_name().unwrap().to_string_lossy().into_owned();
    let mut found = Vec::new();
    for hierarchy in ["", "pids", "memory", "cpu"] {
        let Ok(entries) = fs::read_dir(Path::new("/sys/fs/cgroup").join(hierarchy).join("rollout")) else {
            continue;
        };
        let names = entries.map(|entry| entry.unwrap().path());
        found.extend(names.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with(&engine)));
    }
    found
}

async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..60_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what} did not come true");
}

fn nothing_is_left(run_dir: &Path, marker: &str) {
    assert_eq!(processes_with(marker), 0);
    assert_eq!(cgroups_of(run_dir), Vec::<PathBuf>::new());
    assert!(!fs::read_to_string("/proc/self/mountinfo").unwrap().contains(run_dir.to_str().unwrap()));
}

#[tokio::test]
async fn a_killed_engine_leaves_no_process_mount_cgroup_or_directory() {
    let marker = "1001.25";
    hold_sandboxes_if_child(marker).await;
    let state = tempfile::tempdir().unwrap();
    let (mut child, run_dir) =
        engine_process("faults::a_killed_engine_leaves_no_process_mount_cgroup_or_directory", state.path());
    assert!(processes_with(marker) >= 3);
    child.kill().unwrap();
    child.wait().unwrap();
    eventually("the removal of the run directory", || !run_dir.exists()).await;
    nothing_is_left(&run_dir, marker);
}

#[tokio::test]
async fn an_engine_killed_at_any_moment_leaves_nothing() {
    let marker = "1005.25";
    if let Some(state_dir) = std::env::var_os(STATE_DIR) {
        churn(Path::new(&state_dir), marker).await;
    }
    let state = tempfile::tempdir().unwrap();
    for moment in 0..8 {
        let (mut child, run_dir) =
            engine_process("faults::an_engine_killed_at_any_moment_leaves_nothing", state.path());
        tokio::time::sleep(Duration::from_millis(3 * moment)).await;
        child.kill().unwrap();
        child.wait().unwrap();
        eventually("the removal of the run directory", || !run_dir.exists()).await;
        nothing_is_left(&run_dir, marker);
    }
}

/// Creates, uses and destroys sandboxes in an endless loop.
async fn churn(state_dir: &Path, marker: &str) {
    let engine = engine(state_dir).await;
    let image = engine.host_image().await.unwrap();
    let limits = SandboxLimits { pids: Some(50), ..SandboxLimits::default() };
    loop {
        let spec = SandboxSpec {
            name: "test".into(),
            image: image.clone(),
            network: Network::None,
            limits,
            private_dirs: Vec::new(),
            hosts: Vec::new(),
        };
        let sandbox = engine.create(spec).await.unwrap();
        println!("\nrun dir {}", sandbox.root_dir().parent().unwrap().display());
        std::io::stdout().flush().unwrap();
        start(&sandbox, &format!("setsid sleep {marker} & echo x > /root/file")).await.wait().await.unwrap();
        sandbox.destroy().await.unwrap();
    }
}

#[tokio::test]
async fn leftovers_of_a_killed_engine_and_zygote_are_swept() {
    let marker = "1002.25";
    hold_sandboxes_if_child(marker).await;
    let state = tempfile::tempdir().unwrap();
    let (mut child, run_dir) =
        engine_process("faults::leftovers_of_a_killed_engine_and_zygote_are_swept", state.path());
    kill(zygote_of(child.id()));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(run_dir.exists());
    eventually("the sweep", || sweep(state.path()).unwrap().removed == 1).await;
    assert!(!run_dir.exists());
    nothing_is_left(&run_dir, marker);
}

#[tokio::test]
async fn engines_on_one_state_directory_leave_each_other_alone() {
    let one = Host::start().await;
    let sandbox = one.sandbox().await;
    let two = engine(one.state.path()).await;
    let report = sweep(one.state.path()).unwrap();
    assert_eq!((report.removed, report.live), (0, 2));
    drop(two);
    assert_eq!(out(&sandbox, "echo alive").await, "alive\n");
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn a_killed_zygote_is_replaced_and_its_sandboxes_keep_running() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    let zygote = zygote_of(std::process::id());
    kill(zygote);
    // Until it has ended it may still accept a request, which then fails.
    eventually("the end of the zygote", || has_ended(zygote)).await;
    assert_eq!(out(&sandbox, "echo alive").await, "alive\n");
    let another = host.sandbox().await;
    assert_eq!(out(&another, "echo new").await, "new\n");
    let dir = sandbox.root_dir().to_owned();
    sandbox.destroy().await.unwrap();
    assert!(!dir.exists());
    another.destroy().await.unwrap();
}

#[tokio::test]
async fn a_dropped_sandbox_ends_and_its_directory_is_removed() {
    let marker = "1003.25";
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    let dir = sandbox.root_dir().to_owned();
    let mut process = start(&sandbox, &format!("exec sleep {marker}")).await;
    drop(sandbox);
    process.wait().await.unwrap_err();
    eventually("the removal of the directory", || !dir.exists()).await;
    assert_eq!(processes_with(marker), 0);
}

#[tokio::test]
async fn a_dropped_engine_removes_its_directory() {
    let host = Host::start().await;
    let run_dir = host.sandbox().await.root_dir().parent().unwrap().to_owned();
    drop(host.engine);
    eventually("the removal of the run directory", || !run_dir.exists()).await;
}

#[tokio::test]
async fn a_preserved_sandbox_survives_a_sweep_and_opens_again() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    out(&sandbox, "echo kept > /root/file; rm /etc/issue; echo x > /usr/lib/new").await;
    let dir = sandbox.preserve().await.unwrap();
    for name in ["run", "images", "preserved"] {
        let mode = fs::metadata(host.state.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "{name} is closed to other users of the machine");
    }
    sweep(host.state.path()).unwrap();
    for _ in 0..2 {
        let sandbox = host.engine.reopen(&dir).await.unwrap();
        assert_eq!(
            out(&sandbox, "cat /root/file /usr/lib/new; ls /etc/issue 2>&1 | wc -l").await,
            "kept\nx\n1\n"
        );
        assert!(host.engine.reopen(&dir).await.is_err(), "it is open already");
        sandbox.destroy().await.unwrap();
    }
    assert!(dir.exists());
}

#[tokio::test]
async fn a_committed_sandbox_is_a_layer_for_others() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    out(&sandbox, "echo built > /root/file; rm /etc/issue; echo tool > /usr/bin/tool").await;
    let layer = sandbox.commit(&host.state.path().join("layers/one")).await.unwrap();
    let mut spec = host.spec().await;
    spec.image = spec.image.with_layer(&layer, "one");
    let sandbox = host.engine.create(spec).await.unwrap();
    assert_eq!(
        out(&sandbox, "cat /root/file /usr/bin/tool; ls /etc | grep -c '^issue$' || true").await,
        "built\ntool\n0\n"
    );
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn a_sandbox_that_could_not_be_created_leaves_no_directory() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    let run_dir = sandbox.root_dir().parent().unwrap().to_owned();
    sandbox.destroy().await.unwrap();
    let layer = Layer::open(host.state.path()).unwrap();
    let mut spec = host.spec().await;
    spec.image = Image::from_layers(&[layer], ImageConfig::default(), "no such part");
    let Err(error) = host.engine.create(spec).await else { panic!("it was created") };
    assert!(matches!(error, CreateError::Setup { .. }), "{error:?}");
    let sandboxes =
        || fs::read_dir(&run_dir).unwrap().filter(|it| it.as_ref().unwrap().path().join("upper").exists());
    eventually("the removal of the directory", || sandboxes().count() == 0).await;
}

#[tokio::test]
async fn a_cancelled_creation_leaves_no_sandbox() {
    let host = Host::start().await;
    let run_dir = host.sandbox().await.root_dir().parent().unwrap().to_owned();
    for microseconds in (0..3000).step_by(100) {
        let creation = host.engine.create(host.spec().await);
        // Whether or not it was created, the sandbox is dropped.
        let _ = tokio::time::timeout(Duration::from_micros(microseconds), creation).await;
    }
    let sandboxes =
        || fs::read_dir(&run_dir).unwrap().filter(|it| it.as_ref().unwrap().path().join("upper").exists());
    eventually("the removal of all directories", || sandboxes().count() == 0).await;
    let sandbox = host.sandbox().await;
    assert_eq!(out(&sandbox, "echo alive").await, "alive\n");
    sandbox.destroy().await.unwrap();
}
