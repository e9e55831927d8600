//! Variable expansion and word splitting as Dockerfiles define them.
//!
//! Pure functions on text: the caller provides the values of variables. The rules are a subset of the shell's:
//! `$NAME`, `${NAME}`, `${NAME:-word}`, `${NAME:+word}`, `${NAME:?word}` and the same without the colon,
//! quotes, and the escape character of the `escape` directive.

use std::iter::Peekable;
use std::str::Chars;

/// Deeper nesting of `${a:-${b:-…}}` is rejected.
const MAX_NESTING: usize = 32;

/// Why a word could not be expanded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ExpandError {
    /// A quote is opened and never closed.
    #[error("a {0} quote is not closed")]
    OpenQuote(char),
    /// `${` without its `}`.
    #[error("`${{` is not closed by `}}`")]
    OpenBrace,
    /// The text between `${` and `}` is not a variable.
    #[error("`${{{0}` does not start with a variable name")]
    BadName(String),
    /// `${NAME/…}` and other unsupported forms.
    #[error("`${{{0}{1}…}}` is not supported; use `-`, `+` or `?`, with or without a colon before it")]
    BadModifier(String, char),
    /// `${NAME:?message}` on a variable that has no value.
    #[error("{name}: {message}")]
    Required { name: String, message: String },
    /// Too many levels of default values inside default values.
    #[error("variables are nested too deeply")]
    TooDeep,
    /// A word of a key-value list has no `=`.
    #[error("`{0}` is not of the form key=value")]
    NoEquals(String),
    /// A key of a key-value list is empty.
    #[error("a name is empty")]
    NoName,
}

/// How the text around variables is treated.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Text {
    /// Quotes are removed, the escape character takes the next character as it is.
    Word,
    /// A here-document: quotes are ordinary characters, only `\$` and the doubled escape are special.
    Raw,
}

/// Expands variables with one escape character and one set of values.
pub(crate) struct Expander<'a> {
    escape: char,
    lookup: &'a dyn Fn(&str) -> Option<String>,
}

impl<'a> Expander<'a> {
    pub(crate) fn new(escape: char, lookup: &'a dyn Fn(&str) -> Option<String>) -> Self {
        Expander { escape, lookup }
    }

    /// Expands one word: variables are replaced, quotes and escapes removed. White space is kept.
    pub(crate) fn word(&self, word: &str) -> Result<String, ExpandError> {
        let mut chars = word.chars().peekable();
        self.until(&mut chars, None, Text::Word, 0)
    }

    /// Expands the variables of a here-document's body.
    pub(crate) fn body(&self, body: &str) -> Result<String, ExpandError> {
        let mut chars = body.chars().peekable();
        self.until(&mut chars, None, Text::Raw, 0)
    }

    fn until(
        &self,
        chars: &mut Peekable<Chars<'_>>,
        stop: Option<char>,
        text: Text,
        depth: usize,
    ) -> Result<String, ExpandError> {
        if depth > MAX_NESTING {
            return Err(ExpandError::TooDeep);
        }
        let mut out = String::new();
        loop {
            let Some(c) = chars.next() else {
                return if stop.is_some() { Err(ExpandError::OpenBrace) } else { Ok(out) };
            };
            match c {
                c if Some(c) == stop => return Ok(out),
                '$' => self.variable(chars, &mut out, text, depth)?,
                c if c == self.escape => match (text, chars.peek().copied()) {
                    (_, None) => out.push(c),
                    (Text::Word, Some(next)) => {
                        chars.next();
                        out.push(next);
                    }
                    (Text::Raw, Some(next)) if next == '$' || next == self.escape => {
                        chars.next();
                        out.push(next);
                    }
                    (Text::Raw, Some(_)) => out.push(c),
                },
                '\'' if text == Text::Word => loop {
                    match chars.next() {
                        Some('\'') => break,
                        Some(inner) => out.push(inner),
                        None => return Err(ExpandError::OpenQuote('\'')),
                    }
                },
                '"' if text == Text::Word => self.double_quoted(chars, &mut out, depth)?,
                c => out.push(c),
            }
        }
    }

    fn double_quoted(
        &self,
        chars: &mut Peekable<Chars<'_>>,
        out: &mut String,
        depth: usize,
    ) -> Result<(), ExpandError> {
        loop {
            match chars.next() {
                None => return Err(ExpandError::OpenQuote('"')),
                Some('"') => return Ok(()),
                Some('$') => self.variable(chars, out, Text::Word, depth)?,
                Some(c) if c == self.escape => match chars.peek().copied() {
                    Some(next) if next == '"' || next == '$' || next == self.escape => {
                        chars.next();
                        out.push(next);
                    }
                    _ => out.push(c),
                },
                Some(c) => out.push(c),
            }
        }
    }

