//! Runs the `git` command, isolated from settings of the repository and of the caller's environment.

use std::{
    ffi::OsStr,
    io,
    path::{Path, PathBuf},
    process::{self, Output, Stdio},
};

use futures_util::future::BoxFuture;
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::{Child, Command},
};

use super::address::{CommitId, Credentials, GitUrl};
use crate::task::shown;

/// The oldest git that can fetch a list of files.
const MIN_VERSION: (u32, u32) = (2, 29);

/// How many bytes of git's messages are kept, from the end, where the reason is.
const STDERR_TAIL_BYTES: usize = 4096;

/// The maximum size of git's output; a commit id is far smaller.
const MAX_ANSWER_BYTES: u64 = 64 * 1024;

/// Variables of git that users need for private repositories.
const KEPT: [&str; 6] =
    ["GIT_SSH", "GIT_SSH_COMMAND", "GIT_SSL_CAINFO", "GIT_SSL_CAPATH", "GIT_CONFIG_GLOBAL", "GIT_EXEC_PATH"];

const USER_VARIABLE: &str = "ROLLOUT_GIT_USERNAME";
const PASSWORD_VARIABLE: &str = "ROLLOUT_GIT_PASSWORD";

/// Passes the user and the password to git in its environment, because every user can read command lines.
const CREDENTIAL_HELPER: &str = r#"!f() { test "$1" != get || printf 'username=%s\npassword=%s\n' "$ROLLOUT_GIT_USERNAME" "$ROLLOUT_GIT_PASSWORD"; }; f"#;

/// Why a repository cannot be used. URLs are shown without credentials.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    /// Git is missing.
    #[error("cannot start `{}`; tasks from repositories need git 2.29 or newer", shown(program))]
    Missing {
        /// The command.
        program: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Git is too old to fetch parts of repositories.
    #[error("git is too old: {found}; tasks from repositories need git 2.29 or newer")]
    TooOld {
        /// The version that it reports.
        found: String,
    },
    /// Git could not reach or read the repository.
    #[error(
        "git cannot {action} {url}: {detail}; `git ls-remote {url}` shows whether this machine can reach it"
    )]
    Failed {
        /// The action that failed.
        action: &'static str,
        /// The repository.
        url: String,
        /// The end of its messages.
        detail: String,
    },
    /// The repository does not have the commit.
    #[error("{url} has no commit {commit}; check `git_commit_id` in the registry")]
    NoCommit {
        /// The repository.
        url: String,
        /// The commit.
        commit: String,
    },
    /// The repository has no such branch or tag.
    #[error("{url} has no branch or tag `{revision}`")]
    NoRevision {
        /// The repository.
        url: String,
        /// The branch or tag.
        revision: String,
    },
    /// Something of the repository is not in the cache, and the network must not be used.
    #[error("{what} of {url} is not in the cache, and network access is turned off")]
    Offline {
        /// The repository.
        url: String,
        /// What is missing.
        what: String,
    },
    /// A file in the cache was changed after it was fetched, and the network must not be used.
    #[error(
        "{} in the cache was changed after it was fetched, and network access is turned off",
        shown(path)
    )]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// The repository has no default branch.
    #[error("{url} has no default branch; set `git_commit_id` in the registry")]
    NoHead {
        /// The repository.
        url: String,
    },
    /// The cache cannot be used.
    #[error("cannot use the cache in {}; check its owner and the free space", shown(path))]
    Cache {
        /// The path in the cache.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// The messages of a failed git command.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) stderr: String,
}

/// A git command that is new enough.
#[derive(Debug, Clone)]
pub(in crate::task) struct Git {
    program: PathBuf,
}

/// Runs `git --version`.
pub fn git_version(program: &Path) -> BoxFuture<'_, io::Result<Output>> {
    Box::pin(async move {
        Command::new(program).arg("--version").stdin(Stdio::null()).kill_on_drop(true).output().await
    })
}

/// A git command that runs no hooks or monitors. Variables such as `GIT_DIR`, which are set while a hook runs, are
/// removed, so that they do not select another repository.
pub(in crate::task) fn isolated(program: &Path) -> process::Command {
    let mut command = process::Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"GIT_") && !KEPT.iter().any(|kept| name == OsStr::new(kept)) {
            command.env_remove(name);
        }
    }
    command.args(["-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false"]).stdin(Stdio::null());
    command
}

impl Git {
    pub(in crate::task) async fn find(program: &Path) -> Result<Self, GitError> {
        let output = git_version(program)
            .await
            .map_err(|source| GitError::Missing { program: program.to_owned(), source })?;
        let found = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        match version(&found) {
            Some(version) if version >= MIN_VERSION => Ok(Self { program: program.to_owned() }),
            _ => Err(GitError::TooOld { found }),
        }
    }

