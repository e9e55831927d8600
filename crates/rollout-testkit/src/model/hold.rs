//! A door that replies wait at until the test lets them through.

use std::{pin::Pin, sync::Arc};

use tokio::sync::{Semaphore, watch};

/// Holds replies back. Clones are the same door.
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
    /// A closed door.
    pub fn new() -> Self {
        Self { door: Arc::new(Semaphore::new(0)), waiting: watch::Sender::new(0) }
    }

    /// Waits until so many replies are held at once; with 0, until the last one has gone or its client has.
    pub async fn waiting(&self, replies: usize) {
        let enough = |waiting: &usize| if replies == 0 { *waiting == 0 } else { *waiting >= replies };
        self.waiting.subscribe().wait_for(enough).await.expect("the sender lives as long as the door");
    }

    /// Lets so many replies through.
    pub fn pass(&self, replies: usize) {
        self.door.add_permits(replies);
    }

    /// Lets all through from now on.
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

/// A reply's wait at the door.
pub(crate) type Wait = Pin<Box<dyn Future<Output = ()> + Send + Sync>>;

/// A reply at the door. A client that hangs up takes its reply away.
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
