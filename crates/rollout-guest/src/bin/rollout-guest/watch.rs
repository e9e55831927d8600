//! Watches files and reports afterwards how they were changed, by any process.
//!
//! The kernel reports each time that a file opened for writing is closed, also by the end of its process, and
//! each time that a name in a directory changes. So it also reports a file that was written and restored, and a
//! file that was written through a mapping, once all processes that could have mapped it have ended.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs, io,
    mem::MaybeUninit,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    },
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rollout_guest::{FileChangeKind, MAX_DEPTH};
use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags},
};

/// The events on the names in a directory.
const NAMES: WatchFlags = WatchFlags::MOVE.union(WatchFlags::DELETE).union(WatchFlags::ONLYDIR);
/// The events on the names and files in a directory in which files are expected.
const NEW_FILES: WatchFlags = NAMES.union(WatchFlags::CREATE).union(WatchFlags::CLOSE_WRITE);
/// The events on the names in a tree. Files that are added to it can change what a program does, for example those that
/// Python imports.
const TREE: WatchFlags = NAMES.union(WatchFlags::CREATE);
/// The events on a file that no process should write.
const CONTENT: WatchFlags = WRITERS.union(WatchFlags::MODIFY);
/// The events on a file that a process is expected to write.
const WRITERS: WatchFlags = WatchFlags::CLOSE_WRITE.union(WatchFlags::DONT_FOLLOW);

/// The number of added names that are recorded.
const MAX_ADDED: usize = 100;

/// The number of changes of each kind to each file.
pub(crate) type Changes = BTreeMap<(String, FileChangeKind), u32>;

/// The watch of a container.
pub(crate) struct Watcher(Option<Arc<Watch>>);

struct Watch {
    /// Created before anything else ran in the container: a user has few inotify instances, and the user's
    /// processes could take them all.
    inotify: OwnedFd,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The watched items, by watch descriptor.
    watched: HashMap<i32, Watched>,
    /// The watched paths.
    paths: HashSet<PathBuf>,
    changes: Changes,
    /// The names that were added to the tree.
    added: HashSet<PathBuf>,
}

enum Watched {
    Directory(PathBuf),
    /// A directory in the tree.
    Tree(PathBuf),
    File(PathBuf),
    /// A file that appeared at an expected path.
    Expected(PathBuf),
}

impl Watcher {
    /// Prepares for watching. If the kernel has no watches left, the guest runs without them.
    pub(crate) fn start() -> io::Result<Self> {
        let Ok(inotify) = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK) else {
            return Ok(Self(None));
        };
        let watch = Arc::new(Watch { inotify, state: Mutex::default() });
        let follower = Arc::clone(&watch);
        std::thread::Builder::new().name("watcher".to_owned()).spawn(move || follower.follow())?;
        Ok(Self(Some(watch)))
    }

    /// Watches the files that are in a directory now, and others that may appear.
    pub(crate) fn watch(&self, tree: &str, files: &[String]) -> Result<(), String> {
        let watch = self.0.as_ref().ok_or("the kernel has no more watches for files")?;
        let mut state = watch.lock();
        if !state.watched.is_empty() {
            return Err("files are watched already".to_owned());
        }
        let watched = watch.add_all(&mut state, Path::new(tree), files);
        if watched.is_err() {
            watch.forget(&mut state);
        }
        watched.map_err(|(path, error)| format!("cannot watch {}: {error}", path.display()))
    }

    /// Returns the changes to the files and ends the watch.
    pub(crate) fn changes(&self) -> Changes {
        let Some(watch) = &self.0 else { return Changes::new() };
        let mut state = watch.lock();
        watch.drain(&mut state);
        watch.forget(&mut state);
        for path in std::mem::take(&mut state.added) {
            state.count(&path, FileChangeKind::Added);
        }
        std::mem::take(&mut state.changes)
    }
}

type Unwatched = (PathBuf, io::Error);