    /// A git command for one repository, or for files on this machine only.
    pub(super) fn command(&self, url: &GitUrl) -> Command {
        let mut command = Command::from(isolated(&self.program));
        if std::env::var_os("GIT_SSH_COMMAND").is_none() && std::env::var_os("GIT_SSH").is_none() {
            // Git must not ask questions, and a silent server must not block the job forever.
            command
                .env("GIT_SSH_COMMAND", "ssh -oBatchMode=yes -oConnectTimeout=30 -oServerAliveInterval=30");
        }
        command
            .env("LC_ALL", "C")
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("GIT_ASKPASS", "")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_LFS_SKIP_SMUDGE", "1")
            .env("GIT_NO_LAZY_FETCH", "1")
            .env("GIT_ALLOW_PROTOCOL", if url.is_local() { "file" } else { "https:http:ssh:git" })
            .args(["-c", "gc.auto=0", "-c", "maintenance.auto=false"])
            .args(["-c", "submodule.recurse=false", "-c", "fetch.recurseSubmodules=false"])
            .args(["-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=60"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        if let Some(Credentials { server, user, password }) = url.credentials() {
            // Only for this server, also after a redirect, and instead of the user's own helper.
            let key = format!("credential.{server}.helper");
            command
                .arg("-c")
                .arg(format!("{key}="))
                .arg("-c")
                .arg(format!("{key}={CREDENTIAL_HELPER}"))
                .env(USER_VARIABLE, user)
                .env(PASSWORD_VARIABLE, password);
        }
        command
    }

    pub(super) fn start(&self, command: &mut Command) -> Result<Child, GitError> {
        command.spawn().map_err(|source| GitError::Missing { program: self.program.clone(), source })
    }

    /// Runs git to its end and returns its output.
    pub(super) async fn run(
        &self,
        command: &mut Command,
        url: &GitUrl,
    ) -> Result<Result<String, Failure>, GitError> {
        let mut child = self.start(command)?;
        let stdout = child.stdout.take();
        let answer = async {
            let mut answer = Vec::new();
            if let Some(stdout) = stdout {
                stdout.take(MAX_ANSWER_BYTES).read_to_end(&mut answer).await?;
            }
            io::Result::Ok(answer)
        };
        let stderr = child.stderr.take();
        let (answer, stderr, status) = tokio::join!(answer, tail(stderr), child.wait());
        let failed = |source| GitError::Missing { program: self.program.clone(), source };
        if status.map_err(failed)?.success() {
            Ok(Ok(String::from_utf8_lossy(&answer.map_err(failed)?).trim().to_owned()))
        } else {
            Ok(Err(Failure { stderr: presentable(&stderr, url) }))
        }
    }

    /// The commit of a branch or tag of a repository, or of its default branch.
    pub(super) async fn look_up(&self, url: &GitUrl, revision: Option<&str>) -> Result<CommitId, GitError> {
        let mut command = self.command(url);
        command.args(["ls-remote", "--quiet", "--", url.as_str()]);
        // A tag with a message is an object of its own; the entry with `^{}` is the commit.
        let names = match revision {
            None => vec!["HEAD".to_owned()],
            Some(full) if full.starts_with("refs/") => vec![format!("{full}^{{}}"), full.to_owned()],
            Some(name) => {
                vec![
                    format!("refs/tags/{name}^{{}}"),
                    format!("refs/tags/{name}"),
                    format!("refs/heads/{name}"),
                ]
            }
        };
        command.args(&names);
        let answer = self.run(&mut command, url).await?.map_err(|failure| failure.during("read", url))?;
        let found = |name: &String| {
            answer.lines().find_map(|line| {
                let (id, of) = line.split_once('\t')?;
                (of == name).then(|| CommitId::parse(id).ok())?
            })
        };
        names.iter().find_map(found).ok_or_else(|| match revision {
            None => GitError::NoHead { url: url.to_string() },
            Some(revision) => GitError::NoRevision { url: url.to_string(), revision: revision.to_owned() },
        })
    }
}

impl Failure {
    pub(super) fn during(self, action: &'static str, url: &GitUrl) -> GitError {
        GitError::Failed { action, url: url.to_string(), detail: self.stderr }
    }
}

/// Reads to the end and keeps only the last bytes, because a server can send unlimited messages.
pub(super) async fn tail(stream: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let mut kept = Vec::new();
    let Some(mut stream) = stream else { return kept };
    let mut buffer = [0; STDERR_TAIL_BYTES];
    while let Ok(read @ 1..) = stream.read(&mut buffer).await {
        kept.extend_from_slice(&buffer[..read]);
        kept.drain(..kept.len().saturating_sub(STDERR_TAIL_BYTES));
    }
    kept
}

/// The last lines of git's messages, without credentials and control sequences.
pub(super) fn presentable(stderr: &[u8], url: &GitUrl) -> String {
    const LINES: usize = 3;
    /// Git's advice after every failure, which would hide the reason.
    const ADVICE: [&str; 2] =
        ["Please make sure you have the correct access rights", "and the repository exists."];
    let text = String::from_utf8_lossy(stderr).replace(url.as_str(), url.shown());
    let lines: Vec<String> = text
        .lines()
        .map(|line| line.chars().filter(|c| !c.is_control()).collect::<String>().trim().to_owned())
        .filter(|line| !line.is_empty() && !ADVICE.contains(&line.as_str()))
        .collect();
    match &lines[lines.len().saturating_sub(LINES)..] {
        [] => "no reason given".to_owned(),
        last => last.join(" / "),
    }
}

fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.strip_prefix("git version ")?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_git_are_read() {
        assert_eq!(version("git version 2.47.3"), Some((2, 47)));
        assert_eq!(version("git version 2.39.5 (Apple Git-154)"), Some((2, 39)));
        assert_eq!(version("zsh 5.9"), None);
    }

    #[test]
    fn messages_of_git_lose_credentials_and_escapes() {
        let url = GitUrl::parse("https://user:token@example.com/a?key=secret").unwrap();
        let text =
            b"one\ntwo\n\nremote: \x1b[31mno\x1b[0m\nfatal: 'https://example.com/a?key=secret' denied\n";
        insta::assert_snapshot!(
            presentable(text, &url),
            @"two / remote: [31mno[0m / fatal: 'https://example.com/a' denied"
        );
        assert_eq!(presentable(b"\n", &url), "no reason given");
    }

    #[tokio::test]
    async fn without_git_the_error_says_what_to_install() {
        let error = Git::find(Path::new("/nowhere/git")).await.unwrap_err();
        insta::assert_snapshot!(
            error,
            @"cannot start `/nowhere/git`; tasks from repositories need git 2.29 or newer"
        );
    }
}
