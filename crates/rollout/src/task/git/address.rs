//! Git URLs, commit ids and paths of registries, validated before they are passed to git.
//!
//! A registry is an untrusted file. Git would treat some texts as options, as commands to run (`ext::`), or as paths
//! outside of the repository.

use std::fmt;

/// Longer than any real URL, short enough for a command line.
const MAX_URL_BYTES: usize = 4096;

/// The validated URL of a repository.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::task) struct GitUrl {
    /// Without user and password, because every process on the machine could read them in a command line.
    url: String,
    shown: String,
    local: bool,
    credentials: Option<Credentials>,
}

/// The user and the password in a URL, and their server.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Credentials {
    /// Scheme, host and port.
    pub(super) server: String,
    pub(super) user: String,
    pub(super) password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("server", &self.server).finish_non_exhaustive()
    }
}

/// Why a git URL is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(in crate::task) enum GitUrlError {
    /// It is empty.
    #[error("a git URL cannot be empty")]
    Empty,
    /// It is too long.
    #[error("a git URL can be at most {MAX_URL_BYTES} bytes long")]
    TooLong,
    /// It contains a control character or white space.
    #[error("a git URL cannot contain white space or control characters")]
    Control,
    /// Git would treat it, or a part of it, as an option.
    #[error("no part of a git URL can start with `-`")]
    Option,
    /// Its transport is not supported.
    #[error("unsupported git URL `{0}`; use https, http, ssh, git, or file with an absolute path")]
    Transport(String),
    /// It has no host.
    #[error("the git URL has no host")]
    NoHost,
    /// It is a relative path.
    #[error("the path of a local repository must be absolute")]
    Relative,
}

impl GitUrl {
    pub(in crate::task) fn parse(text: &str) -> Result<Self, GitUrlError> {
        if text.is_empty() {
            return Err(GitUrlError::Empty);
        }
        if text.len() > MAX_URL_BYTES {
            return Err(GitUrlError::TooLong);
        }
        if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(GitUrlError::Control);
        }
        if text.starts_with('-') {
            return Err(GitUrlError::Option);
        }
        if let Some((transport, _)) = text.split_once("::")
            && transport.chars().all(|c| c.is_ascii_alphanumeric() || "+-._".contains(c))
        {
            return Err(GitUrlError::Transport(format!("{transport}::")));
        }
        match text.split_once("://") {
            Some((scheme, rest)) => Self::with_scheme(text, scheme, rest),
            None if text.starts_with('/') => Ok(Self::new(text, text.to_owned(), true)),
            None => Self::scp_like(text),
        }
    }

    fn with_scheme(text: &str, scheme: &str, rest: &str) -> Result<Self, GitUrlError> {
        match scheme {
            "file" if rest.starts_with('/') => Ok(Self::new(text, text.to_owned(), true)),
            "file" => Err(GitUrlError::Relative),
            "https" | "http" | "ssh" | "git" => {
                let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
                let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
                if host.is_empty() || host.starts_with(':') {
                    return Err(GitUrlError::NoHost);
                }
                if host.starts_with('-') || user.starts_with('-') {
                    return Err(GitUrlError::Option);
                }
                // With ssh the user is part of the address; otherwise it is a credential.
                let address = match user.split(':').next() {
                    Some(user) if scheme == "ssh" && !user.is_empty() => format!("{user}@"),
                    _ => String::new(),
                };
                let (name, password) = user.split_once(':').unwrap_or((user, ""));
                let credentials = (scheme.starts_with("http") && !user.is_empty()).then(|| Credentials {
                    server: format!("{scheme}://{host}"),
                    user: decoded(name),
                    password: decoded(password),
                });
                let url = format!("{scheme}://{address}{host}{path}");
                let path = path.split(['?', '#']).next().unwrap_or_default();
                let shown = format!("{scheme}://{address}{host}{path}");
                Ok(Self { credentials, ..Self::new(&url, shown, false) })
            }
            _ => Err(GitUrlError::Transport(format!("{scheme}://"))),
        }
    }

    /// `user@host:path`, which git accesses by ssh.
    fn scp_like(text: &str) -> Result<Self, GitUrlError> {
        let (authority, path) = text.split_once(':').ok_or(GitUrlError::Relative)?;
        if authority.contains('/') {
            return Err(GitUrlError::Relative);
        }
        let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
        if host.is_empty() {
            return Err(GitUrlError::NoHost);
        }
        if host.starts_with('-') || user.starts_with('-') || path.starts_with('-') {
            return Err(GitUrlError::Option);
        }
        Ok(Self::new(text, text.to_owned(), false))
    }

    fn new(text: &str, shown: String, local: bool) -> Self {
        Self { url: text.to_owned(), shown, local, credentials: None }
    }

    /// The URL for git, without credentials.
    pub(super) fn as_str(&self) -> &str {
        &self.url
    }

    /// The user and the password, which are passed to git separately.
    pub(super) fn credentials(&self) -> Option<&Credentials> {
        self.credentials.as_ref()
    }

    /// The URL without credentials.
    pub(in crate::task) fn shown(&self) -> &str {
        &self.shown
    }

    /// Whether the repository is on this machine.
    pub(in crate::task) fn is_local(&self) -> bool {
        self.local
    }
}

