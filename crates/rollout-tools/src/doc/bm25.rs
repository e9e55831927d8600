//! BM25: ranks texts by their relevance to the words of a query.
//!
//! Implemented here because indexes are kept per document and searched together in any combination, which
//! existing libraries do not support.

use std::collections::HashMap;

use crate::resource::{ErrorCode, ToolError};

/// How quickly repetitions of a word stop counting.
const K1: f64 = 1.2;
/// How strongly long texts are penalised.
const B: f64 = 0.75;
/// The longest query, in characters. Each of its words is looked up in every index.
const LONGEST_QUERY: usize = 1000;

/// The approximate memory of a word besides its letters and postings: a map entry with its share of empty ones,
/// and the overhead of two allocations.
const WORD_BYTES: usize = 96;

/// An inverted index of some texts.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// For each word, the texts that contain it and how often.
    postings: HashMap<Box<str>, Vec<(u32, u32)>>,
    lengths: Vec<u32>,
    /// The approximate memory of the postings, counted as they grow.
    posting_bytes: usize,
}

/// A matching text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Hit {
    /// The index that contains it.
    pub(crate) index: usize,
    /// Its number in that index.
    pub(crate) text: usize,
    /// Its score; higher is better.
    pub(crate) score: f64,
}

impl Index {
    /// Adds a text to the index.
    pub(crate) fn add(&mut self, text: &str) {
        let number = self.lengths.len() as u32;
        let mut length = 0;
        for Token { word, counts } in tokens(text) {
            length += u32::from(counts);
            let postings = match self.postings.get_mut(word.as_str()) {
                Some(postings) => postings,
                None => {
                    self.posting_bytes += WORD_BYTES + word.len();
                    self.postings.entry(word.into()).or_default()
                }
            };
            match postings.last_mut() {
                Some((last, times)) if *last == number => *times += 1,
                _ => {
                    let before = postings.capacity();
                    postings.push((number, 1));
                    self.posting_bytes += size_of::<(u32, u32)>() * (postings.capacity() - before);
                }
            }
        }
        self.lengths.push(length);
    }

    /// The approximate memory in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.posting_bytes + size_of::<u32>() * self.lengths.capacity()
    }
}

/// Rejects queries that are too long.
pub(crate) fn check_query(query: &str) -> Result<(), ToolError> {
    if query.chars().count() > LONGEST_QUERY {
        let message = format!("a query has at most {LONGEST_QUERY} characters");
        return Err(ToolError::new(ErrorCode::InvalidInput, message));
    }
    Ok(())
}

/// The texts of several indexes that match a query best, best first. Equal scores keep the order of the texts.
pub(crate) fn search(indexes: &[&Index], query: &str, most: usize) -> Vec<Hit> {
    let count: usize = indexes.iter().map(|index| index.lengths.len()).sum();
    let length: u64 = indexes.iter().flat_map(|index| &index.lengths).map(|length| u64::from(*length)).sum();
    let average = (length as f64 / count.max(1) as f64).max(1.0);
    let mut scores: HashMap<(usize, u32), f64> = HashMap::new();
    for word in query_words(query) {
        let lists: Vec<_> = indexes
            .iter()
            .enumerate()
            .filter_map(|(at, index)| Some((at, index, index.postings.get(word.as_str())?)))
            .collect();
        let with: usize = lists.iter().map(|(_, _, list)| list.len()).sum();
        let rarity = (1.0 + (count as f64 - with as f64 + 0.5) / (with as f64 + 0.5)).ln();
        for (at, index, list) in lists {
            for (text, times) in list {
                let (times, length) = (f64::from(*times), f64::from(index.lengths[*text as usize]));
                let part = times * (K1 + 1.0) / (times + K1 * (1.0 - B + B * length / average));
                *scores.entry((at, *text)).or_default() += rarity * part;
            }
        }
    }
    let mut hits: Vec<_> =
        scores.into_iter().map(|((index, text), score)| Hit { index, text: text as usize, score }).collect();
    hits.sort_by(|a, b| b.score.total_cmp(&a.score).then((a.index, a.text).cmp(&(b.index, b.text))));
    hits.truncate(most);
    hits
}

struct Token {
    word: String,
    /// Whether it counts for the length of its text. A pair of characters does not, because both count
    /// separately.
    counts: bool,
}

/// The tokens of a text. Scripts without spaces give every character and every pair.
fn tokens(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    for run in runs(text) {
        match run {
            Run::Word(word) => tokens.push(Token { word, counts: true }),
            Run::Characters(characters) => {
                tokens.extend(characters.iter().map(|c| Token { word: c.to_string(), counts: true }));
                tokens.extend(
                    characters.windows(2).map(|pair| Token { word: pair.iter().collect(), counts: false }),
                );
            }
        }
    }
    tokens
}

