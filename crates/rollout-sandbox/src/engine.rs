//! The engine: owns the zygote and this process's share of the state directory, and makes sandboxes.

use std::{
    fs, io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, OnceCell};

use crate::{
    answer::{AnswerPipe, RequestSocket},
    helper::HELPER_ARG,
    host_image,
    image::{Image, ImageError},
    limits::{Controllers, LimitBacking, Limits},
    remove::remove_tree,
    sandbox::{SPEC_FILE, Sandbox},
    sweep,
    wire::{Create, CreateAnswer, Hello, HelloAnswer, Probe, SetupFailure},
};

/// What an engine needs to start.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// An executable that calls [`helper_main`](crate::helper_main) when its first argument is [`HELPER_ARG`].
    pub helper: PathBuf,
    /// The directory for images, layers and running sandboxes; made when it is missing.
    pub state_dir: PathBuf,
}

/// A sandbox to make.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SandboxSpec {
    /// A name for people, and the host name inside.
    pub name: String,
    /// What the root is made of.
    pub image: Image,
    /// Which network the commands see.
    pub network: Network,
    /// How much of the machine they may use.
    pub limits: Limits,
}

/// Which network a sandbox's commands see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// A network of their own with nothing but loopback.
    None,
    /// The host's network.
    Host,
}

/// How sandboxes are made on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// By the super-user.
    Root,
    /// By an ordinary user, in a user namespace where that user is root.
    User,
}

/// What the engine can do on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Support {
    /// How sandboxes are made.
    pub mode: Mode,
    /// Whether a sandbox's changes lie on the disk; if not they are in memory.
    pub changes_on_disk: bool,
    /// What enforces the limit on processors.
    pub cpus: LimitBacking,
    /// What enforces the limit on memory.
    pub memory: LimitBacking,
    /// What enforces the limit on processes.
    pub pids: LimitBacking,
    /// What cannot be done or enforced here, for people to read.
    pub notes: Vec<String>,
}

/// Why an engine could not start.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The state directory cannot be used.
    #[error("cannot use the state directory {path}")]
    StateDir {
        /// The directory.
        path: PathBuf,
        /// What the kernel says.
        #[source]
        source: io::Error,
    },
    /// The helper process did not start.
    #[error("cannot start the sandbox helper {helper}")]
    Helper {
        /// The helper's executable.
        helper: PathBuf,
        /// What went wrong.
        #[source]
        source: io::Error,
    },
    /// The machine does not allow what sandboxes need.
    #[error("this machine does not allow sandboxes: {step} failed; {advice}")]
    NotAllowed {
        /// What was tried.
        step: String,
        /// What to change.
        advice: String,
        /// What the kernel says.
        #[source]
        source: io::Error,
    },
}

/// Why a sandbox could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// The machine has less than was asked for.
    #[error(
        "the environment asks for {asked} {what}, but this machine has {available}; lower the limit or override it"
    )]
    Resources {
        /// What there is too little of.
        what: &'static str,
        /// How much was asked for.
        asked: String,
        /// How much there is.
        available: String,
    },
    /// A step of the setup failed.
    #[error("cannot set up the sandbox: {step}")]
    Setup {
        /// What was being done.
        step: String,
        /// What the kernel says.
        #[source]
        source: io::Error,
    },
    /// The zygote could not be started again.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The directory holds no preserved sandbox, or one that is open already.
    #[error("cannot open the preserved environment in {dir}")]
    Reopen {
        /// The directory.
        dir: PathBuf,
        /// What went wrong.
        #[source]
        source: io::Error,
    },
}

/// Makes sandboxes. Clones share one zygote, which ends with the last of them and their sandboxes.
#[derive(Clone)]
pub struct Engine {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    options: EngineOptions,
    run_dir: PathBuf,
    id: String,
    /// Says that this engine is alive, to whoever sweeps the state directory.
    lock: OwnedFd,
    zygote: Mutex<RequestSocket>,
    support: Support,
    controllers: Controllers,
    host_image: OnceCell<Image>,
    counter: AtomicU64,
}

impl Engine {
    /// Starts the zygote and finds out what this machine allows.
    pub async fn start(options: EngineOptions) -> Result<Engine, EngineError> {
        let (options, id, lock, controllers) = prepare(options).await?;
        let run_dir = options.state_dir.join("run").join(&id);
        let (zygote, probe) = start_zygote(&options, &run_dir, &id, &lock, &controllers).await?;
        let support = support(&probe, &controllers, &options.state_dir);
        let inner = Inner {
            options,
            run_dir,
            id,
            lock,
            zygote: Mutex::new(zygote),
            support,
            controllers,
            host_image: OnceCell::new(),
            counter: AtomicU64::new(0),
        };
        Ok(Engine { inner: Arc::new(inner) })
    }

    /// What the engine can do on this machine.
    pub fn support(&self) -> &Support {
        &self.inner.support
    }

    /// Where images, layers and running sandboxes lie.
    pub fn state_dir(&self) -> &Path {
        &self.inner.options.state_dir
    }

