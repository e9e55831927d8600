//! A sandbox's first process: sets up the sandbox, starts commands, reaps, kills.
//!
//! It ends when its control socket closes, however the engine died, and the kernel then kills everything else
//! inside.
//!
//! A sandbox with private directories has two supervisors: the second runs in PID and mount namespaces nested
//! in those of the first. Commands of the nested supervisor see neither the private directories nor the
//! processes of the first; commands of the first see everything. When one supervisor ends, both end.

use std::{
    fs::File,
    io,
    net::{Ipv4Addr, TcpListener},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};

use rollout_guest::process;
use rustix::event::{PollFd, PollFlags, poll};

use super::{
    exec, files,
    mounts::{self, PrivateDir},
    privileges,
    seccomp::Filter,
    zygote::drain,
};
use crate::{
    cgroup::Membership,
    shared::SharedProgress,
    sys::{self, Fork, Kept, RawStatus},
    wire::{
        self, Create, CreateAnswer, Done, ExecAnswer, ExecFailure, ExecRequest, FileRequest, ListenAnswer,
        Request, SetupFailure, WireSurvivor,
    },
};

/// The inputs that the zygote passes to a new supervisor.
pub(super) struct Setup<'a> {
    pub(super) create: &'a Create,
    pub(super) root: bool,
    pub(super) hide_abstract_sockets: bool,
    pub(super) private_on_disk: bool,
    pub(super) mount_point: &'a Path,
    pub(super) filter: &'a Filter,
    pub(super) membership: Membership,
    pub(super) lifetime: BorrowedFd<'a>,
    pub(super) control: BorrowedFd<'a>,
    /// The control socket of the nested supervisor, if there is one.
    pub(super) nested: Option<OwnedFd>,
    pub(super) lock: BorrowedFd<'a>,
}

/// Becomes the supervisor of a new sandbox, and with private directories also the nested one, in a separate
/// process.
pub(super) fn run(mut setup: Setup<'_>) -> ! {
    let mut keep = vec![setup.lifetime.as_raw_fd(), setup.control.as_raw_fd(), setup.lock.as_raw_fd()];
    keep.extend(setup.nested.as_ref().map(AsRawFd::as_raw_fd));
    keep.extend(setup.membership.raw_fds());
    sys::close_all_except(&keep);
    let prepared = prepare(&mut setup);
    let (answer, prepared) = match prepared {
        // The nested supervisor answers for both: the remaining work of the outer one is not expected to fail,
        // and if it does, the sandbox ends.
        Ok(Prepared { nested: Nested::Outside(_), .. }) => (None, prepared.ok()),
        Ok(prepared) => (Some(CreateAnswer::Ready), Some(prepared)),
        Err(failure) => (Some(CreateAnswer::Failed(failure)), None),
    };
    let answered = answer.is_none_or(|answer| wire::answer(FdWriter(setup.lifetime), &answer).is_ok());
    let Some(Prepared { signals, null, nested }) = prepared.filter(|_| answered) else { sys::exit_now(1) };
    let (control, nested_pid) = match &nested {
        Nested::None => (setup.control, None),
        Nested::Outside(pid) => (setup.control, Some(*pid)),
        Nested::Inside(control) => (control.as_fd(), None),
    };
    let mut supervisor = Supervisor {
        control,
        signals,
        null,
        root: setup.root,
        membership: setup.membership,
        nested: nested_pid,
        commands: Vec::new(),
        lost: Vec::new(),
        workers: Vec::new(),
    };
    // An error means that the engine is gone or sends invalid requests: either way the sandbox ends.
    let code = i32::from(supervisor.serve().is_err());
    sys::exit_now(code)
}

/// A supervisor that is ready to serve.
struct Prepared {
    /// Becomes readable when a child ends or stops.
    signals: OwnedFd,
    /// The sandbox's own /dev/null.
    null: OwnedFd,
    nested: Nested,
}

/// The role of a supervisor.
enum Nested {
    /// The only supervisor.
    None,
    /// The supervisor of the whole sandbox, with the pid of the nested one.
    Outside(i32),
    /// The nested supervisor, with its control socket.
    Inside(OwnedFd),
}

