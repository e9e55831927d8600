//! Starts a command: the shepherd, which adopts the command's descendants, and the command's own process.

use std::{
    convert::Infallible,
    ffi::CString,
    fs::{self, File},
    io::{self, Read},
    os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd},
};

use rollout_guest::{
    command::{DEFAULT_PATH, OOM_SCORE},
    files::EnvironmentFiles,
    identity::Identity,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{FileType, Mode, fchown, fstat},
    io::Errno,
    pipe::{PipeFlags, pipe_with},
    process::{
        DumpableBehavior, Resource, Rlimit, chdir, ioctl_tiocsctty, set_child_subreaper,
        set_dumpable_behavior, setrlimit, setsid, umask,
    },
    stdio::{stderr, stdin, stdout},
    thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid},
};

use crate::{
    cgroup::Membership,
    shared::Progress,
    sys::{self, Fork, Kept},
    wire::{self, ExecAnswer, ExecFailure, ExecRequest},
};

/// The inputs of a shepherd.
pub(super) struct Shepherd<'a> {
    pub(super) request: ExecRequest,
    pub(super) root: bool,
    pub(super) stdio: [OwnedFd; 3],
    pub(super) membership: &'a Membership,
    pub(super) oom_kills_before: u64,
    pub(super) progress: &'a Progress,
    pub(super) answer: BorrowedFd<'a>,
}

/// Runs as the shepherd: starts the command, reports its end, and stays while it has descendants.
pub(super) fn shepherd(shepherd: Shepherd<'_>) -> ! {
    let failed = |failure: ExecFailure| -> ! {
        tell(&shepherd, &ExecAnswer::Failed(failure));
        shepherd.progress.record_report();
        sys::exit_now(0)
    };
    let setup = |step: &str, error: io::Error| ExecFailure::Setup {
        step: step.into(),
        errno: error.raw_os_error().unwrap_or(0),
    };
    let mut keep = vec![shepherd.answer.as_raw_fd()];
    keep.extend(shepherd.membership.raw_fds());
    let mut keep_for_command = keep.clone();
    keep_for_command.extend(shepherd.stdio.iter().map(AsRawFd::as_raw_fd));
    sys::close_all_except(&keep_for_command);
    if let Err(error) = set_child_subreaper(Some(rustix::process::getpid())) {
        failed(setup("becoming a subreaper", error.into()));
    }
    let (errors, command_errors) = match pipe_with(PipeFlags::CLOEXEC) {
        Ok(pipe) => pipe,
        Err(error) => failed(setup("creating a pipe", error.into())),
    };
    let main = match sys::fork() {
        Ok(Fork::Parent(pid)) => pid,
        Ok(Fork::Child) => {
            // Recorded by the command itself, because it could kill its shepherd before the shepherd runs
            // again.
            shepherd.progress.started(rustix::process::getpid().as_raw_pid());
            let failure = become_command(&shepherd, command_errors.as_raw_fd());
            // The shepherd reads the reason; without it, the closed pipe would look like a successful start.
            let _ = wire::answer(File::from(command_errors), &failure);
            sys::exit_now(127)
        }
        Err(error) => failed(setup("starting a process", error)),
    };
    keep.push(errors.as_raw_fd());
    sys::close_all_except(&keep);
    keep_running_until_ready(main, &errors);
    let mut errors = File::from(errors);
    let mut first = [0; 1];
    if errors.read(&mut first).unwrap_or(0) == 1 {
        let failure = wire::read_answer((&first[..]).chain(errors));
        let failure = failure.unwrap_or_else(|error| setup("starting the command", error));
        // The child only has to exit.
        let _ = sys::reap(main, true);
        failed(failure);
    }
    drop(errors);
    tell(&shepherd, &ExecAnswer::Started);
    // Reported before it is reaped: if the shepherd is killed in between, the supervisor can still reap it.
    while let Ok((pid, status)) = sys::wait_for_any() {
        if pid == main {
            let oom_killed = shepherd.membership.oom_kills() > shepherd.oom_kills_before;
            tell(&shepherd, &ExecAnswer::Exited { status, oom_killed });
            shepherd.progress.record_report();
        }
        // It has ended, so this does not block.
        let _ = sys::reap(pid, true);
    }
    sys::exit_now(0)
}

/// Waits until a new command has reported a failure or executed its program, and continues it if it is stopped
/// meanwhile.
///
/// Afterwards it may be stopped like any other process.
fn keep_running_until_ready(main: i32, errors: &OwnedFd) {
    let mut main = Kept::new(main);
    let pause = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    while let Ok(0) | Err(Errno::INTR) = poll(&mut [PollFd::new(errors, PollFlags::IN)], Some(&pause)) {
        main.keep_running();
    }
}

fn tell(shepherd: &Shepherd<'_>, answer: &ExecAnswer) {
    let Ok(frame) = wire::encode(answer) else { return };
    // The frame is far shorter than a pipe's atomic write. The reader may be gone.
    let _ = rustix::io::retry_on_intr(|| rustix::io::write(shepherd.answer, &frame));
}

