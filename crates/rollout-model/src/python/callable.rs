//! Python functions that receive the parts of a rollout that their parameters name.

use std::{sync::Arc, time::Duration};

use serde::{Serialize, Serializer};
use serde_json::Value;
use tokio::sync::OnceCell;

use super::{PythonError, PythonFunction, PythonWorker, Takes};
use crate::shown::Shown;

/// A function with its worker, and its parameters once they are known.
#[derive(Debug, Clone)]
pub(crate) struct Callable {
    worker: PythonWorker,
    pub(crate) function: PythonFunction,
    timeout: Duration,
    takes: Arc<OnceCell<Takes>>,
}

impl Callable {
    pub(crate) fn new(worker: &PythonWorker, function: PythonFunction) -> Self {
        Self { worker: worker.clone(), function, timeout: PythonWorker::TIMEOUT, takes: Arc::default() }
    }

    /// Sets the timeout of each call.
    pub(crate) fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    pub(crate) async fn takes(&self) -> Result<&Takes, PythonError> {
        self.takes.get_or_try_init(|| self.worker.takes(&self.function)).await
    }

    /// Calls it with the parts of a rollout that it takes.
    pub(crate) async fn ask(&self, action: &str, shown: Shown<'_>) -> Result<Value, PythonError> {
        let given = Given { shown, takes: self.takes().await? };
        self.call(action, given, None).await
    }

    /// Calls it with these arguments.
    pub(crate) async fn call(
        &self,
        action: &str,
        arguments: impl Serialize,
        rollouts: Option<usize>,
    ) -> Result<Value, PythonError> {
        self.worker.call(&self.function, action, arguments, rollouts, self.timeout).await
    }
}

/// The parts of a rollout that a function takes.
struct Given<'a> {
    shown: Shown<'a>,
    takes: &'a Takes,
}

impl Serialize for Given<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.shown.serialize_parts(serializer, true, |name| self.takes.wants(name))
    }
}
