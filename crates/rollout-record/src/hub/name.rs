//! Names of repositories.

use std::{fmt, str::FromStr};

/// The maximum length of a name on the hub, including its owner.
const MAX_CHARS: usize = 96;

/// The name of a repository: `owner/name`, or `name` for a repository of the token's user.
///
/// ```
/// use rollout::hub::RepoName;
///
/// assert!("team/results".parse::<RepoName>().is_ok());
/// assert!("team/../results".parse::<RepoName>().is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepoName {
    owner: Option<String>,
    name: String,
}

/// The text is not a valid repository name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a valid dataset name; use OWNER/NAME with letters, digits, `-`, `_` and `.`, at most 96 characters, \
     no `--` or `..`, and neither `-` nor `.` at an end"
)]
pub struct RepoNameError(String);

impl RepoName {
    /// Creates a valid name from any text. Invalid characters are replaced.
    pub fn tidy(text: &str) -> Self {
        let mut name = String::new();
        for char in text.chars().take(MAX_CHARS) {
            let char = if is_letter(char) { char } else { '-' };
            // Two of these in a row have a special meaning on the hub.
            if !(matches!(char, '-' | '.') && name.ends_with(['-', '.'])) {
                name.push(char);
            }
        }
        let name = name.trim_matches(['-', '.']);
        let name = name.strip_suffix(".git").unwrap_or(name);
        Self { owner: None, name: if is_name(name) { name.to_owned() } else { "rollouts".to_owned() } }
    }

    /// Returns the owner, if the name has one.
    pub fn owner(&self) -> Option<&str> {
        self.owner.as_deref()
    }

    /// Returns the name without its owner.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets the owner if the name has none.
    #[must_use]
    pub fn owned_by(self, owner: &str) -> Self {
        Self { owner: self.owner.or_else(|| Some(owner.to_owned())), ..self }
    }
}

fn is_letter(char: char) -> bool {
    char.is_ascii_alphanumeric() || matches!(char, '-' | '_' | '.')
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.chars().all(is_letter)
        && !text.starts_with(['-', '.'])
        && !text.ends_with(['-', '.'])
        && !text.contains("--")
        && !text.contains("..")
        && !text.ends_with(".git")
}

impl FromStr for RepoName {
    type Err = RepoNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (owner, name) = match text.split_once('/') {
            Some((owner, name)) => (Some(owner), name),
            None => (None, text),
        };
        if text.len() <= MAX_CHARS && owner.is_none_or(is_name) && is_name(name) {
            Ok(Self { owner: owner.map(str::to_owned), name: name.to_owned() })
        } else {
            Err(RepoNameError(text.chars().take(2 * MAX_CHARS).collect()))
        }
    }
}

impl fmt::Display for RepoName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.owner {
            Some(owner) => write!(f, "{owner}/{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::{prop_assert, prop_assert_eq};

    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for text in [
            "",
            "/",
            "a/",
            "/b",
            "a/b/c",
            "..",
            "a/..",
            "../b",
            "a/b..c",
            "a/-b",
            "a/b-",
            "a/.b",
            "a/b--c",
            "a b/c",
            "a/b?c",
            "a/b#c",
            "a/b%2e",
            "a\\b",
            "a/b.git",
            "ü/b",
            "a/b\n",
            &"x".repeat(97),
        ] {
            assert!(text.parse::<RepoName>().is_err(), "{text:?}");
        }
        for text in ["results", "owner/name", "o.w_n-er/n.a-m_e", "0/0"] {
            assert_eq!(text.parse::<RepoName>().unwrap().to_string(), text);
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_can_be_made_a_name(text: String) {
            let name = RepoName::tidy(&text);
            prop_assert_eq!(name.to_string().parse::<RepoName>().unwrap(), name);
        }

        #[test]
        fn a_name_is_its_own_text(text in "[a-z./-]{0,12}") {
            if let Ok(name) = text.parse::<RepoName>() {
                prop_assert_eq!(name.to_string(), text.clone());
                prop_assert!(!text.contains(".."));
            }
        }
    }
}
