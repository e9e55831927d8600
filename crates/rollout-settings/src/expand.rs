//! Expands `${VAR}` and decides which values are secret.

use indexmap::IndexMap;

use rollout_core::redact::{MASK, MIN_SECRET_BYTES};

/// Why a text cannot be expanded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExpandError {
    /// The variable is not set and has no default.
    #[error("the variable `{0}` is not set")]
    Missing(String),
    /// A `${` has no `}`.
    #[error("a `${{` is not closed")]
    Unclosed,
    /// The text between the braces is neither a name nor a name with a default.
    #[error("`${{{0}}}` is invalid")]
    Form(String),
}

impl ExpandError {
    /// How to fix it.
    pub fn hint(&self) -> String {
        match self {
            Self::Missing(name) => {
                format!("set it in your environment, or write a default value: `${{{name}:-default}}`")
            }
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
    /// The variables that were inserted, with their values.
    pub variables: Vec<(String, String)>,
}

impl Expanded {
    /// The names of the variables that were inserted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.variables.iter().map(|(name, _)| name.as_str())
    }

    /// Whether the text must not appear in any output when it is the value of this key.
    pub fn is_secret(&self, key: &str) -> bool {
        let names = || std::iter::once(key).chain(self.names());
        if self.text.is_empty() {
            return false;
        }
        if names().any(names_a_secret) || has_password(&self.text) {
            return true;
        }
        let from_outside = self.variables.iter().any(|(_, value)| value.len() >= MIN_SECRET_BYTES);
        from_outside && !names().any(names_something_public)
    }

    /// The values to mask if the text is secret: all of it, and each secret variable.
    pub fn secrets(&self) -> impl Iterator<Item = String> {
        let public = |name: &str| names_something_public(name) && !names_a_secret(name);
        let variables = self.variables.iter().filter(move |(name, _)| !public(name)).map(|(_, value)| value);
        variables.chain([&self.text]).filter(|value| !value.is_empty()).cloned()
    }
}

/// Variables in the order in which they were written.
pub type Env = IndexMap<String, EnvValue>;

/// The value of a variable after `${VAR}` expansion.
#[derive(Clone, PartialEq, Eq)]
pub struct EnvValue {
    /// The value for scripts.
    pub value: String,
    /// Whether the value must not appear in any output.
    pub secret: bool,
}

impl std::fmt::Debug for EnvValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.secret { "<secret>" } else { &self.value })
    }
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

/// Replaces `${VAR}` and `${VAR:-default}`; everything else, including `$VAR` and `$$`, is kept.
///
/// The default replaces a variable that is unset or empty, as in a shell.
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
    let secret = expanded.is_secret(key);
    Ok(EnvValue { value: expanded.text, secret })
}

/// The text for a record: `${VAR}` as written, and literal values masked if the key names a secret or a URL
/// contains one.
pub fn recorded(key: &str, written: &str) -> String {
    if written.is_empty() || !names_a_secret(key) {
        return mask_users(written);
    }
    let mut out = String::new();
    for piece in pieces(written) {
        match piece {
            Ok(Piece::Variable { name, default: None }) => out += &format!("${{{name}}}"),
            Ok(Piece::Variable { name, default: Some("") }) => out += &format!("${{{name}:-}}"),
            Ok(Piece::Variable { name, .. }) => out += &format!("${{{name}:-{MASK}}}"),
            Ok(Piece::Literal(_)) | Err(_) => out += MASK,
        }
    }
    out
}

/// Masks `user:password@` in URLs, unless it is written with variables.
fn mask_users(text: &str) -> String {
    let mut parts = text.split("://");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        out += "://";
        match user_of(part) {
            Some(user) if !user.contains("${") => {
                out += MASK;
                out += &part[user.len()..];
            }
            _ => out += part,
        }
    }
    out
}

/// The `user:password` after `://`.
fn user_of(rest: &str) -> Option<&str> {
    let authority = rest.split(['/', '?', '#', ' ']).next().unwrap_or_default();
    authority.rsplit_once('@').map(|(user, _)| user)
}

fn words(name: &str) -> impl Iterator<Item = String> {
    name.split(|char: char| !char.is_ascii_alphanumeric()).map(str::to_ascii_uppercase)
}

/// Whether a key or variable of this name contains a secret, whatever its value.
pub fn names_a_secret(name: &str) -> bool {
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
    // The shell's working directory is the only PWD that is not a password.
    name != "PWD"
        && name != "OLDPWD"
        && words(name).any(|word| {
            SECRET.contains(&word.as_str())
                || ["APIKEY", "TOKEN", "SECRET", "PASSWORD"].iter().any(|end| word.ends_with(end))
        })
}

/// Whether the value of a header must not appear in any output, whatever it looks like.
pub fn is_secret_header(name: &str) -> bool {
    ["authorization", "proxy-authorization", "cookie"].iter().any(|secret| name.eq_ignore_ascii_case(secret))
        || names_a_secret(name)
}

/// Whether a key or variable of this name is useful in logs.
fn names_something_public(name: &str) -> bool {
    const PUBLIC: [&str; 26] = [
        "MODEL", "MODELS", "URL", "URI", "HOST", "HOSTNAME", "PORT", "ENDPOINT", "NAME", "REGION", "ZONE",
        "PROVIDER", "VERSION", "PATH", "HOME", "DIR", "USER", "LANG", "LEVEL", "MODE", "TZ", "SHELL", "TERM",
        "EFFORT", "TOKENS", "TIMEOUT",
    ];
    words(name).any(|word| PUBLIC.contains(&word.as_str()))
}

