//! Runs one command: starts it as its user, and sends its output to the host.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs::File,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use rollout_guest::{
    GuestReply, MAX_DATA, Stream,
    command::{DEFAULT_PATH, OOM_SCORE},
    identity::Identity,
};
use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::fchown,
    io::Errno,
    pipe::{PipeFlags, pipe_with},
    process::chdir,
};

use crate::{
    kill::{Reaper, Running},
    memory::OomKills,
    out::Out,
    users,
};

/// The most bytes that a pipe can hold when its command ends: the limit for an ordinary user.
const MAX_PIPE_BYTES: usize = 1 << 20;

/// The state shared by all commands.
pub(crate) struct Executor {
    pub(crate) out: Out,
    pub(crate) reaper: Arc<Reaper>,
    pub(crate) oom_kills: OomKills,
    /// The working directory of the image.
    pub(crate) directory: PathBuf,
    /// The environment variables of the image.
    pub(crate) environment: BTreeMap<OsString, OsString>,
    /// Opened before any process could replace it.
    pub(crate) null: File,
}

/// A command as requested by the host.
pub(crate) struct CommandSpec {
    pub(crate) argv: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) user: Option<String>,
    pub(crate) deadline: Option<Duration>,
}

impl Executor {
    /// Runs a command to its end, then keeps forwarding the output of the processes that it left behind.
    pub(crate) fn run(&self, order: &CommandSpec, running: &Arc<Running>, ended: impl FnOnce()) {
        let oom_kills = self.oom_kills.count();
        let streams = match self.start(order, running) {
            Ok(streams) => streams,
            Err(reason) => {
                ended();
                return self.out.answer(running.id, Err(reason));
            }
        };
        let mut pump = Pump { running, out: &self.out, streams: streams.map(Some) };
        let ending = loop {
            pump.wait(true);
            if let Some(ending) = running.ending() {
                break ending;
            }
        };
        ended();
        pump.drain();
        let oom_killed = self.oom_kills.count() > oom_kills;
        self.out.send(running.id, &GuestReply::Exited { ending, oom_killed });
        while pump.is_open() {
            pump.wait(false);
        }
    }

    fn start(&self, order: &CommandSpec, running: &Arc<Running>) -> Result<[OwnedFd; 2], String> {
        let failed = |step: &str, error: io::Error| format!("cannot start the command: {step}: {error}");
        let user = order.user.as_deref();
        let identity = users::resolve(user).ok_or_else(|| {
            let user = user.unwrap_or("0");
            format!("the environment has no user {user}; add it in the Dockerfile, or name another user")
        })?;
        let pipe = || -> io::Result<(OwnedFd, OwnedFd)> {
            let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
            // Lets a command of another user reopen its own streams through /dev/stdout.
            fchown(&writer, Some(identity.uid), None)?;
            rustix::io::ioctl_fionbio(&reader, true)?;
            Ok((reader, writer))
        };
        let (stdout, stdout_end) = pipe().map_err(|error| failed("creating a pipe", error))?;
        let (stderr, stderr_end) = pipe().map_err(|error| failed("creating a pipe", error))?;
        let null = self.null.try_clone().map_err(|error| failed("passing the standard streams", error))?;
        let (program, arguments) = order.argv.split_first().ok_or("the command is empty")?;
        let environment = self.environment_of(order, &identity);
        let mut command = Command::new(program);
        command.args(arguments).env_clear().envs(&environment).process_group(0);
        command.stdin(Stdio::from(null)).stdout(Stdio::from(stdout_end)).stderr(Stdio::from(stderr_end));
        self.reaper.launch(running, order.deadline, || {
            chdir(&self.directory).map_err(|error| {
                let directory = self.directory.display();
                format!(
                    "cannot start in the image's working directory {directory}: {error}; create it in the Dockerfile, and do not remove it later"
                )
            })?;
            let spawned = users::assume(&identity, || command.spawn());
            // Nothing else here uses a relative path, and a directory in use could not be unmounted.
            let _ = chdir("/");
            let child = spawned
                .map_err(|error| failed("changing the user", error))?
                .map_err(|error| explain(program, &environment, &self.directory, &error))?;
            let pid = child.id().cast_signed();
            // When memory runs out, commands are killed first. A command that has already ended does not need
            // it.
            let _ = std::fs::write(format!("/proc/{pid}/oom_score_adj"), OOM_SCORE);
            Ok(pid)
        })?;
        Ok([stdout, stderr])
    }

