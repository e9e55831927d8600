//! The state shared by an engine and its sandboxes: the zygote and the engine's part of the state directory.

use std::{
    fs, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use rollout_guest::remove::remove_tree;
use tokio::sync::{Mutex, OnceCell, OwnedMutexGuard, Semaphore, oneshot};

use crate::{
    answer::{AnswerPipe, RequestSocket},
    blocking::blocking_io,
    error::{CreateError, SandboxEngineError},
    helper::HELPER_ARG,
    image::{Image, Lease},
    limits::Controllers,
    private::unique_id,
    store::Leases,
    support::{Support, advice, support},
    sweep,
    wire::{Create, Hello, HelloAnswer, Probe, SetupFailure},
};

/// The number of sandboxes whose files may be removed at once.
const MAX_REMOVALS: usize = 16;

/// The options of an engine.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// An executable that calls [`helper_main`](crate::helper_main) when its first argument is [`HELPER_ARG`].
    pub helper: PathBuf,
    /// The directory for images, layers and running sandboxes; created if missing.
    pub state_dir: PathBuf,
}

/// Lives as long as the engine or any of its sandboxes; the zygote ends with it.
pub(crate) struct EngineCore {
    options: EngineOptions,
    pub(crate) run_dir: PathBuf,
    id: String,
    /// Marks this engine as alive for sweeps of the state directory.
    lock: OwnedFd,
    zygote: Arc<Mutex<RequestSocket>>,
    pub(crate) support: Support,
    pub(crate) controllers: Controllers,
    pub(crate) host_image: OnceCell<Image>,
    counter: AtomicU64,
    removals: Arc<Semaphore>,
    /// The paths that could not be removed in the background, with the reasons.
    unremoved: Arc<std::sync::Mutex<Vec<String>>>,
    pub(crate) leases: Leases,
}

impl EngineCore {
    /// Starts the zygote and checks what this machine supports.
    pub(crate) async fn start(options: EngineOptions) -> Result<EngineCore, SandboxEngineError> {
        let (options, id, lock, controllers) = prepare(options).await?;
        let run_dir = options.state_dir.join("run").join(&id);
        let (zygote, probe) = start_zygote(&options, &run_dir, &id, &lock, &controllers).await?;
        let support = support(&probe, &controllers, &options.state_dir);
        let leases = Leases::new(&options.state_dir, &run_dir);
        Ok(EngineCore {
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
            unremoved: Arc::default(),
            leases,
        })
    }

    pub(crate) fn state_dir(&self) -> &Path {
        &self.options.state_dir
    }

    /// Records that this engine uses an entry of the store. Called before checking whether the entry exists.
    pub(crate) async fn lease(self: &Arc<Self>, kind: &'static str, name: &str) -> io::Result<Lease> {
        let (core, name) = (self.clone(), name.to_owned());
        blocking_io(move || core.leases.take(kind, &name)).await
    }

    /// Sends a request to the zygote, which is restarted if it was killed.
    pub(crate) async fn ask_zygote(
        self: &Arc<Self>,
        create: &Create,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), CreateError> {
        let zygote = self.zygote.clone().lock_owned().await;
        if zygote.send(create, fds).await.is_ok() {
            return Ok(());
        }
        let zygote = self.restart(zygote).await?;
        let sent = zygote.send(create, fds).await;
        sent.map_err(|source| CreateError::Setup { step: "reaching the sandbox helper".into(), source })
    }

    /// Replaces the zygote, even if the caller stops waiting: a zygote that is started but not stored would
    /// think that the engine is dead and remove its directory.
    async fn restart(
        self: &Arc<Self>,
        mut zygote: OwnedMutexGuard<RequestSocket>,
    ) -> Result<OwnedMutexGuard<RequestSocket>, SandboxEngineError> {
        let core = self.clone();
        let restart = tokio::spawn(async move {
            let EngineCore { options, run_dir, id, lock, controllers, .. } = &*core;
            *zygote = start_zygote(options, run_dir, id, lock, controllers).await?.0;
            Ok(zygote)
        });
        let helper = &self.options.helper;
        let failed =
            |error| SandboxEngineError::Helper { helper: helper.clone(), source: io::Error::other(error) };
        restart.await.map_err(failed)?
    }

    /// Renames a sandbox's directory and removes it in the background.
    ///
    /// Freeing files on a disk can take longer than the whole life of a sandbox, so the number of pending
    /// removals is limited.
    pub(crate) async fn discard(&self, dir: PathBuf) -> io::Result<()> {
        let permit = self.removals.clone().acquire_owned().await.map_err(io::Error::other)?;
        let (renamed, out_of_sight) = oneshot::channel();
        let unremoved = Arc::clone(&self.unremoved);
        tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let trash = dir.with_extension("trash");
            let result = match fs::rename(&dir, &trash) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                other => other,
            };
            // The caller may have stopped waiting.
            let _ = renamed.send(result);
            // The zygote or a sweep tries again after this engine has ended.
            if let Err(error) = remove_tree(&trash) {
                tracing::warn!("cannot remove an environment: {error}");
                unremoved.lock().unwrap_or_else(PoisonError::into_inner).push(error.to_string());
            }
        });
        out_of_sight.await.map_err(io::Error::other)?
    }

    /// Waits until the files of all discarded sandboxes are gone. Returns the paths that could not be removed since
    /// the last call, with the reasons.
    pub(crate) async fn settle(&self) -> Vec<String> {
        // All permits are free when no removal is running. The semaphore is never closed.
        let _ = self.removals.acquire_many(MAX_REMOVALS as u32).await;
        std::mem::take(&mut *self.unremoved.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A unique name for a sandbox or its cgroups.
    pub(crate) fn next_id(&self) -> String {
        format!("{}-{}", self.id, self.counter.fetch_add(1, Ordering::Relaxed))
    }
}

/// Does the file work of starting: sweeps, claims a directory, finds the cgroups.
async fn prepare(
    options: EngineOptions,
) -> Result<(EngineOptions, String, OwnedFd, Controllers), SandboxEngineError> {
    let path = options.state_dir.clone();
    let work = move || {
        fs::create_dir_all(&options.state_dir)?;
        let state_dir = options.state_dir.canonicalize()?;
        // Leftovers of a dead engine that cannot be removed must not prevent the start.
        let left = match sweep::sweep(&state_dir) {
            Ok(report) => report.failed,
            Err(error) => vec![format!("{}: {error}", state_dir.display())],
        };
        for left in left {
            tracing::warn!("cannot remove the files of an earlier run: {left}");
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
    blocking_io(work).await.map_err(|source| SandboxEngineError::StateDir { path, source })
}

async fn start_zygote(
    options: &EngineOptions,
    run_dir: &Path,
    engine_id: &str,
    lock: &OwnedFd,
    controllers: &Controllers,
) -> Result<(RequestSocket, Probe), SandboxEngineError> {
    let fail = |source| SandboxEngineError::Helper { helper: options.helper.clone(), source };
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(fail)?;
    let child = tokio::process::Command::new(&options.helper)
        .arg(HELPER_ARG)
        // The engine's environment variables must not be readable inside a sandbox.
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .process_group(0)
        .spawn()
        .map_err(fail)?;
    // It ends when the socket closes; tokio reaps it.
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

fn not_allowed(failure: SetupFailure) -> SandboxEngineError {
    let (step, source) = failure.into_io();
    let setting = |path: &str| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    SandboxEngineError::NotAllowed { step, advice: advice(setting), source }
}
