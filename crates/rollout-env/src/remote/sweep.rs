//! Finds and deletes sandboxes that dead runs left in an account.

use std::{collections::HashMap, path::PathBuf, time::Duration};

use futures_util::future::BoxFuture;

use super::{
    CloudConnectError,
    backend::{Backend, CloudError, CloudSandbox, KEPT},
    check,
    desk::patiently,
};
use crate::docker::{Maker, Owner};

/// How long to wait for a vendor that has no time.
const SWEEP_PATIENCE: Duration = Duration::from_secs(30);

/// An account at a vendor, to list and delete what Rollout left in it.
pub struct CloudAccount {
    name: &'static str,
    backend: Box<dyn Backend>,
    /// The file that records the place, if it is not the default.
    record: Option<PathBuf>,
}

/// A sandbox that Rollout created.
#[derive(Debug, Clone)]
pub struct CloudLeftover {
    /// The vendor's id.
    pub id: String,
    /// The job and the trial, as far as its labels name them.
    pub job: String,
    /// The trial.
    pub trial: String,
    /// Whether it is in use.
    pub state: CloudLeftoverState,
}

/// Whether a sandbox is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloudLeftoverState {
    /// Its run is alive.
    Used,
    /// Its run ran on this machine and has ended.
    Left,
    /// Its run ran on another machine, or its state is not known.
    Elsewhere,
    /// It is kept for the user.
    Kept,
}

impl CloudAccount {
    /// Checks the credentials.
    pub(super) async fn open(
        name: &'static str,
        backend: Box<dyn Backend>,
        record: Option<PathBuf>,
    ) -> Result<Self, CloudConnectError> {
        let account = Self { name, backend, record };
        match check(name, &*account.backend).await {
            Ok(()) => Ok(account),
            Err(CloudConnectError::Unreachable { reason, .. }) => Err(account.unreachable(&reason)),
            Err(error) => Err(error),
        }
    }

    /// The name of the provider in job files.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The region and the account.
    pub fn description(&self) -> String {
        self.backend.description()
    }

    /// All sandboxes that Rollout created in the account.
    pub fn sandboxes(&self) -> BoxFuture<'_, Result<Vec<CloudLeftover>, CloudConnectError>> {
        Box::pin(async move {
            let listed = patiently(SWEEP_PATIENCE, || self.backend.list()).await;
            let listed = listed.map_err(|error| self.unreachable(&error.to_string()))?;
            Ok(listed.into_iter().map(describe).collect())
        })
    }

    /// Deletes a sandbox. A missing one is not an error. An error is the reason of the vendor.
    pub fn delete<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move {
            match patiently(SWEEP_PATIENCE, || self.backend.delete(id)).await {
                Ok(()) | Err(CloudError::Missing(_)) => Ok(()),
                Err(error) => Err(error.to_string()),
            }
        })
    }

    fn unreachable(&self, reason: &str) -> CloudConnectError {
        let reason = match &self.record {
            Some(file) => format!(
                "{reason} ({}, which a job has used; if it no longer exists, delete {})",
                self.description(),
                file.display()
            ),
            None => reason.to_owned(),
        };
        CloudConnectError::Unreachable { vendor: self.name, reason }
    }
}

/// What a sweep did.
#[derive(Debug, Default)]
pub(super) struct Swept {
    /// How many sandboxes were deleted.
    pub(super) deleted: usize,
    /// The sandboxes that could not be deleted, with the reasons.
    pub(super) left: Vec<(String, CloudError)>,
}

/// Deletes the sandboxes of dead runs of this machine.
pub(super) async fn sweep(backend: &dyn Backend) -> Result<Swept, CloudError> {
    let mut swept = Swept::default();
    for sandbox in patiently(SWEEP_PATIENCE, || backend.list()).await?.into_iter().map(describe) {
        if sandbox.state == CloudLeftoverState::Left {
            match patiently(SWEEP_PATIENCE, || backend.delete(&sandbox.id)).await {
                Ok(()) | Err(CloudError::Missing(_)) => swept.deleted += 1,
                Err(error) => swept.left.push((sandbox.id, error)),
            }
        }
    }
    Ok(swept)
}

fn describe(sandbox: CloudSandbox) -> CloudLeftover {
    let labels: HashMap<String, String> =
        sandbox.labels.iter().map(|(name, value)| (name.replace('-', "."), value.clone())).collect();
    let state = if sandbox.labels.get(KEPT).is_some_and(|kept| kept == "true") {
        CloudLeftoverState::Kept
    } else {
        match Owner::current().maker(&labels) {
            Some(Maker::Alive) => CloudLeftoverState::Used,
            Some(Maker::Dead | Maker::Rebooted) => CloudLeftoverState::Left,
            Some(Maker::Elsewhere) | None => CloudLeftoverState::Elsewhere,
        }
    };
    let label = |name: &str| labels.get(name).cloned().unwrap_or_default();
    CloudLeftover { id: sandbox.id, job: label("rollout.job"), trial: label("rollout.trial"), state }
}