    /// The host as an image: its programs and its /etc without secrets. Prepared once and kept.
    pub async fn host_image(&self) -> Result<Image, ImageError> {
        let image = self.inner.host_image.get_or_try_init(|| async {
            let images = self.state_dir().join("images");
            let prepared = tokio::task::spawn_blocking(move || host_image::prepare(&images)).await;
            prepared.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
        });
        image.await.cloned()
    }

    /// Makes a sandbox; its supervisor runs when this returns.
    pub async fn create(&self, spec: SandboxSpec) -> Result<Sandbox, CreateError> {
        let dir = self.inner.run_dir.join(self.next_id());
        self.create_in(dir, spec, None).await
    }

    /// Makes a sandbox on the files of one that was preserved; they stay when it ends.
    pub async fn reopen(&self, dir: &Path) -> Result<Sandbox, CreateError> {
        let fail = |source| CreateError::Reopen { dir: dir.to_owned(), source };
        let owned = dir.to_owned();
        let opened = tokio::task::spawn_blocking(move || reopen(&owned)).await.map_err(io::Error::other);
        let (dir, spec, lock) = opened.and_then(|opened| opened).map_err(fail)?;
        self.create_in(dir, spec, Some(lock)).await
    }

    async fn create_in(
        &self,
        dir: PathBuf,
        spec: SandboxSpec,
        preserved: Option<fs::File>,
    ) -> Result<Sandbox, CreateError> {
        check_resources(spec.limits)?;
        let id = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // A reopened sandbox's cgroups are this engine's, not those of the engine that made its files.
        let cgroup = if preserved.is_some() { self.next_id() } else { id.clone() };
        let (cgroups, enforced) = self.inner.controllers.plan(&cgroup, spec.limits);
        let create = Create {
            dir: dir.clone(),
            hostname: hostname(&spec.name),
            own_network: spec.network == Network::None,
            upper_on_disk: self.inner.support.changes_on_disk,
            parts: spec.image.mounts(),
            cgroups,
        };
        let connection = self.launch(&create).await?;
        Ok(Sandbox::new(self.clone(), (id, dir), spec, enforced, connection, preserved))
    }

    fn next_id(&self) -> String {
        format!("{}-{}", self.inner.id, self.inner.counter.fetch_add(1, Ordering::Relaxed))
    }

    async fn launch(&self, create: &Create) -> Result<(AnswerPipe, RequestSocket), CreateError> {
        let setup = |step: &str| {
            let step = step.to_owned();
            move |source| CreateError::Setup { step, source }
        };
        let (mut lifetime, lifetime_end) = AnswerPipe::new().map_err(setup("making a pipe"))?;
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(setup("making a socket"))?;
        let control = RequestSocket::new(ours).map_err(setup("making a socket"))?;
        {
            let mut zygote = self.inner.zygote.lock().await;
            let fds = [lifetime_end.as_fd(), theirs.as_fd()];
            if zygote.send(create, &fds).await.is_err() {
                let inner = &self.inner;
                *zygote =
                    start_zygote(&inner.options, &inner.run_dir, &inner.id, &inner.lock, &inner.controllers)
                        .await?
                        .0;
                zygote.send(create, &fds).await.map_err(setup("reaching the sandbox helper"))?;
            }
        }
        drop((lifetime_end, theirs));
        match lifetime.expect().await.map_err(setup("waiting for the sandbox"))? {
            CreateAnswer::Ready => Ok((lifetime, control)),
            CreateAnswer::Failed(failure) => {
                let (step, source) = failure.into_io();
                Err(CreateError::Setup { step, source })
            }
        }
    }
}

fn engine_id() -> String {
    use std::hash::{BuildHasher, Hasher, RandomState};
    format!("{:016x}", RandomState::new().build_hasher().finish())
}

/// Does the file work of starting: sweeps, claims a directory, finds the cgroups.
async fn prepare(
    options: EngineOptions,
) -> Result<(EngineOptions, String, OwnedFd, Controllers), EngineError> {
    let path = options.state_dir.clone();
    let work = move || {
        fs::create_dir_all(&options.state_dir)?;
        let state_dir = options.state_dir.canonicalize()?;
        // What a dead engine left and cannot be removed is no reason not to start.
        if let Err(error) = sweep::sweep(&state_dir) {
            tracing::warn!("cannot remove what earlier runs left in {}: {error}", state_dir.display());
        }
        let id = engine_id();
        let lock = sweep::claim(&state_dir.join("run").join(&id))?;
        Ok((
            EngineOptions { state_dir, helper: options.helper },
            id,
            OwnedFd::from(lock),
            Controllers::detect(),
        ))
    };
    let done = tokio::task::spawn_blocking(work).await.map_err(io::Error::other).and_then(|done| done);
    done.map_err(|source| EngineError::StateDir { path, source })
}

