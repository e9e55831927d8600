//! A machine of a trial: what is sent to create it, and what its state means.

use std::collections::HashMap;

use secrecy::ExposeSecret as _;
use serde::Deserialize;
use serde_json::{Value, json};

use super::size::CpuKind;
use crate::remote::backend::{SandboxEnd, SandboxPlan, SandboxState};

/// The port at which the guest listens inside. Tasks may use the ports that servers usually have.
pub(super) const GUEST_PORT: u16 = 49_151;

/// The exit code of a guest whose lifetime is over.
const LIFETIME_OVER: i64 = 75;

/// The body of a request that creates a machine.
///
/// A token belongs to one machine. It is the only secret in its configuration, and useless when the machine is gone.
pub(super) fn creation(plan: &SandboxPlan, region: Option<&str>, kind: CpuKind, port: u16) -> Value {
    let mut config = json!({
        "image": plan.image,
        "init": {"exec": plan.guest_command(Some(port))},
        "env": {
            "ROLLOUT_GUEST_TOKEN": plan.token.expose_secret(),
            "ROLLOUT_GUEST_LIFETIME": plan.lifetime.as_secs().max(1).to_string(),
        },
        "guest": {
            "cpu_kind": kind.as_str(),
            "cpus": plan.size.cpu_millis / 1000,
            "memory_mb": plan.size.memory_mib,
        },
        "auto_destroy": true,
        "restart": {"policy": "no"},
        "metadata": plan.labels,
        "services": [{
            "protocol": "tcp",
            "internal_port": port,
            "autostop": "off",
            "autostart": false,
            "ports": [{"port": 443, "handlers": ["tls", "http"]}],
        }],
    });
    if let Some(storage) = plan.size.storage_mib {
        config["rootfs"] = json!({"size_gb": storage / 1024});
    }
    let mut body = json!({"name": plan.name, "config": config});
    if let Some(region) = region {
        body["region"] = region.into();
    }
    body
}

/// A machine, as far as it matters.
#[derive(Debug, Deserialize)]
pub(super) struct Machine {
    pub(super) id: String,
    #[serde(default)]
    state: String,
    #[serde(default)]
    config: Option<MachineConfig>,
    /// Instead of `config`, while the host of the machine does not answer.
    #[serde(default)]
    incomplete_config: Option<MachineConfig>,
    /// The newest first.
    #[serde(default)]
    events: Option<Vec<MachineEvent>>,
}

#[derive(Debug, Deserialize)]
struct MachineConfig {
    #[serde(default)]
    metadata: Option<HashMap<String, String>>,
}

#[derive(Debug, Deserialize)]
struct MachineEvent {
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    request: Option<EventRequest>,
}

#[derive(Debug, Default, Deserialize)]
struct EventRequest {
    #[serde(default)]
    exit_event: Option<ExitEvent>,
    #[serde(default, rename = "MonitorEvent")]
    monitor_event: Option<MonitorEvent>,
}

#[derive(Debug, Deserialize)]
struct MonitorEvent {
    #[serde(default)]
    exit_event: Option<ExitEvent>,
}

#[derive(Debug, Clone, Deserialize)]
struct ExitEvent {
    #[serde(default)]
    exit_code: i64,
    #[serde(default)]
    guest_exit_code: i64,
    #[serde(default)]
    guest_signal: i64,
    #[serde(default)]
    oom_killed: bool,
    #[serde(default)]
    requested_stop: bool,
}

impl Machine {
    /// Whether it exists for Fly's other calls.
    pub(super) fn is_active(&self) -> bool {
        !matches!(self.state.as_str(), "destroying" | "destroyed" | "replaced" | "migrated")
    }

    pub(super) fn labels(self) -> HashMap<String, String> {
        let config = self.config.or(self.incomplete_config);
        config.and_then(|config| config.metadata).unwrap_or_default()
    }

    /// What its state means.
    pub(super) fn state(&self) -> SandboxState {
        let exit = self.exit();
        match self.state.as_str() {
            "started" => SandboxState::Running,
            "failed" => SandboxState::Ended(SandboxEnd::Outside("it failed to start".to_owned())),
            "stopped" | "suspended" | "destroyed" | "replaced" | "migrated" => {
                let outside = || SandboxEnd::Outside(format!("it was {}", self.state));
                SandboxState::Ended(exit.map_or_else(outside, ExitEvent::end))
            }
            // The reason may be reported a moment later.
            state @ ("stopping" | "suspending" | "destroying" | "replacing") => match exit {
                Some(exit) => SandboxState::Ended(exit.end()),
                None => SandboxState::Starting(format!("it is {state}")),
            },
            state => SandboxState::Starting(format!("it is {state}")),
        }
    }

