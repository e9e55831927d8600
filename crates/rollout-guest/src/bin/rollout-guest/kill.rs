//! Reaps ended processes, and kills processes on request.

use std::{
    collections::{HashMap, HashSet},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use rollout_guest::{Ending, OUTPUT_WINDOW, process::ProcessEntry};
use rustix::{
    event::{EventfdFlags, eventfd},
    process::{Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus, wait, waitid},
};

use crate::{out::Out, processes};

/// How long to wait without children. A process of a terminal may still leave an orphan here.
const IDLE: Duration = Duration::from_secs(1);
/// A start takes far less time, unless another process stops it.
const START_PATIENCE: Duration = Duration::from_millis(100);
/// A start that takes longer has failed.
const START_LIMIT: Duration = Duration::from_secs(5);
/// The pause between two checks of a slow start. A hostile process may keep stopping the new one, which
/// advances a little between two checks.
const START_PAUSE: Duration = Duration::from_millis(1);

/// The thread is woken when there is work.
const FOREVER: Duration = Duration::from_secs(3600);

/// A command that was requested.
pub(crate) struct Running {
    pub(crate) id: u32,
    wake: OwnedFd,
    /// Counts the outputs that the host has room for.
    room: OwnedFd,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    main: Option<Main>,
    status: Option<WaitStatus>,
    kill: Option<Kill>,
    killed: bool,
}

#[derive(Clone, Copy)]
struct Main {
    pid: i32,
    started: u64,
}

/// Why a command is killed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kill {
    Deadline,
    Cancelled,
}

