//! A running native environment: the commands and files of its sandbox.

use std::{
    fs, io,
    net::SocketAddr,
    os::fd::OwnedFd,
    path::Path,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use rollout_core::text::chain;
use rollout_guest::{GuestReply, MAX_REPLY, decode_reply, read_frame};
use rollout_sandbox::{
    CommandExit, CopyError, CopyIn, ExecError, ExitStatus, FileLookup, ImageConfig, Network, PreservedLock,
    RunningSandbox, SandboxCommand, SandboxProcess, Stdio,
};
use rustix::pipe::PipeFlags;
use tokio::sync::{RwLock, RwLockReadGuard};

use super::{
    network_name,
    output::{self, Pumps},
    tunnel::Tunnels,
};
use crate::{
    environment::{
        CommandRole, CommandUsers, CopyMode, CopyOut, CopyReport, Environment, EnvironmentError, Exec, Exit,
        Facts, FileRead, ImageHealthcheck, ImageStartup, Outcome,
    },
    receive::{LOG_LIMITS, Receive, ReceiveError, Received},
};

/// A killed command ends much faster. After this time, the trial continues without its exit status.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// Scripts of any user inside write their logs to these directories.
const SHARED_DIR_MODE: u32 = 0o777;

/// The mode of a working directory that the image does not have, as an engine creates it.
const WORKDIR_MODE: u32 = 0o755;

/// A running native environment.
pub(super) struct NativeEnvironment {
    id: String,
    facts: Facts,
    isolates_verifier: bool,
    settings: ImageConfig,
    users: Mutex<CommandUsers>,
    /// A snapshot restarts it with the same name and files.
    sandbox: RwLock<RunningSandbox>,
    pumps: Pumps,
    tunnels: Tunnels,
    /// The environment whose files this one started from is not removed before this one.
    _lock: Option<PreservedLock>,
}

impl NativeEnvironment {
    pub(super) fn new(sandbox: RunningSandbox, workdir: Option<&str>, lock: Option<PreservedLock>) -> Self {
        let network = network_name(sandbox.spec().network);
        let image = sandbox.spec().image.config();
        let workdir = workdir.unwrap_or(&image.workdir);
        let mut enforced = serde_json::to_value(sandbox.enforced()).unwrap_or_default();
        enforced["storage"] = false.into();
        Self {
            id: sandbox.id().to_owned(),
            facts: Facts { network: network.to_owned(), enforced },
            isolates_verifier: !sandbox.spec().private_dirs.is_empty(),
            settings: ImageConfig { workdir: workdir.to_owned(), ..image.clone() },
            users: Mutex::default(),
            sandbox: RwLock::new(sandbox),
            pumps: Pumps::default(),
            tunnels: Tunnels::default(),
            _lock: lock,
        }
    }

    /// Creates the working directory, if it is missing.
    pub(super) async fn make_workdir(&self, path: &str) -> Result<(), EnvironmentError> {
        self.sandbox().await.make_dir(path, WORKDIR_MODE, false).await.map_err(copy_error)
    }

    async fn sandbox(&self) -> RwLockReadGuard<'_, RunningSandbox> {
        self.sandbox.read().await
    }

    fn user_of(&self, role: CommandRole) -> Option<String> {
        let users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        users.of(role).map(str::to_owned).or_else(|| self.settings.user.clone())
    }

    fn command(&self, argv: &[&str], env: &[(String, String)], stdio: [OwnedFd; 2]) -> SandboxCommand {
        let image = &self.settings;
        let [stdout, stderr] = stdio;
        SandboxCommand {
            argv: argv.iter().map(|word| (*word).to_owned()).collect(),
            env: image.env.iter().chain(env).cloned().collect(),
            cwd: image.workdir.clone(),
            user: image.user.clone(),
            stdin: Stdio::Null,
            stdout,
            stderr,
            tty: false,
            nested: false,
        }
    }
}

#[async_trait]
impl Environment for NativeEnvironment {
    fn id(&self) -> &str {
        &self.id
    }

    fn startup(&self) -> ImageStartup {
        let image = &self.settings;
        let healthcheck = image.healthcheck.as_ref().and_then(|check| {
            let times = [check.interval, check.timeout, check.start_period];
            ImageHealthcheck::of_engine(&check.test, times, check.retries)
        });
        ImageStartup { entrypoint: image.entrypoint.clone(), command: image.cmd.clone(), healthcheck }
    }

    fn facts(&self) -> Facts {
        self.facts.clone()
    }

    fn isolates_verifier(&self) -> bool {
        self.isolates_verifier
    }

    fn workdir(&self) -> &str {
        &self.settings.workdir
    }

    fn set_users(&self, users: CommandUsers) -> Result<(), EnvironmentError> {
        *self.users.lock().unwrap_or_else(PoisonError::into_inner) = users;
        Ok(())
    }

    async fn address(&self) -> Result<Option<String>, EnvironmentError> {
        // On the host's network every environment has the same address.
        let sandbox = self.sandbox().await;
        Ok((sandbox.spec().network == Network::Host).then(|| "127.0.0.1".to_owned()))
    }