    fn environment_of(&self, order: &CommandSpec, identity: &Identity) -> BTreeMap<OsString, OsString> {
        let mut environment = self.environment.clone();
        environment.entry("PATH".into()).or_insert_with(|| DEFAULT_PATH.into());
        environment.entry("HOME".into()).or_insert_with(|| identity.home.clone().into());
        environment.extend(order.env.iter().map(|(name, value)| (name.into(), value.into())));
        environment
    }
}

/// Explains why a program does not start, and what to do.
fn explain(
    program: &str,
    environment: &BTreeMap<OsString, OsString>,
    directory: &Path,
    error: &io::Error,
) -> String {
    let found = || match program.contains('/') {
        true => directory.join(program).exists(),
        false => environment
            .get(std::ffi::OsStr::new("PATH"))
            .is_some_and(|path| std::env::split_paths(path).any(|dir| dir.join(program).exists())),
    };
    match Errno::from_io_error(error) {
        Some(Errno::NOENT) if found() => format!(
            "{program} cannot be executed: its interpreter is missing in the environment; install it in the Dockerfile"
        ),
        Some(Errno::NOENT | Errno::NOTDIR) if program == "bash" => {
            "the environment has no bash, which runs the scripts; install it in the Dockerfile".to_owned()
        }
        Some(Errno::NOENT | Errno::NOTDIR) => {
            format!("{program}: no such program in the environment; install it in the Dockerfile")
        }
        Some(Errno::ACCESS | Errno::PERM | Errno::NOEXEC) => {
            format!("{program} cannot be executed: {error}; check its mode and its format")
        }
        Some(Errno::AGAIN | Errno::NOMEM) => format!(
            "{program} cannot be started: the environment cannot create another process ({error}); its processes have reached a limit"
        ),
        _ => format!("{program} cannot be started: {error}"),
    }
}

/// Sends a command's output to the host.
struct Pump<'a> {
    running: &'a Running,
    out: &'a Out,
    streams: [Option<OwnedFd>; 2],
}

impl Pump<'_> {
    fn is_open(&self) -> bool {
        self.streams.iter().any(Option::is_some)
    }

    /// Waits for output or, if it runs, for a change of the command, and sends the available output.
    fn wait(&mut self, runs: bool) {
        let flags = PollFlags::IN;
        let open = self.streams.iter().flatten().map(AsFd::as_fd);
        let changes = runs.then(|| self.running.changes());
        let mut fds: Vec<_> = open.chain(changes).map(|fd| PollFd::from_borrowed_fd(fd, flags)).collect();
        // An interrupted wait needs no handling: the caller checks again.
        let _ = poll(&mut fds, None);
        for index in 0..self.streams.len() {
            self.step(index);
        }
    }

    /// Sends all that is in the pipes.
    fn drain(&mut self) {
        for index in 0..self.streams.len() {
            let mut drained = 0;
            while drained < MAX_PIPE_BYTES {
                match self.step(index) {
                    0 => break,
                    count => drained += count,
                }
            }
        }
    }

    /// Sends the result of one read of a stream; returns 0 if no data is available, or at its end.
    fn step(&mut self, index: usize) -> usize {
        let Some(fd) = &self.streams[index] else { return 0 };
        let stream = [Stream::Stdout, Stream::Stderr][index];
        let mut bytes = vec![0; MAX_DATA];
        match rustix::io::retry_on_intr(|| rustix::io::read(fd, &mut bytes[..])) {
            Err(Errno::AGAIN) => 0,
            Ok(count) if count > 0 => {
                bytes.truncate(count);
                self.send(stream, bytes);
                count
            }
            _ => {
                self.streams[index] = None;
                self.send(stream, Vec::new());
                0
            }
        }
    }

    /// Sends output once the host has room for it.
    fn send(&self, stream: Stream, bytes: Vec<u8>) {
        self.running.wait_for_room();
        self.out.send(self.running.id, &GuestReply::Output { stream, bytes });
    }
}
