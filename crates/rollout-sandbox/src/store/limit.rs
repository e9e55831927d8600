//! Keeps the store below a size, by removing the entries that were not used for the longest time.

use std::{
    collections::HashMap,
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use super::{Stored, entries, leases::last_use, remove, stored};

/// What was used this recently is not removed to make free space: the next job may need it, and other programs fill
/// disks too.
const RECENT: Duration = Duration::from_secs(60);

/// How much of a disk the store may use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreLimit {
    /// The largest size of the store, in bytes.
    pub size: Option<u64>,
    /// The free space to keep on its disk, in bytes.
    pub free: Option<u64>,
}

/// How many bytes have to be removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Excess {
    /// Because the store is too large.
    over: u64,
    /// Because its disk has too little free space.
    short: u64,
}

/// Applies a limit to a store. It remembers the sizes of layers, which never change.
#[derive(Debug)]
pub struct StoreLimiter {
    state_dir: PathBuf,
    limit: StoreLimit,
    /// The sizes of finished layers by their paths.
    sizes: HashMap<PathBuf, u64>,
}

impl StoreLimiter {
    /// A limit for the store of a state directory.
    pub fn new(state_dir: &Path, limit: StoreLimit) -> StoreLimiter {
        StoreLimiter { state_dir: state_dir.to_owned(), limit, sizes: HashMap::new() }
    }

    /// The entries that [`apply`](Self::apply) would remove. Blocks.
    pub fn chosen(&mut self) -> io::Result<Vec<Stored>> {
        let found = stored(&self.state_dir)?;
        self.choose(found)
    }

    /// Removes and returns entries that neither a running engine nor a preserved sandbox needs, until the store fits
    /// into its limit. Those that were not used for the longest time are first. Blocks.
    ///
    /// A removal that is interrupted is finished by the next engine that starts.
    pub fn apply(&mut self) -> io::Result<Vec<Stored>> {
        let Ok(state_dir) = self.state_dir.canonicalize() else { return Ok(Vec::new()) };
        // Measured before the store is locked: a large store takes time.
        let found = entries(&state_dir)?.into_iter().map(|(_, path)| path).collect::<Vec<_>>();
        if self.excess(&found)? == Excess::default() {
            return Ok(Vec::new());
        }
        remove(&state_dir, |found| self.choose(found))
    }

    fn choose(&mut self, found: Vec<Stored>) -> io::Result<Vec<Stored>> {
        if found.is_empty() {
            return Ok(found);
        }
        let paths: Vec<PathBuf> = found.iter().map(|stored| stored.path.clone()).collect();
        let Excess { mut over, mut short } = self.excess(&paths)?;
        let unused = found.into_iter().filter(|stored| stored.used_by.is_none());
        let mut unused: Vec<(SystemTime, Stored)> =
            unused.map(|stored| (last_use(&stored.path), stored)).collect();
        unused.sort_by_key(|(used, _)| *used);
        let recent = SystemTime::now() - RECENT;
        let mut chosen = Vec::new();
        for (used, stored) in unused {
            if over > 0 || (short > 0 && used < recent) {
                let size = self.size(&stored.path);
                (over, short) = (over.saturating_sub(size), short.saturating_sub(size));
                chosen.push(stored);
            }
        }
        Ok(chosen)
    }

    fn excess(&mut self, entries: &[PathBuf]) -> io::Result<Excess> {
        let mut excess = Excess::default();
        if let Some(most) = self.limit.size {
            let size: u64 = entries.iter().map(|entry| self.size(entry)).sum();
            excess.over = size.saturating_sub(most);
        }
        if let Some(wanted) = self.limit.free {
            let disk = rustix::fs::statvfs(&self.state_dir)?;
            excess.short = wanted.saturating_sub(disk.f_bavail.saturating_mul(disk.f_frsize));
        }
        Ok(excess)
    }

    /// The size of an entry. Directories in it are measured once, except for those that can still change.
    fn size(&mut self, entry: &Path) -> u64 {
        let parts = fs::read_dir(entry).into_iter().flatten().flatten();
        parts
            .map(|part| {
                let name = part.file_name();
                let changes = name == "files" || name.to_string_lossy().starts_with("building-");
                let path = part.path();
                match self.sizes.get(&path) {
                    Some(size) => *size,
                    None => {
                        let size = disk_use(&path);
                        if !changes {
                            self.sizes.insert(path, size);
                        }
                        size
                    }
                }
            })
            .sum()
    }
}

