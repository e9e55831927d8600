//! A part of a text that a model can read at once.

use super::bm25::is_unspaced;

/// The default number of tokens. With a note about the rest it stays below the 4000 characters of a tool's
/// result that models are shown.
pub(super) const TOKENS: usize = 900;
/// The most tokens that can be requested.
pub(super) const MOST_TOKENS: usize = 50_000;

/// A part of a text.
#[derive(Debug, PartialEq)]
pub(super) struct Page {
    /// The part, with a note if it is not the whole text.
    pub(super) text: String,
    /// The first character of the next page, if there is one.
    pub(super) next: Option<usize>,
}

/// The part of a text that starts at a character and has about this many tokens: a quarter for each character,
/// and one for each character of a script without spaces.
pub(super) fn page(text: &str, start: usize, tokens: usize) -> Page {
    let total = text.chars().count();
    let mut quarters = tokens.max(1) * 4;
    let fits = |c: &char| {
        let costs = if is_unspaced(*c) { 4 } else { 1 };
        let fits = quarters >= costs;
        quarters = quarters.saturating_sub(costs);
        fits
    };
    let part: String = text.chars().skip(start).take_while(fits).collect();
    let end = start.min(total) + part.chars().count();
    if start == 0 && end == total {
        return Page { text: part, next: None };
    }
    let note = if end < total { format!("; continue with start={end}") } else { String::new() };
    Page {
        text: format!("{part}\n(characters {} to {end} of {total}{note})", start.min(total)),
        next: (end < total).then_some(end),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_long_text_reports_where_to_continue() {
        let first = page("abcdefgh", 0, 1);
        assert_eq!(first.text, "abcd\n(characters 0 to 4 of 8; continue with start=4)");
        assert_eq!(
            page("abcdefgh", 4, 1),
            Page { text: "efgh\n(characters 4 to 8 of 8)".to_owned(), next: None }
        );
        assert_eq!(page("abcd", 0, 1).text, "abcd");
        assert_eq!(page("巴黎", 0, 1).next, Some(1));
    }

    proptest! {
        #[test]
        fn consecutive_pages_are_the_whole_text(text in "[a巴\n]{0,60}", tokens in 1_usize..10) {
            let (mut whole, mut start) = (String::new(), Some(0));
            while let Some(at) = start {
                let Page { text: part, next } = page(&text, at, tokens);
                whole.push_str(part.rsplit_once("\n(characters").map_or(part.as_str(), |(part, _)| part));
                prop_assert!(next.is_none_or(|next| next > at));
                start = next;
            }
            prop_assert_eq!(whole, text);
        }
    }
}
