//! Deletion: grace periods, propagation to dependents, and the collection of objects without owners.

use std::{sync::Arc, time::Duration};

use serde_json::Value;

use super::{
    kubelet::Order,
    query::Query,
    refusal::Refusal,
    resource,
    state::{State, is_over, now},
    store::Key,
};

/// The grace period of pods that set none, in seconds.
const DEFAULT_GRACE: u64 = 30;

/// The finalizer of an object that waits for its dependents.
const FOREGROUND: &str = "foregroundDeletion";

/// How objects are deleted.
#[derive(Debug, Default, Clone)]
pub(super) struct DeleteOptions {
    grace: Option<u64>,
    propagation: Option<String>,
    uid: Option<String>,
}

impl DeleteOptions {
    /// Reads the options from the query and the body of a request.
    pub(super) fn new(query: &Query, body: &Value) -> Self {
        let grace = query.get("gracePeriodSeconds").and_then(|text| text.parse().ok());
        let propagation = query.get("propagationPolicy").map(str::to_owned);
        Self {
            grace: body["gracePeriodSeconds"].as_u64().or(grace),
            propagation: body["propagationPolicy"].as_str().map(str::to_owned).or(propagation),
            uid: body["preconditions"]["uid"].as_str().map(str::to_owned),
        }
    }
}

impl State {
    /// Starts the deletion of an object, and returns its current form.
    pub(super) fn delete(&mut self, key: &Key, options: &DeleteOptions) -> Result<Arc<Value>, Refusal> {
        let object = self.store.get(key).cloned().ok_or_else(|| Refusal::not_found(key.plural, &key.name))?;
        if let Some(uid) = &options.uid
            && object["metadata"]["uid"] != **uid
        {
            let why = format!(
                "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
                object["metadata"]["uid"]
            );
            return Err(Refusal::conflict(key.plural, &key.name, &why));
        }
        if key.plural == "pods" {
            return Ok(self.delete_pod(key, &object, options.grace));
        }
        if key.plural == "namespaces" {
            let marked = self.mark(key, &object, |object| object["status"]["phase"] = "Terminating".into());
            for plural in resource::namespaced() {
                let inside: Vec<Key> =
                    self.store.entries(plural, Some(&key.name)).map(|(key, _)| key.clone()).collect();
                for key in inside {
                    // An earlier deletion of an owner may have removed it.
                    let _ = self.delete(&key, &DeleteOptions::default());
                }
            }
            self.finish_namespaces();
            return Ok(marked);
        }
        match options.propagation.as_deref() {
            Some("Foreground") => {
                let marked = self.mark(key, &object, |object| {
                    object["metadata"]["finalizers"] = serde_json::json!([FOREGROUND]);
                });
                self.delete_dependents(&object);
                self.finish_owners();
                Ok(marked)
            }
            Some("Orphan") => {
                for key in self.dependents(&object) {
                    let Some(dependent) = self.store.get(&key) else { continue };
                    let mut dependent = Value::clone(dependent);
                    if let Some(owners) = dependent["metadata"]["ownerReferences"].as_array_mut() {
                        owners.retain(|owner| owner["uid"] != object["metadata"]["uid"]);
                    }
                    self.store.put(key, dependent);
                }
                Ok(self.remove(key).unwrap_or(object))
            }
            _ => Ok(self.remove(key).unwrap_or(object)),
        }
    }

    fn delete_pod(&mut self, key: &Key, object: &Arc<Value>, grace: Option<u64>) -> Arc<Value> {
        let default = object["spec"]["terminationGracePeriodSeconds"].as_u64().unwrap_or(DEFAULT_GRACE);
        let mut grace = grace.unwrap_or(default);
        if object["spec"]["nodeName"].is_null() || is_over(object) {
            grace = 0;
        }
        if let Some(pending) = object["metadata"]["deletionGracePeriodSeconds"].as_u64() {
            grace = grace.min(pending);
        }
        let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
        let pod = self.pods.get(uid).cloned();
        if grace == 0 {
            if let Some(pod) = pod {
                pod.order(Order::Kill);
            }
            return self.remove(key).unwrap_or_else(|| Arc::clone(object));
        }
        let marked = self.mark(key, object, |object| {
            object["metadata"]["deletionGracePeriodSeconds"] = grace.into();
        });
        if let Some(pod) = pod {
            pod.order(Order::Delete(Duration::from_secs(grace)));
        }
        marked
    }

