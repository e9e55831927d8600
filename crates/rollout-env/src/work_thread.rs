//! A thread with its own runtime for work that must not be lost with its caller.
//!
//! A future can be dropped while a provider creates something for it, and an environment can be dropped where nothing
//! can be awaited. Work on this thread outlives both: dropping the thread waits for it, so a cancelled job leaves
//! nothing behind.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
};

use futures_util::{FutureExt as _, future::BoxFuture};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
};

use crate::environment::EnvironmentError;

type Work<D> = Box<dyn FnOnce(Arc<D>) -> BoxFuture<'static, ()> + Send>;

/// Sends work to the thread.
pub(crate) struct WorkHandle<D> {
    work: mpsc::UnboundedSender<Work<D>>,
}

impl<D> Clone for WorkHandle<D> {
    fn clone(&self) -> Self {
        Self { work: self.work.clone() }
    }
}

/// The thread. Dropping it waits until all work is done.
pub(crate) struct WorkThread<D> {
    /// `None` while it is being dropped.
    handle: Option<WorkHandle<D>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl<D: Send + Sync + 'static> WorkThread<D> {
    /// Starts the thread. `desk` creates what all work uses, inside the runtime; `end` runs after the last work.
    pub(crate) fn start(
        name: &str,
        desk: impl FnOnce() -> io::Result<D>,
        end: impl FnOnce(Arc<D>) -> BoxFuture<'static, ()> + Send + 'static,
    ) -> io::Result<Self> {
        let (sender, mut work) = mpsc::unbounded_channel::<Work<D>>();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let desk = {
            // Clients have tasks of their own, which belong to this runtime.
            let _inside = runtime.enter();
            Arc::new(desk()?)
        };
        let run = async move {
            let mut tasks = JoinSet::new();
            while let Some(next) = work.recv().await {
                tasks.spawn(next(Arc::clone(&desk)));
                while tasks.try_join_next().is_some() {}
            }
            while tasks.join_next().await.is_some() {}
            end(desk).await;
        };
        let thread =
            std::thread::Builder::new().name(name.to_owned()).spawn(move || runtime.block_on(run))?;
        Ok(Self { handle: Some(WorkHandle { work: sender }), thread: Mutex::new(Some(thread)) })
    }

    /// A handle that keeps the thread from ending while it exists.
    pub(crate) fn handle(&self) -> Result<WorkHandle<D>, EnvironmentError> {
        self.handle.clone().ok_or_else(gone)
    }

    /// Runs work on the thread and returns its result. If the future is dropped, the work still runs, and its result is
    /// dropped on the thread.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(Arc<D>) -> BoxFuture<'static, T> + Send + 'static,
    ) -> Result<T, EnvironmentError> {
        self.handle()?.ask(work).await
    }
}

impl<D: Send + Sync + 'static> WorkHandle<D> {
    /// Runs work on the thread and returns its result.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(Arc<D>) -> BoxFuture<'static, T> + Send + 'static,
    ) -> Result<T, EnvironmentError> {
        let (reply, answer) = oneshot::channel();
        let work: Work<D> = Box::new(move |desk| {
            async move {
                // If the caller is gone, the result is dropped.
                let _ = reply.send(work(desk).await);
            }
            .boxed()
        });
        self.work.send(work).map_err(|_| gone())?;
        answer.await.map_err(|_| gone())
    }

    /// Runs work on the thread, which reports for itself.
    pub(crate) fn send(&self, work: impl FnOnce(Arc<D>) -> BoxFuture<'static, ()> + Send + 'static) {
        // The thread lives as long as a handle does.
        let _ = self.work.send(Box::new(work));
    }
}

impl<D> Drop for WorkThread<D> {
    fn drop(&mut self) {
        self.handle = None;
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

fn gone() -> EnvironmentError {
    EnvironmentError::Start("the thread that creates environments has ended".to_owned())
}