/// Turns the calling process into the command; returns only if that fails.
fn become_command(shepherd: &Shepherd<'_>, errors: RawFd) -> ExecFailure {
    match try_become_command(shepherd, errors) {
        Ok(never) => match never {},
        Err(failure) => failure,
    }
}

fn try_become_command(shepherd: &Shepherd<'_>, errors: RawFd) -> Result<Infallible, ExecFailure> {
    let request = &shepherd.request;
    let step = |step: &'static str| {
        move |error: io::Error| ExecFailure::Setup {
            step: step.into(),
            errno: error.raw_os_error().unwrap_or(0),
        }
    };
    for (target, fd) in (0..).zip(&shepherd.stdio) {
        sys::dup_onto(fd, target).map_err(step("passing the standard streams"))?;
    }
    setsid().map_err(|error| step("creating a session")(error.into()))?;
    if request.tty {
        ioctl_tiocsctty(&shepherd.stdio[0])
            .map_err(|error| step("setting the controlling terminal")(error.into()))?;
    }
    shepherd.membership.join().map_err(step("joining the cgroup"))?;
    // From here on no descriptor is open that the command could misuse, so the process may become dumpable. In
    // a user namespace its files in /proc would otherwise belong to an unmapped user.
    sys::close_all_except(&[errors]);
    if !shepherd.root {
        set_dumpable_behavior(DumpableBehavior::Dumpable)
            .map_err(|error| step("making /proc/self accessible")(error.into()))?;
    }
    // When memory runs out, commands are killed before the host's own processes.
    fs::write("/proc/self/oom_score_adj", OOM_SCORE).map_err(step("setting the OOM score"))?;
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })
        .map_err(|error| step("limiting core files")(error.into()))?;
    umask(Mode::from_raw_mode(0o022));
    let identity = Identity::resolve(EnvironmentFiles::Sandbox, request.user.as_deref())
        .ok_or(ExecFailure::UnknownUser)?;
    if !shepherd.root && !identity.is_root() {
        return Err(ExecFailure::UserNotMapped);
    }
    let cwd = if request.cwd.is_empty() { "/" } else { &request.cwd };
    chdir(cwd).map_err(|error| ExecFailure::Directory { errno: error.raw_os_error() })?;
    let environment = environment(&request.env, &identity);
    if !identity.is_root() {
        give_pipes(&identity);
        assume(&identity).map_err(step("changing the user"))?;
    }
    sys::reset_command_signals();
    let errno = execute(&request.argv, &environment);
    Err(ExecFailure::Program { errno })
}

/// Changes the calling process from root to this user, permanently.
fn assume(identity: &Identity) -> io::Result<()> {
    set_thread_groups(&identity.groups)?;
    set_thread_res_gid(identity.gid, identity.gid, identity.gid)?;
    Ok(set_thread_res_uid(identity.uid, identity.uid, identity.uid)?)
}

/// Lets a command of another user reopen its own streams through /dev/stdout.
fn give_pipes(identity: &Identity) {
    for fd in [stdin(), stdout(), stderr()] {
        if fstat(fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo) {
            // If this fails, only the reopening fails.
            let _ = fchown(fd, Some(identity.uid), None);
        }
    }
}

fn environment(given: &[(String, String)], identity: &Identity) -> Vec<(String, String)> {
    let mut environment = given.to_vec();
    if !given.iter().any(|(name, _)| name == "HOME") {
        environment.push(("HOME".into(), identity.home.clone()));
    }
    environment
}

/// Executes a program, which is looked up in PATH; returns the error number if that fails.
fn execute(argv: &[String], environment: &[(String, String)]) -> i32 {
    let Some(program) = argv.first().filter(|program| !program.is_empty()) else { return libc::ENOENT };
    let arguments: Result<Vec<CString>, _> =
        argv.iter().map(|argument| CString::new(argument.as_str())).collect();
    let variables: Result<Vec<CString>, _> =
        environment.iter().map(|(name, value)| CString::new(format!("{name}={value}"))).collect();
    let (Ok(arguments), Ok(variables)) = (arguments, variables) else { return libc::EINVAL };
    if program.contains('/') {
        return execve(program, &arguments, &variables);
    }
    let path = environment.iter().find(|(name, _)| name == "PATH").map_or(DEFAULT_PATH, |(_, value)| value);
    let mut errno = libc::ENOENT;
    for directory in path.split(':').filter(|directory| directory.starts_with('/')) {
        match execve(&format!("{directory}/{program}"), &arguments, &variables) {
            libc::ENOENT | libc::ENOTDIR => {}
            libc::EACCES => errno = libc::EACCES,
            other => return other,
        }
    }
    errno
}

fn execve(path: &str, arguments: &[CString], variables: &[CString]) -> i32 {
    let Ok(path) = CString::new(path) else { return libc::EINVAL };
    let pointers = |strings: &[CString]| {
        strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect::<Vec<_>>()
    };
    let (arguments, variables) = (pointers(arguments), pointers(variables));
    // SAFETY: all three are nul-terminated and outlive the call, which returns only on failure.
    unsafe { libc::execve(path.as_ptr(), arguments.as_ptr(), variables.as_ptr()) };
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}
