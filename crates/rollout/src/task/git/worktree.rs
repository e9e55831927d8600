//! The state of the repository around a directory: its commit, whether files differ from it, and its origin.
//!
//! The repository may be untrusted. Nothing that it configures is run: no hooks, no monitors, no diff drivers, and no
//! filters of its own configuration.

use std::{path::Path, process::Stdio, time::Duration};

use rollout_core::provenance::GitState;
use tokio::process::Command;

use super::{address::GitUrl, command::Git};

/// The timeout of git, for trees of any size.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The state of the repository around a directory. None without a repository, a commit, or git.
pub(crate) async fn git_state(dir: &Path) -> Option<GitState> {
    tokio::time::timeout(TIMEOUT, async {
        let git = Git::find(Path::new("git")).await.ok()?;
        let here = Here { git, url: GitUrl::parse("/").ok()?, dir };
        let commit = here.ask(&["rev-parse", "--verify", "--quiet", "HEAD^{commit}"]).await?;
        let remote_url = here.ask(&["config", "--get", "remote.origin.url"]).await;
        // A tree that is too large for the timeout still has a commit.
        let is_dirty = tokio::time::timeout(TIMEOUT / 2, here.is_dirty()).await.ok().flatten();
        Some(GitState { commit, is_dirty, remote_url: remote_url.map(|url| without_credentials(&url)) })
    })
    .await
    .ok()
    .flatten()
}

/// A git command that only reads files on this machine.
struct Here<'a> {
    git: Git,
    /// A local path, so that nothing is fetched.
    url: GitUrl,
    dir: &'a Path,
}