    /// Handles what follows a `$`.
    fn variable(
        &self,
        chars: &mut Peekable<Chars<'_>>,
        out: &mut String,
        text: Text,
        depth: usize,
    ) -> Result<(), ExpandError> {
        if chars.peek() != Some(&'{') {
            let name = name(chars);
            if name.is_empty() {
                out.push('$');
            } else {
                out.push_str(&(self.lookup)(&name).unwrap_or_default());
            }
            return Ok(());
        }
        chars.next();
        let name = name(chars);
        if name.is_empty() {
            let rest: String = chars.clone().take_while(|c| *c != '}').take(20).collect();
            return Err(ExpandError::BadName(rest));
        }
        let value = (self.lookup)(&name);
        let (empty_counts_as_unset, modifier) = match chars.next() {
            None => return Err(ExpandError::OpenBrace),
            Some('}') => {
                out.push_str(&value.unwrap_or_default());
                return Ok(());
            }
            Some(':') => (true, chars.next().ok_or(ExpandError::OpenBrace)?),
            Some(modifier) => (false, modifier),
        };
        let value = value.filter(|value| !empty_counts_as_unset || !value.is_empty());
        if !matches!(modifier, '-' | '+' | '?') {
            return Err(ExpandError::BadModifier(name, modifier));
        }
        let word = self.until(chars, Some('}'), text, depth + 1)?;
        match (modifier, value) {
            ('-', value) => out.push_str(&value.unwrap_or(word)),
            ('+', Some(_)) => out.push_str(&word),
            ('+', None) => {}
            (_, Some(value)) => out.push_str(&value),
            (_, None) => {
                let message = if word.is_empty() { "is required and has no value".to_owned() } else { word };
                return Err(ExpandError::Required { name, message });
            }
        }
        Ok(())
    }

    /// Splits the arguments of `ENV` and `LABEL` into pairs, without expanding them.
    ///
    /// `key value with spaces` is the old form: one pair, whose value is the rest of the line.
    pub(crate) fn pairs(&self, arguments: &str) -> Result<Vec<(String, String)>, ExpandError> {
        let words = self.split(arguments);
        if let Some(first) = words.first()
            && !first.contains('=')
        {
            let rest = arguments.trim_start()[first.len()..].trim();
            if rest.is_empty() {
                return Err(ExpandError::NoEquals(first.clone()));
            }
            return Ok(vec![(first.clone(), rest.to_owned())]);
        }
        words
            .into_iter()
            .map(|word| match word.split_once('=') {
                Some(("", _)) => Err(ExpandError::NoName),
                Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
                None => Err(ExpandError::NoEquals(word)),
            })
            .collect()
    }

    /// Splits at white space outside of quotes; quotes and escapes stay in the words.
    pub(crate) fn split(&self, text: &str) -> Vec<String> {
        let mut words = Vec::new();
        let mut word = String::new();
        let mut quote = None;
        let mut chars = text.chars();
        while let Some(c) = chars.next() {
            match quote {
                None if c.is_whitespace() => {
                    if !word.is_empty() {
                        words.push(std::mem::take(&mut word));
                    }
                    continue;
                }
                None if c == '"' || c == '\'' => quote = Some(c),
                Some(open) if c == open => quote = None,
                _ => {}
            }
            word.push(c);
            if c == self.escape && quote != Some('\'') {
                word.extend(chars.next());
            }
        }
        if !word.is_empty() {
            words.push(word);
        }
        words
    }
}

/// Takes a variable's name: letters, digits and underscores, or digits alone, as in the shell.
fn name(chars: &mut Peekable<Chars<'_>>) -> String {
    let mut name = String::new();
    let digits = chars.peek().is_some_and(char::is_ascii_digit);
    while let Some(c) =
        chars.next_if(|c| if digits { c.is_ascii_digit() } else { c.is_ascii_alphanumeric() || *c == '_' })
    {
        name.push(c);
    }
    name
}

/// Looks a name up in a list of variables.
pub(crate) fn value_of(list: &[(String, String)], name: &str) -> Option<String> {
    list.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone())
}

