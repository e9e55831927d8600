//! Describes the pod of a trial.
//!
//! | container | image | runs |
//! | --- | --- | --- |
//! | `rollout-guest`, first | the guest's | copies the guest to a volume of the pod |
//! | `main` | the task's | the guest, as its first process |
//! | `link` | the guest's | waits for the end of the guest; the host's connections are started in it |

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Map, Value, json};

use super::{
    names,
    settings::{PodNetwork, Settings, part_of},
};
use crate::{environment::EnvironmentSpec, guest};

/// The container of the task.
pub(super) const MAIN: &str = "main";

/// The container with connections.
pub(super) const LINK: &str = "link";

/// The path of the guest in its own image.
pub(super) const GUEST: &str = "/guest";

/// The directory of the guest in the task's container.
const DIRECTORY: &str = "/.rollout";

/// The volume with the guest.
const VOLUME: &str = "rollout-guest";

/// A user without rights.
const UNPRIVILEGED_USER: u32 = 65_532;

/// Everything that a pod is made of.
pub(super) struct PodPlan<'a> {
    pub(super) settings: &'a Settings,
    pub(super) spec: &'a EnvironmentSpec<'a>,
    pub(super) name: &'a str,
    /// The run, and its object that owns the pod.
    pub(super) run: &'a str,
    pub(super) owner: Option<Value>,
    pub(super) guest_image: &'a str,
    /// The user of commands.
    pub(super) user: Option<&'a str>,
}

