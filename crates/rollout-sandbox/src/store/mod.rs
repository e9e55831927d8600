//! The cache between runs: which engines use an entry, and removal of unused entries.
//!
//! An engine records an entry as used before it checks whether the entry exists. An entry can be removed if no
//! running engine has recorded it and no preserved sandbox is based on it.

pub(crate) mod base;
mod leases;
mod limit;
pub(crate) mod slot;

use std::{
    collections::HashSet,
    fs, io,
    path::{Component, Path, PathBuf},
};

use rustix::fs::FlockOperation;

pub use self::limit::{StoreLimit, StoreLimiter, disk_use};

pub(crate) use self::leases::Leases;

use self::{base::Base, slot::current_layer};
use crate::{
    private::{private_dir, unique_id},
    spec::{SPEC_FILE, SandboxSpec},
    sweep::{self, USES, guard, sweep},
};

/// The directories of the state directory: the host as an image, built layers, snapshots.
pub(crate) const IMAGES: &str = "images";
pub(crate) const LAYERS: &str = "layers";
pub(crate) const SNAPSHOTS: &str = "snapshots";
/// One file for each name of a pulled or imported image.
pub(crate) const REFERENCES: &str = "references";

const RUN: &str = "run";

/// The kind of a stored entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredKind {
    /// The host as an image.
    Host,
    /// The result of Dockerfile steps.
    Layer,
    /// The files of a sandbox when its snapshot was taken.
    Snapshot,
}

