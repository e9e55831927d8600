//! Reads the host's requests and has them carried out.

use std::{
    collections::HashMap,
    ffi::OsString,
    fs::File,
    io::{self, BufReader},
    os::fd::AsFd as _,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rollout_guest::{MAX_REQUEST, Reply, Request, VERSION, decode_request, read_frame};
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};

use crate::{
    exec::{Executor, Order},
    kill::{Reaper, Running},
    memory::OomKills,
    out::Out,
    processes, users,
};

/// Serves the host to the end.
pub(crate) fn serve() {
    // Without a way to the host there is nobody to tell; the container's end says it.
    if let Ok(mut server) = Server::start() {
        server.run();
    }
}

struct Server {
    executor: Arc<Executor>,
    /// The commands that can still be taken back.
    running: Arc<Mutex<HashMap<u32, Arc<Running>>>>,
}

impl Server {
    fn start() -> io::Result<Self> {
        // Keeps the super-user of the container, who may lack the right to inspect others, from its memory and
        // its streams.
        set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
        setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
        let directory = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
        std::env::set_current_dir("/")?;
        let out = Out::new(File::from(rustix::stdio::stdout().try_clone_to_owned()?));
        let executor = Arc::new(Executor {
            reaper: Reaper::start(out.clone())?,
            oom_kills: OomKills::open(),
            directory,
            environment: std::env::vars_os().filter(|variable| !is_engines_home(variable)).collect(),
            null: File::open("/dev/null")?,
            out,
        });
        Ok(Self { executor, running: Arc::default() })
    }

    fn run(&mut self) {
        let Ok(stdin) = rustix::stdio::stdin().as_fd().try_clone_to_owned() else { return };
        let mut stdin = BufReader::with_capacity(128 << 10, File::from(stdin));
        let out = self.executor.out.clone();
        out.send(0, &Reply::Hello { version: VERSION });
        while let Ok(Some(frame)) = read_frame(&mut stdin, MAX_REQUEST) {
            match decode_request(&frame) {
                Ok((id, request)) => self.handle(id, request),
                // Nothing after it can be understood either.
                Err(_) => break,
            }
        }
        while out.may_be_alone() {
            std::thread::park();
        }
    }

    fn handle(&mut self, id: u32, request: Request) {
        let out = &self.executor.out;
        match request {
            Request::Exec { argv, env, user, deadline } => {
                let order = Order { argv, env, user, deadline: deadline.map(Duration::from_millis) };
                if let Err(error) = self.exec(id, order) {
                    let reason = format!(
                        "cannot start the command: the environment has no room for another thread: {error}; what \
                         runs in it has used up a limit"
                    );
                    out.answer(id, Err(reason));
                }
            }
            Request::Cancel => {
                let running = lock(&self.running).get(&id).cloned();
                if let Some(running) = running {
                    self.executor.reaper.cancel(&running);
                }
            }
            Request::Survivors => {
                for process in processes::living() {
                    let command = processes::command_line(process.pid);
                    if !command.is_empty() {
                        out.send(id, &Reply::Process(command));
                    }
                }
                out.answer(id, Ok(()));
            }
            Request::KillAll => self.executor.reaper.kill_everything(id),
            Request::Stay => {
                out.stay();
                out.answer(id, Ok(()));
            }
            _ => out.answer(id, Err("not yet".to_owned())),
        }
    }

    fn exec(&self, id: u32, order: Order) -> io::Result<()> {
        let running = Arc::new(Running::new(id)?);
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Engines set HOME for the first process, which is the super-user's, where the image says nothing of it. The
/// commands of another user need another.
fn is_engines_home((name, value): &(OsString, OsString)) -> bool {
    name == "HOME" && users::resolve(None).is_some_and(|root| *value == *root.home)
}
