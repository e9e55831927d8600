//! Finds the chosen letter in an answer to a multiple-choice question.

use std::sync::LazyLock;

use regex::Regex;

/// The words before the chosen letter, and what may be between them and the letter.
static ANNOUNCED: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = r#"(?i:\b(?:answer|option|choice)\b|答案|选项|选择|选)(?:[\s:=*_"'`(\[【「]|\b(?i:is)\b|应?该?[是为选])*"#;
    Regex::new(pattern).expect("the pattern is constant and tested")
});

/// The letter from A to J that an answer names, in upper case. None if it names no letter, or several.
///
/// The first rule that finds something decides:
///
/// 1. the answer is only a letter, in either case, with brackets, quotes or punctuation around it: `b`, `(B)`, `B.`;
/// 2. the last letter after one of *answer*, *option*, *choice*, 答案, 选项, 选择 or 选: `Answer: B`, `选 B`;
/// 3. the answer starts with a capital letter followed by a closing bracket, a full stop or a colon: `B) Paris`, `B、巴黎`;
/// 4. the only capital letter that stands alone, except the words *A* and *I*: `I think it must be B`.
///
/// Full-width letters and punctuation count as ASCII. Letters in a list, such as `A, C`, count as several.
pub(super) fn letter(text: &str) -> Option<char> {
    let text: String = text.chars().map(half_width).collect();
    let around = |c: char| !c.is_alphanumeric();
    let bare = text.trim_matches(around);
    if let Ok([only]) = <[char; 1]>::try_from(bare.chars().take(2).collect::<Vec<_>>()) {
        return choice(only);
    }
    let announced = ANNOUNCED.find_iter(&text).filter_map(|found| {
        let rest = &text[found.end()..];
        let named = rest.chars().next().filter(|_| stands_alone(rest))?;
        // A lower-case letter is a word unless the clause ends with it.
        let ends = |rest: &str| rest.chars().nth(1).is_none_or(|next| next != ' ' && around(next));
        choice(named).filter(|_| named.is_ascii_uppercase() || ends(rest)).map(|named| (named, rest))
    });
    if let Some((named, rest)) = announced.last() {
        return single(named, rest);
    }
    let start = text.trim_start_matches(around);
    if let Some(named) = start.chars().next().filter(char::is_ascii_uppercase).and_then(choice)
        && start.chars().nth(1).is_some_and(|next| matches!(next, ')' | ']' | '】' | '.' | ':' | '、' | '*'))
    {
        return single(named, start);
    }
    let mut alone = capitals_alone(&text);
    let first = alone.next()?;
    alone.all(|other| other == first).then_some(first)
}

fn choice(c: char) -> Option<char> {
    let upper = c.to_ascii_uppercase();
    matches!(upper, 'A'..='J').then_some(upper)
}

/// Whether the first character of a text is not part of a word. Scripts without spaces put letters between their own.
fn stands_alone(text: &str) -> bool {
    let next = text.chars().nth(1);
    next.is_none_or(|next| !is_of_word(next))
}

fn is_of_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '\'' | '’' | '_') || (c.is_alphabetic() && c < '\u{2e80}')
}

/// The letter that a text starts with, unless it starts with a list of letters.
fn single(named: char, text: &str) -> Option<char> {
    let rest = text.get(1..).unwrap_or_default();
    let joint = rest.trim_start_matches([' ', ')', ']', '】']);
    let joints = [",", "、", "/", "&", "+", "and ", "or ", "和", "与", "或"];
    let another = joints.iter().find_map(|joint_text| joint.strip_prefix(joint_text));
    let another = another.map(|rest| rest.trim_start_matches([' ', '(', '[', '【']));
    let is_list = another.is_some_and(|rest| {
        rest.chars().next().is_some_and(|c| c.is_ascii_uppercase() && choice(c).is_some())
            && stands_alone(rest)
            && !is_word(rest)
    });
    (!is_list).then_some(named)
}

/// The capital letters of a text that are neither words nor parts of words.
fn capitals_alone(text: &str) -> impl Iterator<Item = char> {
    let mut before = None;
    text.char_indices().filter_map(move |(at, c)| {
        let joined = before.replace(c).is_some_and(is_of_word);
        let rest = &text[at..];
        let alone = c.is_ascii_uppercase() && !joined && stands_alone(rest) && !is_word(rest);
        choice(c).filter(|_| alone)
    })
}

/// Whether a text starts with the article or the pronoun rather than with a choice.
fn is_word(text: &str) -> bool {
    let mut rest = text.chars();
    matches!(rest.next(), Some('A' | 'I'))
        && rest.next() == Some(' ')
        && rest.next().is_some_and(|c| c.is_ascii_alphabetic())
}

/// Converts a full-width character to ASCII.
fn half_width(c: char) -> char {
    match c {
        '\u{ff01}'..='\u{ff5e}' => char::from_u32(u32::from(c) - 0xfee0).unwrap_or(c),
        '\u{3000}' => ' ',
        c => c,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_letter_is_found_where_people_and_models_put_it() {
        for (text, expected) in [
            ("B", 'B'),
            ("b", 'B'),
            ("(B)", 'B'),
            ("b)", 'B'),
            ("B.", 'B'),
            ("**B**", 'B'),
            ("Ｂ", 'B'),
            ("（Ｂ）", 'B'),
            ("B）", 'B'),
            ("【B】", 'B'),
            ("\"b\"", 'B'),
            ("Answer: B", 'B'),
            ("answer is b.", 'B'),
            ("The answer is (B) because A is wrong.", 'B'),
            ("The correct answer is **C**.", 'C'),
            ("Option D", 'D'),
            ("Answer: A. No, wait. Answer: B", 'B'),
            ("选 B", 'B'),
            ("选B", 'B'),
            ("我选择B选项", 'B'),
            ("答案是B", 'B'),
            ("答案：Ｂ。", 'B'),
            ("答案应该是 C", 'C'),
            ("B. Paris", 'B'),
            ("B) Paris or A) Rome", 'B'),
            ("B: Paris", 'B'),
            ("B、巴黎", 'B'),
            ("I think it must be B", 'B'),
            ("A man would say C", 'C'),
            ("It can only be J, and J it is", 'J'),
            ("正确的是B，因为", 'B'),
        ] {
            assert_eq!(letter(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn no_letter_or_several_letters_are_not_a_choice() {
        for text in [
            "",
            "Paris",
            "A, C",
            "A、C",
            "A/C",
            "(A) and (C)",
            "AC",
            "Answer: A, C",
            "答案是A和C",
            "between B and C",
            "K",
            "1",
            "an answer is a text",
            "A cat",
            "I am not sure",
            "É",
        ] {
            assert_eq!(letter(text), None, "{text}");
        }
    }
}