impl PodPlan<'_> {
    /// The pod. An error is one of `pod_template`.
    pub(super) fn pod(&self) -> Result<Pod, String> {
        let mut pod = self.own();
        let mut template = Value::Object(self.settings.pod_template.clone());
        merge(&mut pod, std::mem::take(&mut template));
        let invalid = |error: serde_json::Error| format!("provider_config.pod_template: {error}");
        // The types are right after this.
        let merged: Pod = serde_json::from_value(pod).map_err(invalid)?;
        let mut pod = serde_json::to_value(merged).map_err(invalid)?;
        self.insist(&mut pod);
        serde_json::from_value(pod).map_err(invalid)
    }

    fn own(&self) -> Value {
        let (settings, spec) = (self.settings, self.spec);
        let mut pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": self.name,
                "labels": self.labels(),
                "annotations": self.annotations(),
            },
            "spec": {
                "restartPolicy": "Never",
                "automountServiceAccountToken": false,
                "enableServiceLinks": false,
                "activeDeadlineSeconds": settings.lifetime.as_secs().max(1),
                // The guest ignores the first signal.
                "terminationGracePeriodSeconds": 1,
                "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
                "volumes": [{"name": VOLUME, "emptyDir": {}}],
                "initContainers": [self.helper(
                    VOLUME,
                    &["install", guest::PROGRAM_PATH],
                    Some(json!([{"name": VOLUME, "mountPath": DIRECTORY}])),
                )],
                "containers": [self.main(), self.helper(LINK, &["wait", self.name], None)],
            },
        });
        let body = &mut pod["spec"];
        let texts = [
            ("serviceAccountName", &settings.service_account),
            ("runtimeClassName", &settings.runtime_class),
            ("priorityClassName", &settings.priority_class),
        ];
        for (key, value) in texts {
            if let Some(value) = value {
                body[key] = json!(value);
            }
        }
        let maps = [("nodeSelector", &settings.node_selector), ("affinity", &settings.affinity)];
        for (key, value) in maps.into_iter().filter(|(_, value)| !value.is_empty()) {
            body[key] = json!(value);
        }
        if !settings.tolerations.is_empty() {
            body["tolerations"] = json!(settings.tolerations);
        }
        if !settings.image_pull_secrets.is_empty() {
            let secrets = settings.image_pull_secrets.iter().map(|name| json!({"name": name}));
            body["imagePullSecrets"] = secrets.collect();
        }
        if settings.network == PodNetwork::Host {
            body["hostNetwork"] = json!(true);
            body["dnsPolicy"] = json!("ClusterFirstWithHostNet");
        }
        if !spec.hosts.is_empty() {
            let aliases =
                spec.hosts.iter().map(|(name, address)| json!({"ip": address, "hostnames": [name]}));
            body["hostAliases"] = aliases.collect();
        }
        if let Some(owner) = &self.owner {
            pod["metadata"]["ownerReferences"] = json!([owner]);
        }
        pod
    }

    /// Sets again what a template must not change: without it, a pod could outlive its run, give a token to the trial,
    /// or be out of reach.
    fn insist(&self, pod: &mut Value) {
        let own = self.own();
        let (metadata, spec) = (&own["metadata"], &own["spec"]);
        pod["metadata"]["name"] = metadata["name"].clone();
        for texts in ["labels", "annotations"] {
            for (key, value) in metadata[texts].as_object().into_iter().flatten() {
                pod["metadata"][texts][key] = value.clone();
            }
        }
        pod["metadata"]["ownerReferences"] = metadata["ownerReferences"].clone();
        for key in ["restartPolicy", "automountServiceAccountToken", "activeDeadlineSeconds"] {
            pod["spec"][key] = spec[key].clone();
        }
        // The guest is the first process of a process namespace.
        for key in ["hostPID", "shareProcessNamespace"] {
            pod["spec"][key] = Value::Null;
        }
        for (list, name) in [("volumes", VOLUME), ("initContainers", VOLUME), ("containers", LINK)] {
            restore(&mut pod["spec"][list], &spec[list], name, true);
        }
        restore(&mut pod["spec"]["containers"], &spec["containers"], MAIN, false);
        for container in pod["spec"]["containers"].as_array_mut().into_iter().flatten() {
            if container["name"] == MAIN {
                let main = self.main();
                container["command"] = main["command"].clone();
                container["args"] = main["args"].clone();
                restore(&mut container["volumeMounts"], &main["volumeMounts"], VOLUME, true);
            }
        }
    }

    fn labels(&self) -> Map<String, Value> {
        let mut labels = self.settings.labels.clone();
        labels.insert(names::MANAGED.0.to_owned(), json!(names::MANAGED.1));
        labels.insert(names::RUN.to_owned(), json!(self.run));
        labels.insert(names::NETWORK.to_owned(), json!(if self.has_network() { "full" } else { "none" }));
        labels
    }

    pub(super) fn has_network(&self) -> bool {
        !self.spec.no_network && self.settings.network != PodNetwork::None
    }

    fn annotations(&self) -> Map<String, Value> {
        let mut annotations = self.settings.annotations.clone();
        annotations.insert(names::JOB.to_owned(), json!(self.spec.origin.job));
        annotations.insert(names::TRIAL.to_owned(), json!(self.spec.origin.trial));
        annotations.insert(names::USER.to_owned(), json!(self.user.unwrap_or_default()));
        annotations
    }

    fn command(&self) -> Vec<String> {
        let grace = self.settings.grace.as_secs().max(1).to_string();
        [guest::PROGRAM_PATH, "session", self.name, &grace].map(str::to_owned).to_vec()
    }

    /// The container of the task. The guest needs to be root, to run commands as any user and to create directories
    /// for all of them. Capabilities are those that the cluster's runtime gives, because tasks install packages, start
    /// services and use `sudo`.
    fn main(&self) -> Value {
        let mut main = json!({
            "name": MAIN,
            "image": self.spec.image.reference,
            "imagePullPolicy": "IfNotPresent",
            "command": self.command(),
            "args": [],
            "resources": self.resources(),
            "securityContext": {"runAsUser": 0, "runAsGroup": 0, "privileged": false},
            "volumeMounts": [{"name": VOLUME, "mountPath": DIRECTORY, "readOnly": true}],
        });
        if let Some(workdir) = self.spec.workdir {
            main["workingDir"] = json!(workdir);
        }
        main
    }

    fn helper(&self, name: &str, arguments: &[&str], mounts: Option<Value>) -> Value {
        let mut command = vec![GUEST];
        command.extend(arguments);
        let mut container = json!({
            "name": name,
            "image": self.guest_image,
            "imagePullPolicy": "IfNotPresent",
            "command": command,
            "resources": {
                "requests": {"cpu": "1m", "memory": "8Mi"},
                "limits": {"cpu": "1", "memory": "64Mi"},
            },
            "securityContext": {
                "runAsUser": UNPRIVILEGED_USER,
                "runAsGroup": UNPRIVILEGED_USER,
                "runAsNonRoot": true,
                "readOnlyRootFilesystem": true,
                "allowPrivilegeEscalation": false,
                "capabilities": {"drop": ["ALL"]},
            },
        });
        if let Some(mounts) = mounts {
            container["volumeMounts"] = mounts;
        }
        container
    }

    fn resources(&self) -> Value {
        let (settings, spec) = (self.settings, self.spec);
        let (mut requests, mut limits) = (Map::new(), Map::new());
        if let Some(cpus) = spec.cpus {
            limits.insert("cpu".to_owned(), json!(format!("{}m", cpus.millis)));
            requests
                .insert("cpu".to_owned(), json!(format!("{}m", part_of(cpus.millis, settings.cpu_request))));
        }
        for (name, amount, fraction) in [
            ("memory", spec.memory, settings.memory_request),
            ("ephemeral-storage", spec.storage, settings.storage_request),
        ] {
            let Some(amount) = amount else { continue };
            limits.insert(name.to_owned(), json!(amount.0.to_string()));
            requests.insert(name.to_owned(), json!(part_of(amount.0, fraction).to_string()));
        }
        if spec.gpus > 0 {
            limits.insert(settings.gpu_resource.clone(), json!(spec.gpus.to_string()));
        }
        json!({"requests": requests, "limits": limits})
    }
}