/// The distinct words of a query. Scripts without spaces give pairs, or a single character.
pub(super) fn query_words(query: &str) -> Vec<String> {
    let mut words = Vec::new();
    for run in runs(query) {
        match run {
            Run::Word(word) => words.push(word),
            Run::Characters(characters) if characters.len() == 1 => words.push(characters.iter().collect()),
            Run::Characters(characters) => {
                words.extend(characters.windows(2).map(|pair| pair.iter().collect::<String>()));
            }
        }
    }
    let mut seen = std::collections::HashSet::new();
    words.retain(|word| seen.insert(word.clone()));
    words
}

enum Run {
    Word(String),
    Characters(Vec<char>),
}

fn runs(text: &str) -> Vec<Run> {
    let mut runs = Vec::new();
    for c in text.chars().flat_map(char::to_lowercase) {
        let last = runs.last_mut();
        match (is_unspaced(c), last) {
            (true, Some(Some(Run::Characters(characters)))) => characters.push(c),
            (true, _) => runs.push(Some(Run::Characters(vec![c]))),
            (false, Some(Some(Run::Word(word)))) if c.is_alphanumeric() => word.push(c),
            (false, _) if c.is_alphanumeric() => runs.push(Some(Run::Word(c.to_string()))),
            (false, Some(None)) => {}
            (false, _) => runs.push(None),
        }
    }
    runs.into_iter().flatten().collect()
}

/// Whether a character belongs to a script without spaces: Chinese, Japanese, Thai, Lao, Khmer, Burmese.
pub(super) fn is_unspaced(c: char) -> bool {
    matches!(c,
        '\u{0e00}'..='\u{0eff}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17ff}' | '\u{3005}'..='\u{3007}'
        | '\u{3040}'..='\u{30ff}' | '\u{31f0}'..='\u{31ff}' | '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}'
        | '\u{f900}'..='\u{faff}' | '\u{ff66}'..='\u{ff9f}' | '\u{20000}'..='\u{323af}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn index(texts: &[&str]) -> Index {
        let mut index = Index::default();
        texts.iter().for_each(|text| index.add(text));
        index
    }

    fn found(texts: &[&str], query: &str) -> Vec<usize> {
        search(&[&index(texts)], query, 10).iter().map(|hit| hit.text).collect()
    }

    #[test]
    fn rare_words_and_short_texts_come_first() {
        let texts =
            ["the cat sat on the mat", "the dog", "the cat", "a bird and the cat and the dog and the fish"];
        assert_eq!(found(&texts, "Cat"), [2, 0, 3]);
        assert_eq!(found(&texts, "the bird"), [3, 1, 2, 0]);
        assert_eq!(found(&texts, "horse"), Vec::<usize>::new());
    }

    #[test]
    fn scores_are_those_of_the_formula() {
        // Two texts of lengths 2 and 1; `a` is in both, `b` in one. Calculated by hand.
        let hits = search(&[&index(&["a b", "a"])], "b", 10);
        let rarity = (1.0_f64 + 1.5 / 1.5).ln();
        let want = rarity * 2.2 / (1.0 + 1.2 * (0.25 + 0.75 * 2.0 / 1.5));
        assert!((hits[0].score - want).abs() < 1e-12, "{hits:?}");
    }

    #[test]
    fn chinese_is_found_by_pairs_and_by_single_characters() {
        let texts = ["巴黎是法国的首都", "法院在国内", "黎明"];
        assert_eq!(found(&texts, "法国"), [0]);
        assert_eq!(found(&texts, "黎"), [2, 0]);
        assert_eq!(found(&["GPT4 模型的成本"], "gpt4 成本"), [0]);
    }

    #[test]
    fn equal_texts_keep_their_order() {
        assert_eq!(found(&["same", "same", "same"], "same"), [0, 1, 2]);
    }

    proptest! {
        #[test]
        fn the_distribution_over_indexes_does_not_change_scores(
            texts in proptest::collection::vec("[ab 巴黎]{0,12}", 1..8),
            query in "[ab 巴黎]{0,6}",
            cut in 0_usize..8,
        ) {
            let texts: Vec<_> = texts.iter().map(String::as_str).collect();
            let cut = cut.min(texts.len());
            let whole = search(&[&index(&texts)], &query, 100);
            let parts = search(&[&index(&texts[..cut]), &index(&texts[cut..])], &query, 100);
            let flat: Vec<_> = parts.iter().map(|hit| (hit.index * cut + hit.text, hit.score)).collect();
            prop_assert_eq!(whole.iter().map(|hit| (hit.text, hit.score)).collect::<Vec<_>>(), flat);
        }

        #[test]
        fn hits_have_positive_scores_in_descending_order(text in ".{0,40}", query in ".{0,10}") {
            let hits = search(&[&index(&[&text, &query])], &query, 100);
            prop_assert!(hits.iter().all(|hit| hit.score > 0.0));
            prop_assert!(hits.is_sorted_by(|a, b| a.score >= b.score));
        }
    }
}