fn reopen(dir: &Path) -> io::Result<(PathBuf, SandboxSpec, fs::File)> {
    let dir = dir.canonicalize()?;
    let lock = fs::File::open(dir.join(SPEC_FILE))?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    let spec = serde_json::from_reader(&lock)?;
    // An overlay that was mounted without syncing marks its work directory, and refuses to be mounted again.
    remove_tree(&dir.join("work"))?;
    Ok((dir, spec, lock))
}

async fn start_zygote(
    options: &EngineOptions,
    run_dir: &Path,
    engine_id: &str,
    lock: &OwnedFd,
    controllers: &Controllers,
) -> Result<(RequestSocket, Probe), EngineError> {
    let fail = |source| EngineError::Helper { helper: options.helper.clone(), source };
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(fail)?;
    let child = tokio::process::Command::new(&options.helper)
        .arg(HELPER_ARG)
        // What the environment holds must not be readable from inside any sandbox.
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .process_group(0)
        .spawn()
        .map_err(fail)?;
    // It ends by itself when the socket closes; tokio reaps it.
    drop(child);
    let socket = RequestSocket::new(ours).map_err(fail)?;
    let (mut answers, answer) = AnswerPipe::new().map_err(fail)?;
    let hello = Hello {
        run_dir: run_dir.to_owned(),
        cgroup_parents: controllers.parents(),
        engine_id: engine_id.to_owned(),
    };
    socket.send(&hello, &[answer.as_fd(), lock.as_fd()]).await.map_err(fail)?;
    drop(answer);
    match answers.expect().await.map_err(fail)? {
        HelloAnswer::Ready(probe) => Ok((socket, probe)),
        HelloAnswer::Failed(failure) => Err(not_allowed(failure)),
    }
}

fn not_allowed(failure: SetupFailure) -> EngineError {
    let (step, source) = failure.into_io();
    let setting = |path: &str| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    EngineError::NotAllowed { step, advice: advice(setting), source }
}

/// Which setting of the machine stands in the way of an ordinary user's sandboxes.
fn advice(setting: impl Fn(&str) -> Option<String>) -> String {
    let is = |path: &str, value: &str| setting(path).is_some_and(|found| found == value);
    if is("/proc/sys/kernel/unprivileged_userns_clone", "0") {
        "run as root, or allow user namespaces with `sysctl -w kernel.unprivileged_userns_clone=1`".into()
    } else if is("/proc/sys/user/max_user_namespaces", "0") {
        "run as root, or allow user namespaces with `sysctl -w user.max_user_namespaces=10000`".into()
    } else if is("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1") {
        "AppArmor restricts user namespaces: run as root, give this program an AppArmor profile with `userns,`, \
         or lift the restriction with `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`"
            .into()
    } else {
        "run as root, or where this is itself a container start that one with more privileges \
         (docker run --privileged)"
            .into()
    }
}

fn support(probe: &Probe, controllers: &Controllers, state_dir: &Path) -> Support {
    let mut notes = Vec::new();
    if !probe.root {
        notes.push(
            "without root, an environment has no user but root, and the host's own files in /usr cannot be changed in it"
                .to_owned(),
        );
    }
    if !probe.upper_on_disk {
        notes.push(format!(
            "{} cannot hold an overlay, so what environments write is kept in memory; put the state directory on a \
             disk file system",
            state_dir.display()
        ));
    }
    let [cpus, memory, pids] = controllers.backing();
    for (backing, what) in [(cpus, "processors"), (memory, "memory"), (pids, "processes")] {
        if backing == LimitBacking::None {
            notes.push(format!("limits on {what} are not enforced: no cgroup for them can be made here"));
        }
    }
    let mode = if probe.root { Mode::Root } else { Mode::User };
    Support { mode, changes_on_disk: probe.upper_on_disk, cpus, memory, pids, notes }
}

/// Refuses limits that the machine can never reach, which would only hide that it is too small.
fn check_resources(limits: Limits) -> Result<(), CreateError> {
    let processors = std::thread::available_parallelism()
        .map_or(u64::MAX, |count| u64::try_from(count.get()).unwrap_or(u64::MAX).saturating_mul(1000));
    if let Some(asked) = limits.cpus_millis.filter(|asked| *asked > processors) {
        let text = |millis: u64| format!("{}.{:03}", millis / 1000, millis % 1000);
        return Err(CreateError::Resources {
            what: "processors",
            asked: text(asked),
            available: text(processors),
        });
    }
    let info = rustix::system::sysinfo();
    let memory = info.totalram.saturating_mul(u64::from(info.mem_unit));
    if let Some(asked) = limits.memory_bytes.filter(|asked| *asked > memory) {
        let text = |bytes: u64| format!("{} MiB", bytes >> 20);
        return Err(CreateError::Resources {
            what: "of memory",
            asked: text(asked),
            available: text(memory),
        });
    }
    Ok(())
}

/// Makes a host name of any text.
fn hostname(name: &str) -> String {
    let clean: String = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' })
        .take(63)
        .collect();
    let clean = clean.trim_matches('-');
    if clean.is_empty() { "sandbox".into() } else { clean.into() }
}
