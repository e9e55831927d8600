//! `rollout clean`: removes leftovers of ended runs and cached files, and prints their sizes.

#[cfg(feature = "remote")]
mod clouds;
#[cfg(feature = "kubernetes")]
mod cluster;
mod engine;

use std::{
    collections::{HashMap, HashSet},
    fs::{self, File, TryLockError},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use rollout::{
    environment::docker::EngineError,
    task::{checkouts, remove_unused_checkouts},
};
use rollout_sandbox::{
    StoreLimit, StoreLimiter, Stored, StoredKind, User, disk_use, remove_unused, stored, sweep,
};

use crate::{
    args::Clean,
    engine::Found,
    exit::{Exit, Failure, hinted},
    report::{
        Align, table,
        text::{BOLD, ODD, count, paint, size},
    },
    runtime::on_runtime,
    state::state_dir,
};

/// The directories with the environments of each engine process, and with preserved environments.
const RUNS: &str = "run";
const PRESERVED: &str = "preserved";

/// Objects of one kind, and whether they are removed.
struct Row {
    fate: Fate,
    what: String,
    /// Whether there is at least one.
    some: bool,
    /// Their size on disk, if it is known.
    size: Option<String>,
}

impl Row {
    fn sized(fate: Fate, what: String, some: bool, bytes: u64) -> Self {
        Self { fate, what, some, size: Some(size(bytes)) }
    }
}

/// Whether objects are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Goes,
    Stays,
    /// They stay, and this flag would remove them.
    StaysWithout(&'static str),
}

impl Fate {
    /// The fate of objects that are removed only with a flag.
    fn by(flag: &'static str, given: bool) -> Self {
        if given { Self::Goes } else { Self::StaysWithout(flag) }
    }
}

/// Removes leftovers, and prints what was found.
pub(crate) fn run(args: &Clean) -> Result<Exit, Failure> {
    let state_dir = state_dir()?;
    let (mut rows, left) = environments(args, &state_dir)?;
    rows.extend(images(args, &state_dir)?);
    rows.extend(repositories(args, &state_dir)?);
    rows.extend(datasets(args, &state_dir)?);
    super::print(&render(&state_dir.display().to_string(), &rows, args.dry_run))?;
    on_runtime(on_engine(args))?;
    #[cfg(feature = "kubernetes")]
    on_runtime(cluster::clean(args))?;
    let is_clean = left.is_empty() & (!args.all_providers || in_clouds(args)?);
    for path in &left {
        warn(&format!("cannot remove {path}"))?;
    }
    Ok(if is_clean { Exit::Success } else { Exit::Unmet })
}

/// Cleans the accounts of all vendors. Returns whether everything was removed that should be.
#[cfg(feature = "remote")]
fn in_clouds(args: &Clean) -> Result<bool, Failure> {
    on_runtime(clouds::clean(args))
}

/// Reports that there are no vendors.
#[cfg(not(feature = "remote"))]
fn in_clouds(_args: &Clean) -> Result<bool, Failure> {
    warn(
        "this build has no cloud providers, so `--all-providers` removed nothing. Build rollout with \
         `--features daytona,e2b,fly,modal`, or with those that you use",
    )?;
    Ok(false)
}

fn warn(message: &str) -> io::Result<()> {
    writeln!(anstream::stderr().lock(), "{} {message}", paint(ODD, "warning:"))
}

/// Cleans the Docker engine. A missing engine is reported only if DOCKER_HOST or another setting names one.
async fn on_engine(args: &Clean) -> Result<(), Failure> {
    match crate::engine::find().await {
        Found::Engine(engine) => {
            let rows = engine::clean(args, &engine).await.map_err(hinted(EngineError::hint))?;
            let facts = engine.facts();
            let place = format!("{} {} at {}", facts.name, facts.version, facts.address);
            super::print(&format!("\n{}", render(&place, &rows, args.dry_run)))?;
        }
        Found::None(_) => {}
        Found::Missing(error) | Found::Unusable(error) => {
            warn(&error.to_string())?;
        }
    }
    Ok(())
}

/// Renders the rows of one location under its name.
fn render(place: &str, rows: &[Row], dry_run: bool) -> String {
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let (fate, hint) = match row.fate {
                Fate::Goes if dry_run => ("to remove", String::new()),
                Fate::Goes => ("removed", String::new()),
                Fate::StaysWithout(flag) if row.some => ("kept", format!("remove with {flag}")),
                Fate::Stays | Fate::StaysWithout(_) => ("kept", String::new()),
            };
            vec![fate.to_owned(), row.what.clone(), row.size.clone().unwrap_or_default(), hint]
        })
        .collect();
    let mut lines = table(&[Align::Left, Align::Left, Align::Right, Align::Left], &cells);
    lines.insert(0, paint(BOLD, place));
    lines.join("\n")
}

/// Lists native environments of ended runs, of running jobs, and preserved ones. The second value lists the paths that
/// could not be removed.
fn environments(args: &Clean, state_dir: &Path) -> io::Result<(Vec<Row>, Vec<String>)> {
    let (dead, live) = by_use(&state_dir.join(RUNS), "lock");
    let (preserved, attached) = by_use(&state_dir.join(PRESERVED), "sandbox.json");
    let row = |fate, noun, dirs: &[PathBuf]| {
        let bytes = dirs.iter().map(|dir| disk_use(dir)).sum();
        Row::sized(fate, count(dirs.len() as u64, noun), !dirs.is_empty(), bytes)
    };
    let mut rows = vec![
        row(Fate::Goes, "ended run", &dead),
        row(Fate::Stays, "running job", &live),
        row(Fate::by("--preserved", args.preserved), "preserved environment", &preserved),
    ];
    if !attached.is_empty() {
        rows.push(row(Fate::Stays, "attached environment", &attached));
    }
    let mut left = Vec::new();
    if !args.dry_run {
        if args.preserved {
            discard(state_dir, &preserved)?;
        }
        left = sweep(state_dir)?.failed;
    }
    Ok((rows, left))
}

