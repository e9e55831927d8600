//! The sessions of one question with the tool server, from its first turn to its end.

use std::sync::Arc;

use tokio::{runtime::Handle, task::JoinHandle};

use super::{HEARTBEAT, Toolbox};
use rollout_model::{Error, ErrorKind};

/// What one question has open at the tool server. Whoever drops it unclosed leaves the closing to the background.
#[derive(Debug)]
pub(crate) struct Session {
    toolbox: Arc<Toolbox>,
    worker_id: String,
    /// Keeps the sessions alive while the model thinks.
    heartbeat: Option<JoinHandle<()>>,
    is_closed: bool,
}

impl Session {
    /// A session in which nothing is open yet.
    pub(crate) fn new(toolbox: Arc<Toolbox>, worker_id: String) -> Self {
        Self { toolbox, worker_id, heartbeat: None, is_closed: false }
    }

    /// Opens all sessions that questions get. What was opened before one failed is to be closed too.
    pub(crate) async fn open(&mut self, example: u64) -> Result<(), Error> {
        for (kind, config) in &self.toolbox.sessions {
            let what = format!("no session for `{kind}` could be opened");
            let opened = self.toolbox.server.create_session(&self.worker_id, kind, config).await;
            self.toolbox.note(example, &opened);
            let answer = opened.map_err(|error| error.into_error(&what))?;
            if answer.code != 0 {
                // What the server refuses it refuses again; what broke may work the next time.
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

    /// Has the server close everything. That it cannot be reached is only logged: it closes what nobody uses.
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
        tracing::warn!(worker = worker_id, %error, "sessions were left to the tool server");
    }
}

async fn keep_alive(toolbox: Arc<Toolbox>, worker_id: String) {
    loop {
        tokio::time::sleep(HEARTBEAT).await;
        if let Err(error) = toolbox.server.heartbeat(&worker_id).await {
            tracing::debug!(worker = worker_id, %error, "the tool server did not hear a heartbeat");
        }
    }
}