    /// The newest end of its first process.
    fn exit(&self) -> Option<ExitEvent> {
        let event = self.events.iter().flatten().find(|event| event.kind == "exit")?;
        let request = event.request.as_ref()?;
        let monitored = request.monitor_event.as_ref().and_then(|event| event.exit_event.clone());
        monitored.or_else(|| request.exit_event.clone())
    }
}

impl ExitEvent {
    fn end(self) -> SandboxEnd {
        if self.oom_killed {
            SandboxEnd::OutOfMemory
        } else if self.requested_stop {
            SandboxEnd::Outside("it was stopped".to_owned())
        } else if [self.exit_code, self.guest_exit_code].contains(&LIFETIME_OVER) {
            SandboxEnd::Lifetime
        } else if self.guest_signal > 0 {
            SandboxEnd::Exited(format!("its first process was killed by signal {}", self.guest_signal))
        } else {
            SandboxEnd::Exited(format!("its first process ended with code {}", self.exit_code))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::remote::backend::{KEY, SandboxSize};

    fn machine(state: &str, exit: Value) -> Machine {
        let mut value = json!({"id": "1", "state": state, "config": {"metadata": {"a": "b"}}, "events": []});
        if !exit.is_null() {
            value["events"] = json!([
                {"type": "destroy"},
                {"type": "exit", "request": {"exit_event": exit, "restart_count": 0}},
                {"type": "exit", "request": {"exit_event": {"exit_code": 99}}},
            ]);
        }
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn states_have_a_meaning() {
        let exited = |code: i64| SandboxEnd::Exited(format!("its first process ended with code {code}"));
        for (state, exit, expected) in [
            ("started", Value::Null, SandboxState::Running),
            ("created", Value::Null, SandboxState::Starting("it is created".to_owned())),
            ("destroying", Value::Null, SandboxState::Starting("it is destroying".to_owned())),
            ("destroying", json!({"exit_code": 1}), SandboxState::Ended(exited(1))),
            ("destroyed", json!({"exit_code": 0}), SandboxState::Ended(exited(0))),
            ("destroyed", json!({"exit_code": 75}), SandboxState::Ended(SandboxEnd::Lifetime)),
            ("stopped", json!({"oom_killed": true}), SandboxState::Ended(SandboxEnd::OutOfMemory)),
            (
                "stopped",
                json!({"requested_stop": true}),
                SandboxState::Ended(SandboxEnd::Outside("it was stopped".to_owned())),
            ),
            (
                "destroyed",
                Value::Null,
                SandboxState::Ended(SandboxEnd::Outside("it was destroyed".to_owned())),
            ),
        ] {
            assert_eq!(machine(state, exit).state(), expected);
        }
    }

    #[test]
    fn labels_are_also_read_while_the_host_does_not_answer() {
        let value = json!({"id": "1", "incomplete_config": {"metadata": {"rollout": "true"}}});
        let machine: Machine = serde_json::from_value(value).unwrap();
        assert_eq!(machine.labels().get("rollout").map(String::as_str), Some("true"));
    }

    #[test]
    fn a_machine_is_created_with_its_size_labels_and_service() {
        let plan = SandboxPlan {
            name: "r-task-1".to_owned(),
            image: "registry.fly.io/app:1".to_owned(),
            size: SandboxSize { cpu_millis: 2000, memory_mib: 4096, storage_mib: Some(10 * 1024) },
            lifetime: Duration::from_secs(60),
            grace: Duration::from_secs(5),
            no_network: false,
            labels: HashMap::from([(KEY.to_owned(), "k".to_owned())]),
            token: "secret".to_owned().into(),
        };
        let body = creation(&plan, Some("fra"), CpuKind::Shared, GUEST_PORT);
        assert_eq!(body["region"], "fra");
        assert_eq!(body["config"]["guest"], json!({"cpu_kind": "shared", "cpus": 2, "memory_mb": 4096}));
        assert_eq!(body["config"]["rootfs"], json!({"size_gb": 10}));
        assert_eq!(body["config"]["init"]["exec"], json!(["/.rollout/guest", "host", "k", "5", "49151"]));
        assert_eq!(body["config"]["services"][0]["ports"][0]["handlers"], json!(["tls", "http"]));
        assert_eq!(body["config"]["metadata"], json!({"rollout-key": "k"}));
    }
}