impl StoredKind {
    const ALL: [(StoredKind, &'static str); 3] =
        [(StoredKind::Host, IMAGES), (StoredKind::Layer, LAYERS), (StoredKind::Snapshot, SNAPSHOTS)];
}

/// An entry that is stored between runs.
#[derive(Debug, Clone)]
pub struct Stored {
    /// Its kind.
    pub kind: StoredKind,
    /// Its path.
    pub path: PathBuf,
    /// What uses it.
    pub used_by: Option<User>,
}

/// A user of a stored entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum User {
    /// A running engine.
    Engine,
    /// A preserved sandbox, and no running engine.
    Preserved,
}

/// Lists all stored entries. Blocks.
pub fn stored(state_dir: &Path) -> io::Result<Vec<Stored>> {
    let Ok(state_dir) = state_dir.canonicalize() else { return Ok(Vec::new()) };
    let run = state_dir.join(RUN);
    private_dir(&run)?;
    let _guard = guard(&run, FlockOperation::LockShared)?;
    list(&state_dir)
}

/// Removes and returns the entries that neither a running engine nor a preserved sandbox needs.
///
/// Blocks; the entries may be large. Engines may start and run meanwhile.
pub fn remove_unused(state_dir: &Path) -> io::Result<Vec<Stored>> {
    let Ok(state_dir) = state_dir.canonicalize() else { return Ok(Vec::new()) };
    remove(&state_dir, |mut found| {
        found.retain(|stored| stored.used_by.is_none());
        Ok(found)
    })
}

/// Removes and returns the entries that `choose` returns, of all entries. It must not choose any in use.
fn remove(
    state_dir: &Path,
    choose: impl FnOnce(Vec<Stored>) -> io::Result<Vec<Stored>>,
) -> io::Result<Vec<Stored>> {
    let run = state_dir.join(RUN);
    private_dir(&run)?;
    let mut chosen;
    {
        let _guard = guard(&run, FlockOperation::LockExclusive)?;
        chosen = choose(list(state_dir)?)?;
        // Snapshots are removed before their lower layers, so that no snapshot is found without them.
        chosen.sort_by_key(|stored| stored.kind != StoredKind::Snapshot);
        // Moved to the run directory, so that the next sweep finishes an interrupted removal.
        let trash = run.join(unique_id());
        fs::create_dir(&trash)?;
        for (number, stored) in chosen.iter().enumerate() {
            fs::rename(&stored.path, trash.join(number.to_string())).map_err(|error| {
                io::Error::new(error.kind(), format!("cannot remove {}: {error}", stored.path.display()))
            })?;
        }
        remove_references(state_dir)?;
    }
    sweep(state_dir)?;
    Ok(chosen)
}

/// Removes the names of images whose layers are gone, and files that a killed process left.
fn remove_references(state_dir: &Path) -> io::Result<()> {
    /// The part of a reference that is needed here.
    #[derive(serde::Deserialize)]
    struct Reference {
        layers: Vec<String>,
    }
    for entry in fs::read_dir(state_dir.join(REFERENCES)).into_iter().flatten() {
        let path = entry?.path();
        let known = fs::read(&path).ok().and_then(|text| serde_json::from_slice::<Reference>(&text).ok());
        let is_complete = path.extension().is_some_and(|extension| extension == "json");
        let has_layers = known.is_some_and(|reference| {
            reference.layers.iter().all(|layer| state_dir.join(LAYERS).join(layer).exists())
        });
        if !is_complete || !has_layers {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

/// Lists all entries. The caller holds the guard.
fn list(state_dir: &Path) -> io::Result<Vec<Stored>> {
    let used = uses(state_dir)?;
    let stored = |(kind, path): (StoredKind, PathBuf)| {
        let used_by = match entry_key(state_dir, &path) {
            Some(key) => used.by(&key),
            None => Some(User::Engine),
        };
        Stored { kind, path, used_by }
    };
    Ok(entries(state_dir)?.into_iter().map(stored).collect())
}

/// The directories of all entries, without what uses them.
fn entries(state_dir: &Path) -> io::Result<Vec<(StoredKind, PathBuf)>> {
    let mut found = Vec::new();
    for (kind, dir) in StoredKind::ALL {
        let entries = match fs::read_dir(state_dir.join(dir)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            entries => entries?,
        };
        for entry in entries {
            found.push((kind, entry?.path()));
        }
    }
    Ok(found)
}

/// A directory of the store and a name in it.
type EntryKey = (&'static str, String);

/// The entries in use.
#[derive(Default)]
struct Uses {
    engines: HashSet<EntryKey>,
    preserved: HashSet<EntryKey>,
    /// A preserved sandbox without a specification may use any entry.
    unknown: bool,
}

impl Uses {
    fn by(&self, key: &EntryKey) -> Option<User> {
        if self.engines.contains(key) {
            Some(User::Engine)
        } else if self.unknown || self.preserved.contains(key) {
            Some(User::Preserved)
        } else {
            None
        }
    }
}

fn uses(state_dir: &Path) -> io::Result<Uses> {
    let mut uses = Uses::default();
    // Engines first: one that ends meanwhile has already preserved its sandboxes.
    for engine in sweep::live(&state_dir.join(RUN))? {
        let text = match fs::read_to_string(engine.join(USES)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            text => text?,
        };
        uses.engines.extend(text.lines().filter_map(|line| entry_key(state_dir, &state_dir.join(line))));
    }
    add_lower_images(state_dir, &mut uses.engines);
    for entry in fs::read_dir(state_dir.join("preserved")).into_iter().flatten() {
        let spec = fs::File::open(entry?.path().join(SPEC_FILE))
            .and_then(|file| Ok(serde_json::from_reader::<_, SandboxSpec>(io::BufReader::new(file))?));
        match spec {
            Ok(spec) => {
                uses.preserved.extend(spec.image.directories().filter_map(|dir| entry_key(state_dir, dir)))
            }
            Err(_) => uses.unknown = true,
        }
    }
    Ok(uses)
}

/// Adds the images that used snapshots are based on.
fn add_lower_images(state_dir: &Path, used: &mut HashSet<EntryKey>) {
    let snapshots = used.iter().filter(|(kind, _)| *kind == SNAPSHOTS);
    let bases: Vec<Base> = snapshots
        .filter_map(|(kind, name)| Base::read(&current_layer(&state_dir.join(kind).join(name))).ok())
        .collect();
    let below = bases.iter().flat_map(|base| base.image.directories());
    used.extend(below.filter_map(|dir| entry_key(state_dir, dir)));
}

/// The entry of the store that contains a path; `None` for other paths.
fn entry_key(state_dir: &Path, path: &Path) -> Option<EntryKey> {
    let mut parts = path.strip_prefix(state_dir).ok()?.components();
    let (Component::Normal(kind), Component::Normal(name)) = (parts.next()?, parts.next()?) else {
        return None;
    };
    let (_, kind) = StoredKind::ALL.into_iter().find(|(_, known)| kind == *known)?;
    let name = name.to_string_lossy();
    // The host's image is built next to its final path, with a suffix.
    let name = name.split_once('.').map_or(&*name, |(name, _)| name);
    Some((kind, name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state_with(places: &[&str]) -> tempfile::TempDir {
        let state = tempfile::tempdir().unwrap();
        for place in places {
            fs::create_dir_all(state.path().join(place)).unwrap();
        }
        state
    }

    fn removed(state: &Path) -> Vec<String> {
        let removed = remove_unused(state).unwrap();
        let mut names: Vec<String> = removed
            .iter()
            .map(|stored| {
                stored.path.strip_prefix(state.canonicalize().unwrap()).unwrap().display().to_string()
            })
            .collect();
        names.sort();
        assert!(removed.iter().all(|stored| !stored.path.exists()));
        names
    }

    #[test]
    fn what_an_engine_has_leased_stays_until_it_ends() {
        let state =
            state_with(&["images/host-a", "images/host-a.half", "images/host-b", "layers/k/1", "layers/l/1"]);
        let run_dir = state.path().join("run/engine");
        let lock = sweep::claim(&run_dir).unwrap();
        let leases = Leases::new(state.path(), &run_dir);
        let _used = (leases.take(IMAGES, "host-a").unwrap(), leases.take(LAYERS, "k").unwrap());
        assert_eq!(removed(state.path()), ["images/host-b", "layers/l"]);
        drop(lock);
        assert_eq!(removed(state.path()), ["images/host-a", "images/host-a.half", "layers/k"]);
        assert_eq!(fs::read_dir(state.path().join("run")).unwrap().count(), 1, "only the guard is left");
    }

    #[test]
    fn what_is_listed_is_not_touched() {
        let state = state_with(&["layers/k/1", "snapshots/s/1"]);
        let found = stored(state.path()).unwrap();
        let kinds: Vec<_> = found.iter().map(|stored| (stored.kind, stored.used_by)).collect();
        assert_eq!(kinds, [(StoredKind::Layer, None), (StoredKind::Snapshot, None)]);
        assert!(found.iter().all(|stored| stored.path.exists()));
    }

    #[test]
    fn nothing_is_removed_while_a_preserved_sandbox_has_no_specification() {
        let state = state_with(&["layers/k/1", "preserved/kept"]);
        assert_eq!(removed(state.path()), [""; 0]);
    }

    #[test]
    fn the_name_of_an_image_goes_with_its_layers() {
        let state = state_with(&["layers/kept/1", "layers/gone/1", "references"]);
        let references = state.path().join(REFERENCES);
        let write = |name: &str, text: &str| fs::write(references.join(name), text).unwrap();
        write("kept.json", r#"{"reference": "a", "layers": ["kept"]}"#);
        write("gone.json", r#"{"reference": "b", "layers": ["kept", "gone"]}"#);
        write("torn.json", r#"{"refer"#);
        write("kept.unfinished", r#"{"reference": "a", "layers": ["kept"]}"#);
        let run_dir = state.path().join("run/engine");
        let _lock = sweep::claim(&run_dir).unwrap();
        let _used = Leases::new(state.path(), &run_dir).take(LAYERS, "kept").unwrap();
        assert_eq!(removed(state.path()), ["layers/gone"]);
        let left: Vec<_> =
            fs::read_dir(references).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["kept.json"]);
    }

    #[test]
    fn a_missing_state_directory_is_empty() {
        let state = tempfile::tempdir().unwrap();
        let missing = state.path().join("missing");
        assert!(stored(&missing).unwrap().is_empty() && remove_unused(&missing).unwrap().is_empty());
        assert!(!missing.exists());
    }
}
