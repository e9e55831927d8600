//! The objects of the cluster, with their versions and their history.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use serde_json::Value;
use tokio::sync::watch;

use super::selector::Selector;

/// The number of changes that are remembered for watches.
const MAX_HISTORY: usize = 50_000;

/// Identifies an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) plural: &'static str,
    /// Empty for objects outside of namespaces.
    pub(super) namespace: String,
    pub(super) name: String,
}

impl Key {
    pub(super) fn new(plural: &'static str, namespace: &str, name: &str) -> Self {
        Self { plural, namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

/// A change of an object.
pub(super) struct Change {
    pub(super) version: u64,
    pub(super) key: Key,
    /// The type of its event in a watch.
    pub(super) event: &'static str,
    pub(super) object: Arc<Value>,
}

/// The version is no longer in the history.
#[derive(Debug)]
pub(super) struct Expired;

pub(super) struct Store {
    objects: BTreeMap<Key, Arc<Value>>,
    pub(super) version: u64,
    history: VecDeque<Change>,
    /// Changes up to this version are forgotten.
    forgotten: u64,
    pub(super) changed: watch::Sender<u64>,
}

impl Store {
    pub(super) fn new() -> Self {
        Self {
            objects: BTreeMap::new(),
            version: 1,
            history: VecDeque::new(),
            forgotten: 0,
            changed: watch::Sender::new(1),
        }
    }

    pub(super) fn get(&self, key: &Key) -> Option<&Arc<Value>> {
        self.objects.get(key)
    }

    /// The objects of a kind.
    pub(super) fn all<'a>(&'a self, plural: &'a str) -> impl Iterator<Item = &'a Arc<Value>> {
        self.entries(plural, None).map(|(_, object)| object)
    }

    /// The objects of a kind, of one namespace or of all, with their keys.
    pub(super) fn entries<'a>(
        &'a self,
        plural: &'a str,
        namespace: Option<&'a str>,
    ) -> impl Iterator<Item = (&'a Key, &'a Arc<Value>)> {
        self.objects.iter().filter(move |(key, _)| {
            key.plural == plural && namespace.is_none_or(|namespace| key.namespace == namespace)
        })
    }

    /// All objects with their keys.
    pub(super) fn everything(&self) -> impl Iterator<Item = (&Key, &Arc<Value>)> {
        self.objects.iter()
    }

    /// The selected objects of a kind.
    pub(super) fn list(&self, plural: &str, namespace: Option<&str>, selector: &Selector) -> Vec<Arc<Value>> {
        let entries = self.entries(plural, namespace).map(|(_, object)| object);
        entries.filter(|object| selector.selects(object)).cloned().collect()
    }

    /// Adds or replaces an object, and gives it a new version.
    pub(super) fn put(&mut self, key: Key, mut object: Value) -> Arc<Value> {
        let event = if self.objects.contains_key(&key) { "MODIFIED" } else { "ADDED" };
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let object = Arc::new(object);
        self.objects.insert(key.clone(), Arc::clone(&object));
        self.record(key, event, Arc::clone(&object));
        object
    }

    /// Removes an object, and returns its last form.
    pub(super) fn remove(&mut self, key: &Key) -> Option<Arc<Value>> {
        let mut object = Value::clone(&*self.objects.remove(key)?);
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let object = Arc::new(object);
        self.record(key.clone(), "DELETED", Arc::clone(&object));
        Some(object)
    }

    fn record(&mut self, key: Key, event: &'static str, object: Arc<Value>) {
        self.history.push_back(Change { version: self.version, key, event, object });
        if self.history.len() > MAX_HISTORY
            && let Some(oldest) = self.history.pop_front()
        {
            self.forgotten = oldest.version;
        }
        self.changed.send_replace(self.version);
    }

    /// The changes after a version.
    pub(super) fn changes_after(&self, version: u64) -> Result<impl Iterator<Item = &Change>, Expired> {
        if version < self.forgotten {
            return Err(Expired);
        }
        let from = self.history.partition_point(|change| change.version <= version);
        Ok(self.history.range(from..))
    }

    /// Forgets the history.
    pub(super) fn compact(&mut self) {
        // One version more, so that a client with the newest version is also too old.
        self.version += 1;
        self.forgotten = self.version;
        self.history.clear();
    }
}
