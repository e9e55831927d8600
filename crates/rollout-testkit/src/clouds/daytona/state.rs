//! What the fake of Daytona has.

use std::{
    collections::{BTreeMap, HashMap},
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::task::AbortHandle;

use super::ORGANIZATION;
use crate::clouds::{
    fake::FakeSandbox,
    faults::CloudFaults,
    machine::{CloudHost, CloudMachine},
};

/// The state of the fake.
pub(super) struct DaytonaState {
    pub(super) host: CloudHost,
    /// The address of the server.
    pub(super) url: String,
    pub(super) faults: CloudFaults,
    /// Files of the storage, by path.
    objects: Mutex<HashMap<String, Bytes>>,
    snapshots: Mutex<BTreeMap<String, Snapshot>>,
    sandboxes: Mutex<BTreeMap<String, Sandbox>>,
    next: Mutex<u64>,
}

/// A snapshot, by its id.
#[derive(Clone)]
pub(super) struct Snapshot {
    pub(super) name: String,
    pub(super) state: &'static str,
    pub(super) error: Option<String>,
    pub(super) log: String,
    pub(super) image_name: Option<String>,
    pub(super) build_info: Option<Value>,
    /// CPUs, GiB of memory and GiB of disk.
    pub(super) size: [u64; 3],
    /// The build, which ends with the snapshot.
    pub(super) build: Option<AbortHandle>,
    created: String,
}

impl Snapshot {
    pub(super) fn new(name: &str, size: [u64; 3]) -> Self {
        Self {
            name: name.to_owned(),
            state: "pending",
            error: None,
            log: String::new(),
            image_name: None,
            build_info: None,
            size,
            build: None,
            created: now(),
        }
    }

    /// The snapshot as the API shows it.
    pub(super) fn json(&self, id: &str) -> Value {
        let mut shown = json!({
            "id": id,
            "organizationId": ORGANIZATION,
            "general": false,
            "name": self.name,
            "state": self.state,
            "size": 0.1,
            "entrypoint": [],
            "cpu": self.size[0],
            "gpu": 0,
            "mem": self.size[1],
            "disk": self.size[2],
            "errorReason": self.error,
            "createdAt": self.created,
            "updatedAt": self.created,
            "lastUsedAt": null,
            "sourceSandboxId": null,
            "regionIds": ["us"],
        });
        if let Some(name) = &self.image_name {
            shown["imageName"] = json!(name);
        }
        if let Some(info) = &self.build_info {
            shown["buildInfo"] = info.clone();
            for (key, value) in
                [("createdAt", &*self.created), ("updatedAt", &*self.created), ("snapshotRef", id)]
            {
                shown["buildInfo"][key] = json!(value);
            }
        }
        shown
    }
}

/// A sandbox, by its id.
#[derive(Clone)]
pub(super) struct Sandbox {
    pub(super) name: String,
    pub(super) state: &'static str,
    pub(super) error: Option<String>,
    pub(super) labels: BTreeMap<String, String>,
    /// The request that created it.
    pub(super) request: Value,
    pub(super) size: [u64; 3],
    pub(super) destroy_at: Option<String>,
    pub(super) machine: Option<CloudMachine>,
    /// The secret of its preview addresses.
    pub(super) token: String,
    pub(super) sessions: BTreeMap<String, Vec<Arc<SessionCommand>>>,
    pub(super) created: String,
}

/// A command of a session.
pub(super) struct SessionCommand {
    pub(super) id: String,
    pub(super) command: String,
    pub(super) end: tokio::sync::watch::Sender<Option<CommandEnd>>,
}

/// How a command ended.
#[derive(Debug, Clone)]
pub(super) struct CommandEnd {
    pub(super) code: i32,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

impl SessionCommand {
    /// The command as the toolbox shows it.
    pub(super) fn json(&self) -> Value {
        let mut shown = json!({"id": self.id, "command": self.command});
        if let Some(end) = &*self.end.borrow() {
            shown["exitCode"] = json!(end.code);
        }
        shown
    }
}

impl Sandbox {
    /// The sandbox as the API shows it.
    pub(super) fn json(&self, id: &str, url: &str) -> Value {
        let given = |key: &str, usual: Value| match &self.request[key] {
            Value::Null => usual,
            value => value.clone(),
        };
        json!({
            "id": id,
            "organizationId": ORGANIZATION,
            "name": self.name,
            "snapshot": self.request["snapshot"],
            "user": given("user", json!("root")),
            "env": given("env", json!({})),
            "labels": self.labels,
            "public": given("public", json!(false)),
            "networkBlockAll": given("networkBlockAll", json!(false)),
            "kvm": false,
            "target": given("target", json!("us")),
            "cpu": self.size[0],
            "gpu": 0,
            "memory": self.size[1],
            "disk": self.size[2],
            "state": self.state,
            "desiredState": if self.state == "destroying" { "destroyed" } else { "started" },
            "errorReason": self.error,
            "autoStopInterval": given("autoStopInterval", json!(15)),
            "autoArchiveInterval": given("autoArchiveInterval", json!(10080)),
            "autoDeleteInterval": given("autoDeleteInterval", json!(-1)),
            "autoDestroyAt": self.destroy_at,
            "createdAt": self.created,
            "updatedAt": self.created,
            "toolboxProxyUrl": format!("{url}/toolbox"),
        })
    }

    fn is_live(&self) -> bool {
        self.state != "destroying"
    }
}

impl DaytonaState {
    pub(super) fn new(host: CloudHost, address: SocketAddr) -> Self {
        Self {
            host,
            url: format!("http://{address}"),
            faults: CloudFaults::default(),
            objects: Mutex::default(),
            snapshots: Mutex::default(),
            sandboxes: Mutex::default(),
            next: Mutex::default(),
        }
    }

    pub(super) fn objects(&self) -> MutexGuard<'_, HashMap<String, Bytes>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn snapshots(&self) -> MutexGuard<'_, BTreeMap<String, Snapshot>> {
        self.snapshots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn all(&self) -> MutexGuard<'_, BTreeMap<String, Sandbox>> {
        self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An id that looks like those of Daytona.
    pub(super) fn new_id(&self) -> String {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        *next += 1;
        format!("{:08x}-0000-4000-8000-{:012x}", *next, std::process::id())
    }

    /// The sandboxes that exist.
    pub(super) fn live(&self) -> Vec<FakeSandbox> {
        let all = self.all();
        let live = all.iter().filter(|(_, sandbox)| sandbox.is_live());
        live.map(|(id, sandbox)| FakeSandbox { id: id.clone(), labels: sandbox.labels.clone() }).collect()
    }

    /// A snapshot by its id or name.
    pub(super) fn snapshot(&self, id_or_name: &str) -> Option<(String, Snapshot)> {
        let all = self.snapshots();
        let mut found = all.iter().filter(|(id, snapshot)| *id == id_or_name || snapshot.name == id_or_name);
        found.next().map(|(id, snapshot)| (id.clone(), snapshot.clone()))
    }

    /// A sandbox by its id or name.
    pub(super) fn sandbox(&self, id_or_name: &str) -> Option<(String, Sandbox)> {
        let all = self.all();
        let mut found = all.iter().filter(|(id, sandbox)| *id == id_or_name || sandbox.name == id_or_name);
        found.next().map(|(id, sandbox)| (id.clone(), sandbox.clone()))
    }

    /// Removes a sandbox. Its machine is to be killed.
    pub(super) fn remove(&self, id: &str) -> Option<CloudMachine> {
        self.all().remove(id)?.machine
    }
}

/// The time, as the API writes it.
pub(super) fn now() -> String {
    Timestamp::now().to_string()
}