impl Running {
    pub(crate) fn new(id: u32) -> std::io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let room = eventfd(OUTPUT_WINDOW, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE)?;
        Ok(Self { id, wake, room, state: Mutex::default() })
    }

    /// Waits until the host has room for an output, and uses it.
    pub(crate) fn wait_for_room(&self) {
        let _ = rustix::io::retry_on_intr(|| rustix::io::read(&self.room, &mut [0; 8]));
    }

    /// The host has room for more outputs.
    pub(crate) fn make_room(&self, outputs: u32) {
        // A counter of 64 bits does not overflow.
        let _ = rustix::io::write(&self.room, &u64::from(outputs).to_ne_bytes());
    }

    /// Becomes readable whenever [`Running::ending`] may have changed.
    pub(crate) fn changes(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// How it ended, once it has. A killed command has ended when all its descendants have.
    pub(crate) fn ending(&self) -> Option<Ending> {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        let state = self.lock();
        match (state.kill, state.killed, state.status) {
            (Some(_), false, _) | (None, _, None) => None,
            (Some(Kill::Deadline), true, _) | (Some(Kill::Cancelled), true, None) => Some(Ending::TimedOut),
            (_, _, Some(status)) => Some(match status.terminating_signal() {
                Some(signal) => Ending::Signal(signal),
                None => Ending::Code(status.exit_status().unwrap_or(0)),
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        // The counter cannot overflow, because it is read every time.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

/// The running commands by pid. Locked during a start, so that the end of a command is not missed.
type Commands = HashMap<i32, Arc<Running>>;

/// The work of the killing thread.
#[derive(Default)]
struct Work {
    deadlines: Vec<(Instant, Arc<Running>)>,
    cancelled: Vec<Arc<Running>>,
    /// Requests to kill everything.
    everything: Vec<u32>,
    /// When the current start began.
    starting: Option<Instant>,
}

/// The interface to the threads that reap and kill.
///
/// Locks are taken in the order of the fields, and before that of a command's state.
pub(crate) struct Reaper {
    commands: Mutex<Commands>,
    /// The pids of the commands. Locked only briefly, whereas a start may be delayed by a process that stops
    /// it.
    pids: Mutex<HashSet<i32>>,
    work: Mutex<Work>,
    more_work: Condvar,
    started: Condvar,
    out: Out,
}

impl Reaper {
    pub(crate) fn start(out: Out) -> std::io::Result<Arc<Self>> {
        let reaper = Arc::new(Self {
            commands: Mutex::default(),
            pids: Mutex::default(),
            work: Mutex::default(),
            more_work: Condvar::new(),
            started: Condvar::new(),
            out,
        });
        for (name, run) in [("reaper", Self::reap as fn(&Self)), ("killer", Self::kill)] {
            let reaper = Arc::clone(&reaper);
            std::thread::Builder::new().name(name.to_owned()).spawn(move || run(&reaper))?;
        }
        Ok(reaper)
    }

    /// Starts a command's process with `spawn`, and handles its end from then on.
    pub(crate) fn launch(
        &self,
        running: &Arc<Running>,
        deadline: Option<Duration>,
        spawn: impl FnOnce() -> Result<i32, String>,
    ) -> Result<(), String> {
        let mut commands = lock(&self.commands);
        self.starting(true);
        let spawned = spawn();
        self.starting(false);
        let pid = spawned?;
        // The process is not reaped yet, so its pid is not reused.
        let started = ProcessEntry::find(pid).map_or(u64::MAX, |process| process.started);
        commands.insert(pid, Arc::clone(running));
        lock(&self.pids).insert(pid);
        let mut work = lock(&self.work);
        let mut state = running.lock();
        state.main = Some(Main { pid, started });
        if state.kill.is_some() {
            work.cancelled.push(Arc::clone(running));
        } else if let Some(at) = deadline.and_then(|deadline| Instant::now().checked_add(deadline)) {
            work.deadlines.push((at, Arc::clone(running)));
        }
        drop((state, work, commands));
        self.more_work.notify_all();
        self.started.notify_all();
        Ok(())
    }

    fn starting(&self, now: bool) {
        lock(&self.work).starting = now.then(Instant::now);
        self.more_work.notify_all();
    }

    /// Kills a command and all its descendants.
    pub(crate) fn cancel(&self, running: &Arc<Running>) {
        let mut work = lock(&self.work);
        let mut state = running.lock();
        if state.status.is_some() || state.kill.is_some() {
            return;
        }
        state.kill = Some(Kill::Cancelled);
        // A command that has not started yet is killed when it starts.
        if state.main.is_some() {
            work.cancelled.push(Arc::clone(running));
            self.more_work.notify_all();
        }
    }

    /// Kills every other process, then answers the request.
    pub(crate) fn kill_everything(&self, id: u32) {
        lock(&self.work).everything.push(id);
        self.more_work.notify_all();
    }

    fn reap(&self) {
        loop {
            // Only peeks: a child that failed to execute its program is reaped by the starting thread.
            let seen = waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
            let mut commands = lock(&self.commands);
            if seen.is_err() && commands.is_empty() {
                drop(self.started.wait_timeout(commands, IDLE));
                continue;
            }
            while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
                if let Some(running) = commands.remove(&pid.as_raw_pid()) {
                    lock(&self.pids).remove(&pid.as_raw_pid());
                    running.change(|state| state.status = Some(status));
                }
            }
        }
    }

    fn kill(&self) {
        let mut work = lock(&self.work);
        loop {
            let now = Instant::now();
            work.deadlines.retain(|(_, running)| running.lock().status.is_none());
            if let Some(running) = work.cancelled.pop() {
                drop(work);
                self.kill_tree(&running, Kill::Cancelled);
            } else if let Some(due) = work.deadlines.iter().position(|(at, _)| *at <= now) {
                let (_, running) = work.deadlines.swap_remove(due);
                drop(work);
                self.kill_tree(&running, Kill::Deadline);
            } else if let Some(id) = work.everything.pop() {
                drop(work);
                let outcome = processes::kill_everything();
                self.out.answer(id, outcome.then_some(()).ok_or_else(unkillable));
            } else if let Some(since) = work.starting.filter(|since| now >= *since + START_PATIENCE) {
                drop(work);
                let signal = if now < since + START_LIMIT { Signal::CONT } else { Signal::KILL };
                processes::signal_stopped_orphans(&lock(&self.pids), signal);
                std::thread::sleep(START_PAUSE);
            } else {
                let next = work.deadlines.iter().map(|(at, _)| *at);
                let next = next.chain(work.starting.map(|since| since + START_PATIENCE)).min();
                let pause = next.map_or(FOREVER, |next| next.saturating_duration_since(now));
                let waited = self.more_work.wait_timeout(work, pause);
                work = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            work = lock(&self.work);
        }
    }

    fn kill_tree(&self, running: &Running, why: Kill) {
        let main = {
            let mut state = running.lock();
            // After a command has ended, its survivors are not killed.
            if state.status.is_some() && state.kill.is_none() {
                return;
            }
            state.kill.get_or_insert(why);
            state.main
        };
        if let Some(Main { pid, started }) = main {
            processes::kill(|| processes::tree(pid, started, &lock(&self.pids)));
        }
        running.change(|state| state.killed = true);
    }
}

fn unkillable() -> String {
    "some processes in the environment cannot be killed".to_owned()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
