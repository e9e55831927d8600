//! Files with variables.

/// The lines of a file with variables: `KEY=value`, or `KEY` without a value. Each has its number. Comments and empty
/// lines are skipped.
pub fn env_lines(text: &str) -> impl Iterator<Item = (usize, &str, Option<&str>)> {
    text.lines().enumerate().filter_map(|(place, line)| {
        let line = line.trim();
        let line = line.strip_prefix("export ").unwrap_or(line).trim_start();
        if line.is_empty() || line.starts_with('#') {
            return None;
        }
        let Some((key, value)) = line.split_once('=') else { return Some((place + 1, line, None)) };
        Some((place + 1, key.trim_end(), Some(without_quotes(value.trim()))))
    })
}

/// A value without the quotes around it. A value without quotes ends before a comment.
fn without_quotes(value: &str) -> &str {
    let quoted = ['"', '\''].into_iter().find_map(|quote| {
        let inner = value.strip_prefix(quote)?;
        let (text, rest) = inner.split_once(quote)?;
        inner.strip_suffix(quote).or_else(|| rest.trim_start().starts_with('#').then_some(text))
    });
    quoted.unwrap_or_else(|| value.split(" #").next().unwrap_or_default().trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_with_variables_have_comments_quotes_and_names_alone() {
        let text =
            "# comment\nA=1\nexport B=\"two # words\"\n\nC\nD=x # note\nE=a=b\nF=a#b\nG=\"x\" # note\n";
        let found: Vec<_> = env_lines(text).collect();
        let expected = [
            (2, "A", Some("1")),
            (3, "B", Some("two # words")),
            (5, "C", None),
            (6, "D", Some("x")),
            (7, "E", Some("a=b")),
            (8, "F", Some("a#b")),
            (9, "G", Some("x")),
        ];
        assert_eq!(found, expected);
    }
}
