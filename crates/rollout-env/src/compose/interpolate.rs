//! Variables in a compose file: `$VAR`, `${VAR}`, `${VAR:-default}`, `${VAR-default}`, `${VAR:+other}`,
//! `${VAR+other}`, `${VAR:?message}`, `${VAR?message}`, and `$$` for a dollar sign.

use rollout_settings::Expanded;

/// Why a text cannot be expanded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unexpanded {
    /// A variable is not set and has no default.
    #[error("the variable `{0}` is not set")]
    Missing(String),
    /// A required variable is not set.
    #[error("the variable `{0}` is required: {1}")]
    Required(String, String),
    /// The text after a `$` is neither a name nor an expression.
    #[error("`{0}` is not a valid use of a variable; write `$$` for a dollar sign")]
    Form(String),
}

/// Replaces the variables in a text. The values of variables are not expanded again; defaults are.
pub(super) fn interpolate(text: &str, vars: &dyn Fn(&str) -> Option<String>) -> Result<Expanded, Unexpanded> {
    let mut expanded = Expanded { text: String::with_capacity(text.len()), variables: Vec::new() };
    insert(text, vars, &mut expanded)?;
    Ok(expanded)
}

fn insert(text: &str, vars: &dyn Fn(&str) -> Option<String>, out: &mut Expanded) -> Result<(), Unexpanded> {
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.text += &rest[..at];
        let after = &rest[at + 1..];
        if let Some(after) = after.strip_prefix('$') {
            out.text.push('$');
            rest = after;
        } else if let Some(inner) = after.strip_prefix('{') {
            let end = closing(inner).ok_or_else(|| Unexpanded::Form(rest[at..].to_owned()))?;
            expression(&inner[..end], vars, out)?;
            rest = &inner[end + 1..];
        } else {
            let length = name_length(after);
            if length == 0 {
                return Err(Unexpanded::Form(rest[at..].to_owned()));
            }
            let name = &after[..length];
            let value = vars(name).ok_or_else(|| Unexpanded::Missing(name.to_owned()))?;
            add(name, value, out);
            rest = &after[length..];
        }
    }
    out.text += rest;
    Ok(())
}

/// The position of the brace that ends an expression, which may contain others.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0;
    for (at, char) in text.char_indices() {
        match char {
            '{' => depth += 1,
            '}' if depth == 0 => return Some(at),
            '}' => depth -= 1,
            _ => {}
        }
    }
    None
}

fn expression(
    inner: &str,
    vars: &dyn Fn(&str) -> Option<String>,
    out: &mut Expanded,
) -> Result<(), Unexpanded> {
    let (name, operation) = inner.split_at(name_length(inner));
    if name.is_empty() {
        return Err(Unexpanded::Form(format!("${{{inner}}}")));
    }
    let value = vars(name);
    let (ignores_empty, operation) = match operation.strip_prefix(':') {
        Some(operation) => (true, operation),
        None => (false, operation),
    };
    let present = value.filter(|value| !ignores_empty || !value.is_empty());
    let mut kind = operation.chars();
    match (kind.next(), present) {
        (None, Some(value)) if !ignores_empty => add(name, value, out),
        (None, None) if !ignores_empty => return Err(Unexpanded::Missing(name.to_owned())),
        (Some('-' | '?'), Some(value)) => add(name, value, out),
        (Some('-'), None) | (Some('+'), Some(_)) => insert(kind.as_str(), vars, out)?,
        (Some('+'), None) => {}
        (Some('?'), None) => {
            return Err(Unexpanded::Required(name.to_owned(), kind.as_str().to_owned()));
        }
        _ => return Err(Unexpanded::Form(format!("${{{inner}}}"))),
    }
    Ok(())
}

fn add(name: &str, value: String, out: &mut Expanded) {
    out.text += &value;
    out.variables.push((name.to_owned(), value));
}

fn name_length(text: &str) -> usize {
    let first = text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    let end = text.find(|char: char| !char.is_ascii_alphanumeric() && char != '_').unwrap_or(text.len());
    if first { end } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(text: &str) -> Result<String, String> {
        let vars = |name: &str| match name {
            "A" => Some("one".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        };
        interpolate(text, &vars).map(|expanded| expanded.text).map_err(|error| error.to_string())
    }

    #[test]
    fn all_forms_of_variables_are_expanded() {
        for (text, expected) in [
            ("plain", "plain"),
            ("$A-${A}", "one-one"),
            ("cost: $$5 $${A}", "cost: $5 ${A}"),
            ("${NO:-two}", "two"),
            ("${EMPTY:-two}${EMPTY-two}", "two"),
            ("${NO:-${A}}", "one"),
            ("${A:+yes}${NO:+yes}${EMPTY+yes}", "yesyes"),
            ("${A:?needed}", "one"),
        ] {
            assert_eq!(expanded(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn a_missing_variable_and_an_unknown_form_are_errors() {
        for (text, expected) in [
            ("${NO}", "the variable `NO` is not set"),
            ("$NO", "the variable `NO` is not set"),
            ("${EMPTY:?set it}", "the variable `EMPTY` is required: set it"),
            ("${A", "`${A` is not a valid use of a variable; write `$$` for a dollar sign"),
            ("5$", "`$` is not a valid use of a variable; write `$$` for a dollar sign"),
            ("${A%x}", "`${A%x}` is not a valid use of a variable; write `$$` for a dollar sign"),
        ] {
            assert_eq!(expanded(text), Err(expected.to_owned()), "{text}");
        }
    }
}
