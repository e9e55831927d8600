//! The engine, which creates sandboxes.

use std::{
    fs, io,
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use rollout_guest::remove::remove_tree;
use rustix::fs::{FlockOperation, flock};

use crate::{
    answer::{AnswerPipe, RequestSocket},
    blocking::{blocking, blocking_io},
    engine_core::{EngineCore, EngineOptions},
    error::{CreateError, SandboxEngineError},
    host_image,
    image::{Image, ImageError, Layer},
    sandbox::{Connections, RunningSandbox},
    spec::{Network, SPEC_FILE, SandboxSpec},
    store::{self, StoreLimiter, Stored},
    support::{Mode, Support, check_resources},
    wire::{Create, CreateAnswer, ExtraMount},
};

/// Creates sandboxes. Clones share one zygote, which ends with the last clone and the last sandbox.
#[derive(Clone)]
pub struct SandboxEngine {
    pub(crate) core: Arc<EngineCore>,
}

impl SandboxEngine {
    /// Starts the zygote and checks what this machine supports.
    pub async fn start(options: EngineOptions) -> Result<SandboxEngine, SandboxEngineError> {
        Ok(SandboxEngine { core: Arc::new(EngineCore::start(options).await?) })
    }

    /// What the engine supports on this machine.
    pub fn support(&self) -> &Support {
        &self.core.support
    }

    /// Waits until the files of destroyed sandboxes are removed, which happens in the background. Returns the paths
    /// that could not be removed, with the reasons.
    pub async fn settle(&self) -> Vec<String> {
        self.core.settle().await
    }

    /// The directory with images, layers and running sandboxes.
    pub fn state_dir(&self) -> &Path {
        self.core.state_dir()
    }

    /// A new path for a temporary file, which is removed with the engine at the latest.
    pub fn temporary_path(&self) -> PathBuf {
        self.core.run_dir.join(self.core.next_id())
    }

    /// Applies a limit to the store, also to what this engine no longer uses. Returns what was removed.
    pub async fn limit_store(&self, limiter: &Arc<Mutex<StoreLimiter>>) -> io::Result<Vec<Stored>> {
        let (core, limiter) = (self.core.clone(), limiter.clone());
        blocking_io(move || {
            core.leases.record_released()?;
            limiter.lock().unwrap_or_else(PoisonError::into_inner).apply()
        })
        .await
    }

    /// The host as an image: its programs and its /etc without secrets. Prepared once and stored.
    pub async fn host_image(&self) -> Result<Image, ImageError> {
        let image = self.core.host_image.get_or_try_init(|| {
            let (images, core) = (self.state_dir().join(store::IMAGES), self.core.clone());
            let mode = core.support.mode;
            let lease = move |name: &str| Ok(vec![core.leases.take(store::IMAGES, name)?]);
            blocking(move || host_image::prepare(&images, mode, lease))
        });
        image.await.cloned()
    }

    /// Creates a sandbox. Its supervisor runs when this returns.
    pub async fn create(&self, spec: SandboxSpec) -> Result<RunningSandbox, CreateError> {
        let dir = self.core.run_dir.join(self.core.next_id());
        self.create_in(dir, spec, Start::default()).await
    }

    /// Creates a sandbox for file operations. All of its files are those of the image, also those with names of hosts.
    pub(crate) async fn create_for_files(&self, spec: SandboxSpec) -> Result<RunningSandbox, CreateError> {
        let dir = self.core.run_dir.join(self.core.next_id());
        self.create_in(dir, spec, Start { only_files: true, ..Start::default() }).await
    }

    /// Ends a sandbox and starts another one with its files and these mounts.
    pub(crate) async fn restart(
        &self,
        mut sandbox: RunningSandbox,
        mounts: &[ExtraMount],
    ) -> Result<RunningSandbox, CreateError> {
        let failed = |source| CreateError::Setup { step: "stopping the sandbox".to_owned(), source };
        sandbox.stop_to_keep().await.map_err(|error| failed(io::Error::other(error)))?;
        let (dir, spec) = (sandbox.dir.clone(), sandbox.spec.clone());
        let work = dir.join("work");
        // An overlay that was mounted without syncing marks its work directory, which cannot be mounted again.
        blocking_io(move || remove_tree(&work)).await.map_err(failed)?;
        self.create_in(dir, spec, Start { mounts, ..Start::default() }).await
    }

    /// Creates a sandbox from the files of a preserved one, which are kept when it ends.
    pub async fn reopen(&self, dir: &Path) -> Result<RunningSandbox, CreateError> {
        let owned = dir.to_owned();
        let opened = blocking_io(move || reopen(&owned)).await;
        let (dir, spec, lock) =
            opened.map_err(|source| CreateError::Reopen { dir: dir.to_owned(), source })?;
        self.create_in(dir, spec, Start { preserved: Some(lock), ..Start::default() }).await
    }

    /// The files of a preserved sandbox as an image. They stay as they are, and must not be removed while a sandbox of
    /// the image exists, so the lock is kept until then.
    pub async fn preserved_image(&self, dir: &Path) -> Result<(Image, PreservedLock), CreateError> {
        let owned = dir.to_owned();
        let opened = blocking_io(move || preserved_image(&owned)).await;
        opened.map_err(|source| CreateError::Reopen { dir: dir.to_owned(), source })
    }

    pub(crate) async fn create_in(
        &self,
        dir: PathBuf,
        spec: SandboxSpec,
        start: Start<'_>,
    ) -> Result<RunningSandbox, CreateError> {
        let Start { preserved, mounts, only_files } = start;
        check_resources(spec.limits)?;
        let id = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // The cgroups of a reopened sandbox belong to this engine, not to the one that created its files.
        let cgroup = if preserved.is_some() { self.core.next_id() } else { id.clone() };
        let (cgroups, enforced) = self.core.controllers.plan(&cgroup, spec.limits);
        let hostname = hostname(&spec.name);
        let create = Create {
            dir: dir.clone(),
            hosts: (!only_files).then(|| hosts_file(&hostname, &spec.hosts)),
            hostname,
            own_network: spec.network == Network::None,
            upper_on_disk: self.core.support.changes_on_disk,
            parts: spec.image.mounts(),
            host_resolver: spec.network == Network::Host && !spec.image.is_host() && !only_files,
            private_dirs: spec.private_dirs.clone(),
            mounts: mounts.to_vec(),
            cgroups,
        };
        let setup = |step: &'static str| move |source| CreateError::Setup { step: step.to_owned(), source };
        let (lifetime, lifetime_end) = AnswerPipe::new().map_err(setup("creating a pipe"))?;
        let (control, theirs) = RequestSocket::pair().map_err(setup("creating a socket"))?;
        let mut fds = vec![lifetime_end, theirs];
        let mut nested = None;
        if !spec.private_dirs.is_empty() {
            let (control, theirs) = RequestSocket::pair().map_err(setup("creating a socket"))?;
            nested = Some(control);
            fds.push(theirs);
        }
        let connections = Connections { lifetime, control, nested };
        // From here on, the sandbox cleans up after itself when it is dropped, on an error or a cancellation.
        let mut sandbox =
            RunningSandbox::new(self.core.clone(), (id, dir), spec, enforced, connections, preserved);
        if self.core.support.changes_on_disk {
            let with_owners = self.core.support.mode == Mode::Root;
            let copied = sandbox.spec.image.copy_roots(&sandbox.dir.join("upper"), with_owners);
            copied.map_err(setup("creating the directories of its changes"))?;
        }
        let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        self.core.ask_zygote(&create, &borrowed).await?;
        drop(fds);
        match sandbox.started().await.map_err(setup("waiting for the sandbox"))? {
            CreateAnswer::Ready => Ok(sandbox),
            CreateAnswer::Failed(failure) => {
                let (step, source) = failure.into_io();
                Err(CreateError::Setup { step, source })
            }
        }
    }
}

/// How a sandbox is created, besides its specification.
#[derive(Default)]
pub(crate) struct Start<'a> {
    /// The lock of a preserved sandbox, whose files are kept when this one ends.
    pub(crate) preserved: Option<fs::File>,
    /// More mounts, for a command of a build.
    pub(crate) mounts: &'a [ExtraMount],
    /// Whether no command runs in it, so no file is mounted over one of the image: such a file could not be replaced.
    pub(crate) only_files: bool,
}

