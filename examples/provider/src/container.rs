//! A running container: all that happens inside is the guest's work.

use std::{
    hash::{BuildHasher as _, RandomState},
    net::SocketAddr,
    os::fd::OwnedFd,
    path::Path,
    process::Stdio,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use rollout::{
    environment::{
        CopyMode, CopyOut, CopyReport, Environment, EnvironmentError, Exec, Exit, Facts, FileChange,
        FileRead, Outcome,
        guest::{ContainerEnd, Guest},
    },
    record::log::LogWriter,
};
use tokio::{process::Child, time::timeout};

use crate::client::{DockerProgram, drain};

/// Whose container it is, for people and for tests.
pub(crate) const JOB_LABEL: &str = "rollout-example.job";
/// The user that runs commands inside, for a later `reopen`.
pub(crate) const USER_LABEL: &str = "rollout-example.user";
/// Images of environments as they were when [`Environment::snapshot`] was called.
pub(crate) const SNAPSHOTS: &str = "rollout-example-snapshot";

/// How long the engine may take to remove a container: less than a trial waits for it.
const PATIENCE: Duration = Duration::from_secs(40);

pub(crate) struct Container {
    pub(crate) docker: DockerProgram,
    pub(crate) name: String,
    pub(crate) user: String,
    pub(crate) facts: Facts,
    /// Whether the engine always notices that the memory ran out.
    pub(crate) memory_is_certain: bool,
    /// None in a container that was opened again: it lost its streams when it was left.
    pub(crate) inside: Option<Inside>,
}

/// The guest, and the `docker run` between it and us.
///
/// Let go, both end by themselves, and the engine removes the container: the guest ends when its input does, and
/// `run --rm` does the rest. So nothing has to be cleaned up when a future is dropped or this process dies.
pub(crate) struct Inside {
    guest: Guest,
    run: Child,
}

impl Inside {
    /// Starts a container by the arguments after `docker run`, and waits for the guest.
    pub(crate) async fn run(
        docker: &DockerProgram,
        user: &str,
        arguments: &[&str],
    ) -> Result<Self, EnvironmentError> {
        let mut command = docker.command(&["run", "--interactive", "--rm", "--sig-proxy=false"]);
        // Killed too early, `docker run` would leave a container that never started. Ctrl-C on a terminal goes to
        // all processes of a group, and is not meant for this one.
        command.args(arguments).kill_on_drop(false).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let start = EnvironmentError::Start;
        let mut run = command.spawn().map_err(|error| start(docker.not_started(&error)))?;
        let (Some(stdin), Some(stdout), Some(mut stderr)) =
            (run.stdin.take(), run.stdout.take(), run.stderr.take())
        else {
            return Err(start("`docker run` has no streams".to_owned()));
        };
        // Whatever is complained about has to be read, or the container would have to wait.
        let mut complaints = LogWriter::discard();
        let tail = complaints.tail();
        let drained = tokio::spawn(async move { drain(&mut stderr, &mut complaints).await });
        match Guest::connect(stdout, stdin, Some(user.to_owned())).await {
            Ok(guest) => Ok(Self { guest, run }),
            Err(error) => {
                let _ = timeout(PATIENCE, drained).await;
                let why = tail.last_lines(10);
                Err(start(if why.is_empty() { error.to_string() } else { why }))
            }
        }
    }
}

impl Container {
    fn guest(&self) -> Result<&Guest, EnvironmentError> {
        let left = || EnvironmentError::Lost("a container that was left has a terminal only".to_owned());
        self.inside.as_ref().map(|inside| &inside.guest).ok_or_else(left)
    }

    /// Tells a container that was ended by what ran in it from one that was lost, so that no agent can gain a second
    /// try by ending its own.
    async fn explained<T>(&self, answer: Result<T, EnvironmentError>) -> Result<T, EnvironmentError> {
        let Err(EnvironmentError::Lost(text)) = answer else { return answer };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        // What happened at the end may be reported a moment later.
        let until = (now.as_secs() + 2).to_string();
        let (filter, format) =
            (format!("container={}", self.name), "{{.Action}} {{.Actor.Attributes.exitCode}}");
        let arguments =
            ["events", "--since", "1", "--until", &until, "--filter", &filter, "--format", format];
        let Ok(events) = self.docker.call(&arguments).await else { return Err(EnvironmentError::Lost(text)) };
        let events: Vec<(&str, &str)> = events.lines().filter_map(|line| line.split_once(' ')).collect();
        let Some((_, code)) = events.iter().find(|(action, _)| *action == "die") else {
            return Err(EnvironmentError::Lost(text));
        };
        let end = ContainerEnd {
            exit_code: code.parse().unwrap_or(0),
            out_of_memory: false,
            memory_is_certain: self.memory_is_certain,
            events: events.iter().map(|(action, _)| (*action).to_owned()).collect(),
        };
        Err(end.into_error())
    }
}

/// A name that no other container has.
pub(crate) fn new_name() -> String {
    format!("rollout-example-{:016x}", RandomState::new().hash_one(0))
}

#[async_trait]
impl Environment for Container {
    fn id(&self) -> &str {
        &self.name
    }

    fn facts(&self) -> Facts {
        self.facts.clone()
    }

    async fn copy_to(&self, source: &Path, target: &str, mode: CopyMode) -> Result<(), EnvironmentError> {
        self.explained(self.guest()?.copy_to(source, target, mode).await).await
    }

    async fn write_file(&self, path: &str, content: &[u8]) -> Result<(), EnvironmentError> {
        self.explained(self.guest()?.write_file(path, content).await).await
    }

    async fn copy_from(&self, copy: CopyOut<'_>) -> Result<CopyReport, EnvironmentError> {
        self.explained(self.guest()?.copy_from(copy).await).await
    }

    async fn read_file(&self, path: &str, max_bytes: u64) -> Result<FileRead, EnvironmentError> {
        self.explained(self.guest()?.read_file(path, max_bytes).await).await
    }

    async fn make_dirs(&self, paths: &[&str], empty: bool) -> Result<(), EnvironmentError> {
        self.explained(self.guest()?.make_dirs(paths, empty).await).await
    }

    async fn link(&self, target: &str, link: &str) -> Result<(), EnvironmentError> {
        self.explained(self.guest()?.link(target, link).await).await
    }

    async fn exec(&self, command: Exec<'_>) -> Result<Exit, EnvironmentError> {
        self.explained(self.guest()?.exec(command).await).await
    }

    async fn offer(&self, service: SocketAddr) -> Result<u16, EnvironmentError> {
        self.explained(self.guest()?.offer(service).await).await
    }

    async fn survivors(&self) -> Result<Vec<String>, EnvironmentError> {
        self.explained(self.guest()?.survivors().await).await
    }

    async fn kill_all(&self) -> Result<(), EnvironmentError> {
        self.explained(self.guest()?.kill_all().await).await
    }

    async fn exec_on_terminal(&self, argv: &[&str], terminal: OwnedFd) -> Result<Exit, EnvironmentError> {
        let lost = |error: std::io::Error| EnvironmentError::Lost(format!("cannot open a terminal: {error}"));
        let term = "TERM=xterm-256color";
        let exec = ["exec", "--interactive", "--tty", "--env", term, "--user", &self.user, &self.name];
        let mut command = self.docker.command(&exec);
        command.args(argv).stdin(terminal.try_clone().map_err(lost)?);
        command.stdout(terminal.try_clone().map_err(lost)?).stderr(terminal);
        let mut child = command.spawn().map_err(lost)?;
        // The command holds the terminal too. Its other end closes only when no process holds it any more.
        drop(command);
        let code = child.wait().await.map_err(lost)?.code().unwrap_or(1);
        Ok(Exit { outcome: Outcome::Code(code), oom_killed: false })
    }

    async fn snapshot(&self, key: &str) -> Result<(), EnvironmentError> {
        let reference = format!("{SNAPSHOTS}:{key}");
        if self.docker.call(&["image", "inspect", &reference]).await.is_ok() {
            return Ok(());
        }
        // What is in a volume would be missing in later trials.
        let volumes = "{{range .Mounts}}{{if eq .Type \"volume\"}}{{.Destination}} {{end}}{{end}}";
        let volumes = self.docker.call(&["inspect", "--format", volumes, &self.name]).await;
        let volumes = volumes.map_err(EnvironmentError::Lost)?;
        if !volumes.trim().is_empty() {
            let words = format!("a snapshot would leave out the volumes of the image: {}", volumes.trim());
            return Err(EnvironmentError::Command(words));
        }
        // The container itself runs as the super-user, for the guest.
        let user = format!("USER {}", self.user);
        let committed = self.docker.call(&["commit", "--change", &user, &self.name, &reference]).await;
        committed.map(drop).map_err(EnvironmentError::Lost)
    }

    async fn hold(&self) -> Result<bool, EnvironmentError> {
        self.explained(self.guest()?.hold().await).await.map(|()| true)
    }

    async fn watch(&self, tree: &str, files: &[&str]) -> Result<bool, EnvironmentError> {
        self.explained(self.guest()?.watch(tree, files).await).await.map(|()| true)
    }

    async fn changes(&self) -> Result<Vec<FileChange>, EnvironmentError> {
        self.explained(self.guest()?.changes().await).await
    }

    fn cost(&self) -> f64 {
        0.0
    }

    async fn destroy(self: Box<Self>) -> Result<(), EnvironmentError> {
        let killed = self.docker.call(&["kill", &self.name]).await;
        let Some(Inside { guest, mut run }) = self.inside else {
            return killed.map(drop).map_err(EnvironmentError::Teardown);
        };
        guest.finish().await;
        // It may have ended before it could be killed: what counts is that `docker run` has seen it removed.
        match timeout(PATIENCE, run.wait()).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(EnvironmentError::Teardown(format!("the container {} does not go away", self.name))),
        }
    }

    async fn preserve(self: Box<Self>) -> Result<String, EnvironmentError> {
        let Some(Inside { guest, mut run }) = self.inside else { return Ok(self.name) };
        let kept = self.name.replacen("example-", "example-kept-", 1);
        self.docker.call(&["rename", &self.name, &kept]).await.map_err(EnvironmentError::Teardown)?;
        guest.stay().await.map_err(|error| EnvironmentError::Teardown(error.to_string()))?;
        // It would wait for the container's end, which is up to a person now.
        let _ = run.kill().await;
        guest.finish().await;
        Ok(kept)
    }
}