    /// Marks an object as being deleted.
    pub(super) fn mark(&mut self, key: &Key, object: &Value, change: impl FnOnce(&mut Value)) -> Arc<Value> {
        let mut object = object.clone();
        if object["metadata"]["deletionTimestamp"].is_null() {
            object["metadata"]["deletionTimestamp"] = now().into();
        }
        change(&mut object);
        self.store.put(key.clone(), object)
    }

    /// Removes an object, and what depends on it alone.
    pub(super) fn remove(&mut self, key: &Key) -> Option<Arc<Value>> {
        let removed = self.store.remove(key)?;
        if let Some(uid) = removed["metadata"]["uid"].as_str() {
            self.pods.remove(uid);
        }
        self.delete_dependents(&removed);
        self.finish_owners();
        self.finish_namespaces();
        Some(removed)
    }

    fn dependents(&self, owner: &Value) -> Vec<Key> {
        let uid = &owner["metadata"]["uid"];
        let depends = |object: &Value| owners(object).any(|owner| owner["uid"] == *uid);
        self.store.everything().filter(|(_, object)| depends(object)).map(|(key, _)| key.clone()).collect()
    }

    /// Deletes the objects that depend on an object and on no other one.
    fn delete_dependents(&mut self, owner: &Value) {
        for key in self.dependents(owner) {
            let Some(object) = self.store.get(&key).cloned() else { continue };
            let others = owners(&object).filter(|other| other["uid"] != owner["metadata"]["uid"]);
            let others = others.filter(|other| self.exists(other)).count();
            if others == 0 && object["metadata"]["deletionTimestamp"].is_null() {
                // It exists: it was found just now.
                let _ = self.delete(&key, &DeleteOptions::default());
            }
        }
    }

    /// Deletes a new object whose owners do not exist.
    pub(super) fn collect_orphan(&mut self, key: &Key, object: &Value) {
        if owners(object).next().is_some() && !owners(object).any(|owner| self.exists(owner)) {
            // It exists: it was created just now.
            let _ = self.delete(key, &DeleteOptions::default());
        }
    }

    fn exists(&self, owner: &Value) -> bool {
        self.store.everything().any(|(_, object)| object["metadata"]["uid"] == owner["uid"])
    }

    /// Removes the owners that only waited for their dependents.
    fn finish_owners(&mut self) {
        let waits = |object: &Value| object["metadata"]["finalizers"][0] == FOREGROUND;
        let waiting: Vec<_> = self
            .store
            .everything()
            .filter(|(_, object)| waits(object))
            .map(|(key, object)| (key.clone(), Arc::clone(object)))
            .collect();
        for (key, object) in waiting {
            if self.dependents(&object).is_empty() {
                self.remove(&key);
            }
        }
    }

    /// Removes the namespaces that only waited for their objects.
    fn finish_namespaces(&mut self) {
        let namespaces = self.store.entries("namespaces", None);
        let ending = namespaces.filter(|(_, object)| object["metadata"]["deletionTimestamp"].is_string());
        let empty = |name: &str| !self.store.everything().any(|(key, _)| key.namespace == name);
        let finished: Vec<Key> = ending.map(|(key, _)| key.clone()).filter(|key| empty(&key.name)).collect();
        for key in finished {
            self.store.remove(&key);
        }
    }
}

fn owners(object: &Value) -> impl Iterator<Item = &Value> {
    object["metadata"]["ownerReferences"].as_array().into_iter().flatten()
}
