//! Addresses of datasets: `git+URL@revision#path`, `hf:owner/name/config:split@revision`, and `name@version`.

use std::{fmt, str::FromStr};

use rollout_record::hub::RepoName;

/// The prefix of addresses in git repositories.
const GIT: &str = "git+";

/// The prefix of addresses on a hub.
const HUB: &str = "hf:";

/// Longer than any real name of a configuration, split or revision.
const MAX_PART: usize = 200;

/// A directory of tasks in a git repository: `git+URL[@revision][#path]`.
///
/// ```
/// use rollout::config::GitAddress;
///
/// let address: GitAddress = "git+https://example.com/team/tasks.git@v1.2#easy/sums".parse()?;
/// assert_eq!((address.url.as_str(), address.path.as_str()), ("https://example.com/team/tasks.git", "easy/sums"));
/// assert_eq!(address.revision.as_deref(), Some("v1.2"));
/// # Ok::<(), rollout::config::AddressError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GitAddress {
    /// The URL of the repository, without credentials.
    pub url: String,
    /// A commit, a branch or a tag; the default branch when absent.
    pub revision: Option<String>,
    /// The directory in the repository; empty for all of it.
    pub path: String,
}

/// Rows of a dataset on a hub: `hf:owner/name[/config][:split][@revision]`.
///
/// ```
/// use rollout::config::HubAddress;
///
/// let address: HubAddress = "hf:openai/gsm8k/main:test@refs/convert/parquet".parse()?;
/// assert_eq!(address.repo.to_string(), "openai/gsm8k");
/// assert_eq!((address.config.as_deref(), address.split.as_deref()), (Some("main"), Some("test")));
/// # Ok::<(), rollout::config::AddressError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubAddress {
    /// The dataset, with its owner.
    pub repo: RepoName,
    /// Its configuration; the default one when absent.
    pub config: Option<String>,
    /// The split; the only one when absent, or `test`.
    pub split: Option<String>,
    /// A commit, a branch or a tag; `main` when absent.
    pub revision: Option<String>,
}

/// A dataset of a registry: `name[@version]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedDataset {
    /// Its name.
    pub name: String,
    /// Its version; the newest one when absent.
    pub version: Option<String>,
}

/// Why a text is not the address of a dataset.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// It does not start with the prefix of its kind.
    #[error("{0} does not start with `{1}`")]
    Prefix(String, &'static str),
    /// The repository of a hub has no owner, or an invalid name.
    #[error("{0} does not name a dataset: write hf:OWNER/NAME[/CONFIG][:SPLIT][@REVISION]")]
    Repo(String),
    /// A part is empty, too long, or has other characters.
    #[error("the {part} in {address} must be letters, digits, `-`, `_`, `.`, and `/` between them")]
    Part {
        /// The part.
        part: &'static str,
        /// The address.
        address: String,
    },
    /// The URL of a git repository is missing.
    #[error("{0} has no URL of a repository: write git+https://HOST/REPOSITORY[@REVISION][#PATH]")]
    NoUrl(String),
    /// The URL has a password, which would be recorded.
    #[error("the URL {0} must not contain a password or a token, because it is recorded")]
    Password(String),
}

impl AddressError {
    /// A suggestion for the user.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Password(_) => Some("configure a credential helper of git for this server"),
            _ => None,
        }
    }
}

/// Whether a text is an address in a git repository.
pub fn is_git_address(text: &str) -> bool {
    text.starts_with(GIT)
}

/// Whether a text is an address on a hub.
pub fn is_hub_address(text: &str) -> bool {
    text.starts_with(HUB)
}

impl FromStr for GitAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let rest = text.strip_prefix(GIT).ok_or_else(|| AddressError::Prefix(format!("`{text}`"), GIT))?;
        let (rest, path) = rest.split_once('#').unwrap_or((rest, ""));
        // An `@` before the path belongs to the user of the server. Without a scheme, the path follows a colon.
        let start = match rest.find("://") {
            Some(at) => rest[at + 3..].find('/').map_or(rest.len(), |slash| at + 3 + slash),
            None => rest.find(['/', ':']).unwrap_or(rest.len()),
        };
        let (url, revision) = match rest[start..].find('@') {
            Some(at) => (&rest[..start + at], Some(&rest[start + at + 1..])),
            None => (rest, None),
        };
        if url.is_empty() {
            return Err(AddressError::NoUrl(format!("`{text}`")));
        }
        if let Some((scheme, rest)) = url.split_once("://")
            && let Some((user, host)) =
                rest.split('/').next().and_then(|authority| authority.rsplit_once('@'))
            && (scheme.starts_with("http") || user.contains(':'))
        {
            return Err(AddressError::Password(format!("{scheme}://…@{host}")));
        }
        let revision = revision.map(|revision| part("revision", revision, text)).transpose()?;
        Ok(Self { url: url.to_owned(), revision, path: path.to_owned() })
    }
}

impl fmt::Display for GitAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { url, revision, path } = self;
        write!(f, "{GIT}{url}")?;
        revision.iter().try_for_each(|revision| write!(f, "@{revision}"))?;
        if path.is_empty() { Ok(()) } else { write!(f, "#{path}") }
    }
}

