//! A sandbox for tests, and commands in it.

use std::{fs::File, io::Read, path::Path};

use rollout_guest::{GuestReply, Item, MAX_REPLY, decode_reply, read_frame};
use rollout_sandbox::{
    CommandExit, CopyError, CopyLimits, EngineOptions, ExitStatus, Network, RunningSandbox, SandboxCommand,
    SandboxEngine, SandboxLimits, SandboxProcess, SandboxSpec, Stdio,
};

pub(crate) struct Host {
    pub(crate) state: tempfile::TempDir,
    pub(crate) engine: SandboxEngine,
}

impl Host {
    pub(crate) async fn start() -> Host {
        let state = tempfile::tempdir().unwrap();
        let engine = engine(state.path()).await;
        Host { state, engine }
    }

    pub(crate) async fn spec(&self) -> SandboxSpec {
        SandboxSpec {
            name: "test".into(),
            image: self.engine.host_image().await.unwrap(),
            network: Network::None,
            limits: SandboxLimits::default(),
            private_dirs: Vec::new(),
            hosts: Vec::new(),
        }
    }

    pub(crate) async fn sandbox(&self) -> RunningSandbox {
        self.engine.create(self.spec().await).await.unwrap()
    }
}

pub(crate) async fn engine(state_dir: &Path) -> SandboxEngine {
    let helper = match crate::user::prepared() {
        Some(dir) => dir.join("helper"),
        None => env!("CARGO_BIN_EXE_rollout-sandbox-helper").into(),
    };
    SandboxEngine::start(EngineOptions { helper, state_dir: state_dir.to_owned() }).await.unwrap()
}

pub(crate) struct Output {
    pub(crate) exit: CommandExit,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

pub(crate) fn command(argv: &[&str]) -> (SandboxCommand, File, File) {
    let (stdout, stdout_end) = rustix::pipe::pipe().unwrap();
    let (stderr, stderr_end) = rustix::pipe::pipe().unwrap();
    let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    let command = SandboxCommand {
        argv: argv.iter().map(|argument| (*argument).to_owned()).collect(),
        env: vec![("PATH".into(), path.into())],
        cwd: "/".into(),
        user: None,
        stdin: Stdio::Null,
        stdout: stdout_end,
        stderr: stderr_end,
        tty: false,
        nested: false,
    };
    (command, stdout.into(), stderr.into())
}

/// Starts a script and discards its output.
/// Fails the test if the future hangs.
pub(crate) async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(std::time::Duration::from_secs(600), future).await.expect("it ends")
}

pub(crate) async fn start(sandbox: &RunningSandbox, script: &str) -> SandboxProcess {
    start_as(sandbox, script, false).await
}

async fn start_as(sandbox: &RunningSandbox, script: &str, nested: bool) -> SandboxProcess {
    let (mut command, _, _) = command(&["/bin/sh", "-c", script]);
    let null = || File::options().write(true).open("/dev/null").unwrap().into();
    (command.stdout, command.stderr) = (null(), null());
    command.nested = nested;
    sandbox.exec(command).await.unwrap()
}

/// The output of a nested script, which must succeed.
pub(crate) async fn nested(sandbox: &RunningSandbox, script: &str) -> String {
    let (mut command, stdout, stderr) = command(&["/bin/bash", "-c", script]);
    command.nested = true;
    let output = run(sandbox, (command, stdout, stderr)).await;
    assert_eq!(output.exit.status, ExitStatus::Code(0), "{script}: {}{}", output.stdout, output.stderr);
    output.stdout
}

/// Starts a nested script and discards its output.
pub(crate) async fn start_nested(sandbox: &RunningSandbox, script: &str) -> SandboxProcess {
    start_as(sandbox, script, true).await
}

/// Runs a script to its end.
pub(crate) async fn sh(sandbox: &RunningSandbox, script: &str) -> Output {
    run(sandbox, command(&["/bin/bash", "-c", script])).await
}

pub(crate) async fn run(
    sandbox: &RunningSandbox,
    (command, stdout, stderr): (SandboxCommand, File, File),
) -> Output {
    let read = |mut file: File| {
        tokio::task::spawn_blocking(move || {
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).unwrap();
            String::from_utf8_lossy(&bytes).into_owned()
        })
    };
    let mut process = sandbox.exec(command).await.unwrap();
    let (stdout, stderr) = (read(stdout), read(stderr));
    let exit = process.wait().await.unwrap();
    Output { exit, stdout: stdout.await.unwrap(), stderr: stderr.await.unwrap() }
}