/// A part of a URL with its `%` escapes decoded. Line breaks are rejected, because git reads only up to them.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let hex = tail.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        match hex.and_then(|two| u8::from_str_radix(two, 16).ok()).filter(|_| *first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    bytes.retain(|byte| !matches!(byte, b'\n' | b'\r' | 0));
    String::from_utf8_lossy(&bytes).into_owned()
}

impl fmt::Display for GitUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

/// A full commit id, in lower case.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::task) struct CommitId(String);

/// Why a commit id is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(in crate::task) enum CommitIdError {
    /// It is too short to be fetched.
    #[error("a commit id must be complete, with 40 or 64 digits; `git rev-parse <id>` prints it")]
    Abbreviated,
    /// It is something else.
    #[error(
        "a commit id must be 40 or 64 hexadecimal digits; branches and tags are not allowed, because they move"
    )]
    NotACommit,
}

impl CommitId {
    pub(in crate::task) fn parse(text: &str) -> Result<Self, CommitIdError> {
        let hexadecimal = text.bytes().all(|b| b.is_ascii_hexdigit());
        match text.len() {
            40 | 64 if hexadecimal => Ok(Self(text.to_ascii_lowercase())),
            7..64 if hexadecimal => Err(CommitIdError::Abbreviated),
            _ => Err(CommitIdError::NotACommit),
        }
    }

    pub(in crate::task) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for CommitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A directory in a repository: components joined by `/`, none of them special, or empty for the root.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::task) struct RepoPath(String);

/// Why a path in a repository or next to a registry is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(in crate::task) enum RepoPathError {
    /// It starts at the root of the file system.
    #[error("a path cannot be absolute")]
    Absolute,
    /// It contains `..`.
    #[error("a path cannot contain `..`")]
    Parent,
    /// Git would treat it as an option or a pattern.
    #[error("a path cannot start with `-` or `:`")]
    Option,
    /// It leads into git's own files.
    #[error("a path cannot lead into `.git`")]
    GitDir,
    /// It contains a control character.
    #[error("a path cannot contain control characters")]
    Control,
}

impl RepoPath {
    pub(in crate::task) fn root() -> Self {
        Self(String::new())
    }

    pub(in crate::task) fn parse(text: &str) -> Result<Self, RepoPathError> {
        if text.starts_with('/') {
            return Err(RepoPathError::Absolute);
        }
        if text.chars().any(char::is_control) {
            return Err(RepoPathError::Control);
        }
        let parts: Vec<&str> = text.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
        if parts.first().is_some_and(|first| first.starts_with(['-', ':'])) {
            return Err(RepoPathError::Option);
        }
        if parts.contains(&"..") {
            return Err(RepoPathError::Parent);
        }
        if parts.iter().any(|part| part.eq_ignore_ascii_case(".git")) {
            return Err(RepoPathError::GitDir);
        }
        Ok(Self(parts.join("/")))
    }

    pub(in crate::task) fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a path is this one or is below it.
    pub(super) fn contains(&self, other: &Self) -> bool {
        self.0.is_empty()
            || other.0.strip_prefix(&self.0).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

impl std::borrow::Borrow<str> for RepoPath {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RepoPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "." } else { &self.0 })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn usual_git_urls_are_accepted_and_shown_without_credentials() {
        for (text, shown, local) in [
            ("https://example.com/a/b.git", "https://example.com/a/b.git", false),
            ("https://user:token@example.com/b.git", "https://example.com/b.git", false),
            ("https://token@example.com:8443/b.git?key=1#x", "https://example.com:8443/b.git", false),
            ("http://127.0.0.1:80/b", "http://127.0.0.1:80/b", false),
            ("ssh://git@example.com/b", "ssh://git@example.com/b", false),
            ("ssh://git:pw@[::1]:22/b", "ssh://git@[::1]:22/b", false),
            ("git@example.com:a/b.git", "git@example.com:a/b.git", false),
            ("git://example.com/b", "git://example.com/b", false),
            ("file:///srv/b.git", "file:///srv/b.git", true),
            ("/srv/b.git", "/srv/b.git", true),
        ] {
            let url = GitUrl::parse(text).unwrap();
            assert_eq!((url.shown(), url.is_local()), (shown, local));
            for secret in ["token", "pw"] {
                assert!(!url.as_str().contains(secret) && !format!("{url:?}").contains(secret), "{url:?}");
            }
        }
    }

