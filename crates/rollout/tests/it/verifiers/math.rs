//! Answers of mathematics, as the original's MathRubric judges them.

use rollout::model::rubric::math::equal;
use rollout_testkit::Python;
use serde_json::json;

/// Where we judge otherwise: the right answer, the model's, and why. Three of these are among the pairs.
const DIFFERENCES: [(&str, &str, &str); 11] = [
    (r"5\text{ cm}", r"5\text{ m}", "the original drops units; here other units are another answer"),
    ("10 km", "10 miles", "the same"),
    ("10 dollars", r"\$10", "the original reads one as a product of letters; here both are 10"),
    ("1 1/2", "3/2", "the original reads 11/2; here it is a mixed number"),
    (r"\binom52", "10", "the original reads no arguments without braces"),
    (r"8\pi", "8*pi", "the original reads letters in the place of `pi`"),
    ("5.", "5", "the original does not read a number that ends with a point"),
    ("True", "true", "the original reads a value of Python's; here both are a word"),
    ("0<x<1", "(0,1)", "an inequality is not solved here; nor does the original take it for an interval"),
    (r"x \geq 3", r"[3,\infty)", "the same"),
    (r"6.02 \cdot 10^{23}", "602000000000000000000000", "the original rounds the product otherwise"),
];

#[test]
fn answers_are_judged_as_the_original_judges_them() {
    let pairs: Vec<(&str, &str)> =
        include_str!("pairs.txt").lines().map(|line| line.split_once(" ## ").unwrap()).collect();
    assert!(pairs.len() >= 200);
    let known = DIFFERENCES.iter().map(|(answer, response, _)| (*answer, *response));
    let all: Vec<(&str, &str)> = pairs.iter().copied().chain(known).collect();
    let requests: Vec<_> = all
        .iter()
        .map(|(answer, response)| json!({"do": "math", "answer": answer, "response": response}))
        .collect();
    let judged = Python::new().verifiers(&requests);
    let differs: Vec<bool> = all
        .iter()
        .zip(&judged)
        .map(|((answer, response), judged)| equal(response, answer) != (judged.as_f64() == Some(1.0)))
        .collect();

    let (in_pairs, in_table) = differs.split_at(pairs.len());
    let others: Vec<_> =
        pairs.iter().zip(in_pairs).filter(|(_, differs)| **differs).map(|(pair, _)| pair).collect();
    let agreement = 1.0 - others.len() as f64 / pairs.len() as f64;
    assert!(agreement >= 0.98, "{agreement}: {others:?}");
    for pair in others {
        let reason = DIFFERENCES.iter().find(|(answer, response, _)| (*answer, *response) == *pair);
        assert!(reason.is_some(), "no reason for {pair:?}");
    }
    for ((answer, response, _), differs) in DIFFERENCES.iter().zip(in_table) {
        assert!(differs, "no difference any more: {answer} and {response}");
    }
}
