//! Does work in advance that would delay the first session.

use std::{
    collections::BTreeMap,
    panic::AssertUnwindSafe,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use futures_util::{FutureExt as _, future::join_all};
use indexmap::IndexSet;
use serde::Serialize;
use serde_json::{Value, json};

use super::Registry;
use crate::resource::{ErrorCode, Resource, ToolError};

/// The most resource names of a request.
const MAX_NAMES: usize = 64;

/// The progress of resources.
#[derive(Default)]
pub(super) struct WarmUp(Mutex<BTreeMap<String, Status>>);

#[derive(Debug, Clone, Serialize)]
#[serde(tag = "status", rename_all = "lowercase")]
enum Status {
    Warming,
    Warm,
    Failed { error: String },
}

impl WarmUp {
    fn set(&self, name: &str, status: Status) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), status);
    }

    /// Warms up these resources, or all of them, and returns the outcome of each. Names beyond the limit are
    /// ignored.
    pub(super) async fn run(
        &self,
        registry: &Registry,
        names: Option<&[String]>,
        limit: Duration,
    ) -> Vec<(String, Result<(), String>)> {
        let wanted: IndexSet<&str> = match names {
            Some(names) => names.iter().take(MAX_NAMES).map(String::as_str).collect(),
            None => registry.resources().map(|(name, _)| name).collect(),
        };
        let outcomes = join_all(wanted.into_iter().map(async |name| {
            let outcome = match registry.resource(name) {
                Ok(resource) => self.one(name, &**resource, limit).await,
                Err(unknown) => Err(unknown.message),
            };
            (name.to_owned(), outcome)
        }))
        .await;
        registry.refresh();
        outcomes
    }

    async fn one(&self, name: &str, resource: &dyn Resource, limit: Duration) -> Result<(), String> {
        self.set(name, Status::Warming);
        let warmed = AssertUnwindSafe(tokio::time::timeout(limit, resource.warm_up())).catch_unwind().await;
        let outcome = match warmed {
            Ok(Ok(outcome)) => outcome.map_err(|error: ToolError| error.message),
            Ok(Err(_)) => Err(format!("it was not ready after {} seconds", limit.as_secs())),
            Err(_) => Err("it panicked; this is a bug in the server".to_owned()),
        };
        self.set(
            name,
            match &outcome {
                Ok(()) => Status::Warm,
                Err(error) => Status::Failed { error: error.clone() },
            },
        );
        outcome
    }

    /// Describes outcomes for clients.
    pub(super) fn describe(outcomes: &[(String, Result<(), String>)]) -> Value {
        let results: BTreeMap<&str, bool> =
            outcomes.iter().map(|(name, outcome)| (name.as_str(), outcome.is_ok())).collect();
        let errors: BTreeMap<&str, &str> = outcomes
            .iter()
            .filter_map(|(name, outcome)| Some((name.as_str(), outcome.as_ref().err()?.as_str())))
            .collect();
        let summary =
            json!({"total": results.len(), "success": results.len() - errors.len(), "failed": errors.len()});
        if errors.is_empty() {
            let (code, message) = (ErrorCode::Success as u16, "success");
            return json!({
                "status": "success", "code": code, "message": message, "results": results, "summary": summary,
            });
        }
        let code =
            if errors.len() < results.len() { ErrorCode::PartialFailure } else { ErrorCode::AllFailed };
        let message: Vec<String> = errors.iter().map(|(name, error)| format!("{name}: {error}")).collect();
        json!({
            "status": "partial_error", "code": code as u16, "message": message.join("; "), "results": results,
            "errors": errors, "summary": summary,
        })
    }

    /// The progress of each resource.
    pub(super) fn status(&self, registry: &Registry) -> Value {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let backends = registry.resources().map(|(name, _)| {
            let status = known.get(name).map_or_else(|| json!({"status": "cold"}), |status| json!(status));
            (name, status)
        });
        json!({"status": "success", "backends": backends.collect::<BTreeMap<_, _>>()})
    }
}