    #[test]
    fn credentials_are_separated_from_the_address() {
        let url = GitUrl::parse("https://a%40b:p%3Aw%0a@example.com:8443/r.git?x=1").unwrap();
        assert_eq!(url.as_str(), "https://example.com:8443/r.git?x=1");
        let expected = Credentials {
            server: "https://example.com:8443".to_owned(),
            user: "a@b".to_owned(),
            password: "p:w".to_owned(),
        };
        assert_eq!(url.credentials(), Some(&expected));
        assert_eq!(GitUrl::parse("ssh://git:pw@example.com/r").unwrap().credentials(), None);
    }

    #[test]
    fn hostile_git_urls_are_rejected() {
        use GitUrlError::*;
        for (text, expected) in [
            ("", Empty),
            ("--upload-pack=touch /tmp/x", Control),
            ("--upload-pack=id", Option),
            ("-oProxyCommand=id", Option),
            ("ext::sh", Transport("ext::".into())),
            ("fd::17", Transport("fd::".into())),
            ("ext::https://example.com/", Transport("ext::".into())),
            ("ftp://example.com/a", Transport("ftp://".into())),
            ("HTTPS://example.com/a", Transport("HTTPS://".into())),
            ("ssh://-oProxyCommand=id/a", Option),
            ("ssh://-x@host/a", Option),
            ("ssh://user@-host/a", Option),
            ("https:///a", NoHost),
            ("https://user@/a", NoHost),
            ("-host:a", Option),
            ("user@-host:a", Option),
            ("host:-a", Option),
            (":a", NoHost),
            ("file://host/a", Relative),
            ("../a", Relative),
            ("a/b:c", Relative),
            ("repository", Relative),
            ("https://example.com/a\nb", Control),
            ("https://example.com/a b", Control),
        ] {
            assert_eq!(GitUrl::parse(text).unwrap_err(), expected, "{text:?}");
        }
        assert_eq!(GitUrl::parse(&format!("/{}", "a".repeat(4096))).unwrap_err(), TooLong);
    }

    #[test]
    fn only_full_commit_ids_are_accepted() {
        let id = "69671FBAAC6D67A7EF0DFEC016CC38A64EF7A77C";
        assert_eq!(CommitId::parse(id).unwrap().as_str(), id.to_ascii_lowercase());
        assert!(CommitId::parse(&"a1".repeat(32)).is_ok());
        for (text, expected) in [
            ("69671fb", CommitIdError::Abbreviated),
            ("main", CommitIdError::NotACommit),
            ("v1.0", CommitIdError::NotACommit),
            ("", CommitIdError::NotACommit),
            ("abc", CommitIdError::NotACommit),
            ("--help", CommitIdError::NotACommit),
            ("HEAD", CommitIdError::NotACommit),
        ] {
            assert_eq!(CommitId::parse(text).unwrap_err(), expected, "{text:?}");
        }
    }

    #[test]
    fn hostile_paths_are_rejected() {
        use RepoPathError::*;
        for (text, expected) in [
            ("/etc", Absolute),
            ("../a", Parent),
            ("a/../../b", Parent),
            ("a/..", Parent),
            ("-a", Option),
            (":(exclude)a", Option),
            ("./-a", Option),
            ("a/.git/hooks", GitDir),
            (".GIT", GitDir),
            ("a\0b", Control),
            ("a\nb", Control),
        ] {
            assert_eq!(RepoPath::parse(text).unwrap_err(), expected, "{text:?}");
        }
        for (text, expected) in [("", ""), (".", ""), ("a//b/./c/", "a/b/c"), ("..a/b..", "..a/b..")] {
            assert_eq!(RepoPath::parse(text).unwrap().as_str(), expected);
        }
    }

    proptest! {
        #[test]
        fn an_accepted_path_never_leaves_its_root(text in "[./a:\\-\\\\]{0,12}") {
            if let Ok(path) = RepoPath::parse(&text) {
                prop_assert!(std::path::Path::new(path.as_str())
                    .components()
                    .all(|part| matches!(part, std::path::Component::Normal(_))));
                prop_assert_eq!(RepoPath::parse(path.as_str()).ok(), Some(path));
            }
        }

        #[test]
        fn no_text_makes_the_checks_panic(text in ".{0,64}") {
            let _ = GitUrl::parse(&text);
            let _ = RepoPath::parse(&text);
            let _ = CommitId::parse(&text);
        }
    }
}
