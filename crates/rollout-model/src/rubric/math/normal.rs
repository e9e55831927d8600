//! Normalises the notation of answers.

/// A normalised answer, with the text around the mathematics separated.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Normal {
    /// The mathematics: LaTeX without typography. Spaces remain only between letters and digits; `⦃` and `⦄` are the
    /// braces of sets.
    pub(super) text: String,
    /// A unit at the end, in lower case.
    pub(super) unit: String,
    /// Whether there was a percent sign at the end.
    pub(super) is_percent: bool,
    /// The variable that the answer assigns, as in `x = 5`.
    pub(super) name: Option<char>,
}

impl Normal {
    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty()
    }
}

/// Whether a text is a number with thousands separators.
pub(in crate::rubric) fn has_thousands(text: &str) -> bool {
    let whole = text.split_once('.').map_or(text, |(whole, _)| whole);
    let whole = whole.strip_prefix(['-', '+']).unwrap_or(whole);
    let mut groups = whole.split(',');
    let all_digits = |group: &str| group.bytes().all(|byte| byte.is_ascii_digit());
    let head = groups.next().unwrap_or_default();
    whole.contains(',')
        && (1..=3).contains(&head.len())
        && all_digits(head)
        && groups.all(|group| group.len() == 3 && all_digits(group))
}

pub(super) fn normal(answer: &str) -> Normal {
    let (spelled, mut unit) = spell(answer.trim().trim_end_matches('.'));
    let mut text = spelled.split_whitespace().collect::<Vec<_>>().join(" ");
    // Alternatives joined by "or", and items joined by "and", are a list.
    if text.starts_with(|c: char| !c.is_alphabetic()) || text.contains(['=', '±']) {
        text = text.replace(" or ", ", ").replace(" and ", ", ");
    }
    if unit.is_empty()
        && let Some((number, word)) = trailing_words(&text)
    {
        unit = word.to_lowercase();
        text.truncate(number.len());
    }
    let is_percent = text.ends_with('%');
    let text = text.trim_end_matches(['%', ' ']);
    let (name, text) = named(text);
    let text = if has_thousands(text) { text.replace(',', "") } else { text.to_owned() };
    let is_words =
        text.split(' ').all(|word| word.chars().count() > 1 && word.chars().all(char::is_alphabetic));
    let text = if is_words { text.to_lowercase() } else { tight(&text) };
    Normal { text, unit: unit.trim().to_lowercase(), is_percent, name }
}

/// The variable that an answer assigns, and the rest.
pub(super) fn named(text: &str) -> (Option<char>, &str) {
    match text.split_once(['=', '∈']) {
        Some((name, value)) if !value.contains(['=', '∈']) => match one_letter(name.trim()) {
            Some(letter) => (Some(letter), value.trim()),
            None => (None, text),
        },
        _ => (None, text),
    }
}

fn greek(name: &str) -> Option<char> {
    const LETTERS: [(&str, char); 14] = [
        ("pi", 'π'),
        ("alpha", 'α'),
        ("beta", 'β'),
        ("gamma", 'γ'),
        ("delta", 'δ'),
        ("epsilon", 'ε'),
        ("theta", 'θ'),
        ("lambda", 'λ'),
        ("mu", 'μ'),
        ("rho", 'ρ'),
        ("sigma", 'σ'),
        ("phi", 'φ'),
        ("varphi", 'φ'),
        ("omega", 'ω'),
    ];
    LETTERS.iter().find(|(known, _)| *known == name).map(|(_, letter)| *letter)
}

fn one_letter(text: &str) -> Option<char> {
    let mut chars = text.chars();
    chars.next().filter(|c| c.is_alphabetic() && chars.next().is_none())
}

/// A number and the words after it, which are its unit. A single letter is a variable.
fn trailing_words(text: &str) -> Option<(&str, &str)> {
    // The terms of these follow their limits.
    if [r"\int", r"\sum", r"\prod"].iter().any(|sign| text.contains(sign)) {
        return None;
    }
    let last = text.rfind(|c: char| c.is_ascii_digit() || matches!(c, '}' | ')' | '%'))?;
    let (number, words) = text.split_at(last + 1);
    let unit = words.strip_prefix(' ')?;
    let is_word = |word: &str| word.chars().all(char::is_alphabetic);
    (unit.chars().count() > 1 && unit.split(' ').all(is_word)).then_some((number, unit))
}

/// Keeps spaces only between words or numbers.
fn tight(text: &str) -> String {
    let mut tight = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let joins = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
        if c != ' ' || (joins(tight.chars().next_back()) && joins(chars.peek().copied())) {
            tight.push(c);
        }
    }
    tight
}

