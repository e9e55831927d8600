//! Programs that fetch and install packages on the host: npm, pip and uv.

use std::{ffi::OsString, path::Path, process::Stdio, time::Duration};

use tokio::process::Command;

use super::{PackageError, PackageSources};

/// A few hundred packages on a slow line.
const TIMEOUT: Duration = Duration::from_secs(1800);

/// Lines of output that an error quotes.
const QUOTED_LINES: usize = 10;

/// Runs a program to its end, and returns what it printed. It sees the given variables and those of the sources, and nothing else of this process.
pub(super) async fn run(
    program: &'static str,
    package: &str,
    path: &Path,
    arguments: &[OsString],
    variables: &[(String, String)],
    sources: &PackageSources,
) -> Result<String, PackageError> {
    let cache = &sources.cache_dir;
    tokio::fs::create_dir_all(cache).await.map_err(|source| PackageError::io(cache, source))?;
    let failed = |problem: String| PackageError::Tool { program, package: package.to_owned(), problem };
    let mut command = Command::new(path);
    command.args(arguments).env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin");
    command.env("HOME", cache);
    command.envs(sources.variables.iter().map(|(name, value)| (name, value)));
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    command.stdin(Stdio::null()).kill_on_drop(true).current_dir(cache);
    let output = tokio::time::timeout(TIMEOUT, command.output())
        .await
        .map_err(|_| failed(format!("it did not end within {} minutes", TIMEOUT.as_secs() / 60)))?
        .map_err(|error| failed(format!("{} does not start: {error}", path.display())))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    let lines: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = &lines[lines.len().saturating_sub(QUOTED_LINES)..];
    Err(failed(format!("{}\n{}", output.status, last.join("\n"))))
}