/// The space that a file or a directory tree takes on its disk. Unreadable parts are not counted.
pub fn disk_use(path: &Path) -> u64 {
    const BLOCK_BYTES: u64 = 512;
    let mut bytes = 0;
    let mut waiting = vec![path.to_owned()];
    while let Some(path) = waiting.pop() {
        let Ok(found) = fs::symlink_metadata(&path) else { continue };
        bytes += found.blocks() * BLOCK_BYTES;
        if found.is_dir() {
            waiting.extend(fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path()));
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::{super::leases::set_last_use, *};
    use crate::{
        store::{LAYERS, Leases},
        sweep,
    };

    const KIB: u64 = 1 << 10;

    /// A store with layers of 100 KiB. The later ones were used later.
    fn store(names: &[&str]) -> tempfile::TempDir {
        let state = tempfile::tempdir().unwrap();
        let start = SystemTime::now() - Duration::from_secs(1000);
        for (number, name) in (0..).zip(names) {
            let layer = state.path().join(LAYERS).join(name).join("1/root");
            fs::create_dir_all(&layer).unwrap();
            fs::write(layer.join("file"), vec![1; 100 << 10]).unwrap();
            set_last_use(&state.path().join(LAYERS).join(name), start + Duration::from_secs(number));
        }
        state
    }

    fn limiter(state: &Path, size: u64) -> StoreLimiter {
        StoreLimiter::new(state, StoreLimit { size: Some(size), free: None })
    }

    fn names(found: &[Stored]) -> Vec<String> {
        found.iter().map(|stored| stored.path.file_name().unwrap().to_str().unwrap().to_owned()).collect()
    }

    fn left(state: &Path) -> Vec<String> {
        let entries = fs::read_dir(state.join(LAYERS)).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn the_least_recently_used_go_until_the_rest_fits() {
        let state = store(&["c", "a", "d", "b"]);
        assert!(limiter(state.path(), 1000 * KIB).apply().unwrap().is_empty());
        let mut limiter = limiter(state.path(), 250 * KIB);
        assert_eq!(names(&limiter.chosen().unwrap()), ["c", "a"]);
        assert_eq!(left(state.path()), ["a", "b", "c", "d"], "nothing was removed yet");
        assert_eq!(names(&limiter.apply().unwrap()), ["c", "a"]);
        assert_eq!(left(state.path()), ["b", "d"]);
        assert!(limiter.apply().unwrap().is_empty());
    }

    #[test]
    fn what_is_used_stays_even_if_the_store_is_too_large() {
        let state = store(&["a", "b", "c"]);
        let run_dir = state.path().join("run/engine");
        let _lock = sweep::claim(&run_dir).unwrap();
        let leases = Leases::new(state.path(), &run_dir);
        let lease = leases.take(LAYERS, "a").unwrap();
        assert_eq!(names(&limiter(state.path(), 0).apply().unwrap()), ["b", "c"]);
        assert_eq!(left(state.path()), ["a"]);
        drop(lease);
        leases.record_released().unwrap();
        limiter(state.path(), 0).apply().unwrap();
        assert_eq!(left(state.path()), [""; 0]);
    }

    #[test]
    fn a_use_makes_an_entry_the_last_to_go() {
        let state = store(&["a", "b"]);
        let run_dir = state.path().join("run/engine");
        let lock = sweep::claim(&run_dir).unwrap();
        drop(Leases::new(state.path(), &run_dir).take(LAYERS, "a").unwrap());
        drop(lock);
        assert_eq!(names(&limiter(state.path(), 150 * KIB).apply().unwrap()), ["b"]);
    }

    #[test]
    fn free_space_is_made_only_where_it_is_short() {
        let state = store(&["a", "b"]);
        let apply = |free| {
            let limit = StoreLimit { size: None, free: Some(free) };
            names(&StoreLimiter::new(state.path(), limit).apply().unwrap())
        };
        set_last_use(&state.path().join(LAYERS).join("b"), SystemTime::now());
        assert_eq!(apply(1), [""; 0]);
        assert_eq!(apply(u64::MAX), ["a"], "the other one was used a moment ago");
    }

    #[test]
    fn layers_that_grow_are_measured_again() {
        let state = store(&["a"]);
        let mut limiter = limiter(state.path(), 1000 * KIB);
        assert!(limiter.chosen().unwrap().is_empty());
        let cache = state.path().join(LAYERS).join("cache-1/files");
        fs::create_dir_all(&cache).unwrap();
        assert!(limiter.chosen().unwrap().is_empty());
        fs::write(cache.join("grown"), vec![1; 2000 << 10]).unwrap();
        assert_eq!(limiter.chosen().unwrap().len(), 2);
    }

    #[test]
    fn a_missing_store_fits() {
        let state = tempfile::tempdir().unwrap();
        assert!(limiter(&state.path().join("missing"), 0).apply().unwrap().is_empty());
    }
}
