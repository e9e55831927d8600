//! The engine: owns the zygote and this process's share of the state directory, and makes sandboxes.

use std::{
    fs, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, OnceCell, OwnedMutexGuard, Semaphore, oneshot};

use rollout_guest::remove::remove_tree;

use crate::{
    answer::{AnswerPipe, RequestSocket},
    helper::HELPER_ARG,
    host_image,
    image::{Image, ImageError},
    limits::{Controllers, Limits},
    sandbox::{SPEC_FILE, Sandbox},
    store::{self, Leases},
    support::{Support, advice, check_resources, support},
    sweep,
    wire::{Create, CreateAnswer, Hello, HelloAnswer, Probe, SetupFailure},
};

/// How many sandboxes' files may be in removal at once.
const MAX_REMOVALS: usize = 16;

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
    zygote: Arc<Mutex<RequestSocket>>,
    support: Support,
    controllers: Controllers,
    host_image: OnceCell<Image>,
    counter: AtomicU64,
    removals: Arc<Semaphore>,
    pub(crate) leases: Leases,
}

impl Engine {
    /// Starts the zygote and finds out what this machine allows.
    pub async fn start(options: EngineOptions) -> Result<Engine, EngineError> {
        let (options, id, lock, controllers) = prepare(options).await?;
        let run_dir = options.state_dir.join("run").join(&id);
        let (zygote, probe) = start_zygote(&options, &run_dir, &id, &lock, &controllers).await?;
        let support = support(&probe, &controllers, &options.state_dir);
        let leases = Leases::new(&run_dir);
        let inner = Inner {
            options,
            run_dir,
            id,
            lock,
            zygote: Arc::new(Mutex::new(zygote)),
            support,
            controllers,
            host_image: OnceCell::new(),
            counter: AtomicU64::new(0),
            removals: Arc::new(Semaphore::new(MAX_REMOVALS)),
            leases,
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
            let (images, inner) = (self.state_dir().join(store::IMAGES), self.inner.clone());
            let prepare = move || host_image::prepare(&images, |name| inner.leases.take(store::IMAGES, name));
            let prepared = tokio::task::spawn_blocking(prepare).await;
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

    /// Says that this engine uses something of the store from now on, before it looks whether it is there.
    pub(crate) async fn lease(&self, kind: &'static str, name: &str) -> io::Result<()> {
        let (inner, name) = (self.inner.clone(), name.to_owned());
        tokio::task::spawn_blocking(move || inner.leases.take(kind, &name)).await.map_err(io::Error::other)?
    }

    pub(crate) async fn create_in(
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
        let setup = |step: &'static str| move |source| CreateError::Setup { step: step.to_owned(), source };
        let (lifetime, lifetime_end) = AnswerPipe::new().map_err(setup("making a pipe"))?;
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(setup("making a socket"))?;
        let control = RequestSocket::new(ours).map_err(setup("making a socket"))?;
        // From here on, whoever fails or stops waiting drops the sandbox, which cleans up after itself.
        let mut sandbox =
            Sandbox::new(self.clone(), (id, dir), spec, enforced, (lifetime, control), preserved);
        self.ask_zygote(&create, &[lifetime_end.as_fd(), theirs.as_fd()]).await?;
        drop((lifetime_end, theirs));
        match sandbox.started().await.map_err(setup("waiting for the sandbox"))? {
            CreateAnswer::Ready => Ok(sandbox),
            CreateAnswer::Failed(failure) => {
                let (step, source) = failure.into_io();
                Err(CreateError::Setup { step, source })
            }
        }
    }

    /// Sends a request to the zygote, or if it was killed to a new one.
    async fn ask_zygote(&self, create: &Create, fds: &[BorrowedFd<'_>]) -> Result<(), CreateError> {
        let zygote = self.inner.zygote.clone().lock_owned().await;
        if zygote.send(create, fds).await.is_ok() {
            return Ok(());
        }
        let zygote = self.restart(zygote).await?;
        let sent = zygote.send(create, fds).await;
        sent.map_err(|source| CreateError::Setup { step: "reaching the sandbox helper".into(), source })
    }

    /// Replaces the zygote, even if the caller stops waiting: one that is started and not kept would take
    /// the engine for dead and remove its directory.
    async fn restart(
        &self,
        mut zygote: OwnedMutexGuard<RequestSocket>,
    ) -> Result<OwnedMutexGuard<RequestSocket>, EngineError> {
        let inner = self.inner.clone();
        let restart = tokio::spawn(async move {
            let Inner { options, run_dir, id, lock, controllers, .. } = &*inner;
            *zygote = start_zygote(options, run_dir, id, lock, controllers).await?.0;
            Ok(zygote)
        });
        let helper = &self.inner.options.helper;
        let failed = |error| EngineError::Helper { helper: helper.clone(), source: io::Error::other(error) };
        restart.await.map_err(failed)?
    }

    /// Takes a sandbox's directory out of sight and removes it in the background.
    ///
    /// A disk can take longer to free files than a sandbox takes to live, so only so many removals may
    /// be behind before the next has to wait.
    pub(crate) async fn discard(&self, dir: PathBuf) -> io::Result<()> {
        let permit = self.inner.removals.clone().acquire_owned().await.map_err(io::Error::other)?;
        let (renamed, out_of_sight) = oneshot::channel();
        tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let trash = dir.with_extension("trash");
            let result = match fs::rename(&dir, &trash) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                other => other,
            };
            // Whoever stopped waiting does not mind.
            let _ = renamed.send(result);
            // The zygote or a sweep tries again when this engine is gone.
            if let Err(error) = remove_tree(&trash) {
                tracing::warn!("cannot remove {}: {error}", trash.display());
            }
        });
        out_of_sight.await.map_err(io::Error::other)?
    }

    fn next_id(&self) -> String {
        format!("{}-{}", self.inner.id, self.inner.counter.fetch_add(1, Ordering::Relaxed))
    }
}

/// A name that no other engine or process chooses.
pub(crate) fn unique_id() -> String {
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
        let id = unique_id();
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