/// Lists the images, layers and snapshots of native environments.
fn images(args: &Clean, state_dir: &Path) -> io::Result<Vec<Row>> {
    let found = stored(state_dir)?;
    let sizes: HashMap<PathBuf, u64> =
        found.iter().map(|stored| (stored.path.clone(), disk_use(&stored.path))).collect();
    // What becomes unused when preserved environments are removed counts as unused.
    let is_used = |stored: &Stored| match stored.used_by {
        None => false,
        Some(User::Preserved) => !(args.dry_run && args.preserved),
        Some(User::Engine) => true,
    };
    let limit = StoreLimit { size: args.store_size.map(|size| size.0), free: None };
    let mut limiter = StoreLimiter::new(state_dir, limit);
    let removed: Vec<Stored> = match (args.images, args.dry_run) {
        (true, true) => found.iter().filter(|stored| !is_used(stored)).cloned().collect(),
        (true, false) => remove_unused(state_dir)?,
        (false, true) => limiter.chosen()?,
        (false, false) => limiter.apply()?,
    };
    let removed: HashSet<PathBuf> = removed.into_iter().map(|stored| stored.path).collect();
    let nouns = [
        (StoredKind::Host, "host image"),
        (StoredKind::Layer, "layer"),
        (StoredKind::Snapshot, "agent snapshot"),
    ];
    let mut rows = Vec::new();
    for (kind, noun) in nouns {
        let size = |stored: &Stored| sizes.get(&stored.path).copied().unwrap_or(0);
        let of_kind = found.iter().filter(|stored| stored.kind == kind);
        let (gone, kept): (Vec<_>, Vec<_>) = of_kind.partition(|stored| removed.contains(&stored.path));
        let kept = kept.into_iter().map(|stored| (args.images || is_used(stored), size(stored)));
        let gone = gone.into_iter().map(|stored| (false, size(stored)));
        if args.images {
            rows.extend(by_flag(noun, "--images", true, gone.chain(kept)));
        } else {
            let gone: Vec<u64> = gone.map(|(_, bytes)| bytes).collect();
            if !gone.is_empty() {
                let what = count(gone.len() as u64, noun);
                rows.push(Row::sized(Fate::Goes, what, true, gone.iter().sum()));
            }
            rows.extend(by_flag(noun, "--images", false, kept));
        }
    }
    Ok(rows)
}

/// Lists the checkouts of git repositories with tasks.
fn repositories(args: &Clean, state_dir: &Path) -> io::Result<Vec<Row>> {
    let found = checkouts(state_dir)?;
    let mut sized: Vec<(PathBuf, bool, u64)> =
        found.into_iter().map(|found| (found.path.clone(), found.used, disk_use(&found.path))).collect();
    if args.cache && !args.dry_run {
        let removed = remove_unused_checkouts(state_dir)?;
        for (path, used, _) in &mut sized {
            *used = !removed.iter().any(|removed| removed.path == *path);
        }
    }
    let sized = sized.into_iter().map(|(_, used, bytes)| (used, bytes));
    Ok(by_flag("git checkout", "--cache", args.cache, sized))
}

/// Lists the files of datasets from hubs and registries. A running job has its own copy of what it needs of them.
fn datasets(args: &Clean, state_dir: &Path) -> io::Result<Vec<Row>> {
    let found = ["hub", "rows", "registries"].map(|name| state_dir.join(name)).into_iter();
    let found: Vec<PathBuf> = found.filter(|dir| dir.is_dir()).collect();
    if found.is_empty() {
        return Ok(Vec::new());
    }
    let sized: Vec<(bool, u64)> = found.iter().map(|dir| (false, disk_use(dir))).collect();
    if args.cache && !args.dry_run {
        found.iter().try_for_each(fs::remove_dir_all)?;
    }
    Ok(by_flag("dataset cache", "--cache", args.cache, sized.into_iter()))
}

/// Returns a row for the unused objects of a kind, which are removed with a flag, and one for those in use.
fn by_flag(
    noun: &str,
    flag: &'static str,
    given: bool,
    sized: impl Iterator<Item = (bool, u64)>,
) -> Vec<Row> {
    let (used, free): (Vec<_>, Vec<_>) = sized.partition(|(used, _)| *used);
    let row = |fate, suffix: &str, sized: &[(bool, u64)]| {
        let bytes = sized.iter().map(|(_, bytes)| bytes).sum();
        Row::sized(fate, count(sized.len() as u64, noun) + suffix, !sized.is_empty(), bytes)
    };
    let mut rows = vec![row(Fate::by(flag, given), "", &free)];
    if !used.is_empty() {
        rows.push(row(Fate::Stays, " in use", &used));
    }
    rows
}

/// Splits subdirectories into unused ones and those in use. A directory is in use if a process holds a lock on its file
/// `lock`.
fn by_use(parent: &Path, lock: &str) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let free = |dir: &PathBuf| match File::open(dir.join(lock)) {
        Ok(lock) => !matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)),
        Err(_) => true,
    };
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).partition(free)
}

/// Moves preserved environments to the leftovers of an ended run, so that the engine's sweep removes them. The sweep
/// can remove any files that agents created.
fn discard(state_dir: &Path, preserved: &[PathBuf]) -> io::Result<()> {
    for kept in preserved {
        let Some(name) = kept.file_name() else { continue };
        let run = state_dir.join(RUNS).join(name);
        fs::create_dir_all(&run)?;
        fs::rename(kept, run.join(name))?;
    }
    Ok(())
}