    async fn copy_to(&self, source: &Path, target: &str, mode: CopyMode) -> Result<(), EnvironmentError> {
        let options = CopyIn { replace: mode == CopyMode::Replace };
        self.sandbox().await.copy_in(source, target, options).await.map_err(copy_error)
    }

    async fn write_file(&self, path: &str, content: &[u8]) -> Result<(), EnvironmentError> {
        self.sandbox().await.write_file(path, content, 0o755).await.map_err(copy_error)
    }

    async fn copy_from(&self, copy: CopyOut<'_>) -> Result<CopyReport, EnvironmentError> {
        let lost = |error: io::Error| EnvironmentError::Lost(error.to_string());
        let (stream, sent) =
            rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|error| lost(error.into()))?;
        let receive = Receive::new(&copy, LOG_LIMITS);
        let received = tokio::task::spawn_blocking(move || {
            let mut stream = io::BufReader::new(fs::File::from(stream));
            // The sandbox reports why the stream ended early.
            receive.all(|| {
                let frame = read_frame(&mut stream, MAX_REPLY).ok().flatten();
                let reply = frame.map(|frame| decode_reply(&frame).map(|(_, reply)| reply));
                reply.unwrap_or(Ok(GuestReply::Done)).ok()
            })
        });
        let sandbox = self.sandbox().await;
        let copied = sandbox.copy_out(copy.source, copy.first, LOG_LIMITS, sent).await;
        let received = received.await.map_err(|error| lost(io::Error::other(error)))?;
        match received {
            Err(error @ ReceiveError::Host { .. }) => Err(EnvironmentError::Lost(chain(&error))),
            Ok(Received::Whole(skipped)) => {
                copied.map_err(copy_error)?;
                Ok(CopyReport { skipped })
            }
            Err(ReceiveError::Protocol) | Ok(Received::Failed(_) | Received::Lost) => {
                copied.map_err(copy_error)?;
                Err(EnvironmentError::Lost(
                    "the sandbox violated the protocol while sending files".to_owned(),
                ))
            }
        }
    }

    async fn read_file(&self, path: &str, max_bytes: u64) -> Result<FileRead, EnvironmentError> {
        let read = self.sandbox().await.read_file(path, max_bytes).await.map_err(copy_error)?;
        Ok(match read {
            FileLookup::File(bytes) => FileRead::Content(bytes),
            FileLookup::Missing => FileRead::Missing,
            FileLookup::NotRegular => FileRead::NotRegular,
            FileLookup::TooLarge(size) => FileRead::TooLarge(size),
        })
    }

    async fn make_dirs(&self, paths: &[&str], empty: bool) -> Result<(), EnvironmentError> {
        for path in paths {
            self.sandbox().await.make_dir(path, SHARED_DIR_MODE, empty).await.map_err(copy_error)?;
        }
        Ok(())
    }

    async fn link(&self, target: &str, link: &str) -> Result<(), EnvironmentError> {
        self.sandbox().await.symlink(target, link).await.map_err(copy_error)
    }

    async fn exec(&self, command: Exec<'_>) -> Result<Exit, EnvironmentError> {
        let (stdout, stdout_end) =
            output::pipe().map_err(|error| EnvironmentError::Lost(error.to_string()))?;
        let (stderr, stderr_end) =
            output::pipe().map_err(|error| EnvironmentError::Lost(error.to_string()))?;
        let request = SandboxCommand {
            nested: command.role == CommandRole::Agent,
            user: self.user_of(command.role),
            ..self.command(command.argv, command.env, [stdout_end, stderr_end])
        };
        // A caller may leave this future after its first polls, and the command must not block then.
        let stdout = self.pumps.start(stdout, command.stdout);
        let stderr = self.pumps.start(stderr, command.stderr);
        // The lock is not held while the command starts: a snapshot needs it alone.
        let started = self.sandbox().await.exec(request);
        let process = started.await.map_err(exec_error)?;
        let exit = wait(process, command.deadline).await;
        stdout.catch_up().await;
        stderr.catch_up().await;
        exit
    }

    async fn exec_on_terminal(&self, argv: &[&str], terminal: OwnedFd) -> Result<Exit, EnvironmentError> {
        let copy = |fd: &OwnedFd| fd.try_clone().map_err(|error| EnvironmentError::Lost(error.to_string()));
        let stdio = [copy(&terminal)?, copy(&terminal)?];
        let env = [("TERM".to_owned(), "xterm-256color".to_owned())];
        let request =
            SandboxCommand { stdin: Stdio::Fd(terminal), tty: true, ..self.command(argv, &env, stdio) };
        let started = self.sandbox().await.exec(request);
        let process = started.await.map_err(exec_error)?;
        wait(process, None).await
    }

    async fn offer(&self, service: SocketAddr) -> Result<u16, EnvironmentError> {
        let sandbox = self.sandbox().await;
        self.tunnels.offer(&sandbox, service).await.map_err(tunnel_error)
    }

    async fn snapshot(&self, key: &str) -> Result<(), EnvironmentError> {
        let mut sandbox = self.sandbox.write().await;
        let restarted = sandbox.snapshot(key).await.map_err(|error| EnvironmentError::Lost(chain(&error)))?;
        if restarted && sandbox.spec().network == Network::None {
            self.tunnels.renew(&sandbox).await.map_err(tunnel_error)?;
        }
        Ok(())
    }

    async fn survivors(&self) -> Result<Vec<String>, EnvironmentError> {
        let survivors = self.sandbox().await.survivors().await.map_err(exec_error)?;
        Ok(survivors.into_iter().map(|survivor| survivor.command).collect())
    }

    async fn kill_all(&self) -> Result<(), EnvironmentError> {
        self.sandbox().await.kill_all().await.map_err(exec_error)
    }

    fn cost(&self) -> f64 {
        0.0
    }

    async fn destroy(self: Box<Self>) -> Result<(), EnvironmentError> {
        let ended = self
            .sandbox
            .into_inner()
            .destroy()
            .await
            .map_err(|error| EnvironmentError::Teardown(chain(&error)));
        self.tunnels.finish().await;
        self.pumps.finish().await;
        ended
    }

    async fn preserve(self: Box<Self>) -> Result<String, EnvironmentError> {
        let place = self
            .sandbox
            .into_inner()
            .preserve()
            .await
            .map_err(|error| EnvironmentError::Teardown(chain(&error)))?;
        self.tunnels.finish().await;
        self.pumps.finish().await;
        Ok(place.display().to_string())
    }
}