/// Sets a variable of a list. An existing variable keeps its position.
pub(crate) fn set(list: &mut Vec<(String, String)>, name: String, value: String) {
    match list.iter_mut().find(|(key, _)| *key == name) {
        Some((_, old)) => *old = value,
        None => list.push((name, value)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lookup(name: &str) -> Option<String> {
        match name {
            "A" => Some("alpha".to_owned()),
            "B_2" => Some("two words".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        }
    }

    fn word(text: &str) -> Result<String, ExpandError> {
        Expander::new('\\', &lookup).word(text)
    }

    #[test]
    fn words_expand_as_docker_expands_them() {
        for (text, expected) in [
            ("plain", "plain"),
            ("$A", "alpha"),
            ("${A}", "alpha"),
            ("x${A}y", "xalphay"),
            ("$A/$B_2", "alpha/two words"),
            ("$A-b", "alpha-b"),
            ("$NONE", ""),
            ("${NONE}", ""),
            ("${NONE:-d}", "d"),
            ("${EMPTY:-d}", "d"),
            ("${EMPTY-d}", ""),
            ("${NONE-d}", "d"),
            ("${A:-d}", "alpha"),
            ("${A:+a}", "a"),
            ("${EMPTY:+a}", ""),
            ("${EMPTY+a}", "a"),
            ("${NONE:+a}", ""),
            ("${NONE:-${A}}", "alpha"),
            ("${NONE:-${ALSO:-deep}}", "deep"),
            ("${NONE:-\"a b\"}", "a b"),
            ("${A:?needed}", "alpha"),
            (r"\$A", "$A"),
            (r"\${A}", "${A}"),
            (r"a\ b", "a b"),
            (r"\\", r"\"),
            (r"end\", r"end\"),
            ("'$A'", "$A"),
            (r#""$A""#, "alpha"),
            (r#""\$A \" \x""#, r#"$A " \x"#),
            (r#""it's""#, "it's"),
            ("a'b c'd", "ab cd"),
            ("$", "$"),
            ("100$%", "100$%"),
            ("$1x", "x"),
            ("$Ax", ""),
        ] {
            assert_eq!(word(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn malformed_words_are_reported_with_the_reason() {
        for (text, expected) in [
            ("'a", "a ' quote is not closed"),
            ("\"a", "a \" quote is not closed"),
            ("${A", "`${` is not closed by `}`"),
            ("${A:-x", "`${` is not closed by `}`"),
            ("${}", "`${` does not start with a variable name"),
            ("${A/x/y}", "`${A/…}` is not supported; use `-`, `+` or `?`, with or without a colon before it"),
            ("${NONE:?set it}", "NONE: set it"),
            ("${NONE?}", "NONE: is required and has no value"),
        ] {
            assert_eq!(word(text).map_err(|e| e.to_string()), Err(expected.to_owned()), "{text}");
        }
        let deep = format!("{}{}", "${X:-".repeat(10_000), "}".repeat(10_000));
        assert_eq!(word(&deep), Err(ExpandError::TooDeep));
    }

    #[test]
    fn the_escape_character_can_be_a_backtick() {
        let expander = Expander::new('`', &lookup);
        assert_eq!(expander.word(r"C:\$A`$A"), Ok(r"C:\alpha$A".to_owned()));
    }

    #[test]
    fn a_here_documents_body_keeps_its_quotes() {
        let expander = Expander::new('\\', &lookup);
        assert_eq!(
            expander.body("say \"$A\" 'or ${NONE:-not}' \\$A \\n\n"),
            Ok("say \"alpha\" 'or not' $A \\n\n".to_owned())
        );
    }

    #[test]
    fn pairs_are_split_outside_of_quotes() {
        let pairs = |text: &str| Expander::new('\\', &lookup).pairs(text);
        let owned = |list: &[(&str, &str)]| {
            Ok(list.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect::<Vec<_>>())
        };
        assert_eq!(pairs("A=1 B=2"), owned(&[("A", "1"), ("B", "2")]));
        assert_eq!(
            pairs(r#"A="x y" B=a\ b C='q r'"#),
            owned(&[("A", r#""x y""#), ("B", r"a\ b"), ("C", "'q r'")])
        );
        assert_eq!(pairs("A= B=="), owned(&[("A", ""), ("B", "=")]));
        assert_eq!(pairs("KEY some words"), owned(&[("KEY", "some words")]));
        assert_eq!(pairs("KEY a=b"), owned(&[("KEY", "a=b")]));
        assert_eq!(pairs("A=1 B"), Err(ExpandError::NoEquals("B".to_owned())));
        assert_eq!(pairs("A"), Err(ExpandError::NoEquals("A".to_owned())));
        assert_eq!(pairs("=x"), Err(ExpandError::NoName));
    }

    proptest! {
        #[test]
        fn any_text_expands_or_is_rejected_without_panic(text in "[-$A{}:+?\\\\'\" a0_=`#]{0,40}", tick: bool) {
            let expander = Expander::new(if tick { '`' } else { '\\' }, &lookup);
            let _ = (expander.word(&text), expander.body(&text), expander.pairs(&text));
        }

        #[test]
        fn text_without_special_characters_is_unchanged(text in "[^$'\"\\\\]{0,40}") {
            prop_assert_eq!(word(&text), Ok(text));
        }

        #[test]
        fn an_escaped_text_is_returned_unchanged(text in any::<String>()) {
            let escaped: String = text.chars().flat_map(|c| ['\\', c]).collect();
            prop_assert_eq!(word(&escaped), Ok(text));
        }

        #[test]
        fn a_single_quoted_text_is_literal(text in "[^']{0,40}") {
            prop_assert_eq!(word(&format!("'{text}'")), Ok(text));
        }

        #[test]
        fn a_default_is_used_exactly_when_there_is_no_value(value in proptest::option::of("[a-z]{0,5}"), default in "[a-z]{1,5}") {
            let lookup = |_: &str| value.clone();
            let expander = Expander::new('\\', &lookup);
            let expected = value.clone().filter(|v| !v.is_empty()).unwrap_or_else(|| default.clone());
            prop_assert_eq!(expander.word(&format!("${{V:-{default}}}")), Ok(expected));
        }

        #[test]
        fn splitting_loses_nothing_but_white_space(text in "[ab='\" \\\\]{0,40}") {
            let words = Expander::new('\\', &lookup).split(&text);
            let without = |s: &str| s.chars().filter(|c| !c.is_whitespace()).collect::<String>();
            prop_assert_eq!(without(&words.concat()), without(&text));
        }
    }
}