/// Removes typography and normalises signs. A `\text{…}` after something is a unit.
fn spell(answer: &str) -> (String, String) {
    let (mut text, mut unit) = (String::with_capacity(answer.len()), String::new());
    let mut rest = answer;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        match c {
            '\\' => rest = command(rest, &mut text, &mut unit),
            '$' | '~' => text.push(' '),
            '{' if rest.starts_with(",}") => rest = &rest[2..],
            '^' if rest.starts_with(r"\circ") => rest = &rest[5..],
            '^' if rest.starts_with(r"{\circ}") => rest = &rest[7..],
            '°' => {}
            '−' | '–' => text.push('-'),
            '×' | '·' | '⋅' => text.push('*'),
            '÷' => text.push('/'),
            c => text.push(c),
        }
    }
    (text, unit)
}

/// Normalises a command after a backslash, and returns the rest.
fn command<'a>(rest: &'a str, text: &mut String, unit: &mut String) -> &'a str {
    let end = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
    let (name, after) = rest.split_at(end);
    match name {
        "" => {
            let Some(c) = rest.chars().next() else { return rest };
            match c {
                '{' => text.push('⦃'),
                '}' => text.push('⦄'),
                '%' => text.push('%'),
                '\\' => text.push_str(r"\\"),
                // Thin spaces and brackets of formulas.
                _ => text.push(' '),
            }
            return &rest[c.len_utf8()..];
        }
        "left" | "right" | "displaystyle" | "quad" | "qquad" => text.push(' '),
        "dfrac" | "tfrac" | "cfrac" | "frac" => text.push_str(r"\frac"),
        "times" | "cdot" => text.push('*'),
        "div" => text.push('/'),
        "infty" => text.push('∞'),
        "lvert" | "rvert" | "vert" => text.push('|'),
        "lfloor" => text.push('⌊'),
        "rfloor" => text.push('⌋'),
        "lceil" => text.push('⌈'),
        "rceil" => text.push('⌉'),
        "pm" => text.push('±'),
        "cup" => text.push('∪'),
        "le" | "leq" | "leqslant" => text.push('≤'),
        "ge" | "geq" | "geqslant" => text.push('≥'),
        "lt" => text.push('<'),
        "gt" => text.push('>'),
        "in" => text.push('∈'),
        "equiv" => text.push('='),
        "emptyset" | "varnothing" => text.push_str("⦃⦄"),
        // The modulus of a congruence is not part of the number.
        "pmod" => {
            let modulus = after.strip_prefix('{').and_then(|inner| inner.split_once('}'));
            return modulus.map_or(after, |(_, after)| after);
        }
        "text" | "textbf" | "textrm" | "mathrm" | "mathbf" | "mbox" => {
            let inner = after.strip_prefix('{').and_then(|inner| inner.split_once('}'));
            let Some((inner, after)) = inner else { return after };
            if ["or", "and"].contains(&inner.trim()) {
                text.push(',');
                return after;
            }
            let place = if text.trim().is_empty() { text } else { unit };
            place.push_str(inner);
            return after;
        }
        name => match greek(name) {
            Some(letter) => text.push(letter),
            None => {
                text.push('\\');
                text.push_str(name);
            }
        },
    }
    after
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typography_is_removed() {
        for (answer, text) in [
            (r"\left( 1 , 2 \right)", "(1,2)"),
            (r"\dfrac{1}{2}", r"\frac{1}{2}"),
            ("1 1/2", "1 1/2"),
            (r"x \times y", "x*y"),
            (r"\leftarrow", r"\leftarrow"),
            (r"\{1\}", "⦃1⦄"),
            ("New  York", "new york"),
            ("1,234", "1234"),
            ("1,23", "1,23"),
        ] {
            assert_eq!(normal(answer).text, text, "{answer}");
        }
    }

    #[test]
    fn units_percent_signs_and_variables_are_separated() {
        let parts = |answer| {
            let Normal { text, unit, is_percent, name } = normal(answer);
            (text, unit, is_percent, name)
        };
        assert_eq!(parts(r"5\text{ CM}"), ("5".into(), "cm".into(), false, None));
        assert_eq!(parts("5 square meters"), ("5".into(), "square meters".into(), false, None));
        assert_eq!(parts("5 m"), ("5 m".into(), String::new(), false, None));
        assert_eq!(parts(r"x = 50 \%"), ("50".into(), String::new(), true, Some('x')));
        assert_eq!(parts("x=y=2"), ("x=y=2".into(), String::new(), false, None));
    }

    #[test]
    fn thousands_come_in_threes() {
        for (text, expected) in [
            ("1,234", true),
            ("-12,345.6", true),
            ("1234", false),
            ("1,23", false),
            ("1234,567", false),
            (",123", false),
        ] {
            assert_eq!(has_thousands(text), expected, "{text}");
        }
    }
}