/// Waits for a command, or for its deadline and the end of all its processes.
async fn wait(process: SandboxProcess, deadline: Option<Duration>) -> Result<Exit, EnvironmentError> {
    let mut awaited = KillOnDrop(Some(process));
    let in_time = match deadline {
        Some(deadline) => tokio::time::timeout(deadline, awaited.wait()).await.ok(),
        None => Some(awaited.wait().await),
    };
    let Some(exit) = in_time else {
        awaited.kill().await?;
        let exit = match tokio::time::timeout(KILL_TIMEOUT, awaited.wait()).await {
            Ok(exit) => Some(exit?),
            Err(_) => None,
        };
        let oom_killed = exit.is_some_and(|exit| exit.oom_killed);
        return Ok(Exit { outcome: Outcome::TimedOut, oom_killed });
    };
    let exit = exit?;
    let outcome = match exit.status {
        ExitStatus::Code(code) => Outcome::Code(code),
        ExitStatus::Signal(signal) => Outcome::Signal(signal),
    };
    Ok(Exit { outcome, oom_killed: exit.oom_killed })
}

/// A command that is killed, with all its processes, when it is dropped.
struct KillOnDrop(Option<SandboxProcess>);

impl KillOnDrop {
    async fn wait(&mut self) -> Result<CommandExit, EnvironmentError> {
        let Some(process) = &mut self.0 else { return std::future::pending().await };
        let exit = process.wait().await;
        self.0 = None;
        exit.map_err(exec_error)
    }

    async fn kill(&self) -> Result<(), EnvironmentError> {
        match &self.0 {
            Some(process) => process.kill_tree().await.map_err(exec_error),
            None => Ok(()),
        }
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let Some(process) = self.0.take() else { return };
        // Without a runtime, everything ends with the engine.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { process.kill_tree().await });
        }
    }
}

/// A path that the agent made unusable is an error of the phase that needs it, not of the infrastructure.
fn copy_error(error: CopyError) -> EnvironmentError {
    match error {
        CopyError::Gone(_) | CopyError::Host { .. } => EnvironmentError::Lost(chain(&error)),
        CopyError::Inside { ref source, .. } if is_full(source) => EnvironmentError::DiskFull(chain(&error)),
        _ => EnvironmentError::Command(chain(&error)),
    }
}

fn exec_error(error: ExecError) -> EnvironmentError {
    match error {
        ExecError::Gone(_) => EnvironmentError::Lost(chain(&error)),
        _ => EnvironmentError::Command(chain(&error)),
    }
}

fn tunnel_error(error: io::Error) -> EnvironmentError {
    let gone = error.kind() == io::ErrorKind::UnexpectedEof;
    let reason = format!("cannot listen on the loopback of the environment: {error}");
    if gone { EnvironmentError::Lost(reason) } else { EnvironmentError::Command(reason) }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_distinguished_from_an_unusable_path() {
        let inside = |kind: io::ErrorKind| {
            copy_error(CopyError::Inside { step: "making".into(), path: "/logs".into(), source: kind.into() })
        };
        assert!(matches!(inside(io::ErrorKind::StorageFull), EnvironmentError::DiskFull(_)));
        assert!(matches!(inside(io::ErrorKind::QuotaExceeded), EnvironmentError::DiskFull(_)));
        assert!(matches!(inside(io::ErrorKind::NotADirectory), EnvironmentError::Command(_)));
    }
}
