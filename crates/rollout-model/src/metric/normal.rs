//! Normalises answers, and defines white space as Python does.

/// Phrases before an answer. Each is removed once, in this order.
const PREFIXES: [&str; 6] = ["the answer is", "answer:", "final answer:", "therefore,", "thus,", "so,"];

/// White space between words: that of Unicode, and the four ASCII separators that Python includes.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

pub(super) fn strip(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// An answer in lower case, without introductory phrases and final punctuation, with single spaces.
///
/// The steps, in order: convert to lower case and trim; remove the phrases "the answer is", "answer:", "final answer:",
/// "therefore,", "thus," and "so," from the start, each once and in this order; remove `.,;:!?` (only these six) from
/// the end; replace each run of white space by one space.
///
/// ```
/// use rollout::model::metric::normalize_answer;
///
/// assert_eq!(normalize_answer(" Final Answer:  New\tYork!! "), "new york");
/// assert_eq!(normalize_answer("the answer is: Paris"), ": paris");
/// assert_eq!(normalize_answer("巴黎。"), "巴黎。");
/// ```
pub fn normalize_answer(answer: &str) -> String {
    let lower = answer.to_lowercase();
    let mut rest = strip(&lower);
    for prefix in PREFIXES {
        rest = rest.strip_prefix(prefix).map_or(rest, strip);
    }
    let rest = rest.trim_end_matches(['.', ',', ';', ':', '!', '?']);
    let mut words = rest.split(is_space).filter(|word| !word.is_empty());
    let mut normal = String::with_capacity(rest.len());
    normal.push_str(words.next().unwrap_or_default());
    for word in words {
        normal.push(' ');
        normal.push_str(word);
    }
    normal
}
