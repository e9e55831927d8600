//! What is kept between runs to make the next one faster, who uses it, and removing what nobody does.
//!
//! An engine writes down what it uses before it looks whether that is there. What no living engine has
//! written down, and no preserved sandbox is made from, can go.

pub(crate) mod base;
pub(crate) mod slot;

use std::{
    collections::HashSet,
    fs,
    io::{self, Write},
    path::{Component, Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use rustix::fs::FlockOperation;

use self::{base::Base, slot::current_layer};
use crate::{
    image::Image,
    private::{private_dir, unique_id},
    spec::{SPEC_FILE, SandboxSpec},
    sweep::{self, USES, guard, sweep},
};

/// The directories of the state directory: the host as an image, built layers, snapshots.
pub(crate) const IMAGES: &str = "images";
pub(crate) const LAYERS: &str = "layers";
pub(crate) const SNAPSHOTS: &str = "snapshots";

const RUN: &str = "run";

/// What an engine uses of the store, until it ends.
pub(crate) struct Leases {
    run_dir: PathBuf,
    taken: Mutex<HashSet<(&'static str, String)>>,
}

impl Leases {
    pub(crate) fn new(run_dir: &Path) -> Leases {
        Leases { run_dir: run_dir.to_owned(), taken: Mutex::default() }
    }

    /// Keeps something from being removed, whether it is there already or not. Blocks.
    pub(crate) fn take(&self, kind: &'static str, name: &str) -> io::Result<()> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let lease = (kind, name.to_owned());
        if taken.contains(&lease) {
            return Ok(());
        }
        let run = self.run_dir.parent().ok_or(io::ErrorKind::InvalidInput)?;
        let _guard = guard(run, FlockOperation::LockShared)?;
        let mut uses = fs::File::options().append(true).create(true).open(self.run_dir.join(USES))?;
        uses.write_all(format!("{kind}/{name}\n").as_bytes())?;
        taken.insert(lease);
        Ok(())
    }

    /// Does the same for everything of the store that an image is stacked from.
    pub(crate) fn take_image(&self, state_dir: &Path, image: &Image) -> io::Result<()> {
        for (kind, name) in image.directories().filter_map(|dir| place(state_dir, dir)) {
            self.take(kind, &name)?;
        }
        Ok(())
    }
}

/// What kind of thing is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredKind {
    /// The host as an image.
    Host,
    /// What the steps of a Dockerfile made.
    Layer,
    /// What a sandbox held when a snapshot of it was taken.
    Snapshot,
}

impl StoredKind {
    const ALL: [(StoredKind, &'static str); 3] =
        [(StoredKind::Host, IMAGES), (StoredKind::Layer, LAYERS), (StoredKind::Snapshot, SNAPSHOTS)];
}

/// Something that is kept between runs.
#[derive(Debug, Clone)]
pub struct Stored {
    /// What it is.
    pub kind: StoredKind,
    /// Where it lies.
    pub path: PathBuf,
    /// Who needs it.
    pub used_by: Option<User>,
}

/// Who may need something that is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum User {
    /// An engine that runs.
    Engine,
    /// A preserved sandbox, and no engine that runs.
    Preserved,
}

/// Lists everything that is kept. Blocks.
pub fn stored(state_dir: &Path) -> io::Result<Vec<Stored>> {
    let Ok(state_dir) = state_dir.canonicalize() else { return Ok(Vec::new()) };
    let run = state_dir.join(RUN);
    private_dir(&run)?;
    let _guard = guard(&run, FlockOperation::LockShared)?;
    list(&state_dir)
}

/// Removes what neither a running engine nor a preserved sandbox needs, and tells what that was.
///
/// Blocks; what it removes may be large. Engines may start and run meanwhile.
pub fn remove_unused(state_dir: &Path) -> io::Result<Vec<Stored>> {
    let Ok(state_dir) = state_dir.canonicalize() else { return Ok(Vec::new()) };
    let run = state_dir.join(RUN);
    private_dir(&run)?;
    let mut unused = Vec::new();
    {
        let _guard = guard(&run, FlockOperation::LockExclusive)?;
        // The leftovers of a run that is over: whoever sweeps next finishes an interrupted removal.
        let trash = run.join(unique_id());
        fs::create_dir(&trash)?;
        let mut found = list(&state_dir)?;
        found.retain(|stored| stored.used_by.is_none());
        // A snapshot goes before the layers below it: one without them must not be found.
        found.sort_by_key(|stored| stored.kind != StoredKind::Snapshot);
        for (number, stored) in found.into_iter().enumerate() {
            fs::rename(&stored.path, trash.join(number.to_string())).map_err(|error| {
                io::Error::new(error.kind(), format!("cannot remove {}: {error}", stored.path.display()))
            })?;
            unused.push(stored);
        }
    }
    sweep(&state_dir)?;
    Ok(unused)
}

fn list(state_dir: &Path) -> io::Result<Vec<Stored>> {
    let used = uses(state_dir)?;
    let mut found = Vec::new();
    for (kind, dir) in StoredKind::ALL {
        let entries = match fs::read_dir(state_dir.join(dir)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            entries => entries?,
        };
        for entry in entries {
            let path = entry?.path();
            let used_by = match place(state_dir, &path) {
                Some(place) => used.by(&place),
                None => Some(User::Engine),
            };
            found.push(Stored { kind, path, used_by });
        }
    }
    Ok(found)
}

/// A directory of the store and a name in it.
type Place = (&'static str, String);

/// What is in use.
#[derive(Default)]
struct Uses {
    engines: HashSet<Place>,
    preserved: HashSet<Place>,
    /// A preserved sandbox does not say what it needs, so that it may be anything.
    unknown: bool,
}

impl Uses {
    fn by(&self, place: &Place) -> Option<User> {
        if self.engines.contains(place) {
            Some(User::Engine)
        } else if self.unknown || self.preserved.contains(place) {
            Some(User::Preserved)
        } else {
            None
        }
    }
}

fn uses(state_dir: &Path) -> io::Result<Uses> {
    let mut uses = Uses::default();
    // Engines first: one that ends meanwhile has preserved its sandboxes before.
    for engine in sweep::live(&state_dir.join(RUN))? {
        let text = match fs::read_to_string(engine.join(USES)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            text => text?,
        };
        uses.engines.extend(text.lines().filter_map(|line| place(state_dir, &state_dir.join(line))));
    }
    add_what_is_below(state_dir, &mut uses.engines);
    for entry in fs::read_dir(state_dir.join("preserved")).into_iter().flatten() {
        let spec = fs::File::open(entry?.path().join(SPEC_FILE))
            .and_then(|file| Ok(serde_json::from_reader::<_, SandboxSpec>(io::BufReader::new(file))?));
        match spec {
            Ok(spec) => {
                uses.preserved.extend(spec.image.directories().filter_map(|dir| place(state_dir, dir)))
            }
            Err(_) => uses.unknown = true,
        }
    }
    Ok(uses)
}

/// A snapshot is of no use without the image that it was made on.
fn add_what_is_below(state_dir: &Path, used: &mut HashSet<Place>) {
    let snapshots = used.iter().filter(|(kind, _)| *kind == SNAPSHOTS);
    let bases: Vec<Base> = snapshots
        .filter_map(|(kind, name)| Base::read(&current_layer(&state_dir.join(kind).join(name))).ok())
        .collect();
    let below = bases.iter().flat_map(|base| base.image.directories());
    used.extend(below.filter_map(|dir| place(state_dir, dir)));
}

/// What of the store a path belongs to; none for what lies elsewhere.
fn place(state_dir: &Path, path: &Path) -> Option<Place> {
    let mut parts = path.strip_prefix(state_dir).ok()?.components();
    let (Component::Normal(kind), Component::Normal(name)) = (parts.next()?, parts.next()?) else {
        return None;
    };
    let (_, kind) = StoredKind::ALL.into_iter().find(|(_, known)| kind == *known)?;
    let name = name.to_string_lossy();
    // The host's image is made beside its place, with a suffix.
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
        let leases = Leases::new(&run_dir);
        leases.take(IMAGES, "host-a").unwrap();
        leases.take(LAYERS, "k").unwrap();
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
    fn nothing_goes_while_a_preserved_sandbox_does_not_say_what_it_is_made_from() {
        let state = state_with(&["layers/k/1", "preserved/kept"]);
        assert_eq!(removed(state.path()), [""; 0]);
    }

    #[test]
    fn a_state_directory_that_was_never_made_has_nothing() {
        let state = tempfile::tempdir().unwrap();
        let missing = state.path().join("missing");
        assert!(stored(&missing).unwrap().is_empty() && remove_unused(&missing).unwrap().is_empty());
        assert!(!missing.exists());
    }
}
