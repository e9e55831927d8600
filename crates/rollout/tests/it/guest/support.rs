//! Starts guests.

use std::{
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Stdio,
    sync::LazyLock,
    time::Duration,
};

use rollout::{
    environment::{
        CommandRole, CopyOut, EnvironmentError, Exec, Exit,
        guest::{Guest, PROGRAM},
    },
    record::{
        log::{LogWriter, create_log_files},
        redact::Redactor,
    },
};
use tokio::process::{Child, Command};

/// A guest in namespaces of its own, over the files of this machine.
pub(crate) struct Container {
    pub(crate) guest: Guest,
    /// The process that made the namespaces, and waits for the guest.
    pub(crate) child: Child,
    /// A directory for the test, the same inside and outside.
    pub(crate) dir: tempfile::TempDir,
}

impl Container {
    pub(crate) async fn start() -> Self {
        Self::start_as(None).await
    }

    pub(crate) async fn start_as(user: Option<&str>) -> Self {
        Self::start_by(&[], user).await
    }

    /// Starts a guest by way of another program, such as one that sets a limit.
    pub(crate) async fn start_by(wrapper: &[&str], user: Option<&str>) -> Self {
        let (mut child, dir) = spawn(wrapper, &[]);
        let streams = (child.stdout.take().unwrap(), child.stdin.take().unwrap());
        let guest = Guest::connect(streams.0, streams.1, user.map(str::to_owned)).await.unwrap();
        Self { guest, child, dir }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The same, as text for the guest.
    pub(crate) fn inside(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Runs a script to its end.
    pub(crate) async fn bash(&self, script: &str) -> Ran {
        self.try_exec(&["bash", "-c", script], &[], None).await.unwrap()
    }

    pub(crate) async fn bash_within(&self, script: &str, deadline: Duration) -> Ran {
        self.try_exec(&["bash", "-c", script], &[], Some(deadline)).await.unwrap()
    }

    pub(crate) async fn try_exec(
        &self,
        argv: &[&str],
        env: &[(&str, &str)],
        deadline: Option<Duration>,
    ) -> Result<Ran, EnvironmentError> {
        let logs = tempfile::tempdir().unwrap();
        let env: Vec<_> = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let [stdout, stderr] = self.logs(logs.path());
        let exit = self
            .guest
            .exec(Exec { role: CommandRole::Agent, argv, env: &env, deadline, stdout, stderr })
            .await?;
        let stdout = std::fs::read(logs.path().join("stdout.txt")).unwrap();
        let stderr = std::fs::read(logs.path().join("stderr.txt")).unwrap();
        Ok(Ran { exit, stdout, stderr })
    }

    pub(crate) fn logs(&self, dir: &Path) -> [LogWriter; 2] {
        create_log_files(dir).unwrap().map(|file| LogWriter::new(file, &Redactor::default()))
    }

    /// Ends the container.
    pub(crate) async fn stop(mut self) {
        drop(self.guest);
        self.child.wait().await.unwrap();
    }
}

/// Starts the program of a guest as the first process of a namespace.
pub(crate) fn spawn(wrapper: &[&str], arguments: &[&str]) -> (Child, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let program = dir.path().join("guest-program");
    std::fs::write(&program, PROGRAM).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let mut words = wrapper.to_vec();
    words.extend(["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--mount"]);
    let child = Command::new(words[0])
        .args(&words[1..])
        .arg(&program)
        .args(arguments)
        .current_dir(dir.path())
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("HOME", "/root")
        .env("IMAGE_VARIABLE", "from the image")
        .env("KUBERNETES_SERVICE_HOST", "10.0.0.1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    (child, dir)
}

/// What came of a command.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) exit: Exit,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

impl Ran {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).unwrap()
    }
}

/// Waits until something holds; the test's own limit of time is the runner's.
pub(crate) async fn until(mut holds: impl AsyncFnMut() -> bool) {
    while !holds().await {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A copy with nothing to mask.
pub(crate) fn copy_out<'a>(source: &'a str, target: &'a Path) -> CopyOut<'a> {
    static NOTHING: LazyLock<Redactor> = LazyLock::new(Redactor::default);
    CopyOut { source, target, first: None, redactor: &NOTHING }
}
