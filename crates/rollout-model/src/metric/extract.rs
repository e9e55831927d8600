//! Finds the final answer in the text of a model.

use std::sync::LazyLock;

use regex::{Regex, RegexBuilder};

use super::normal::strip;

/// The phrases before an answer, in order of precedence. Each pattern has one group: the answer.
///
/// `S` stands for Python's white space, and `I` for the characters that Python treats as a case-insensitive *i*.
const ANNOUNCED: [&str; 3] = [
    r"(?:fInal answer|answer Is|the answer Is|answer:)S*[:-]?S*(.+?)(?:\n|\z)",
    r"(?:therefore|thus|so|hence),?S+(?:the answer IsS+)?(.+?)(?:\.|\n?\z)",
    r"\*\*answer\*\*:?S*(.+?)(?:\n|\z)",
];

static PATTERNS: LazyLock<[Regex; 3]> = LazyLock::new(|| {
    ANNOUNCED.map(|pattern| {
        let pattern = pattern.replace('S', r"[\s\x1c-\x1f]").replace('I', "[iİı]");
        let pattern = RegexBuilder::new(&pattern).case_insensitive(true).build();
        pattern.expect("the patterns are constant and tested")
    })
});

/// The answer in a text: what follows the first matching phrase, or the last non-empty line.
///
/// Three kinds of phrases are tried, in this order and in any case: "final answer", "answer is" or "answer:" up to the
/// end of the line; "therefore", "thus", "so" or "hence" up to the next full stop; `**Answer**` up to the end of the
/// line. They may be parts of words. A full stop at the end of the answer is removed.
///
/// ```
/// use rollout::model::metric::extract_final_answer;
///
/// assert_eq!(extract_final_answer("I looked it up.\n**Final answer**: 42\nDone."), "**: 42");
/// assert_eq!(extract_final_answer("Hence, the answer is 42. Done."), "42. Done");
/// assert_eq!(extract_final_answer("It is here:\n  Paris \n\n"), "Paris");
/// ```
pub fn extract_final_answer(text: &str) -> String {
    let announced = PATTERNS.iter().find_map(|pattern| pattern.captures(text)?.get(1));
    if let Some(answer) = announced {
        let answer = strip(answer.as_str());
        return strip(answer.strip_suffix('.').unwrap_or(answer)).to_owned();
    }
    text.split('\n').map(strip).rfind(|line| !line.is_empty()).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_phrase_of_the_first_kind_wins() {
        for (text, answer) in [
            ("So, 3.5 is it", "3"),
            ("Also, sofas are nice.", "sofas are nice"),
            ("answer: a\nFinal Answer: b", "a"),
            ("The answer is: Paris.", "Paris"),
            ("The answer is: x .", "x"),
            ("the ANSWER IS - 42", "42"),
            ("final answer\n\n 7 \nend", "7"),
            ("**Answer**: 12", "12"),
            ("**answer** twelve\nmore", "twelve"),
            ("Thus the answer is 9", "9"),
            ("therefore x\nends. here", "ends. here"),
            ("hence it is 5\n", "it is 5"),
            ("hence it is 5\n\n", "hence it is 5"),
            ("first\n last line \n \n", "last line"),
            ("answer:", "answer:"),
            ("answer: ", ""),
            ("answer:\u{1c}x", "x"),
            ("anſwer İs y", "y"),
            ("Two dots..", "Two dots.."),
            ("answer: two dots..", "two dots."),
            ("", ""),
            (" \n ", ""),
            ("答案：巴黎", "答案：巴黎"),
        ] {
            assert_eq!(extract_final_answer(text), answer, "{text:?}");
        }
    }
}