/// Sets the sandbox up.
fn prepare(setup: &mut Setup<'_>) -> Result<Prepared, SetupFailure> {
    let step = |name: &'static str| move |error: io::Error| SetupFailure::new(name, error);
    let null = File::options().read(true).write(true).open("/dev/null").map_err(step("opening /dev/null"))?;
    sys::dup_onto(&null, 2).map_err(step("closing stderr"))?;
    drop(null);
    let signals = sys::child_signals().map_err(step("watching for children"))?;
    // A separate session keeps the terminal's signals away.
    rustix::process::setsid().map_err(|error| SetupFailure::new("creating a session", error))?;
    let private = mounts::enter_root(&mounts::RootSetup {
        create: setup.create,
        mount_point: setup.mount_point,
        root: setup.root,
        private_on_disk: setup.private_on_disk,
    })?;
    // Opened before any command can replace it.
    let null = File::open("/dev/null").map_err(step("opening the sandbox's /dev/null"))?.into();
    rustix::system::sethostname(setup.create.hostname.as_bytes())
        .map_err(|error| SetupFailure::new("setting the host name", error))?;
    if setup.create.own_network {
        sys::loopback_up().map_err(step("starting the loopback interface"))?;
    }
    // Steps that both supervisors inherit come before the fork: the commands of both may share abstract
    // sockets.
    let own_network = setup.create.own_network;
    privileges::limit(own_network).map_err(|error| SetupFailure::new("limiting privileges", error))?;
    if setup.hide_abstract_sockets {
        sys::hide_outer_abstract_sockets().map_err(step("hiding the host's abstract sockets"))?;
    }
    let prepared = nest(setup, private, Prepared { signals, null, nested: Nested::None })?;
    privileges::reduce(own_network).map_err(|error| SetupFailure::new("dropping privileges", error))?;
    setup.filter.apply().map_err(step("installing the system call filter"))?;
    Ok(prepared)
}

/// Starts the nested supervisor, if there is one; returns in both processes.
fn nest(
    setup: &mut Setup<'_>,
    private: Vec<PrivateDir>,
    prepared: Prepared,
) -> Result<Prepared, SetupFailure> {
    let Some(control) = setup.nested.take() else { return Ok(prepared) };
    let step = |name: &'static str| move |error: io::Error| SetupFailure::new(name, error);
    mounts::make_mount_points(&private).map_err(step("creating mount points for private directories"))?;
    let forked = sys::fork_into(libc::CLONE_NEWNS | libc::CLONE_NEWPID);
    let nested = match forked.map_err(step("creating the nested namespaces"))? {
        Fork::Parent(pid) => {
            mounts::mount_private(private).map_err(step("mounting the private directories"))?;
            Nested::Outside(pid)
        }
        Fork::Child => {
            mounts::enter_nested(&private).map_err(step("creating the nested mounts"))?;
            let mut keep = vec![setup.lifetime.as_raw_fd(), control.as_raw_fd()];
            keep.extend([prepared.signals.as_raw_fd(), prepared.null.as_raw_fd()]);
            keep.extend(setup.membership.raw_fds());
            sys::close_all_except(&keep);
            // The descriptors are closed already.
            std::mem::forget(private);
            Nested::Inside(control)
        }
    };
    Ok(Prepared { nested, ..prepared })
}

/// Listens on the loopback interface, and sends the socket out.
fn listen(port: u16, answer: &OwnedFd) -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port));
    let (reply, fds) = match &listener {
        Ok(listener) => (ListenAnswer::Listening, vec![listener.as_fd()]),
        Err(error) => (ListenAnswer::Failed(error.raw_os_error().unwrap_or(0)), Vec::new()),
    };
    wire::send_with_fds(answer, &wire::encode(&reply)?, &fds).map(drop)
}

/// Writes to a borrowed descriptor.
struct FdWriter<'a>(BorrowedFd<'a>);

impl io::Write for FdWriter<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::retry_on_intr(|| rustix::io::write(self.0, buffer))?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The number of survivors reported with their whole command line; more would not fit into an answer.
const MAX_COMMAND_LINES: usize = 256;

/// How long a process tree is killed repeatedly before everything is killed instead.
const TREE_TIME: Duration = Duration::from_secs(2);

/// How long a shepherd without children gets to end before the next check.
const PAUSE: Duration = Duration::from_micros(500);

