//! A running sandbox, from the engine's side.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    answer::{AnswerPipe, RequestSocket},
    blocking::blocking_io,
    engine_core::EngineCore,
    image::Layer,
    limits::Enforced,
    private::private_dir,
    process::{ExecError, SandboxCommand, SandboxProcess, Survivor, call},
    spec::{SPEC_FILE, SandboxSpec},
    support::Mode,
    wire::{CreateAnswer, Done, Request, WireSurvivor},
};

/// Why a sandbox could not be removed completely.
#[derive(Debug, thiserror::Error)]
pub enum DestroyError {
    /// Waiting for the end of its first process failed.
    #[error("cannot check whether the sandbox has ended")]
    Lifetime(#[source] io::Error),
    /// Its files could not be removed.
    #[error("cannot remove the sandbox's directory {path}")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The system error.
        #[source]
        source: io::Error,
    },
}

/// Why a sandbox's changes could not be stored as a layer or preserved.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// The sandbox did not stop.
    #[error("cannot stop the sandbox")]
    Stop(#[source] DestroyError),
    /// The changes are in memory and are lost with the sandbox.
    #[error(
        "the sandbox's changes are only in memory, because overlayfs does not work in {state_dir}; \
         use a state directory on a disk file system"
    )]
    InMemory {
        /// The state directory.
        state_dir: PathBuf,
    },
    /// The changes could not be moved.
    #[error("cannot move the sandbox's files to {path}")]
    Move {
        /// The target directory.
        path: PathBuf,
        /// The system error.
        #[source]
        source: io::Error,
    },
}

/// A running sandbox. Dropping it kills everything inside and removes its files in the background.
pub struct RunningSandbox {
    pub(crate) core: Arc<EngineCore>,
    id: String,
    pub(crate) dir: PathBuf,
    pub(crate) spec: SandboxSpec,
    enforced: Enforced,
    control: RequestSocket,
    /// The supervisor of the nested commands, in a sandbox with private directories.
    nested: Option<RequestSocket>,
    commands: AtomicU64,
    /// `None` after the sandbox was stopped.
    lifetime: Option<AnswerPipe>,
    /// The lock on a preserved directory, which outlives the sandbox.
    pub(crate) preserved: Option<fs::File>,
}

/// The connections between an engine and a sandbox.
pub(crate) struct Connections {
    pub(crate) lifetime: AnswerPipe,
    pub(crate) control: RequestSocket,
    pub(crate) nested: Option<RequestSocket>,
}

impl RunningSandbox {
    pub(crate) fn new(
        core: Arc<EngineCore>,
        (id, dir): (String, PathBuf),
        spec: SandboxSpec,
        enforced: Enforced,
        connections: Connections,
        preserved: Option<fs::File>,
    ) -> RunningSandbox {
        let commands = AtomicU64::new(0);
        let Connections { lifetime, control, nested } = connections;
        RunningSandbox {
            core,
            id,
            dir,
            spec,
            enforced,
            control,
            nested,
            commands,
            lifetime: Some(lifetime),
            preserved,
        }
    }

