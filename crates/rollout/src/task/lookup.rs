//! Finds datasets by name in several registries.

use std::{cmp::Ordering, sync::Arc};

use futures_util::future::BoxFuture;

use super::{
    Resolved, Sources,
    registry::{Registry, RegistryDataset, RegistryEntry, RegistryError, compare_versions},
    sources::Loader,
};

/// The registries that could be read, in order.
#[derive(Debug, Default)]
pub(super) struct KnownRegistries {
    pub(super) registries: Vec<Arc<Registry>>,
    /// Why the others could not be read.
    pub(super) unread: Vec<String>,
}

/// The datasets of all registries.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RegistryList {
    /// Every version of every dataset: by name, the newest first. If several registries have a version, only the
    /// first one is listed.
    pub entries: Vec<RegistryEntry>,
    /// Why some registries could not be read.
    pub unread: Vec<String>,
}

impl Sources {
    /// Lists the datasets of all registries.
    pub fn list<'a>(&'a self, progress: &'a (dyn Fn(String) + Send + Sync)) -> BoxFuture<'a, RegistryList> {
        Box::pin(async move {
            let resolved = Resolved::default();
            let KnownRegistries { registries, unread } =
                Loader::new(self, &resolved, progress).known_registries().await;
            RegistryList {
                entries: merged(registries.iter().flat_map(|registry| registry.entries())),
                unread,
            }
        })
    }
}

/// Merges the entries of registries, given in their order.
fn merged(entries: impl Iterator<Item = RegistryEntry>) -> Vec<RegistryEntry> {
    let mut merged: Vec<RegistryEntry> = entries.collect();
    merged.sort_by(|a, b| a.name.cmp(&b.name).then_with(|| newest_first(a, b)));
    merged.dedup_by(|later, first| later.name == first.name && later.version == first.version);
    merged
}

fn newest_first(a: &RegistryEntry, b: &RegistryEntry) -> Ordering {
    let newest = compare_versions(b.version.as_deref(), a.version.as_deref());
    // Versions that are not numbers keep their order, but equal ones are neighbours.
    newest.then_with(|| match (number(a), number(b)) {
        (true, true) => Ordering::Equal,
        _ => a.version.cmp(&b.version),
    })
}

fn number(entry: &RegistryEntry) -> bool {
    compare_versions(entry.version.as_deref(), None) == Ordering::Greater
}

/// The dataset of this name and version, or its newest version, and the registry that it is from.
pub(super) fn find(
    known: KnownRegistries,
    name: &str,
    version: Option<&str>,
) -> Result<(RegistryDataset, String), RegistryError> {
    let KnownRegistries { registries, unread } = known;
    let matching = registries.iter().enumerate().flat_map(|(index, registry)| {
        let entries = registry.entries().filter(|entry| entry.name == name);
        entries
            .filter(|entry| version.is_none() || entry.version.as_deref() == version)
            .map(move |entry| (index, entry))
    });
    let mut best: Option<(usize, RegistryEntry)> = None;
    for (index, entry) in matching {
        let is_newer = best.as_ref().is_none_or(|(_, best)| {
            compare_versions(entry.version.as_deref(), best.version.as_deref()) == Ordering::Greater
        });
        if is_newer {
            best = Some((index, entry));
        }
    }
    match best {
        Some((index, entry)) => {
            let registry = &registries[index];
            Ok((registry.dataset(name, entry.version.as_deref())?, registry.name().to_owned()))
        }
        None => {
            let named = |entry: RegistryEntry| match (&entry.version, entry.name == name) {
                (Some(version), true) => format!("{name}@{version}"),
                _ => entry.name,
            };
            let known = registries.iter().flat_map(|registry| registry.entries()).map(named);
            Err(RegistryError::Unknown {
                dataset: version.map_or_else(|| name.to_owned(), |version| format!("{name}@{version}")),
                known: known.collect(),
                unread: unread.iter().map(|reason| format!("not searched: {reason}")).collect(),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, version: &str, registry: &str) -> RegistryEntry {
        RegistryEntry {
            name: name.to_owned(),
            version: Some(version.to_owned()),
            description: None,
            tasks: 1,
            registry: registry.to_owned(),
        }
    }

    #[test]
    fn registries_are_merged_with_the_newest_version_first_and_the_first_registry_counts() {
        let entries = [
            entry("b", "1.0", "mine"),
            entry("a", "head", "mine"),
            entry("b", "1.0", "public"),
            entry("b", "1.10", "public"),
            entry("a", "0.1", "public"),
        ];
        let merged = merged(entries.into_iter());
        let shown: Vec<_> = merged
            .iter()
            .map(|entry| {
                format!("{}@{} {}", entry.name, entry.version.as_deref().unwrap_or_default(), entry.registry)
            })
            .collect();
        assert_eq!(shown, ["a@0.1 public", "a@head mine", "b@1.10 public", "b@1.0 mine"]);
    }
}
