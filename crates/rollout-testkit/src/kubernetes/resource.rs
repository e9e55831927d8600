//! The kinds of objects, and their discovery documents.

use serde_json::{Value, json};

/// A kind of objects.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Resource {
    /// Empty for the core group.
    pub(super) group: &'static str,
    pub(super) plural: &'static str,
    pub(super) kind: &'static str,
    pub(super) namespaced: bool,
    short: &'static str,
}

const fn resource(
    group: &'static str,
    plural: &'static str,
    kind: &'static str,
    short: &'static str,
    namespaced: bool,
) -> Resource {
    Resource { group, plural, kind, namespaced, short }
}

static RESOURCES: [Resource; 11] = [
    resource("", "pods", "Pod", "po", true),
    resource("", "configmaps", "ConfigMap", "cm", true),
    resource("", "secrets", "Secret", "", true),
    resource("", "events", "Event", "ev", true),
    resource("", "resourcequotas", "ResourceQuota", "quota", true),
    resource("", "serviceaccounts", "ServiceAccount", "sa", true),
    resource("", "namespaces", "Namespace", "ns", false),
    resource("", "nodes", "Node", "no", false),
    resource("batch", "jobs", "Job", "", true),
    resource("networking.k8s.io", "networkpolicies", "NetworkPolicy", "netpol", true),
    resource("coordination.k8s.io", "leases", "Lease", "", true),
];

/// The verbs of every kind.
const VERBS: [&str; 8] = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

/// Subresources of pods, with their verbs.
const POD_PARTS: [(&str, &str); 4] =
    [("attach", "create"), ("exec", "create"), ("log", "get"), ("status", "get")];

impl Resource {
    /// Its `apiVersion`.
    pub(super) fn api_version(&self) -> String {
        if self.group.is_empty() { "v1".to_owned() } else { format!("{}/v1", self.group) }
    }

    /// The kind of a path, by group and plural. All have the version `v1`.
    pub(super) fn find(group: &str, plural: &str) -> Option<&'static Self> {
        RESOURCES.iter().find(|resource| resource.group == group && resource.plural == plural)
    }
}

/// The plurals of the kinds in namespaces.
pub(super) fn namespaced() -> impl Iterator<Item = &'static str> {
    RESOURCES.iter().filter(|resource| resource.namespaced).map(|resource| resource.plural)
}

fn groups() -> impl Iterator<Item = &'static str> {
    RESOURCES.iter().map(|resource| resource.group).filter(|group| !group.is_empty())
}

/// The discovery document at a path, if there is one.
pub(super) fn discovery(path: &[&str]) -> Option<Value> {
    match path {
        ["version"] => Some(json!({
            "major": "1", "minor": "32", "gitVersion": "v1.32.0", "gitCommit": "0", "gitTreeState": "clean",
            "buildDate": "2025-01-01T00:00:00Z", "goVersion": "go1.23", "compiler": "gc", "platform": "linux/amd64",
        })),
        ["api"] => Some(json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})),
        ["apis"] => {
            let groups: Vec<Value> = groups().map(group).collect();
            Some(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
        }
        ["apis", name] => groups().find(|group| group == name).map(|name| {
            let mut document = group(name);
            document["kind"] = "APIGroup".into();
            document["apiVersion"] = "v1".into();
            document
        }),
        ["api", "v1"] => Some(resources("")),
        ["apis", name, "v1"] => groups().find(|group| group == name).map(resources),
        _ => None,
    }
}

fn group(name: &str) -> Value {
    let version = json!({"groupVersion": format!("{name}/v1"), "version": "v1"});
    json!({"name": name, "versions": [version], "preferredVersion": version})
}

fn resources(group: &str) -> Value {
    let mut list = Vec::new();
    for resource in RESOURCES.iter().filter(|resource| resource.group == group) {
        let short: Vec<&str> = [resource.short].into_iter().filter(|name| !name.is_empty()).collect();
        list.push(json!({
            "name": resource.plural, "singularName": resource.kind.to_lowercase(), "namespaced": resource.namespaced,
            "kind": resource.kind, "verbs": VERBS, "shortNames": short,
        }));
    }
    if group.is_empty() {
        let part = |(part, verb): &(&str, &str)| {
            json!({
                "name": format!("pods/{part}"), "singularName": "", "namespaced": true, "kind": "Pod", "verbs": [verb, "get"],
            })
        };
        list.extend(POD_PARTS.iter().map(part));
    }
    let version = if group.is_empty() { "v1".to_owned() } else { format!("{group}/v1") };
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": list})
}