impl FromStr for HubAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let rest = text.strip_prefix(HUB).ok_or_else(|| AddressError::Prefix(format!("`{text}`"), HUB))?;
        let (rest, revision) = match rest.split_once('@') {
            Some((rest, revision)) => (rest, Some(part("revision", revision, text)?)),
            None => (rest, None),
        };
        let (rest, split) = match rest.split_once(':') {
            Some((rest, split)) => (rest, Some(part("split", split, text)?)),
            None => (rest, None),
        };
        let mut words = rest.splitn(3, '/');
        let (owner, name, config) = (words.next(), words.next(), words.next());
        let repo = owner.zip(name).and_then(|(owner, name)| format!("{owner}/{name}").parse().ok());
        let repo = repo.ok_or_else(|| AddressError::Repo(format!("`{text}`")))?;
        let config = config.map(|config| part("configuration", config, text)).transpose()?;
        Ok(Self { repo, config, split, revision })
    }
}

impl fmt::Display for HubAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { repo, config, split, revision } = self;
        write!(f, "{HUB}{repo}")?;
        config.iter().try_for_each(|config| write!(f, "/{config}"))?;
        split.iter().try_for_each(|split| write!(f, ":{split}"))?;
        revision.iter().try_for_each(|revision| write!(f, "@{revision}"))
    }
}

impl From<&str> for NamedDataset {
    /// The last `@` separates the version.
    fn from(text: &str) -> Self {
        match text.rsplit_once('@') {
            Some((name, version)) if !name.is_empty() && !version.is_empty() => {
                Self { name: name.to_owned(), version: Some(version.to_owned()) }
            }
            _ => Self { name: text.to_owned(), version: None },
        }
    }
}

fn part(part: &'static str, text: &str, address: &str) -> Result<String, AddressError> {
    let is_letter = |char: char| char.is_ascii_alphanumeric() || "-_.+/".contains(char);
    let is_valid = !text.is_empty()
        && text.len() <= MAX_PART
        && text.chars().all(is_letter)
        && !text.starts_with('-')
        && text.split('/').all(|word| !word.is_empty() && word != "." && word != "..");
    match is_valid {
        true => Ok(text.to_owned()),
        false => Err(AddressError::Part { part, address: format!("`{address}`") }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written_back() {
        for text in [
            "git+https://example.com/a/b.git",
            "git+https://example.com/a/b@main",
            "git+https://example.com/a/b@feature/x#tasks/easy",
            "git+ssh://git@example.com/a@v1",
            "git+git@example.com:a/b@v1#x",
            "git+file:///srv/a.git#x",
        ] {
            assert_eq!(text.parse::<GitAddress>().unwrap().to_string(), text);
        }
        for text in [
            "hf:openai/gsm8k",
            "hf:openai/gsm8k/main",
            "hf:openai/gsm8k:test",
            "hf:openai/gsm8k/main:test@refs/convert/parquet",
        ] {
            assert_eq!(text.parse::<HubAddress>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn the_revision_is_found_behind_the_host() {
        let address: GitAddress = "git+ssh://git@example.com/a/b@v1".parse().unwrap();
        assert_eq!(
            (address.url.as_str(), address.revision.as_deref()),
            ("ssh://git@example.com/a/b", Some("v1"))
        );
        let address: GitAddress = "git+git@example.com:a/b".parse().unwrap();
        assert_eq!((address.url.as_str(), address.revision), ("git@example.com:a/b", None));
    }

    #[test]
    fn hostile_and_incomplete_addresses_are_rejected() {
        for text in
            ["git+", "git+https://h/a@", "git+https://h/a@-x", "git+https://h/a@a b", "git+https://h/a@../b"]
        {
            assert!(text.parse::<GitAddress>().is_err(), "{text}");
        }
        for text in [
            "hf:",
            "hf:gsm8k",
            "hf:a/..",
            "hf:a/b/",
            "hf:a/b:",
            "hf:a/b@",
            "hf:a/b:x y",
            "hf:a/b/../c",
            "hf:a/b@a%2e",
        ] {
            assert!(text.parse::<HubAddress>().is_err(), "{text}");
        }
    }

    #[test]
    fn passwords_in_git_urls_are_rejected_without_showing_them() {
        for text in ["git+https://user:secret@h/a", "git+https://secret@h/a", "git+ssh://git:secret@h/a"] {
            let error = text.parse::<GitAddress>().unwrap_err();
            assert!(
                matches!(error, AddressError::Password(_)) && !error.to_string().contains("secret"),
                "{error}"
            );
        }
    }

    #[test]
    fn the_version_of_a_name_follows_the_last_at_sign() {
        let named = |text: &str| {
            let NamedDataset { name, version } = text.into();
            (name, version)
        };
        assert_eq!(named("terminal-bench@2.0"), ("terminal-bench".to_owned(), Some("2.0".to_owned())));
        assert_eq!(named("terminal-bench"), ("terminal-bench".to_owned(), None));
        assert_eq!(named("x@"), ("x@".to_owned(), None));
    }
}
