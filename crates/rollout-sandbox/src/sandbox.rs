//! A running sandbox, from the engine's side.

use std::{
    io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use crate::{
    answer::{AnswerPipe, RequestSocket},
    engine::{Engine, SandboxSpec},
    image::Layer,
    limits::Enforced,
    process::{Command, ExecError, Process, Survivor, call},
    remove::remove_tree,
    wire::{Done, Request, WireSurvivor},
};

/// Why a sandbox could not be taken down completely.
#[derive(Debug, thiserror::Error)]
pub enum DestroyError {
    /// Its first process did not end.
    #[error("cannot tell whether the sandbox has ended")]
    Lifetime(#[source] io::Error),
    /// Its files could not be removed.
    #[error("cannot remove the sandbox's directory {path}")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What the kernel says.
        #[source]
        source: io::Error,
    },
}

/// Why a sandbox's changes could not be made a layer.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// The sandbox did not stop.
    #[error("cannot stop the sandbox")]
    Stop(#[source] DestroyError),
    /// The changes could not be moved.
    #[error("cannot make the layer {path}")]
    Layer {
        /// The layer's directory.
        path: PathBuf,
        /// What the kernel says.
        #[source]
        source: io::Error,
    },
}

/// A running sandbox. Dropping it ends everything inside and removes its files in the background.
pub struct Sandbox {
    engine: Engine,
    id: String,
    dir: PathBuf,
    spec: SandboxSpec,
    enforced: Enforced,
    lifetime: AnswerPipe,
    control: RequestSocket,
    commands: AtomicU64,
}

impl Sandbox {
    pub(crate) fn new(
        engine: Engine,
        id: String,
        dir: PathBuf,
        spec: SandboxSpec,
        enforced: Enforced,
        lifetime: AnswerPipe,
        control: RequestSocket,
    ) -> Sandbox {
        Sandbox { engine, id, dir, spec, enforced, lifetime, control, commands: AtomicU64::new(0) }
    }

    /// A name that no other sandbox has.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The host's directory that holds what was changed inside.
    pub fn root_dir(&self) -> &Path {
        &self.dir
    }

    /// Which limits really hold.
    pub fn enforced(&self) -> &Enforced {
        &self.enforced
    }

    /// Starts a command; returns once its program runs.
    pub async fn exec(&self, command: Command) -> Result<Process, ExecError> {
        let id = self.commands.fetch_add(1, Ordering::Relaxed);
        Process::start(&self.control, id, command).await
    }

    /// The processes that run inside, besides the engine's own.
    pub async fn survivors(&self) -> Result<Vec<Survivor>, ExecError> {
        let found: Vec<WireSurvivor> =
            call(&self.control, &Request::Survivors).await.map_err(ExecError::Gone)?;
        Ok(found.into_iter().map(|found| Survivor { pid: found.pid, command: found.command }).collect())
    }

    /// Kills everything inside; the sandbox itself stays usable.
    pub async fn kill_all(&self) -> Result<(), ExecError> {
        let Done = call(&self.control, &Request::KillAll).await.map_err(ExecError::Gone)?;
        Ok(())
    }

    /// How many processes were killed because the memory limit was reached.
    pub async fn oom_kills(&self) -> u64 {
        call(&self.control, &Request::OomKills).await.unwrap_or(0)
    }

    /// Ends everything inside, waits until it is gone, and removes the sandbox's files.
    pub async fn destroy(self) -> Result<(), DestroyError> {
        let dir = self.stop().await?;
        remove_in_background(dir.clone())
            .await
            .map_err(|source| DestroyError::Directory { path: dir, source })
    }

    /// Ends everything inside and waits until it is gone.
    async fn stop(self) -> Result<PathBuf, DestroyError> {
        let Sandbox { dir, mut lifetime, control, .. } = self;
        drop(control);
        lifetime.closed().await.map_err(DestroyError::Lifetime)?;
        Ok(dir)
    }
}

async fn remove_in_background(dir: PathBuf) -> io::Result<()> {
    tokio::task::spawn_blocking(move || remove_tree(&dir)).await.map_err(io::Error::other)?
}
