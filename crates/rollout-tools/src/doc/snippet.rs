//! The part of a text that shows why it matches.

use super::bm25::query_words;

/// The number of characters before the first match.
const BEFORE: usize = 60;

/// The part of a text with the first word of the query, at most `most` characters, on one line.
pub(crate) fn snippet(text: &str, query: &str, most: usize) -> String {
    let text: Vec<char> = text.split_whitespace().collect::<Vec<_>>().join(" ").chars().collect();
    let lower: Vec<char> = text.iter().map(|c| c.to_lowercase().next().unwrap_or(*c)).collect();
    let words: Vec<Vec<char>> = query_words(query).iter().map(|word| word.chars().collect()).collect();
    let is_found = |at: &usize| words.iter().any(|word| lower[*at..].starts_with(word));
    let first = (0..lower.len()).find(is_found).unwrap_or(0);
    let start = first.saturating_sub(BEFORE).min(text.len().saturating_sub(most));
    let end = (start + most).min(text.len());
    let part: String = text[start..end].iter().collect();
    let (before, after) = (if start > 0 { "…" } else { "" }, if end < text.len() { "…" } else { "" });
    format!("{before}{}{after}", part.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_the_query_are_shown() {
        let text = format!("{} The Seine\nflows. {}", "before ".repeat(50), "after ".repeat(50));
        assert_eq!(
            snippet(&text, "SEINE", 100),
            "…before before before before before before before before The Seine flows. after after after after aft…"
        );
        assert_eq!(snippet("short", "nothing", 100), "short");
        assert_eq!(snippet("", "x", 100), "");
    }
}
