//! What tests see of any fake cloud.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::faults::CloudFaults;

/// A fake cloud. It runs until it is dropped, and its sandboxes end with it.
pub trait CloudFake: Send + Sync + 'static {
    /// The name of the provider in job files.
    fn kind(&self) -> &'static str;

    /// The environment variables that point Rollout, and the vendor's own client, at the server.
    fn variables(&self) -> Vec<(&'static str, String)>;

    /// Settings under `provider_config` that point Rollout at the server.
    fn settings(&self) -> Map<String, Value> {
        Map::new()
    }

    /// Whether Rollout builds images for it with the Docker engine of the tests.
    fn needs_engine(&self) -> bool {
        false
    }

    /// Its faults, and the numbers of requests.
    fn faults(&self) -> &CloudFaults;

    /// The sandboxes that exist.
    fn sandboxes(&self) -> Vec<FakeSandbox>;

    /// Ends a sandbox from outside, as a failure of its machine does. A missing one is not an error.
    fn end(&self, id: &str);
}

/// A sandbox of a fake cloud.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FakeSandbox {
    /// The vendor's id.
    pub id: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

impl FakeSandbox {
    /// The job that created it.
    pub fn job(&self) -> &str {
        self.label("rollout-job")
    }

    /// Whether it is kept for the user.
    pub fn is_kept(&self) -> bool {
        self.label("rollout-kept") == "true"
    }

    fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }
}