/// The standard output of a script, which must succeed.
pub(crate) async fn out(sandbox: &RunningSandbox, script: &str) -> String {
    let output = sh(sandbox, script).await;
    assert_eq!(output.exit.status, ExitStatus::Code(0), "{script}: {}{}", output.stdout, output.stderr);
    output.stdout
}

/// The result of a copy out of a sandbox.
#[derive(Debug, Default)]
pub(crate) struct Copied {
    /// Files, directories and links, each with its path and its permissions or target.
    pub(crate) entries: Vec<String>,
    /// The content of all files, one after the other.
    pub(crate) bytes: Vec<u8>,
    /// The skipped entries, with the reason.
    pub(crate) skipped: Vec<String>,
}

pub(crate) async fn copy_out(
    sandbox: &RunningSandbox,
    source: &str,
    limits: CopyLimits,
) -> Result<Copied, CopyError> {
    let (stream, sent) = std::io::pipe().unwrap();
    let copied = tokio::task::spawn_blocking(move || {
        let mut stream = std::io::BufReader::new(stream);
        let mut copied = Copied::default();
        let mut parents = Vec::new();
        while let Ok(Some(frame)) = read_frame(&mut stream, MAX_REPLY) {
            let (_, reply) = decode_reply(&frame).unwrap();
            let path = |parents: &[String], name: Vec<u8>| {
                [parents, &[String::from_utf8_lossy(&name).into_owned()]].concat().join("/")
            };
            match reply {
                GuestReply::Item(Item::Enter { name, mode }) => {
                    copied.entries.push(format!("{}/ {mode:o}", path(&parents, name.clone())));
                    parents.push(String::from_utf8_lossy(&name).into_owned());
                }
                GuestReply::Item(Item::Leave) => drop(parents.pop()),
                GuestReply::Item(Item::File { name, mode, .. }) => {
                    copied.entries.push(format!("{} {mode:o}", path(&parents, name)));
                }
                GuestReply::Item(Item::Data(bytes)) => copied.bytes.extend(bytes),
                GuestReply::Item(Item::Link { name, target }) => {
                    let target = String::from_utf8_lossy(&target).into_owned();
                    copied.entries.push(format!("{} -> {target}", path(&parents, name)));
                }
                GuestReply::Skipped { path, reason } => copied.skipped.push(format!("{path}: {reason}")),
                other => panic!("{other:?}"),
            }
        }
        copied.entries.sort();
        copied.skipped.sort();
        copied
    });
    sandbox.copy_out(source, None, limits, sent.into()).await?;
    Ok(copied.await.unwrap())
}

/// The listing of a new home directory: the files of the host's /etc/skel.
pub(crate) fn home_files() -> String {
    let entries = std::fs::read_dir("/etc/skel").into_iter().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names.into_iter().map(|name| name + "\n").collect()
}

/// Installs a package that needs one of the host's, with the database of the sandbox. On hosts with dpkg only. An
/// ordinary user cannot add files to directories in /usr.
pub(crate) async fn installs_a_package(sandbox: &RunningSandbox) {
    if !Path::new("/var/lib/dpkg/status").exists() {
        return;
    }
    let script = r#"mkdir -p /tmp/pack/DEBIAN /tmp/pack/opt/rollout-test
        echo content > /tmp/pack/opt/rollout-test/file
        printf '%s\n' 'Package: rollout-test' 'Version: 1' 'Architecture: all' 'Maintainer: Test <test@example.com>' \
            'Depends: bash, dpkg' 'Description: a test' > /tmp/pack/DEBIAN/control
        dpkg-deb --root-owner-group --build /tmp/pack /tmp/pack.deb > /tmp/log 2>&1
        dpkg --install /tmp/pack.deb >> /tmp/log 2>&1 || cat /tmp/log
        cat /opt/rollout-test/file; dpkg-query --show --showformat '${db:Status-Abbrev}\n' bash rollout-test"#;
    assert_eq!(out(sandbox, script).await, "content\nii \nii \n");
    let host = std::process::Command::new("dpkg-query").args(["--show", "rollout-test"]).output().unwrap();
    assert!(!host.status.success(), "the package is installed on the host");
}
