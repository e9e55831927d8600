//! The apps and machines of the account.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use jiff::Timestamp;
use rollout_sandbox::oci::{RegistryImages, RegistryOptions};
use serde_json::{Map, Value, json};

use super::registry::Registry;
use crate::clouds::{
    fake::FakeSandbox,
    faults::CloudFaults,
    machine::{CloudHost, CloudMachine},
};

/// The state of a fake.
pub(super) struct FlyState {
    pub(super) host: CloudHost,
    pub(super) address: SocketAddr,
    pub(super) faults: CloudFaults,
    pub(super) registry: Registry,
    /// Pulls from the own registry.
    pub(super) images: RegistryImages,
    apps: Mutex<BTreeMap<String, App>>,
    next: AtomicU64,
}

/// An app.
#[derive(Default)]
pub(super) struct App {
    pub(super) org: String,
    pub(super) network: String,
    pub(super) ips: Vec<Value>,
    /// By id, also those that are destroyed.
    pub(super) machines: BTreeMap<String, Record>,
}

/// A machine, as the API shows it.
pub(super) struct Record {
    pub(super) name: String,
    pub(super) region: String,
    pub(super) state: &'static str,
    pub(super) config: Value,
    /// The newest first.
    events: Vec<Value>,
    created: Timestamp,
    /// The port of its service on the host.
    pub(super) port: u16,
    /// While it runs.
    machine: Option<CloudMachine>,
}

impl Record {
    pub(super) fn new(name: String, region: String, config: Value, port: u16) -> Self {
        let mut record = Self {
            name,
            region,
            state: "created",
            config,
            events: Vec::new(),
            created: Timestamp::now(),
            port,
            machine: None,
        };
        record.note("launch", "created", "user", None);
        record
    }

    fn note(&mut self, kind: &str, status: &str, source: &str, request: Option<Value>) {
        let time = Timestamp::now().as_millisecond();
        let mut event = json!({"type": kind, "status": status, "source": source, "timestamp": time});
        if let Some(request) = request {
            event["request"] = request;
        }
        self.events.insert(0, event);
    }

    pub(super) fn is_live(&self) -> bool {
        self.state != "destroyed"
    }

    pub(super) fn label(&self, name: &str) -> Option<&str> {
        self.config["metadata"][name].as_str()
    }

    pub(super) fn json(&self, id: &str) -> Value {
        json!({
            "id": id,
            "name": self.name,
            "state": self.state,
            "region": self.region,
            "instance_id": format!("01{id}"),
            "private_ip": "fdaa:0:1::2",
            "config": self.config,
            "image_ref": {"repository": self.config["image"]},
            "created_at": self.created.to_string(),
            "updated_at": Timestamp::now().to_string(),
            "events": self.events,
        })
    }
}

impl FlyState {
    pub(super) fn new(host: CloudHost, address: SocketAddr, blobs: PathBuf) -> Self {
        let images = RegistryImages::new(
            host.engine().clone(),
            RegistryOptions { insecure: vec![address.to_string()], ..RegistryOptions::default() },
        );
        Self {
            host,
            address,
            faults: CloudFaults::default(),
            registry: Registry::new(blobs),
            images,
            apps: Mutex::default(),
            next: AtomicU64::new(0),
        }
    }

    pub(super) fn apps(&self) -> MutexGuard<'_, BTreeMap<String, App>> {
        self.apps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An id that no other machine has.
    pub(super) fn new_id(&self) -> String {
        format!("{:07x}{:07x}", std::process::id(), self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// The machines that are not destroyed.
    pub(super) fn live(&self) -> Vec<FakeSandbox> {
        let apps = self.apps();
        let records = apps.values().flat_map(|app| &app.machines).filter(|(_, record)| record.is_live());
        records
            .map(|(id, record)| {
                let empty = Map::new();
                let labels = record.config["metadata"].as_object().unwrap_or(&empty).iter();
                let labels =
                    labels.map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned()));
                FakeSandbox { id: id.clone(), labels: labels.collect() }
            })
            .collect()
    }

    /// Changes a machine, if it exists.
    pub(super) fn change<T>(&self, id: &str, change: impl FnOnce(&mut Record) -> T) -> Option<T> {
        self.apps().values_mut().find_map(|app| app.machines.get_mut(id)).map(change)
    }

    /// Marks a machine as started, unless it was destroyed meanwhile.
    pub(super) fn started(&self, id: &str, machine: CloudMachine) -> bool {
        let started = self.change(id, |record| {
            if record.is_live() {
                record.state = "started";
                record.note("start", "started", "flyd", None);
                record.machine = Some(machine);
            }
            record.is_live()
        });
        started.unwrap_or(false)
    }

    /// Notes the end of a machine's first process, and destroys the machine.
    pub(super) fn exited(&self, id: &str, code: i32, oom_killed: bool) -> Option<CloudMachine> {
        let exit = json!({
            "exit_code": code,
            "guest_exit_code": code,
            "guest_signal": if code > 128 { code - 128 } else { 0 },
            "oom_killed": oom_killed,
            "requested_stop": false,
            "restarting": false,
            "exited_at": Timestamp::now().to_string(),
        });
        let request = json!({"exit_event": exit, "restart_count": 0});
        self.change(id, |record| {
            if record.is_live() {
                record.note("exit", "stopped", "flyd", Some(request));
            }
        });
        self.destroy(id, "flyd")
    }

    /// Destroys a machine, and returns what must be killed.
    pub(super) fn destroy(&self, id: &str, source: &str) -> Option<CloudMachine> {
        let machine = self.change(id, |record| {
            if record.is_live() {
                record.state = "destroyed";
                record.note("destroy", "destroyed", source, None);
            }
            record.machine.take()
        });
        machine.flatten()
    }

    /// A running machine, with the port of its service.
    pub(super) fn running(&self, id: &str) -> Option<(CloudMachine, u16)> {
        self.change(id, |record| Some((record.machine.clone()?, record.port))).flatten()
    }
}
