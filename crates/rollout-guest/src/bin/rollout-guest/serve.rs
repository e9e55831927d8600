//! Reads the host's requests and runs them.

use std::{
    collections::HashMap,
    ffi::OsString,
    fs::File,
    io::{self, BufReader},
    os::fd::OwnedFd,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    time::Duration,
};

use rollout_guest::{GuestReply, GuestRequest, KillScope, MAX_REQUEST, VERSION, decode_request, read_frame};
use rustix::{
    fs::Mode,
    process::{
        DumpableBehavior, Resource, Rlimit, getpid, set_child_subreaper, set_dumpable_behavior, setrlimit,
        setsid, umask,
    },
};

use crate::{
    exec::{CommandSpec, Executor},
    files::{self, Put},
    kill::{Reaper, Running},
    memory::OomKills,
    out::Out,
    processes::{self, Held},
    tunnel::Tunnels,
    users,
    watch::Watcher,
};

/// Serves the host to the end, in a second thread. `scope` is what this process must be able to kill.
///
/// Starting a thread blocks signals for a moment, and the first process of a container is protected from
/// signals of its own container only while its first thread does not block them. So the first thread only
/// waits.
///
/// `open` is called before the first process of a command is started.
pub(crate) fn serve(scope: KillScope, open: impl FnOnce() -> io::Result<Streams>) -> io::Result<()> {
    let (go, gone) = channel();
    match scope {
        // It kills every other process on request, so it must not run outside of a container.
        KillScope::Namespace if processes::scope() != scope => {
            return Err(io::Error::other("it is not the first process of a container"));
        }
        KillScope::Namespace => {}
        KillScope::Descendants => {
            set_child_subreaper(Some(getpid()))?;
            // Process groups belong to one session, so the descendants cannot join a group that is not below.
            setsid()?;
        }
    }
    let mut server = Server::start(open)?;
    let server = std::thread::Builder::new().name("server".to_owned()).spawn(move || {
        if let Ok(()) = gone.recv() {
            server.run();
        }
    })?;
    // The signals of this thread are unblocked again, and nothing else runs in the container yet.
    let _ = go.send(());
    // A panic aborts the process.
    drop(server.join());
    if scope == KillScope::Descendants {
        processes::kill_everything();
    }
    Ok(())
}

/// The streams from and to the host.
pub(crate) struct Streams {
    pub(crate) input: OwnedFd,
    pub(crate) output: OwnedFd,
    /// Whether the container belongs to a pod.
    pub(crate) in_pod: bool,
}

impl Streams {
    /// The standard streams of this process.
    pub(crate) fn standard() -> io::Result<Self> {
        Ok(Self {
            input: rustix::stdio::stdin().try_clone_to_owned()?,
            output: rustix::stdio::stdout().try_clone_to_owned()?,
            in_pod: false,
        })
    }
}

/// The number of file requests that run at a time.
const WORKERS: usize = 3;

/// A request that runs concurrently with others, and whether it was cancelled.
type Job = (u32, GuestRequest, Arc<AtomicBool>);

/// The state shared by the workers.
struct ServerState {
    out: Out,
    watcher: Watcher,
    /// The processes that are stopped.
    held: Mutex<Option<Held>>,
}

struct Server {
    /// The stream from the host, until it is read.
    input: Option<OwnedFd>,
    executor: Arc<Executor>,
    /// `None` after the host has closed the stream.
    tunnels: Option<Tunnels>,
    jobs: Sender<Job>,
    /// The jobs that can still be cancelled.
    cancels: HashMap<u32, Weak<AtomicBool>>,
    /// The copies into the container that are in progress.
    puts: HashMap<u32, Put>,
    /// The commands that can still be cancelled.
    running: Arc<Mutex<HashMap<u32, Arc<Running>>>>,
    /// The commands whose output may still arrive.
    printing: HashMap<u32, Weak<Running>>,
}

