//! The sessions of one question with the tool server.

use std::sync::Arc;

use tokio::{runtime::Handle, task::JoinHandle};

use super::{HEARTBEAT, Toolbox};
use rollout_model::{Error, ErrorKind};

/// The open sessions of one question. If it is dropped without closing, they are closed in the background.
#[derive(Debug)]
pub(crate) struct Session {
    toolbox: Arc<Toolbox>,
    worker_id: String,
    /// Keeps the sessions alive while the model works.
    heartbeat: Option<JoinHandle<()>>,
    is_closed: bool,
}

impl Session {
    /// Without open sessions.
    pub(crate) fn new(toolbox: Arc<Toolbox>, worker_id: String) -> Self {
        Self { toolbox, worker_id, heartbeat: None, is_closed: false }
    }

    /// Opens all sessions of a question. If one fails, those that were opened must still be closed.
    pub(crate) async fn open(&mut self, example: u64) -> Result<(), Error> {
        for (kind, config) in &self.toolbox.sessions {
            let what = format!("cannot open a session for `{kind}`");
            let opened = self.toolbox.server.create_session(&self.worker_id, kind, config).await;
            self.toolbox.note(example, &opened);
            let answer = opened.map_err(|error| error.into_error(&what))?;
            if answer.code != 0 {
                // A rejected request would be rejected again; a server error may be temporary.
                let kind = if answer.code >= 5000 { ErrorKind::Infra } else { ErrorKind::Any };
                return Err(Error::new(kind, format!("{what}: {}", answer.message)));
            }
        }
        if !self.toolbox.sessions.is_empty() {
            let beats = keep_alive(Arc::clone(&self.toolbox), self.worker_id.clone());
            self.heartbeat = Some(tokio::spawn(beats));
        }
        Ok(())
    }

    /// Asks the server to close all sessions. A failure is only logged, because the server closes idle sessions itself.
    pub(crate) async fn close(mut self) {
        disconnect(&self.toolbox, &self.worker_id).await;
        self.is_closed = true;
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(heartbeat) = &self.heartbeat {
            heartbeat.abort();
        }
        if let (false, Ok(runtime)) = (self.is_closed, Handle::try_current()) {
            let (toolbox, worker_id) = (Arc::clone(&self.toolbox), std::mem::take(&mut self.worker_id));
            runtime.spawn(async move { disconnect(&toolbox, &worker_id).await });
        }
    }
}

async fn disconnect(toolbox: &Toolbox, worker_id: &str) {
    if let Err(error) = toolbox.server.disconnect(worker_id).await {
        tracing::warn!(worker = worker_id, %error, "cannot close sessions; the tool server closes them later");
    }
}

async fn keep_alive(toolbox: Arc<Toolbox>, worker_id: String) {
    loop {
        tokio::time::sleep(HEARTBEAT).await;
        if let Err(error) = toolbox.server.heartbeat(&worker_id).await {
            tracing::debug!(worker = worker_id, %error, "a heartbeat to the tool server failed");
        }
    }
}
