//! A sandbox's first process: sets the sandbox up, starts commands, reaps, kills.
//!
//! It ends when its control socket does, however the engine died, and the kernel then ends everything
//! else inside.
//!
//! Where there are private directories, there are two: a second one in PID and mount namespaces nested in those of the
//! first. Its commands see neither the private directories nor the processes of the first; those of the first see all.
//! The end of either is the end of both.

use std::{
    fs::File,
    io,
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
        self, Create, CreateAnswer, Done, ExecAnswer, ExecFailure, ExecRequest, FileRequest, Request,
        SetupFailure, WireSurvivor,
    },
};

/// What the zygote hands to a new supervisor.
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
    /// The control socket of the nested supervisor, where there is to be one.
    pub(super) nested: Option<OwnedFd>,
    pub(super) lock: BorrowedFd<'a>,
}

/// Becomes the supervisor of a new sandbox, and where there are private directories also the nested one: each in a
/// process of its own, the same from then on.
pub(super) fn run(mut setup: Setup<'_>) -> ! {
    let mut keep = vec![setup.lifetime.as_raw_fd(), setup.control.as_raw_fd(), setup.lock.as_raw_fd()];
    keep.extend(setup.nested.as_ref().map(AsRawFd::as_raw_fd));
    keep.extend(setup.membership.raw_fds());
    sys::close_all_except(&keep);
    let prepared = prepare(&mut setup);
    let (answer, prepared) = match prepared {
        // The nested one answers for both: what the other still has to do has no reason to fail, and if it does, the
        // sandbox ends.
        Ok(Prepared { nested: Nested::Outside(_), .. }) => (None, prepared.ok()),
        Ok(prepared) => (Some(CreateAnswer::Ready), Some(prepared)),
        Err(failure) => (Some(CreateAnswer::Failed(failure)), None),
    };
    let told = answer.is_none_or(|answer| wire::answer(FdWriter(setup.lifetime), &answer).is_ok());
    let Some(Prepared { signals, null, nested }) = prepared.filter(|_| told) else { sys::exit_now(1) };
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
    // An error here means that the engine is gone or has lost its mind: either way the sandbox ends.
    let code = i32::from(supervisor.serve().is_err());
    sys::exit_now(code)
}

/// A supervisor that is ready to serve.
struct Prepared {
    /// Tells of its children.
    signals: OwnedFd,
    /// The sandbox's own /dev/null.
    null: OwnedFd,
    nested: Nested,
}

/// Which of a sandbox's supervisors it is.
enum Nested {
    /// The only one.
    None,
    /// That of the whole sandbox, with the pid of the nested one.
    Outside(i32),
    /// The nested one, with its control socket.
    Inside(OwnedFd),
}

