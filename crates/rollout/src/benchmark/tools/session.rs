//! The sessions of one question with the tool server, from its first turn to its end.

use std::sync::Arc;

use tokio::task::JoinHandle;

use super::{HEARTBEAT, Toolbox};
use crate::model::{Error, ErrorKind};

/// What one question has open at the tool server.
#[derive(Debug)]
pub(crate) struct Session {
    toolbox: Arc<Toolbox>,
    worker_id: String,
    /// Keeps the sessions alive while the model thinks.
    heartbeat: Option<JoinHandle<()>>,
}

impl Session {
    /// Opens all sessions that questions get. What was opened before one failed is in the session, to be closed.
    pub(crate) async fn open(toolbox: &Arc<Toolbox>, worker_id: String) -> (Self, Result<(), Error>) {
        let mut session = Self { toolbox: Arc::clone(toolbox), worker_id, heartbeat: None };
        let opened = session.open_all().await;
        if opened.is_ok() && !toolbox.sessions.is_empty() {
            session.heartbeat =
                Some(tokio::spawn(keep_alive(Arc::clone(toolbox), session.worker_id.clone())));
        }
        (session, opened)
    }

    async fn open_all(&self) -> Result<(), Error> {
        for (kind, config) in &self.toolbox.sessions {
            let what = format!("no session for `{kind}` could be opened");
            let opened = self.toolbox.server.create_session(&self.worker_id, kind, config).await;
            let answer = opened.map_err(|error| error.into_error(&what))?;
            if answer.code != 0 {
                // What the server refuses it refuses again; what broke may work the next time.
                let kind = if answer.code >= 5000 { ErrorKind::Infra } else { ErrorKind::Any };
                return Err(Error::new(kind, format!("{what}: {}", answer.message)));
            }
        }
        Ok(())
    }

    /// Has the server close everything. That it cannot be reached is only logged: it closes what nobody uses.
    pub(crate) async fn close(self) {
        if let Err(error) = self.toolbox.server.disconnect(&self.worker_id).await {
            tracing::warn!(worker = self.worker_id, %error, "sessions were left to the tool server");
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(heartbeat) = &self.heartbeat {
            heartbeat.abort();
        }
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