/// Whether a URL in the text contains a password.
pub fn has_password(text: &str) -> bool {
    text.split("://").skip(1).any(|rest| user_of(rest).is_some_and(|user| user.contains(':')))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn vars(name: &str) -> Option<String> {
        match name {
            "OPENAI_API_KEY" => Some("sk-0123456789".to_owned()),
            "PLAIN" => Some("0123456789".to_owned()),
            "SHORT" => Some("1234567".to_owned()),
            "MODEL" => Some("claude-sonnet-4-5".to_owned()),
            "DATABASE_URL" => Some("postgres://me:hunter22@db/x".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        }
    }

    #[test]
    fn braces_are_expanded_and_nothing_else_is() {
        for (text, expected) in [
            ("${MODEL}", Ok("claude-sonnet-4-5")),
            ("a ${MODEL} b ${SHORT}", Ok("a claude-sonnet-4-5 b 1234567")),
            ("${NONE:-fallback}", Ok("fallback")),
            ("${NONE:-}", Ok("")),
            ("${EMPTY:-fallback}", Ok("fallback")),
            ("${EMPTY}", Ok("")),
            ("${MODEL:-fallback}", Ok("claude-sonnet-4-5")),
            ("${NONE:-a:-b}", Ok("a:-b")),
            ("$MODEL $$ $(x) {MODEL}", Ok("$MODEL $$ $(x) {MODEL}")),
            ("$${MODEL}", Ok("$claude-sonnet-4-5")),
            ("", Ok("")),
            ("${NONE}", Err(ExpandError::Missing("NONE".to_owned()))),
            ("${MODEL", Err(ExpandError::Unclosed)),
            ("${}", Err(ExpandError::Form(String::new()))),
            ("${MODEL-x}", Err(ExpandError::Form("MODEL-x".to_owned()))),
            ("${MODEL:?x}", Err(ExpandError::Form("MODEL:?x".to_owned()))),
            ("${1X}", Err(ExpandError::Form("1X".to_owned()))),
        ] {
            let found = expand(text, &vars).map(|expanded| expanded.text);
            assert_eq!(found, expected.map(str::to_owned), "{text:?}");
        }
    }

    #[test]
    fn a_value_is_secret_by_its_source_and_by_its_name() {
        for (key, written, secret) in [
            ("OPENAI_API_KEY", "${OPENAI_API_KEY}", true),
            ("WHATEVER", "${PLAIN}", true),
            ("WHATEVER", "${SHORT}", false),
            ("WHATEVER", "prefix-${SHORT}", false),
            ("WHATEVER", "${NONE:-a-long-default}", false),
            ("MODEL", "${MODEL}", false),
            ("AGENT_MODEL_NAME", "${PLAIN}", false),
            ("BASE_URL", "${PLAIN}", false),
            ("MODEL", "${OPENAI_API_KEY}", true),
            ("URL", "${DATABASE_URL}", true),
            ("URL", "postgres://me:literal@db/x", true),
            ("URL", "https://example.org/a:b@c", false),
            ("MAX_TOKENS", "${PLAIN}", false),
            ("GITHUB_TOKEN", "literal", true),
            ("githubToken", "literal", true),
            ("DB_PASSWORD", "x", true),
            ("DB_PASSWORD", "", false),
            ("KEYBOARD", "a literal layout", false),
            ("MONKEY", "a literal animal", false),
            ("PWD", "/some/directory", false),
            ("NAME", "a literal name", false),
        ] {
            assert_eq!(env_value(key, written, &vars).unwrap().secret, secret, "{key}={written}");
        }
    }

    #[test]
    fn the_record_keeps_variables_and_masks_literals() {
        for (key, written, expected) in [
            ("API_KEY", "${OPENAI_API_KEY}", "${OPENAI_API_KEY}"),
            ("API_KEY", "sk-literal", "[redacted]"),
            ("API_KEY", "Bearer ${OPENAI_API_KEY}", "[redacted]${OPENAI_API_KEY}"),
            ("API_KEY", "${X:-sk-literal}", "${X:-[redacted]}"),
            ("API_KEY", "${X:-}", "${X:-}"),
            ("API_KEY", "", ""),
            ("MODEL", "gpt-${X:-5}", "gpt-${X:-5}"),
            ("url", "https://me:token@host/x@y", "https://[redacted]@host/x@y"),
            ("url", "https://${USER_TOKEN}@host/", "https://${USER_TOKEN}@host/"),
        ] {
            assert_eq!(recorded(key, written), expected, "{key}={written}");
        }
    }

    #[test]
    fn a_secret_is_masked_completely_and_by_variable() {
        let expanded = expand("Bearer ${OPENAI_API_KEY} ${MODEL}", &vars).unwrap();
        let secrets: Vec<String> = expanded.secrets().collect();
        assert_eq!(secrets, ["sk-0123456789", "Bearer sk-0123456789 claude-sonnet-4-5"]);
    }

    proptest! {
        #[test]
        fn text_without_braces_is_unchanged(text in "[^{]*") {
            prop_assert_eq!(expand(&text, &vars).map(|expanded| expanded.text), Ok(text));
        }

        #[test]
        fn any_text_is_expanded_or_rejected(text in r"(\$|\{|\}|:-|[A-Z]|\PC){0,30}") {
            let _ = expand(&text, &vars);
            let record = recorded("API_KEY", &format!("hunter22-{text}"));
            prop_assert!(!record.contains("hunter22"));
        }

        #[test]
        fn a_value_is_not_expanded_again(value in r"\PC{0,20}") {
            let found = expand("<${X}>", &|_| Some(value.clone())).map(|expanded| expanded.text);
            prop_assert_eq!(found, Ok(format!("<{value}>")));
        }
    }
}
