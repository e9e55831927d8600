//! A function that gets what it has parameters for of a rollout.

use std::{sync::Arc, time::Duration};

use serde::{Serialize, Serializer};
use serde_json::Value;
use tokio::sync::OnceCell;

use super::{PythonError, PythonFunction, PythonWorker, Takes};
use crate::shown::Shown;

/// A function with its worker, and what it takes once that is known.
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

    /// Gives each call so much time.
    pub(crate) fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    pub(crate) async fn takes(&self) -> Result<&Takes, PythonError> {
        self.takes.get_or_try_init(|| self.worker.takes(&self.function)).await
    }

    /// Calls it with what it takes of a rollout.
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

/// What a function takes of a rollout.
struct Given<'a> {
    shown: Shown<'a>,
    takes: &'a Takes,
}

impl Serialize for Given<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.shown.serialize_parts(serializer, true, |name| self.takes.wants(name))
    }
}