/// Merges a value over another: mappings by key, lists of named entries by name; everything else is replaced.
fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                match into.get_mut(&key) {
                    Some(existing) => merge(existing, value),
                    None => drop(into.insert(key, value)),
                }
            }
        }
        (Value::Array(into), Value::Array(from)) if into.iter().chain(&from).all(has_name) => {
            for value in from {
                match into.iter_mut().find(|existing| existing["name"] == value["name"]) {
                    Some(existing) => merge(existing, value),
                    None => into.push(value),
                }
            }
        }
        (into, from) => *into = from,
    }
}

/// Puts an entry of a list into another one, first, if it is missing there or should be replaced.
fn restore(list: &mut Value, from: &Value, name: &str, replace: bool) {
    let Some(own) = from.as_array().and_then(|from| from.iter().find(|entry| entry["name"] == name)) else {
        return;
    };
    if !list.is_array() {
        *list = json!([]);
    }
    let Some(list) = list.as_array_mut() else { return };
    match list.iter_mut().find(|entry| entry["name"] == name) {
        Some(entry) if replace => *entry = own.clone(),
        Some(_) => {}
        None => list.insert(0, own.clone()),
    }
}

fn has_name(value: &Value) -> bool {
    value.get("name").is_some_and(Value::is_string)
}

#[cfg(test)]
mod tests {
    use rollout_core::quantity::{Bytes, Cpus};

    use super::*;
    use crate::{
        config::EnvironmentConfig,
        environment::{Origin, PreparedImage},
    };