impl Here<'_> {
    fn command(&self) -> Command {
        let mut command = self.git.command(&self.url);
        command.env("GIT_OPTIONAL_LOCKS", "0").arg("-C").arg(self.dir);
        command
    }

    /// The output of git, if it succeeds.
    async fn ask(&self, arguments: &[&str]) -> Option<String> {
        let answer = self.git.run(self.command().args(arguments), &self.url).await.ok()?.ok()?;
        (!answer.is_empty()).then_some(answer)
    }

    async fn is_dirty(&self) -> Option<bool> {
        let filters = self.ask(&LIST_FILTERS).await.unwrap_or_default();
        let mut command = self.command();
        for setting in filters_off(&filters)? {
            command.arg("-c").arg(setting);
        }
        command.args([
            "diff",
            "--quiet",
            "--no-ext-diff",
            "--no-textconv",
            "--ignore-submodules=dirty",
            "HEAD",
        ]);
        let mut child = self.git.start(command.stdout(Stdio::null()).stderr(Stdio::null())).ok()?;
        match child.wait().await.ok()?.code()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

/// Lists the settings of filters, each with its scope.
pub(in crate::task) const LIST_FILTERS: [&str; 6] =
    ["config", "--show-scope", "-z", "--name-only", "--get-regexp", r"^filter\."];

/// The settings that turn off the filters of a repository, from the output of [`LIST_FILTERS`]. None if one of them
/// cannot be turned off.
pub(in crate::task) fn filters_off(list: &str) -> Option<Vec<String>> {
    let settings = |name: &str| {
        ["clean=", "smudge=", "process=", "required=false"].map(|setting| format!("filter.{name}.{setting}"))
    };
    Some(own_filters(list)?.into_iter().flat_map(settings).collect())
}

/// The names of a repository's own filters, from a list of scopes and keys. None if a name cannot be written on a
/// command line, so that the filter cannot be turned off.
fn own_filters(list: &str) -> Option<Vec<&str>> {
    let mut words = list.split('\0');
    let mut names = Vec::new();
    while let (Some(scope), Some(key)) = (words.next(), words.next()) {
        if matches!(scope, "global" | "system") {
            continue;
        }
        let name = key.strip_prefix("filter.")?.rsplit_once('.')?.0;
        if name.contains(['=', '\n']) {
            return None;
        }
        if !names.contains(&name) {
            names.push(name);
        }
    }
    Some(names)
}

/// A URL for users, without credentials. A URL that Rollout does not support is cut where credentials could be.
fn without_credentials(url: &str) -> String {
    let shown = GitUrl::parse(url).map_or_else(|_| url.to_owned(), |url| url.shown().to_owned());
    let shown = shown.split(['?', '#']).next().unwrap_or_default();
    let (scheme, rest) = match shown.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => (String::new(), shown),
    };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    match authority.rsplit_once('@') {
        // An ssh user, as in `git@host:path`, is part of the address.
        Some((user, host)) if !user.contains(':') && matches!(&*scheme, "" | "ssh://") => {
            format!("{scheme}{user}@{host}{path}")
        }
        Some((_, host)) => format!("{scheme}{host}{path}"),
        None => shown.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, process};

    use super::*;

    #[test]
    fn urls_are_shown_without_credentials() {
        for (url, shown) in [
            ("https://user:token@example.com/a/b.git", "https://example.com/a/b.git"),
            ("https://token@example.com/a", "https://example.com/a"),
            ("https://example.com/a?token=secret", "https://example.com/a"),
            ("ssh://git:secret@example.com/a", "ssh://git@example.com/a"),
            ("git@example.com:a/b", "git@example.com:a/b"),
            ("user:secret@example.com:a/b", "example.com:a/b"),
            ("weird://user:secret@example.com/a", "weird://example.com/a"),
            ("weird://secret@example.com/a", "weird://example.com/a"),
            ("../beside", "../beside"),
            ("/srv/a", "/srv/a"),
        ] {
            assert_eq!(without_credentials(url), shown);
        }
    }

    #[test]
    fn filters_of_the_repository_are_distinguished_from_those_of_the_user() {
        let list = "global\0filter.lfs.clean\0local\0filter.a.b.clean\0local\0filter.a.b.smudge\0worktree\0filter.c.process\0";
        assert_eq!(own_filters(list), Some(vec!["a.b", "c"]));
        assert_eq!(own_filters(""), Some(vec![]));
        assert_eq!(own_filters("local\0filter.a=b.clean\0"), None);
    }

    fn git(dir: &Path, arguments: &[&str]) {
        let who = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "init.defaultBranch=main"];
        let done =
            process::Command::new("git").arg("-C").arg(dir).args(who).args(arguments).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }

    #[tokio::test]
    async fn the_state_of_a_directory_is_its_commit_and_whether_files_differ() {
        let dir = tempfile::tempdir().unwrap();
        let below = dir.path().join("below");
        fs::create_dir(&below).unwrap();
        assert_eq!(git_state(&below).await, None, "no repository");
        git(dir.path(), &["init", "--quiet"]);
        assert_eq!(git_state(&below).await, None, "no commit");
        fs::write(below.join("file"), "one").unwrap();
        git(dir.path(), &["add", "."]);
        git(dir.path(), &["commit", "--quiet", "-m", "one"]);
        let clean = git_state(&below).await.unwrap();
        assert_eq!((clean.commit.len(), clean.is_dirty, &clean.remote_url), (40, Some(false), &None));
        fs::write(dir.path().join("new"), "not of the commit").unwrap();
        git(dir.path(), &["remote", "add", "origin", "https://user:token@example.com/a"]);
        let remote_url = Some("https://example.com/a".to_owned());
        assert_eq!(git_state(&below).await, Some(GitState { remote_url, ..clean.clone() }));
        fs::write(below.join("file"), "two").unwrap();
        assert_eq!(git_state(&below).await.unwrap().is_dirty, Some(true));
    }

    #[tokio::test]
    async fn no_command_of_a_repository_is_run() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        git(path, &["init", "--quiet"]);
        fs::write(path.join("file"), "one\n").unwrap();
        fs::write(path.join(".gitattributes"), "* filter=bad diff=bad\n").unwrap();
        git(path, &["add", "."]);
        git(path, &["commit", "--quiet", "-m", "one"]);
        let ran = path.join("ran");
        let script = format!("touch {}; cat", ran.display());
        for key in [
            "filter.bad.clean",
            "filter.bad.process",
            "diff.bad.textconv",
            "diff.bad.command",
            "diff.external",
        ] {
            git(path, &["config", key, &script]);
        }
        git(path, &["config", "core.fsmonitor", &script]);
        // The same bytes with another time, so that git has to read the file.
        let file = fs::File::options().write(true).open(path.join("file")).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(git_state(path).await.unwrap().is_dirty, Some(false));
        fs::write(path.join("file"), "two\n").unwrap();
        assert_eq!(git_state(path).await.unwrap().is_dirty, Some(true));
        assert!(!ran.exists());
    }
}
