//! A gate at which replies wait until the test lets them continue.

use std::{pin::Pin, sync::Arc};

use tokio::sync::{Semaphore, watch};

/// Holds replies. Clones share the same gate.
#[derive(Debug, Clone)]
pub struct Hold {
    door: Arc<Semaphore>,
    waiting: watch::Sender<usize>,
}

impl Default for Hold {
    fn default() -> Self {
        Self::new()
    }
}

impl Hold {
    /// A closed gate.
    pub fn new() -> Self {
        Self { door: Arc::new(Semaphore::new(0)), waiting: watch::Sender::new(0) }
    }

    /// Waits until this many replies are held at once; with 0, until the last one has left or its client has
    /// disconnected.
    pub async fn waiting(&self, replies: usize) {
        let enough = |waiting: &usize| if replies == 0 { *waiting == 0 } else { *waiting >= replies };
        self.waiting.subscribe().wait_for(enough).await.expect("the sender lives as long as the gate");
    }

    /// Lets this many replies through.
    pub fn pass(&self, replies: usize) {
        self.door.add_permits(replies);
    }

    /// Lets all replies through from now on.
    pub fn open(&self) {
        self.door.close();
    }

    pub(crate) fn wait(self) -> Wait {
        Box::pin(async move {
            let _present = Present::new(&self.waiting);
            if let Ok(permit) = self.door.acquire().await {
                permit.forget();
            }
        })
    }
}

/// The wait of a reply at the gate.
pub(crate) type Wait = Pin<Box<dyn Future<Output = ()> + Send + Sync>>;

/// A reply at the gate. It is removed if its client disconnects.
struct Present<'a>(&'a watch::Sender<usize>);

impl<'a> Present<'a> {
    fn new(waiting: &'a watch::Sender<usize>) -> Self {
        waiting.send_modify(|waiting| *waiting += 1);
        Self(waiting)
    }
}

impl Drop for Present<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|waiting| *waiting -= 1);
    }
}