    fn pod(mut config: Value, change: impl FnOnce(&mut EnvironmentSpec<'_>)) -> Result<Value, String> {
        config["registry"] = json!("registry");
        let config = EnvironmentConfig {
            provider_config: config.as_object().unwrap().clone(),
            ..EnvironmentConfig::default()
        };
        let settings = Settings::read(&config).unwrap();
        let image = PreparedImage { reference: "registry/task@sha256:1".to_owned() };
        let origin = Origin { job: "job", trial: "agent/set/task__1" };
        let mut spec = EnvironmentSpec::new(origin, &image, "task");
        change(&mut spec);
        let plan = PodPlan {
            settings: &settings,
            spec: &spec,
            name: "rollout-task-1",
            run: "run1",
            owner: Some(
                json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "name": "rollout-run1", "uid": "1"}),
            ),
            guest_image: "registry/rollout-guest:1",
            user: Some("daemon"),
        };
        plan.pod().map(|pod| serde_json::to_value(pod).unwrap())
    }

    #[test]
    fn the_guest_is_the_command_whatever_the_image_starts() {
        let pod = pod(json!({"grace_sec": 30}), |_| ()).unwrap();
        let main = &pod["spec"]["containers"][0];
        assert_eq!(main["command"], json!(["/.rollout/guest", "session", "rollout-task-1", "30"]));
        assert_eq!(
            pod["spec"]["initContainers"][0]["command"],
            json!(["/guest", "install", "/.rollout/guest"])
        );
        assert_eq!(pod["spec"]["containers"][1]["command"], json!(["/guest", "wait", "rollout-task-1"]));
        assert_eq!(main["volumeMounts"][0]["readOnly"], true);
    }

    #[test]
    fn a_pod_has_no_token_a_lifetime_and_no_more_rights_than_it_needs() {
        let pod = pod(json!({"lifetime_sec": 100}), |_| ()).unwrap();
        assert_eq!(pod["spec"]["automountServiceAccountToken"], false);
        assert_eq!(pod["spec"]["activeDeadlineSeconds"], 100);
        assert_eq!(pod["spec"]["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
        let link = &pod["spec"]["containers"][1]["securityContext"];
        assert_eq!((&link["runAsNonRoot"], &link["capabilities"]["drop"]), (&json!(true), &json!(["ALL"])));
    }

    #[test]
    fn limits_are_whole_and_requests_the_configured_part() {
        let config = json!({"cpu_request": 0.25, "storage_request": 0});
        let pod = pod(config, |spec| {
            spec.cpus = Some(Cpus { millis: 1500 });
            spec.memory = Some(Bytes(1 << 30));
            spec.storage = Some(Bytes(1000));
            spec.gpus = 2;
        })
        .unwrap();
        let resources = &pod["spec"]["containers"][0]["resources"];
        assert_eq!(
            resources["limits"],
            json!({"cpu": "1500m", "memory": "1073741824", "ephemeral-storage": "1000", "nvidia.com/gpu": "2"})
        );
        assert_eq!(
            resources["requests"],
            json!({"cpu": "375m", "memory": "1073741824", "ephemeral-storage": "0"})
        );
    }

    #[test]
    fn a_template_adds_to_the_pod_and_does_not_change_its_command() {
        let config = json!({
            "labels": {"team": "a"},
            "pod_template": {
                "metadata": {"labels": {"rollout/run": "other", "more": "x"}, "annotations": {"note": "n"}},
                "spec": {
                    "restartPolicy": "Always",
                    "dnsPolicy": "None",
                    "volumes": [{"name": "data", "emptyDir": {}}],
                    "containers": [{
                        "name": "main",
                        "command": ["sleep"],
                        "securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}},
                        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                    }, {"name": "sidecar", "image": "db"}],
                },
            },
        });
        let pod = pod(config, |_| ()).unwrap();
        let labels = &pod["metadata"]["labels"];
        assert_eq!(
            (&labels["rollout/run"], &labels["more"], &labels["team"]),
            (&json!("run1"), &json!("x"), &json!("a"))
        );
        assert_eq!(
            (&pod["spec"]["restartPolicy"], &pod["spec"]["dnsPolicy"]),
            (&json!("Never"), &json!("None"))
        );
        assert_eq!(pod["spec"]["volumes"].as_array().unwrap().len(), 2);
        let containers = pod["spec"]["containers"].as_array().unwrap();
        assert_eq!(containers.len(), 3);
        assert_eq!(containers[0]["command"][0], "/.rollout/guest");
        assert_eq!(containers[0]["securityContext"]["runAsUser"], 0);
        assert_eq!(containers[0]["volumeMounts"].as_array().unwrap().len(), 2);
        assert_eq!(containers[0]["securityContext"]["capabilities"]["add"], json!(["SYS_PTRACE"]));
    }

    #[test]
    fn a_template_cannot_undo_what_isolates_and_ends_a_pod() {
        let plain = pod(json!({}), |_| ()).unwrap();
        let link = json!({"name": "link", "image": "other", "command": ["sleep"], "securityContext": {"runAsUser": 0}});
        let config = json!({"pod_template": {
            "metadata": {"ownerReferences": [], "annotations": {"rollout/trial": "other"}},
            "spec": {
                "automountServiceAccountToken": true,
                "activeDeadlineSeconds": 1_000_000_000,
                "shareProcessNamespace": true,
                "hostPID": true,
                "volumes": [{"name": "rollout-guest", "hostPath": {"path": "/"}}],
                "initContainers": [{"name": "rollout-guest", "image": "other"}, {"name": "more", "image": "x"}],
                "containers": [link, {"name": "main", "volumeMounts": [
                    {"name": "rollout-guest", "mountPath": "/.rollout", "readOnly": false},
                ]}],
            },
        }});
        let changed = pod(config, |_| ()).unwrap();
        for path in [
            "/metadata/ownerReferences",
            "/metadata/annotations",
            "/spec/automountServiceAccountToken",
            "/spec/activeDeadlineSeconds",
            "/spec/shareProcessNamespace",
            "/spec/hostPID",
            "/spec/volumes",
            "/spec/initContainers/0",
            "/spec/containers/0",
            "/spec/containers/1",
        ] {
            assert_eq!(changed.pointer(path), plain.pointer(path), "{path}");
        }
        assert_eq!(changed["metadata"]["ownerReferences"][0]["name"], "rollout-run1");
        assert_eq!(changed["spec"]["initContainers"][1]["name"], "more");
        // A list with an entry without a name replaces the whole list, and so does null.
        let config =
            json!({"pod_template": {"spec": {"initContainers": null, "containers": [{"image": "x"}]}}});
        let changed = pod(config, |_| ()).unwrap();
        assert_eq!(changed["spec"]["containers"][0], plain["spec"]["containers"][0]);
        assert_eq!(changed["spec"]["containers"][1], plain["spec"]["containers"][1]);
        assert_eq!(changed["spec"]["initContainers"], plain["spec"]["initContainers"]);
    }

    #[test]
    fn a_template_that_is_no_pod_is_an_error() {
        for template in
            [json!({"spec": {"volumes": "none"}}), json!({"spec": "x"}), json!({"metadata": {"labels": 1}})]
        {
            let error = pod_error(json!({"pod_template": template}));
            assert!(error.contains("pod_template"), "{error}");
        }
    }

    fn pod_error(config: Value) -> String {
        pod(config, |_| ()).unwrap_err()
    }
}
