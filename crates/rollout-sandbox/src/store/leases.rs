//! The entries of the store that an engine uses, recorded so that other processes do not remove them.

use std::{
    collections::HashMap,
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError, Weak},
    time::{Duration, SystemTime},
};

use rustix::fs::FlockOperation;

use super::{EntryKey, entry_key};
use crate::{
    image::{Image, Lease},
    sweep::{USES, guard},
};

/// The entries of the store that an engine uses.
pub(crate) struct Leases {
    state_dir: PathBuf,
    run_dir: PathBuf,
    /// The entries in the engine's file of uses. Those that are no longer used stay there for a while.
    recorded: Mutex<HashMap<EntryKey, Weak<()>>>,
}

impl Leases {
    /// The leases of the engine with this directory in the state directory.
    pub(crate) fn new(state_dir: &Path, run_dir: &Path) -> Leases {
        let (state_dir, run_dir) = (state_dir.to_owned(), run_dir.to_owned());
        Leases { state_dir, run_dir, recorded: Mutex::default() }
    }

    /// Protects an entry from removal, whether or not it exists yet. Blocks.
    pub(crate) fn take(&self, kind: &'static str, name: &str) -> io::Result<Lease> {
        let mut recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (kind, name.to_owned());
        if let Some(lease) = recorded.get(&key).and_then(Lease::existing) {
            return Ok(lease);
        }
        let lease = Lease::default();
        if !recorded.contains_key(&key) {
            let _guard = self.guard()?;
            let mut uses = fs::File::options().append(true).create(true).open(self.run_dir.join(USES))?;
            uses.write_all(line(&key).as_bytes())?;
        }
        recorded.insert(key, lease.watch());
        drop(recorded);
        set_last_use(&self.state_dir.join(kind).join(name), SystemTime::now());
        Ok(lease)
    }

    /// Protects all entries of the store that an image is stacked from. Blocks.
    pub(crate) fn take_image(&self, image: &Image) -> io::Result<Vec<Lease>> {
        let entries = image.directories().filter_map(|dir| entry_key(&self.state_dir, dir));
        entries.map(|(kind, name)| self.take(kind, &name)).collect()
    }

    /// Notes that all layers of an image are used now. Blocks.
    ///
    /// A lower layer counts as used a moment after those above it: a layer that is removed before those that are built
    /// on it makes them useless.
    pub(crate) fn touch_image(&self, image: &Image) {
        let now = SystemTime::now();
        for (depth, dir) in image.directories().enumerate() {
            let Some((kind, name)) = entry_key(&self.state_dir, dir) else { continue };
            let moment = Duration::from_micros(u64::try_from(depth).unwrap_or_default());
            set_last_use(&self.state_dir.join(kind).join(name), now + moment);
        }
    }

    /// Lets other processes remove the entries that are no longer used. Blocks.
    pub(crate) fn record_released(&self) -> io::Result<()> {
        let mut recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        if recorded.values().all(|alive| alive.strong_count() > 0) {
            return Ok(());
        }
        recorded.retain(|_, alive| alive.strong_count() > 0);
        let _guard = self.guard()?;
        let unfinished = self.run_dir.join(format!("{USES}.new"));
        fs::write(&unfinished, recorded.keys().map(line).collect::<String>())?;
        fs::rename(unfinished, self.run_dir.join(USES))
    }

    fn guard(&self) -> io::Result<fs::File> {
        let run = self.run_dir.parent().ok_or(io::ErrorKind::InvalidInput)?;
        guard(run, FlockOperation::LockShared)
    }
}

fn line((kind, name): &EntryKey) -> String {
    format!("{kind}/{name}\n")
}

/// Records when an entry was used, as the time of its directory. A failure only makes the order of removals worse.
pub(super) fn set_last_use(entry: &Path, time: SystemTime) {
    if let Err(error) = fs::File::open(entry).and_then(|dir| dir.set_modified(time))
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::debug!(entry = %entry.display(), %error, "cannot record the use of a layer");
    }
}

/// When an entry was last used.
pub(super) fn last_use(entry: &Path) -> SystemTime {
    fs::metadata(entry).and_then(|found| found.modified()).unwrap_or(SystemTime::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::LAYERS;

    #[test]
    fn an_entry_is_used_as_long_as_a_lease_exists() {
        let state = tempfile::tempdir().unwrap();
        let run_dir = state.path().join("run/engine");
        fs::create_dir_all(&run_dir).unwrap();
        let leases = Leases::new(state.path(), &run_dir);
        let uses = || {
            let text = fs::read_to_string(run_dir.join(USES)).unwrap();
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        let (a, b) = (leases.take(LAYERS, "a").unwrap(), leases.take(LAYERS, "b").unwrap());
        let again = leases.take(LAYERS, "a").unwrap();
        assert_eq!(uses(), ["layers/a", "layers/b"]);
        drop((a, b));
        assert_eq!(uses(), ["layers/a", "layers/b"], "until it is recorded");
        leases.record_released().unwrap();
        assert_eq!(uses(), ["layers/a"]);
        let b = leases.take(LAYERS, "b").unwrap();
        assert_eq!(uses(), ["layers/a", "layers/b"]);
        drop((again, b));
        let a = leases.take(LAYERS, "a").unwrap();
        leases.record_released().unwrap();
        assert_eq!(uses(), ["layers/a"]);
        drop(a);
        leases.record_released().unwrap();
        assert_eq!(uses(), [""; 0]);
    }
}