impl Server {
    fn start(open: impl FnOnce() -> io::Result<Streams>) -> io::Result<Self> {
        // Without the privilege to change its groups, it continues without that protection.
        let _ = users::set_saved_group();
        // Prevents the container's root, which may lack the privilege to inspect others, from reading the
        // memory and streams of this process.
        set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
        umask(Mode::from_raw_mode(0o022));
        setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
        let directory = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
        std::env::set_current_dir("/")?;
        let Streams { input, output, in_pod } = open()?;
        let out = Out::new(File::from(output));
        let executor = Arc::new(Executor {
            reaper: Reaper::start(out.clone())?,
            oom_kills: OomKills::open(),
            directory,
            environment: std::env::vars_os()
                .filter(|variable| !(is_engines_home(variable) || in_pod && is_clusters(variable)))
                .collect(),
            null: File::open("/dev/null")?,
            out,
        });
        let (jobs, queue) = channel();
        let queue = Arc::new(Mutex::new(queue));
        let watcher = Watcher::start()?;
        let state = Arc::new(ServerState { out: executor.out.clone(), watcher, held: Mutex::default() });
        for _ in 0..WORKERS {
            let (queue, state) = (Arc::clone(&queue), Arc::clone(&state));
            std::thread::Builder::new().name("files".to_owned()).spawn(move || state.work(&queue))?;
        }
        let tunnels = Some(Tunnels::start(executor.out.clone())?);
        Ok(Self {
            input: Some(input),
            executor,
            tunnels,
            jobs,
            cancels: HashMap::new(),
            puts: HashMap::new(),
            running: Arc::default(),
            printing: HashMap::new(),
        })
    }

    fn run(&mut self) {
        let Some(stdin) = self.input.take() else { return };
        let mut stdin = BufReader::with_capacity(128 << 10, File::from(stdin));
        let out = self.executor.out.clone();
        out.send(0, &GuestReply::Hello { version: VERSION, scope: processes::scope() });
        while let Ok(Some(frame)) = read_frame(&mut stdin, MAX_REQUEST) {
            match decode_request(&frame) {
                Ok((id, request)) => self.handle(id, request),
                // The following bytes cannot be decoded either.
                Err(_) => break,
            }
        }
        self.tunnels = None;
        // Output that cannot be sent any more is discarded, so that no process waits for it.
        for running in self.printing.values().filter_map(Weak::upgrade) {
            running.make_room(u32::MAX);
        }
        while out.may_be_alone() {
            std::thread::park();
        }
    }

    fn handle(&mut self, id: u32, request: GuestRequest) {
        let out = self.executor.out.clone();
        match request {
            GuestRequest::Exec { argv, env, user, deadline } => {
                let order = CommandSpec { argv, env, user, deadline: deadline.map(Duration::from_millis) };
                if let Err(error) = self.exec(id, order) {
                    let reason = format!(
                        "cannot start the command: the environment cannot create another thread: {error}; its processes have reached a limit"
                    );
                    out.answer(id, Err(reason));
                }
            }
            GuestRequest::Taken(count) => {
                if let Some(running) = self.printing.get(&id).and_then(Weak::upgrade) {
                    running.make_room(count);
                }
            }
            GuestRequest::Cancel => {
                self.puts.remove(&id);
                if let Some(tunnels) = &self.tunnels {
                    tunnels.cancel(id);
                }
                if let Some(cancelled) = self.cancels.remove(&id).and_then(|cancelled| cancelled.upgrade()) {
                    cancelled.store(true, Ordering::Relaxed);
                }
                let running = lock(&self.running).get(&id).cloned();
                if let Some(running) = running {
                    self.executor.reaper.cancel(&running);
                }
            }
            // Copies into the container run in this thread, which limits how fast the host can send.
            GuestRequest::Put { target, file, replace } => match Put::start(&target, file, replace) {
                Ok(put) => drop(self.puts.insert(id, put)),
                Err(reason) => out.answer(id, Err(reason)),
            },
            // Steps after a failure are ignored.
            GuestRequest::Item(item) => {
                if let Some(Err(reason)) = self.puts.get_mut(&id).map(|put| put.step(item)) {
                    self.puts.remove(&id);
                    out.answer(id, Err(reason));
                }
            }
            GuestRequest::PutEnd => {
                if let Some(put) = self.puts.remove(&id) {
                    out.answer(id, put.finish());
                }
            }
            GuestRequest::KillAll => self.executor.reaper.kill_everything(id),
            GuestRequest::Stay => {
                out.stay();
                out.answer(id, Ok(()));
            }
            GuestRequest::Offer => {
                if let Some(tunnels) = &self.tunnels {
                    tunnels.offer(id);
                }
            }
            GuestRequest::Tunnel { connection, step } => {
                if let Some(tunnels) = &self.tunnels {
                    tunnels.step(id, connection, step);
                }
            }
            GuestRequest::Get { .. }
            | GuestRequest::Read { .. }
            | GuestRequest::MakeDirs { .. }
            | GuestRequest::Link { .. }
            | GuestRequest::Survivors
            | GuestRequest::Hold
            | GuestRequest::Watch { .. }
            | GuestRequest::Changes => {
                let cancelled = Arc::new(AtomicBool::new(false));
                self.cancels.retain(|_, cancelled| cancelled.strong_count() > 0);
                self.cancels.insert(id, Arc::downgrade(&cancelled));
                // The workers end with the process.
                let _ = self.jobs.send((id, request, cancelled));
            }
        }
    }