fn reopen(dir: &Path) -> io::Result<(PathBuf, SandboxSpec, fs::File)> {
    let dir = dir.canonicalize()?;
    let lock = fs::File::open(dir.join(SPEC_FILE))?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    let spec = serde_json::from_reader(&lock)?;
    // An overlay that was mounted without syncing marks its work directory, which cannot be mounted again.
    remove_tree(&dir.join("work"))?;
    Ok((dir, spec, lock))
}

/// Keeps a preserved sandbox from being opened or removed.
#[derive(Debug)]
pub struct PreservedLock {
    _file: fs::File,
}

fn preserved_image(dir: &Path) -> io::Result<(Image, PreservedLock)> {
    let dir = dir.canonicalize()?;
    let lock = fs::File::open(dir.join(SPEC_FILE))?;
    flock(&lock, FlockOperation::NonBlockingLockShared)?;
    let spec: SandboxSpec = serde_json::from_reader(&lock)?;
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    let image = spec.image.with_layer(&Layer::open(dir.join("upper"))?, format!("preserved-{name}"));
    Ok((image, PreservedLock { _file: lock }))
}

/// The names that every sandbox resolves without a network, and more of the caller.
fn hosts_file(hostname: &str, more: &[(String, String)]) -> String {
    let mut file =
        format!("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.0.1\t{hostname}\n");
    for (name, address) in more {
        file.push_str(&format!("{address}\t{name}\n"));
    }
    file
}

/// Derives a valid host name from any text.
fn hostname(name: &str) -> String {
    let clean: String = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' })
        .take(63)
        .collect();
    let clean = clean.trim_matches('-');
    if clean.is_empty() { "sandbox".into() } else { clean.into() }
}
