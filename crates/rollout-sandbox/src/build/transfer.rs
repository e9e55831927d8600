//! Copies files from one sandbox to another, and moves them to their place and owner inside.
//!
//! The work is done by programs of the environment (`tar`, `cp`, `chown`): they know its users, and any damage
//! by a hostile archive stays inside.

use std::io;

use rollout_guest::FileLookup;
use rustix::pipe::{PipeFlags, pipe_with};

use super::context::CopyFailure;
use super::job::Job;
use super::pattern;
use super::plan::Copy;
use crate::process::Stdio;
use crate::sandbox::RunningSandbox;

/// The directory for files in the sandbox before they get their owner and place.
pub(crate) const LANDING: &str = "/.rollout-copy";

/// The file that lists the names matched by a pattern.
const LIST: &str = "/.rollout-list";
const MAX_LIST: u64 = 1 << 20;

/// Where the files in the landing directory are moved.
pub(crate) enum Placement<'a> {
    /// All of them into a directory.
    Into(&'a str),
    /// The file of this name to this path.
    File { name: &'a str, path: &'a str },
}

/// Sets the owner of the files in the landing directory and moves them to their place.
pub(crate) async fn place(
    sandbox: &RunningSandbox,
    placement: Placement<'_>,
    owner: Option<&str>,
) -> Result<(), CopyFailure> {
    const INTO: &str = r#"set -e
        [ -z "$3" ] || chown -hR -- "$3" "$1"
        [ -d "$2" ] || { mkdir -p -- "$2"; [ -z "$3" ] || chown -- "$3" "$2"; }
        find "$1" -mindepth 1 -maxdepth 1 -exec cp -a -t "$2" -- {} +"#;
    const FILE: &str = r#"set -e
        [ -z "$3" ] || chown -hR -- "$3" "$1"
        mkdir -p -- "$(dirname -- "$2")"
        cp -a -T -- "$1/$4" "$2""#;
    let owner = owner.unwrap_or_default();
    let job = match placement {
        Placement::Into(dir) => Job::script(INTO, &[LANDING, dir, owner]),
        Placement::File { name, path } => Job::script(FILE, &[LANDING, path, owner, name]),
    };
    must_succeed(sandbox, job).await?;
    sandbox.remove(LANDING).await.map_err(|error| CopyFailure::Target(error.into()))
}

/// Runs a `COPY --from`.
pub(crate) async fn between(
    from: &RunningSandbox,
    to: &RunningSandbox,
    copy: &Copy,
    keep_owners: bool,
) -> Result<(), CopyFailure> {
    let mut sources = Vec::new();
    for source in &copy.sources {
        let source = super::plan::normalise(&format!("/{source}"));
        if pattern::is_pattern(&source) {
            sources.extend(expand(from, &source).await?);
        } else {
            sources.push(source);
        }
    }
    if sources.len() > 1 && !copy.into_dir {
        return Err(CopyFailure::SeveralIntoFile);
    }
    let owner = copy.chown.as_deref();
    for source in &sources {
        to.make_dir(LANDING, 0o700, true).await.map_err(|error| CopyFailure::Target(error.into()))?;
        let is_dir = is_dir(from, source).await?;
        if !is_dir && !succeeds(from, Job::script(r#"[ -e "$1" ]"#, &[source])).await? {
            return Err(CopyFailure::NotFound(source.clone()));
        }
        stream(from, to, source, is_dir, copy.chmod, keep_owners).await?;
        let name = source.rsplit('/').next().unwrap_or_default();
        let placement = if is_dir || copy.into_dir || self::is_dir(to, &copy.target).await? {
            Placement::Into(&copy.target)
        } else {
            Placement::File { name, path: &copy.target }
        };
        place(to, placement, owner).await?;
    }
    Ok(())
}

/// Copies a file, or a directory's content, into the landing directory of another sandbox.
async fn stream(
    from: &RunningSandbox,
    to: &RunningSandbox,
    source: &str,
    is_dir: bool,
    chmod: Option<u32>,
    keep_owners: bool,
) -> Result<(), CopyFailure> {
    let mode = chmod.map(|mode| format!("--mode={mode:o}")).unwrap_or_default();
    let (dir, name) = if is_dir {
        (source, ".")
    } else {
        let (dir, name) = source.rsplit_once('/').unwrap_or(("", source));
        (if dir.is_empty() { "/" } else { dir }, name)
    };
    // A source that is a link is followed; links inside a directory stay links.
    let follow = if is_dir { "" } else { "-h" };
    let mut pack = Job::script(r#"exec tar -cf - $1 $2 -C "$3" -- "$4""#, &[follow, &mode, dir, name]);
    let owners = if keep_owners { "--same-owner" } else { "--no-same-owner" };
    let mut unpack = Job::script(r#"exec tar -xpf - "$1" --numeric-owner -C "$2""#, &[owners, LANDING]);
    let (reader, writer) =
        pipe_with(PipeFlags::CLOEXEC).map_err(|error| CopyFailure::Target(io::Error::from(error).into()))?;
    pack.stdout = Some(writer);
    unpack.stdin = Stdio::Fd(reader);
    let (packed, unpacked) = tokio::join!(must_succeed(from, pack), must_succeed(to, unpack));
    packed.and(unpacked)
}

/// Finds the files that a pattern names in a sandbox.
async fn expand(sandbox: &RunningSandbox, source: &str) -> Result<Vec<String>, CopyFailure> {
    // Without field splitting, so that a name with spaces stays one word.
    let list = r#"IFS=; for file in $1; do [ ! -e "$file" ] || printf '%s\0' "$file"; done > "$2""#;
    must_succeed(sandbox, Job::script(list, &[source, LIST])).await?;
    let found = match sandbox.read_file(LIST, MAX_LIST).await {
        Ok(FileLookup::File(bytes)) => bytes,
        Ok(_) => {
            return Err(CopyFailure::Inside(format!("{source} names too many files; copy their directory")));
        }
        Err(error) => return Err(CopyFailure::Target(error.into())),
    };
    let names = found.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let found: Vec<String> = names.map(|name| String::from_utf8_lossy(name).into_owned()).collect();
    if found.is_empty() { Err(CopyFailure::NotFound(source.to_owned())) } else { Ok(found) }
}

/// Returns whether a path in a sandbox is a directory, or a link to one.
pub(crate) async fn is_dir(sandbox: &RunningSandbox, path: &str) -> Result<bool, CopyFailure> {
    succeeds(sandbox, Job::script(r#"[ -d "$1" ]"#, &[path])).await
}

/// Runs a job and returns whether it succeeded.
pub(crate) async fn succeeds(sandbox: &RunningSandbox, job: Job) -> Result<bool, CopyFailure> {
    let ended = job.run(sandbox, None).await.map_err(|error| CopyFailure::Target(error.into()))?;
    Ok(ended.success())
}

/// Runs a job; its failure is an error.
pub(crate) async fn must_succeed(sandbox: &RunningSandbox, job: Job) -> Result<(), CopyFailure> {
    let ended = job.run(sandbox, None).await.map_err(|error| CopyFailure::Target(error.into()))?;
    if ended.success() { Ok(()) } else { Err(CopyFailure::Inside(ended.tail.text())) }
}
