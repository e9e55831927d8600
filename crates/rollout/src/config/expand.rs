//! Expands `${VAR}` and decides which values are secret.

use super::EnvValue;
use crate::record::redact::{MASK, MIN_SECRET_BYTES};

/// Why a text cannot be expanded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExpandError {
    /// The variable is not set and has no default.
    #[error("the variable `{0}` is not set")]
    Missing(String),
    /// A `${` has no `}`.
    #[error("a `${{` is not closed")]
    Unclosed,
    /// What stands between the braces is neither a name nor a name with a default.
    #[error("`${{{0}}}` is not understood")]
    Form(String),
}

impl ExpandError {
    /// What to do about it.
    pub fn hint(&self) -> String {
        match self {
            Self::Missing(name) => format!("set it, or write `${{{name}:-default}}`"),
            Self::Unclosed => "close it with `}`".to_owned(),
            Self::Form(_) => "write `${NAME}` or `${NAME:-default}`".to_owned(),
        }
    }
}

/// A text after expansion.
#[derive(Clone, PartialEq, Eq)]
pub struct Expanded {
    /// The text.
    pub text: String,
    /// The variables whose values went into it, with those values.
    pub variables: Vec<(String, String)>,
}

enum Piece<'t> {
    Literal(&'t str),
    Variable { name: &'t str, default: Option<&'t str> },
}

fn pieces(text: &str) -> impl Iterator<Item = Result<Piece<'_>, ExpandError>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let Some(inner) = rest.strip_prefix("${") else {
            let end = rest.find("${").unwrap_or(rest.len());
            let (literal, after) = rest.split_at(end);
            rest = after;
            return Some(Ok(Piece::Literal(literal)));
        };
        let Some(end) = inner.find('}') else {
            rest = "";
            return Some(Err(ExpandError::Unclosed));
        };
        rest = &inner[end + 1..];
        let inner = &inner[..end];
        let (name, default) = match inner.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (inner, None),
        };
        let valid = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
            && name.chars().all(|char| char.is_ascii_alphanumeric() || char == '_');
        Some(if valid {
            Ok(Piece::Variable { name, default })
        } else {
            Err(ExpandError::Form(inner.to_owned()))
        })
    })
}

/// Replaces `${VAR}` and `${VAR:-default}`; everything else, `$VAR` and `$$` too, stays as it is.
///
/// The default takes the place of a variable that is not set or empty, as in a shell.
pub fn expand(text: &str, vars: &dyn Fn(&str) -> Option<String>) -> Result<Expanded, ExpandError> {
    let mut expanded = Expanded { text: String::with_capacity(text.len()), variables: Vec::new() };
    for piece in pieces(text) {
        match piece? {
            Piece::Literal(literal) => expanded.text += literal,
            Piece::Variable { name, default } => match (vars(name), default) {
                (Some(value), None) => {
                    expanded.text += &value;
                    expanded.variables.push((name.to_owned(), value));
                }
                (Some(value), Some(_)) if !value.is_empty() => {
                    expanded.text += &value;
                    expanded.variables.push((name.to_owned(), value));
                }
                (_, Some(default)) => expanded.text += default,
                (None, None) => return Err(ExpandError::Missing(name.to_owned())),
            },
        }
    }
    Ok(expanded)
}

/// Expands the value of an environment variable and decides whether it is secret.
pub fn env_value(
    key: &str,
    written: &str,
    vars: &dyn Fn(&str) -> Option<String>,
) -> Result<EnvValue, ExpandError> {
    let expanded = expand(written, vars)?;
    let secret = is_secret(key, &expanded);
    Ok(EnvValue { value: expanded.text, secret })
}

/// Whether the expanded value of a key must not appear in any output.
pub(super) fn is_secret(key: &str, expanded: &Expanded) -> bool {
    let names = || std::iter::once(key).chain(expanded.variables.iter().map(|(name, _)| name.as_str()));
    if expanded.text.is_empty() {
        return false;
    }
    if names().any(names_a_secret) {
        return true;
    }
    let from_outside = expanded.variables.iter().any(|(_, value)| value.len() >= MIN_SECRET_BYTES);
    from_outside && (!names().any(names_something_public) || has_password(&expanded.text))
}

/// The text as a record may keep it: `${VAR}` as written, and what is literal masked where the key
/// names a secret.
pub(super) fn recorded(key: &str, written: &str) -> String {
    if !names_a_secret(key) || written.is_empty() {
        return written.to_owned();
    }
    let mut out = String::new();
    for piece in pieces(written) {
        match piece {
            Ok(Piece::Variable { name, default: None | Some("") }) => out += &format!("${{{name}}}"),
            Ok(Piece::Variable { name, .. }) => out += &format!("${{{name}:-{MASK}}}"),
            Ok(Piece::Literal(_)) | Err(_) => out += MASK,
        }
    }
    out
}

fn words(name: &str) -> impl Iterator<Item = String> {
    name.split(|char: char| !char.is_ascii_alphanumeric()).map(str::to_ascii_uppercase)
}

/// Whether a key or variable of this name holds a secret, whatever its value looks like.
pub(super) fn names_a_secret(name: &str) -> bool {
    const SECRET: [&str; 11] = [
        "KEY",
        "APIKEY",
        "TOKEN",
        "SECRET",
        "PASSWORD",
        "PASSWD",
        "PASSPHRASE",
        "CREDENTIAL",
        "CREDENTIALS",
        "PAT",
        "PWD",
    ];
    // The shell's working directory is the one PWD that is no password.
    name != "PWD"
        && name != "OLDPWD"
        && words(name).any(|word| {
            SECRET.contains(&word.as_str())
                || ["APIKEY", "TOKEN", "SECRET", "PASSWORD"].iter().any(|end| word.ends_with(end))
        })
}

/// Whether a key or variable of this name is worth reading in logs.
fn names_something_public(name: &str) -> bool {
    const PUBLIC: [&str; 26] = [
        "MODEL", "MODELS", "URL", "URI", "HOST", "HOSTNAME", "PORT", "ENDPOINT", "NAME", "REGION", "ZONE",
        "PROVIDER", "VERSION", "PATH", "HOME", "DIR", "USER", "LANG", "LEVEL", "MODE", "TZ", "SHELL", "TERM",
        "EFFORT", "TOKENS", "TIMEOUT",
    ];
    words(name).any(|word| PUBLIC.contains(&word.as_str()))
}

/// Whether a URL in the text carries a password.
fn has_password(text: &str) -> bool {
    text.split("://").skip(1).any(|rest| {
        let authority = rest.split(['/', '?', '#', ' ']).next().unwrap_or_default();
        authority.rsplit_once('@').is_some_and(|(user, _)| user.contains(':'))
    })
}
