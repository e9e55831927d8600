//! Reads and writes files in an environment for a model.

use std::time::Duration;

use crate::tool::container::{ToolFailure, bounded, patch, shell};
use rollout_env::{Environment, Exit, FileRead, Outcome};

/// The maximum size of a file. Larger files are hardly text.
const MAX_FILE_BYTES: u64 = 8 << 20;

/// New content is uploaded here. A process inside then writes it to its destination as its own user, so that files keep
/// their mode and owner.
const STAGED: &str = "/tmp/.rollout-staged";

const WRITE: &str =
    r#"mkdir -p -- "$(dirname -- "$2")" && cat -- "$1" > "$2"; status=$?; rm -f -- "$1"; exit $status"#;

const COMMAND_DEADLINE: Duration = Duration::from_secs(30);

/// The text of a file, or of some lines of it.
pub(super) async fn read(
    environment: &dyn Environment,
    path: &str,
    start_line: Option<usize>,
    line_count: Option<usize>,
) -> Result<String, ToolFailure> {
    let content = content(environment, path).await?;
    if start_line.is_none() && line_count.is_none() {
        return Ok(shell::shown(&content));
    }
    let lines = content.split_inclusive(|byte| *byte == b'\n');
    let wanted = lines.skip(start_line.unwrap_or(1).max(1) - 1).take(line_count.unwrap_or(usize::MAX));
    Ok(shell::shown(&wanted.collect::<Vec<_>>().concat()))
}

/// Writes a file.
pub(super) async fn write(
    environment: &dyn Environment,
    path: &str,
    content: &[u8],
) -> Result<(), ToolFailure> {
    let path = absolute(environment, path).await?;
    bounded(Duration::ZERO, environment.write_file(STAGED, content)).await?;
    command(environment, &["sh", "-c", WRITE, "sh", STAGED, &path]).await.map(drop)
}

/// Applies a patch and lists the changes.
pub(super) async fn apply(environment: &dyn Environment, text: &str) -> Result<String, ToolFailure> {
    let changes = patch::parse(text)?;
    let mut ready = Vec::with_capacity(changes.len());
    for change in changes {
        let path = &change.path;
        let (content, done) = match &change.kind {
            patch::Kind::Add(content) => (Some(content.clone()), format!("added {path}")),
            patch::Kind::Delete => {
                self::content(environment, path).await?;
                (None, format!("deleted {path}"))
            }
            patch::Kind::Update { hunks, move_to } => {
                let old = self::content(environment, path).await?;
                let old = String::from_utf8(old).map_err(|_| not_a_file(path, "is not text"))?;
                let done = match move_to {
                    Some(target) => format!("updated {path} as {target}"),
                    None => format!("updated {path}"),
                };
                (Some(patch::apply(path, &old, hunks)?), done)
            }
        };
        ready.push((change, content, done));
    }
    let mut done_lines = Vec::with_capacity(ready.len());
    for (change, content, done) in ready {
        let target = change.move_to().unwrap_or(&change.path);
        if let Some(content) = &content {
            write(environment, target, content.as_bytes()).await?;
        }
        if content.is_none() || target != change.path {
            let path = absolute(environment, &change.path).await?;
            let target = absolute(environment, target).await?;
            // The target may be the same file under another name, such as `./a` for `a`.
            let remove = match content {
                Some(_) => "[ \"$1\" -ef \"$2\" ] || rm -- \"$1\"",
                None => "rm -- \"$1\"",
            };
            command(environment, &["sh", "-c", remove, "sh", &path, &target]).await?;
        }
        done_lines.push(done);
    }
    Ok(done_lines.join("\n"))
}

async fn content(environment: &dyn Environment, path: &str) -> Result<Vec<u8>, ToolFailure> {
    let inside = absolute(environment, path).await?;
    match bounded(Duration::ZERO, environment.read_file(&inside, MAX_FILE_BYTES)).await? {
        FileRead::Content(content) => Ok(content),
        FileRead::Missing => Err(not_a_file(path, "does not exist")),
        FileRead::NotRegular => Err(not_a_file(path, "is not a regular file")),
        FileRead::TooLarge(bytes) => {
            Err(not_a_file(path, &format!("has {bytes} bytes; the limit is {MAX_FILE_BYTES}")))
        }
    }
}

fn not_a_file(path: &str, what: &str) -> ToolFailure {
    ToolFailure::new("FileError", format!("{path} {what}"))
}

/// The absolute form of a path.
async fn absolute(environment: &dyn Environment, path: &str) -> Result<String, ToolFailure> {
    if path.is_empty() || path.contains('\0') {
        return Err(not_a_file(&format!("{path:?}"), "is not a path"));
    }
    if path.starts_with('/') {
        return Ok(path.to_owned());
    }
    let directory = command(environment, &["pwd"]).await?;
    Ok(format!("{}/{path}", directory.trim_end_matches(['\n', '/'])))
}

/// Runs a command that is expected to succeed.
async fn command(environment: &dyn Environment, argv: &[&str]) -> Result<String, ToolFailure> {
    match shell::run(environment, argv, &[], COMMAND_DEADLINE).await? {
        (Exit { outcome: Outcome::Code(0), .. }, output) => Ok(output),
        (Exit { outcome: Outcome::TimedOut, .. }, _) => {
            Err(ToolFailure::new("FileError", "the file system of the environment timed out"))
        }
        (_, output) => Err(ToolFailure::new("FileError", output.trim_end())),
    }
}