    /// Waits for the supervisor's first message.
    pub(crate) async fn started(&mut self) -> io::Result<CreateAnswer> {
        match &mut self.lifetime {
            Some(lifetime) => lifetime.expect().await,
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// The unique name of the sandbox.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The host directory with the changes made inside.
    pub fn root_dir(&self) -> &Path {
        &self.dir
    }

    /// The spec that the sandbox was created from.
    pub fn spec(&self) -> &SandboxSpec {
        &self.spec
    }

    /// Which limits are enforced.
    pub fn enforced(&self) -> &Enforced {
        &self.enforced
    }

    pub(crate) fn control(&self) -> &RequestSocket {
        &self.control
    }

    /// Starts a command; returns once its program runs. The future does not borrow the sandbox.
    pub fn exec(
        &self,
        command: SandboxCommand,
    ) -> impl Future<Output = Result<SandboxProcess, ExecError>> + Send + use<> {
        let id = self.commands.fetch_add(1, Ordering::Relaxed);
        let control = self.control.clone();
        let nested = self.nested.clone().filter(|_| command.nested);
        async move { SandboxProcess::start((&control, nested.as_ref()), id, command).await }
    }

    /// The supervisor of untrusted commands: the nested one, or the only one.
    fn untrusted(&self) -> &RequestSocket {
        self.nested.as_ref().unwrap_or(&self.control)
    }

    /// The processes that run inside, without the engine's own. In a sandbox with private directories, only
    /// nested ones.
    pub async fn survivors(&self) -> Result<Vec<Survivor>, ExecError> {
        let found: Vec<WireSurvivor> =
            call(self.untrusted(), &Request::Survivors).await.map_err(ExecError::Gone)?;
        Ok(found.into_iter().map(|found| Survivor { pid: found.pid, command: found.command }).collect())
    }

    /// Kills everything inside or, in a sandbox with private directories, everything nested. The sandbox stays
    /// usable.
    pub async fn kill_all(&self) -> Result<(), ExecError> {
        let Done = call(self.untrusted(), &Request::KillAll).await.map_err(ExecError::Gone)?;
        Ok(())
    }

    /// The number of processes killed because the memory limit was reached.
    pub async fn oom_kills(&self) -> u64 {
        call(&self.control, &Request::OomKills).await.unwrap_or(0)
    }

    /// Kills everything inside, waits for its end, and removes the sandbox's files (except preserved ones).
    ///
    /// The directory is gone when this returns; its content is freed in the background.
    pub async fn destroy(mut self) -> Result<(), DestroyError> {
        self.stop().await?;
        if self.preserved.is_some() {
            return Ok(());
        }
        let removed = self.core.discard(self.dir.clone()).await;
        removed.map_err(|source| DestroyError::Directory { path: self.dir.clone(), source })
    }

    /// Stops the sandbox and stores its changes as a layer in `layer_dir`, which must be on the same file
    /// system as the state directory.
    pub async fn commit(mut self, layer_dir: &Path) -> Result<Layer, KeepError> {
        self.stop_to_keep().await?;
        let (upper, to, image) = (self.dir.join("upper"), layer_dir.to_owned(), self.spec.image.clone());
        let with_owners = self.core.support.mode == Mode::Root;
        let moved = blocking_io(move || {
            fs::create_dir_all(&to)?;
            for part in fs::read_dir(upper)? {
                let part = part?;
                // Each directory of a stack costs time in every sandbox that uses it.
                if !image.is_unchanged(&part.file_name(), &part.path(), with_owners)? {
                    fs::rename(part.path(), to.join(part.file_name()))?;
                }
            }
            Layer::open(to)
        });
        let layer = moved.await.map_err(|source| KeepError::Move { path: layer_dir.to_owned(), source })?;
        self.destroy().await.map_err(KeepError::Stop)?;
        Ok(layer)
    }

    /// Stops the sandbox and moves its files to a directory that sweeps do not remove. Returns the directory,
    /// for [`SandboxEngine::reopen`](crate::SandboxEngine::reopen).
    pub async fn preserve(mut self) -> Result<PathBuf, KeepError> {
        self.stop_to_keep().await?;
        let kept = self.core.state_dir().join("preserved").join(&self.id);
        let (from, to, spec) = (self.dir.clone(), kept.clone(), self.spec.clone());
        let moved = blocking_io(move || {
            private_dir(to.parent().unwrap_or(&to))?;
            fs::write(from.join(SPEC_FILE), serde_json::to_vec(&spec)?)?;
            fs::rename(from, to)
        });
        moved.await.map_err(|source| KeepError::Move { path: kept.clone(), source })?;
        Ok(kept)
    }

    pub(crate) async fn stop_to_keep(&mut self) -> Result<(), KeepError> {
        if !self.core.support.changes_on_disk {
            return Err(KeepError::InMemory { state_dir: self.core.state_dir().to_owned() });
        }
        self.stop().await.map_err(KeepError::Stop)
    }

    /// Ends both supervisors at the same time, because the kernel takes most of the time to free their mounts.
    fn shutdown(&self) {
        self.control.shutdown();
        if let Some(nested) = &self.nested {
            nested.shutdown();
        }
    }

    /// Kills everything inside and waits for its end.
    async fn stop(&mut self) -> Result<(), DestroyError> {
        self.shutdown();
        if let Some(lifetime) = &mut self.lifetime {
            lifetime.closed().await.map_err(DestroyError::Lifetime)?;
            self.lifetime = None;
        }
        Ok(())
    }
}

impl Drop for RunningSandbox {
    fn drop(&mut self) {
        let Some(mut lifetime) = self.lifetime.take() else { return };
        self.shutdown();
        if self.preserved.is_some() {
            return;
        }
        // Without a runtime, the files are removed with the engine.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let (core, dir) = (self.core.clone(), std::mem::take(&mut self.dir));
            runtime.spawn(async move {
                // Files that cannot be removed now are removed with the engine's directory.
                let _ = lifetime.closed().await;
                let _ = core.discard(dir).await;
            });
        }
    }
}
