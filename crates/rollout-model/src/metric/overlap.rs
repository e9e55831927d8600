//! How much two texts have in common.

use std::{
    collections::{HashMap, HashSet},
    hash::Hash,
};

/// At most this many characters are compared, because the time grows with the product of the lengths.
const MAX_COMPARED: usize = 5_000;

/// The F1 score of two collections: the harmonic mean of precision and recall. Repeated items count as often as both
/// have them. 0 if one is empty.
pub(super) fn f1<T: Eq + Hash>(
    predicted: impl IntoIterator<Item = T>,
    truth: impl IntoIterator<Item = T>,
) -> f64 {
    let (precision, recall) = precision_and_recall(predicted, truth);
    if precision == 0.0 { 0.0 } else { 2.0 * precision * recall / (precision + recall) }
}

/// The share of given items that are correct, and the share of correct items that are given. 0 without common items.
pub(super) fn precision_and_recall<T: Eq + Hash>(
    predicted: impl IntoIterator<Item = T>,
    truth: impl IntoIterator<Item = T>,
) -> (f64, f64) {
    let mut left: HashMap<T, u64> = HashMap::new();
    let mut right = 0_u64;
    for token in truth {
        *left.entry(token).or_default() += 1;
        right += 1;
    }
    let (mut given, mut common) = (0_u64, 0_u64);
    for token in predicted {
        given += 1;
        if let Some(count @ 1..) = left.get_mut(&token) {
            *count -= 1;
            common += 1;
        }
    }
    if common == 0 {
        return (0.0, 0.0);
    }
    (common as f64 / given as f64, common as f64 / right as f64)
}

/// The characters in both texts divided by those in either. 0 if one is empty.
pub(super) fn jaccard(predicted: &str, truth: &str) -> f64 {
    let (predicted, truth): (HashSet<char>, HashSet<char>) =
        (predicted.chars().collect(), truth.chars().collect());
    if predicted.is_empty() || truth.is_empty() {
        return 0.0;
    }
    let common = predicted.intersection(&truth).count();
    common as f64 / (predicted.len() + truth.len() - common) as f64
}

/// One minus the edit distance, relative to the length of the longer text. 1 for two empty texts.
///
/// Common prefixes and suffixes are skipped. Of the rest, the first 5,000 characters are compared; everything after
/// them counts as different.
pub(super) fn edit_similarity(predicted: &str, truth: &str) -> f64 {
    let (predicted, truth): (Vec<char>, Vec<char>) = (predicted.chars().collect(), truth.chars().collect());
    let longer = predicted.len().max(truth.len());
    if longer == 0 {
        return 1.0;
    }
    let start = predicted.iter().zip(&truth).take_while(|(one, other)| one == other).count();
    let (one, other) = (&predicted[start..], &truth[start..]);
    let end = one.iter().rev().zip(other.iter().rev()).take_while(|(one, other)| one == other).count();
    let (one, other) = (&one[..one.len() - end], &other[..other.len() - end]);
    let compared = |text: &[char]| text.iter().take(MAX_COMPARED).collect::<String>();
    let edits = strsim::levenshtein(&compared(one), &compared(other));
    let beyond = one.len().max(other.len()).saturating_sub(MAX_COMPARED);
    1.0 - (edits + beyond) as f64 / longer as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_compared_in_bounded_time() {
        let long = "x".repeat(300_000);
        assert_eq!(edit_similarity(&long, &long), 1.0);
        assert_eq!(edit_similarity(&long, &"y".repeat(300_000)), 0.0);
        assert_eq!(edit_similarity(&format!("{long}a"), &format!("{long}b")), 1.0 - 1.0 / 300_001.0);
    }
}