/// A command that runs, or whose descendants run.
struct Running {
    id: u64,
    shepherd: Kept,
    progress: SharedProgress,
    answer: OwnedFd,
    oom_kills_before: u64,
}

struct Supervisor<'a> {
    control: BorrowedFd<'a>,
    signals: OwnedFd,
    /// The supervisor's own descriptor: a command that runs as root may change the mode of one that it
    /// receives.
    null: OwnedFd,
    root: bool,
    membership: Membership,
    /// The pid of the nested supervisor. The sandbox ends with it.
    nested: Option<i32>,
    commands: Vec<Running>,
    /// Commands whose shepherd was killed from inside, so their remaining processes are unknown.
    lost: Vec<u64>,
    /// Processes that run file operations; not part of the sandbox.
    workers: Vec<Kept>,
}

impl Supervisor<'_> {
    fn serve(&mut self) -> io::Result<()> {
        loop {
            let mut ready =
                [PollFd::new(&self.control, PollFlags::IN), PollFd::new(&self.signals, PollFlags::IN)];
            rustix::io::retry_on_intr(|| poll(&mut ready, None))?;
            let (request, child_changed) = (!ready[0].revents().is_empty(), !ready[1].revents().is_empty());
            if child_changed {
                drain(&self.signals);
                self.reap();
                if self.nested.is_some_and(|nested| !sys::is_child(nested)) {
                    return Ok(());
                }
                self.keep_running();
            }
            if request {
                let Some((request, mut fds)) = wire::receive::<Request>(self.control)? else { return Ok(()) };
                if fds.is_empty() {
                    continue;
                }
                let answer = fds.remove(0);
                // The engine may have stopped waiting for the answer; the sandbox continues.
                let _ = self.handle(request, answer, fds);
            }
        }
    }

    fn handle(&mut self, request: Request, answer: OwnedFd, fds: Vec<OwnedFd>) -> io::Result<()> {
        match request {
            Request::Exec(exec) => self.exec(exec, answer, fds),
            Request::KillAll => {
                self.kill_all();
                wire::answer(File::from(answer), &Done)
            }
            Request::OomKills => wire::answer(File::from(answer), &self.membership.oom_kills()),
            Request::Listen(port) => listen(port, &answer),
            Request::Files(request) => self.files(request, answer, fds),
            Request::Survivors => wire::answer(File::from(answer), &self.survivors()),
            Request::KillTree(id) => {
                self.kill_tree(id);
                wire::answer(File::from(answer), &Done)
            }
        }
    }

    fn exec(&mut self, request: ExecRequest, answer: OwnedFd, mut fds: Vec<OwnedFd>) -> io::Result<()> {
        if fds.len() == 2 {
            fds.push(self.null.try_clone()?);
        }
        let Ok([stdout, stderr, stdin]) = <[OwnedFd; 3]>::try_from(fds) else { return Ok(()) };
        let id = request.id;
        let oom_kills_before = self.membership.oom_kills();
        let started = SharedProgress::new().and_then(|progress| Ok((sys::fork()?, progress)));
        match started {
            Ok((Fork::Parent(shepherd), progress)) => {
                let shepherd = Kept::new(shepherd);
                self.commands.push(Running { id, shepherd, progress, answer, oom_kills_before });
                Ok(())
            }
            Ok((Fork::Child, progress)) => exec::shepherd(exec::Shepherd {
                request,
                root: self.root,
                stdio: [stdin, stdout, stderr],
                membership: &self.membership,
                oom_kills_before,
                progress: &progress,
                answer: answer.as_fd(),
            }),
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(0);
                let failure = ExecFailure::Setup { step: "starting a process".into(), errno };
                wire::answer(File::from(answer), &ExecAnswer::Failed(failure))
            }
        }
    }

    fn files(&mut self, request: FileRequest, answer: OwnedFd, fds: Vec<OwnedFd>) -> io::Result<()> {
        if files::is_short(&request, &fds) {
            return files::perform(request, answer, fds);
        }
        match sys::fork()? {
            Fork::Parent(worker) => {
                self.workers.push(Kept::new(worker));
                Ok(())
            }
            Fork::Child => files::serve(request, answer, fds),
        }
    }

    fn survivors(&self) -> Vec<WireSurvivor> {
        let own = |pid: &i32| {
            let shepherds = self.commands.iter().map(|command| &command.shepherd);
            self.workers.iter().chain(shepherds).any(|own| own.pid == *pid)
        };
        let foreign = process::living().into_iter().map(|found| found.pid).filter(|pid| !own(pid));
        let described = foreign.enumerate().map(|(index, pid)| {
            let describe = if index < MAX_COMMAND_LINES { process::command_line } else { process::name };
            WireSurvivor { pid, command: describe(pid) }
        });
        described.collect()
    }

    fn kill_tree(&mut self, id: u64) {
        let shepherd =
            self.commands.iter().find(|command| command.id == id).map(|command| command.shepherd.pid);
        let gone = match shepherd {
            Some(shepherd) => sys::is_child(shepherd) && self.end_tree(shepherd),
            None => !self.lost.contains(&id),
        };
        if !gone {
            // Without its shepherd, or if it forks too fast, the tree cannot be separated from other processes.
            self.kill_all();
        }
    }

    /// Kills the descendants of a shepherd until the shepherd ends; `false` if the tree forks too fast.
    ///
    /// Only the end of the shepherd proves that nothing is left: it has a child as long as any descendant
    /// lives, whereas a scan of /proc can miss a process that keeps forking and exiting.
    fn end_tree(&mut self, shepherd: i32) -> bool {
        let began = Instant::now();
        let descendants = || process::living_below(|process| process.parent == shepherd);
        while process::kill_all(descendants, || began.elapsed() < TREE_TIME) {
            match sys::reap(shepherd, false) {
                Ok(Some((pid, status))) => {
                    self.ended(pid, status);
                    return !status.is_signal();
                }
                // A command may have stopped the shepherd.
                Ok(None) => _ = sys::kill(shepherd, libc::SIGCONT),
                Err(_) => return false,
            }
            sleep(PAUSE);
        }
        false
    }

    /// Continues the engine's own processes, which commands may stop or kill.
    fn keep_running(&mut self) {
        let shepherds = self.commands.iter_mut().map(|command| &mut command.shepherd);
        for own in self.workers.iter_mut().chain(shepherds) {
            own.keep_running();
        }
    }

    /// Kills everything else in the PID namespace, including a nested supervisor.
    fn kill_all(&mut self) {
        self.nested = None;
        // The kernel kills all processes at once, so none can fork in between. Wait until all have ended.
        while sys::kill(-1, libc::SIGKILL).is_ok() {
            let mut found = false;
            while let Ok(Some((pid, status))) = sys::reap(-1, true) {
                self.ended(pid, status);
                found = true;
            }
            if !found {
                break;
            }
        }
        self.lost.clear();
    }

    fn reap(&mut self) {
        while let Ok(Some((pid, status))) = sys::reap(-1, false) {
            self.ended(pid, status);
        }
    }

    /// Handles the end of a child: a shepherd, or an orphan of a shepherd that was killed.
    fn ended(&mut self, pid: i32, status: RawStatus) {
        self.workers.retain(|worker| worker.pid != pid);
        if status.is_signal() {
            self.lost.extend(
                self.commands.iter().filter(|command| command.shepherd.pid == pid).map(|command| command.id),
            );
        }
        let oom_kills = self.membership.oom_kills();
        for command in &self.commands {
            let reported = command.progress.was_reported();
            if command.progress.main() == Some(pid) && !reported {
                command.tell(status, oom_kills);
            } else if command.shepherd.pid == pid && !reported {
                if command.progress.main().is_some_and(sys::is_child) {
                    // The shepherd may have been killed before it reported this; a duplicate is harmless.
                    command.answer(&ExecAnswer::Started);
                } else {
                    // Killed together with its command, so the command's status is unknown.
                    command.tell(RawStatus(libc::SIGKILL), oom_kills);
                }
            }
        }
        self.commands
            .retain(|command| !command.progress.was_reported() || sys::is_child(command.shepherd.pid));
    }
}

impl Running {
    fn tell(&self, status: RawStatus, oom_kills: u64) {
        let exited = ExecAnswer::Exited { status, oom_killed: oom_kills > self.oom_kills_before };
        self.answer(&exited);
        self.progress.record_report();
    }

    fn answer(&self, answer: &ExecAnswer) {
        // The engine may have stopped waiting.
        let _ = wire::answer(FdWriter(self.answer.as_fd()), answer);
    }
}