impl Watch {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, state: &mut State, watched: Watched, flags: WatchFlags) -> Result<(), Unwatched> {
        let (Watched::Directory(path) | Watched::Tree(path) | Watched::File(path) | Watched::Expected(path)) =
            &watched;
        let number = inotify::add_watch(&self.inotify, path.as_path(), flags)
            .map_err(|error| (path.clone(), error.into()))?;
        state.watched.insert(number, watched);
        Ok(())
    }

    fn add_all(&self, state: &mut State, tree: &Path, files: &[String]) -> Result<(), Unwatched> {
        for path in files.iter().map(Path::new).chain([tree]) {
            state.paths.insert(path.to_owned());
            for directory in path.ancestors().skip(1) {
                // The target of a link could be moved elsewhere.
                if !is_directory(directory) {
                    let error = io::Error::other("it is not a directory");
                    return Err((directory.to_owned(), error));
                }
                state.paths.insert(directory.to_owned());
                self.add(state, Watched::Directory(directory.to_owned()), NAMES)?;
            }
        }
        for directory in files.iter().filter_map(|file| Path::new(file).parent()) {
            self.add(state, Watched::Directory(directory.to_owned()), NEW_FILES)?;
        }
        self.add_tree(state, tree, 0)
    }

    fn add_tree(&self, state: &mut State, directory: &Path, depth: usize) -> Result<(), Unwatched> {
        let failed = |error: io::Error| (directory.to_owned(), error);
        if depth > MAX_DEPTH {
            return Err(failed(io::Error::other("it is nested too deep")));
        }
        self.add(state, Watched::Tree(directory.to_owned()), TREE)?;
        for entry in fs::read_dir(directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let (path, kind) = (entry.path(), entry.file_type().map_err(failed)?);
            state.paths.insert(path.clone());
            if kind.is_dir() {
                self.add_tree(state, &path, depth + 1)?;
            } else if kind.is_file() {
                self.add(state, Watched::File(path), CONTENT)?;
            }
        }
        Ok(())
    }

    fn forget(&self, state: &mut State) {
        for (number, _) in state.watched.drain() {
            // The watch of a removed file has already ended.
            let _ = inotify::remove_watch(&self.inotify, number);
        }
        state.paths.clear();
    }

    /// Reads the kernel's events as long as this process runs, so that the event queue does not overflow.
    fn follow(&self) {
        loop {
            let mut fds = [PollFd::from_borrowed_fd(self.inotify.as_fd(), PollFlags::IN)];
            // An interrupted wait needs no handling: the loop waits again.
            let _ = poll(&mut fds, None);
            self.drain(&mut self.lock());
        }
    }

    fn drain(&self, state: &mut State) {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = Reader::new(&self.inotify, &mut buffer);
        while let Ok(event) = events.next() {
            let name = event.file_name().map(|name| std::ffi::OsStr::from_bytes(name.to_bytes()).to_owned());
            self.take(state, event.wd(), event.events(), name.as_deref());
        }
    }

    fn take(&self, state: &mut State, number: i32, events: ReadFlags, name: Option<&std::ffi::OsStr>) {
        if events.contains(ReadFlags::QUEUE_OVERFLOW) {
            return state.count(Path::new("/"), FileChangeKind::Missed);
        }
        match (state.watched.get(&number), name) {
            (Some(Watched::Directory(directory)), Some(name)) => {
                let path = directory.join(name);
                if state.paths.contains(&path) {
                    self.name_changed(state, &path, events);
                }
            }
            (Some(Watched::Tree(directory)), Some(name)) => {
                let path = directory.join(name);
                if state.paths.contains(&path) {
                    self.name_changed(state, &path, events.difference(ReadFlags::CREATE));
                } else if events.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO)
                    && state.added.len() < MAX_ADDED
                {
                    state.added.insert(path);
                }
            }
            (Some(Watched::File(path)), _)
                if events.intersects(ReadFlags::MODIFY | ReadFlags::CLOSE_WRITE) =>
            {
                let path = path.clone();
                state.count(&path, FileChangeKind::Written);
            }
            (Some(Watched::Expected(path)), _) if events.contains(ReadFlags::CLOSE_WRITE) => {
                let path = path.clone();
                state.count(&path, FileChangeKind::WrittenByAnyName);
            }
            _ => {}
        }
    }

    fn name_changed(&self, state: &mut State, path: &Path, events: ReadFlags) {
        if events.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
            let made = events.contains(ReadFlags::CREATE);
            state.count(path, if made { FileChangeKind::Created } else { FileChangeKind::Replaced });
            match fs::symlink_metadata(path) {
                // The file can be written through its other name, which is in no watched directory.
                Ok(found) if found.is_file() && found.nlink() > 1 => {
                    state.count(path, FileChangeKind::Linked)
                }
                _ => {}
            }
            // The file may already be removed.
            let _ = self.add(state, Watched::Expected(path.to_owned()), WRITERS);
        }
        if events.contains(ReadFlags::CLOSE_WRITE) {
            state.count(path, FileChangeKind::Written);
        }
        if events.intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM) {
            state.count(path, FileChangeKind::Removed);
        }
    }
}

impl State {
    fn count(&mut self, path: &Path, kind: FileChangeKind) {
        let count = self.changes.entry((path.to_string_lossy().into_owned(), kind)).or_default();
        *count = count.saturating_add(1);
    }
}

fn is_directory(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
}