    fn exec(&mut self, id: u32, order: CommandSpec) -> io::Result<()> {
        let running = Arc::new(Running::new(id)?);
        self.printing.retain(|_, running| running.strong_count() > 0);
        self.printing.insert(id, Arc::downgrade(&running));
        lock(&self.running).insert(id, Arc::clone(&running));
        let table = Arc::clone(&self.running);
        let executor = Arc::clone(&self.executor);
        let spawned = std::thread::Builder::new().name("command".to_owned()).spawn(move || {
            executor.run(&order, &running, || drop(lock(&table).remove(&id)));
        });
        if spawned.is_err() {
            lock(&self.running).remove(&id);
        }
        spawned.map(drop)
    }
}

impl ServerState {
    fn work(&self, queue: &Mutex<Receiver<Job>>) {
        loop {
            let Ok((id, request, cancelled)) = lock(queue).recv() else { return };
            if cancelled.load(Ordering::Relaxed) {
                continue;
            }
            let outcome = self.carry_out(id, request, &cancelled);
            self.out.answer(id, outcome);
        }
    }

    fn carry_out(&self, id: u32, request: GuestRequest, cancelled: &AtomicBool) -> Result<(), String> {
        let out = &self.out;
        match request {
            GuestRequest::Get { source, first, limits } => {
                files::get(out, id, cancelled, (&source, first.as_deref()), limits)
            }
            GuestRequest::Read { path, max_bytes } => files::read(out, id, &path, max_bytes),
            GuestRequest::MakeDirs { paths, empty } => files::make_dirs(&paths, empty),
            GuestRequest::Link { target, link } => files::link(&target, &link),
            GuestRequest::Hold => {
                let mut held = lock(&self.held);
                if let Some(earlier) = held.take() {
                    earlier.release();
                }
                *held = Some(Held::hold());
                Ok(())
            }
            GuestRequest::Watch { tree, files } => {
                // After a failure they stay stopped, because their changes would not be recorded.
                self.watcher.watch(&tree, &files)?;
                if let Some(held) = lock(&self.held).take() {
                    held.release();
                }
                Ok(())
            }
            GuestRequest::Changes => {
                for ((path, kind), count) in self.watcher.changes() {
                    out.send(id, &GuestReply::Changed { path, kind, count });
                }
                Ok(())
            }
            _ => {
                survivors(out, id);
                Ok(())
            }
        }
    }
}

fn survivors(out: &Out, id: u32) {
    for command in processes::survivors() {
        out.send(id, &GuestReply::Process(command));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a variable has the address of the cluster's API, which every container of a pod gets.
pub(crate) fn is_clusters((name, _): &(OsString, OsString)) -> bool {
    let name = name.as_encoded_bytes();
    name.starts_with(b"KUBERNETES_SERVICE_") || name.starts_with(b"KUBERNETES_PORT")
}

/// Engines set HOME for the first process, which runs as root, if the image does not. Commands of another user
/// need another value.
fn is_engines_home((name, value): &(OsString, OsString)) -> bool {
    name == "HOME" && users::resolve(None).is_some_and(|root| *value == *root.home)
}