/// Sets the sandbox up.
fn prepare(setup: &mut Setup<'_>) -> Result<Prepared, SetupFailure> {
    let step = |name: &'static str| move |error: io::Error| SetupFailure::new(name, error);
    let null = File::options().read(true).write(true).open("/dev/null").map_err(step("opening /dev/null"))?;
    sys::dup_onto(&null, 2).map_err(step("closing the standard error"))?;
    drop(null);
    let signals = sys::child_signals().map_err(step("watching for children"))?;
    // A session of its own keeps the terminal's signals away.
    rustix::process::setsid().map_err(|error| SetupFailure::new("making a session", error))?;
    let private = mounts::enter_root(&mounts::RootSetup {
        create: setup.create,
        mount_point: setup.mount_point,
        root: setup.root,
        private_on_disk: setup.private_on_disk,
    })?;
    // Opened before any command can put something else in its place.
    let null = File::open("/dev/null").map_err(step("opening the sandbox's /dev/null"))?.into();
    rustix::system::sethostname(setup.create.hostname.as_bytes())
        .map_err(|error| SetupFailure::new("setting the host name", error))?;
    if setup.create.own_network {
        sys::loopback_up().map_err(step("starting the loopback interface"))?;
    }
    // What both supervisors inherit comes before they part: the commands of both may meet at abstract sockets.
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

/// Starts the nested supervisor, if there is to be one; returns in both.
fn nest(
    setup: &mut Setup<'_>,
    private: Vec<PrivateDir>,
    prepared: Prepared,
) -> Result<Prepared, SetupFailure> {
    let Some(control) = setup.nested.take() else { return Ok(prepared) };
    let step = |name: &'static str| move |error: io::Error| SetupFailure::new(name, error);
    mounts::make_mount_points(&private).map_err(step("making the directories for private ones"))?;
    let forked = sys::fork_into(libc::CLONE_NEWNS | libc::CLONE_NEWPID);
    let nested = match forked.map_err(step("making the nested namespaces"))? {
        Fork::Parent(pid) => {
            mounts::mount_private(private).map_err(step("mounting the private directories"))?;
            Nested::Outside(pid)
        }
        Fork::Child => {
            mounts::enter_nested(&private).map_err(step("making the nested view"))?;
            let mut keep = vec![setup.lifetime.as_raw_fd(), control.as_raw_fd()];
            keep.extend([prepared.signals.as_raw_fd(), prepared.null.as_raw_fd()]);
            keep.extend(setup.membership.raw_fds());
            sys::close_all_except(&keep);
            // Closed already.
            std::mem::forget(private);
            Nested::Inside(control)
        }
    };
    Ok(Prepared { nested, ..prepared })
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

/// How many survivors are told with their whole command line: more would not fit into an answer.
const MAX_COMMAND_LINES: usize = 256;

/// How long a tree of processes is looked at again and again before everything is killed instead.
const TREE_TIME: Duration = Duration::from_secs(2);

/// How long a shepherd without children gets to end before the next look.
const PAUSE: Duration = Duration::from_micros(500);

/// A command that runs, or whose descendants do.
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
    /// The sandbox's own: a command's root may change the mode of what it is given.
    null: OwnedFd,
    root: bool,
    membership: Membership,
    /// The nested supervisor, without which the sandbox is not what it was made to be.
    nested: Option<i32>,
    commands: Vec<Running>,
    /// Commands whose shepherd was killed from inside, so that nobody knows what they left.
    lost: Vec<u64>,
    /// Processes that work on files; not the sandbox's own.
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
                // The engine may have stopped waiting for the answer; the sandbox goes on.
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
            // Without its shepherd, or too fast for it, the tree cannot be told from the rest.
            self.kill_all();
        }
    }

    /// Kills what is below a shepherd until the shepherd ends by itself; `false` when the tree outran this.
    ///
    /// Only the shepherd's own end shows that nothing is left: it has a child as long as anything below it lives, while
    /// a process that keeps starting another and ending can be missed by every look at /proc.
    fn end_tree(&mut self, shepherd: i32) -> bool {
        let began = Instant::now();
        let descendants = || process::living_below(|process| process.parent == shepherd);
        while process::kill_all(descendants, || began.elapsed() < TREE_TIME) {
            match sys::reap(shepherd, false) {
                Ok(Some((pid, status))) => {
                    self.ended(pid, status);
                    return !status.is_signal();
                }
                // A command may have stopped it.
                Ok(None) => _ = sys::kill(shepherd, libc::SIGCONT),
                Err(_) => return false,
            }
            sleep(PAUSE);
        }
        false
    }

    /// Continues what works for the engine, which the commands may stop, as they may kill it.
    fn keep_running(&mut self) {
        let shepherds = self.commands.iter_mut().map(|command| &mut command.shepherd);
        for own in self.workers.iter_mut().chain(shepherds) {
            own.keep_running();
        }
    }

    /// Kills everything else in the PID namespace, and so a nested supervisor, too.
    fn kill_all(&mut self) {
        self.nested = None;
        // The kernel kills all at once: whoever is about to start another is killed before. What is left to do is to
        // wait for their end.
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

    /// Settles what the end of one child means: a shepherd's, or an orphan of a shepherd that was killed.
    fn ended(&mut self, pid: i32, status: RawStatus) {
        self.workers.retain(|worker| worker.pid != pid);
        if status.is_signal() {
            self.lost.extend(
                self.commands.iter().filter(|command| command.shepherd.pid == pid).map(|command| command.id),
            );
        }
        let oom_kills = self.membership.oom_kills();
        for command in &self.commands {
            let told = command.progress.was_told();
            if command.progress.main() == Some(pid) && !told {
                command.tell(status, oom_kills);
            } else if command.shepherd.pid == pid && !told {
                if command.progress.main().is_some_and(sys::is_child) {
                    // The shepherd may have been killed before it could say so, and a second time is no harm.
                    command.answer(&ExecAnswer::Started);
                } else {
                    // Killed together with its command, whose status nobody could collect.
                    command.tell(RawStatus(libc::SIGKILL), oom_kills);
                }
            }
        }
        self.commands.retain(|command| !command.progress.was_told() || sys::is_child(command.shepherd.pid));
    }
}

impl Running {
    fn tell(&self, status: RawStatus, oom_kills: u64) {
        let exited = ExecAnswer::Exited { status, oom_killed: oom_kills > self.oom_kills_before };
        self.answer(&exited);
        self.progress.told();
    }

    fn answer(&self, answer: &ExecAnswer) {
        // Nobody may be waiting any more.
        let _ = wire::answer(FdWriter(self.answer.as_fd()), answer);
    }
}
