use proptest::prelude::*;

use super::*;

#[test]
fn answers_are_normalised_step_by_step() {
    for (answer, normal) in [
        ("the answer is: Paris!!", ": paris"),
        ("FINAL ANSWER: The answer is 42", "the answer is 42"),
        ("so, thus, therefore, a", "thus, therefore, a"),
        ("thus, so, a", "a"),
        ("x ?!;:,.", "x"),
        ("a\u{3000}b", "a b"),
        ("", ""),
        ("  ", ""),
        ("answer: answer: x", "answer: x"),
        ("The answer is answer: final answer: therefore, thus, so, x.", "x"),
        ("a. .", "a."),
        ("\u{1c}a\u{1d}\u{1e}b\u{1f}", "a b"),
        ("\u{85}a\u{a0}b\u{2028}", "a b"),
        ("a\u{200b}b", "a\u{200b}b"),
        ("ΟΔΟΣ", "οδος"),
        ("İ", "i\u{307}"),
        ("巴黎。", "巴黎。"),
        ("巴黎！", "巴黎！"),
        ("the answer isParis", "paris"),
        ("...", ""),
    ] {
        assert_eq!(normalize_answer(answer), normal, "{answer:?}");
    }
}

/// Computed by hand from the definitions.
#[test]
fn each_metric_follows_its_definition() {
    use Metric::{
        CharF1, ContainsAnswer, EditSimilarity, ExactMatch, F1Score, MathEqual, MultipleChoice, NumericMatch,
        Similarity,
    };
    for (metric, predicted, truth, score) in [
        (ExactMatch, "", "", 1.0),
        (ExactMatch, "42", "42.0", 0.0),
        (ExactMatch, "巴黎", "巴黎。", 0.0),
        (ExactMatch, "The answer is Paris.", "paris", 1.0),
        (ExactMatch, "...", "", 1.0),
        (F1Score, "", "", 0.0),
        (F1Score, "a", "", 0.0),
        (F1Score, "", "a", 0.0),
        (F1Score, "巴黎是法国的首都", "巴黎", 0.0),
        (F1Score, "Paris, France", "Paris", 0.0),
        (F1Score, "a a b", "a b b", 2.0 / 3.0),
        (F1Score, "the the the", "the", 0.5),
        (F1Score, "Paris France", "Paris", 2.0 / 3.0),
        (F1Score, "x y", "y x", 1.0),
        (ContainsAnswer, "", "", 1.0),
        (ContainsAnswer, "anything", "", 1.0),
        (ContainsAnswer, "", "a", 0.0),
        (ContainsAnswer, "It is in PARIS, France", "Paris.", 1.0),
        (ContainsAnswer, "巴黎是法国的首都", "巴黎", 1.0),
        (NumericMatch, "no number", "1", 0.0),
        (NumericMatch, "1", "no number", 0.0),
        (NumericMatch, "", "", 0.0),
        (NumericMatch, "99", "100", 1.0),
        (NumericMatch, "98.9", "100", 0.0),
        (NumericMatch, "101", "100", 1.0),
        (NumericMatch, "100", "99", 0.0),
        (NumericMatch, "١٢", "12", 1.0),
        (NumericMatch, "1,000", "1000", 0.0),
        (NumericMatch, "0.0000005", "0", 1.0),
        (NumericMatch, "0.00001", "0", 0.0),
        (NumericMatch, "It is 405, or so", "405", 1.0),
        (NumericMatch, "-5", "5", 0.0),
        (NumericMatch, "2020-01-05", "5", 0.0),
        (Similarity, "", "", 0.0),
        (Similarity, "a", "", 0.0),
        (Similarity, "abc", "cab", 1.0),
        (Similarity, "kitten", "sitting", 3.0 / 7.0),
        (Similarity, "Paris, France", "Paris", 5.0 / 11.0),
        (CharF1, "", "", 1.0),
        (CharF1, "a", "", 0.0),
        (CharF1, "", "a", 0.0),
        // 2 of 8 and 2 of 2.
        (CharF1, "巴黎是法国的首都", "巴黎", 0.4),
        (CharF1, "北 京", "北京", 1.0),
        (CharF1, "aab", "abb", 2.0 / 3.0),
        (EditSimilarity, "", "", 1.0),
        (EditSimilarity, "a", "", 0.0),
        (EditSimilarity, "kitten", "sitting", 1.0 - 3.0 / 7.0),
        (EditSimilarity, "Kitten!", "kitten", 1.0),
        (EditSimilarity, "巴黎", "巴黎市", 1.0 - 1.0 / 3.0),
        (MathEqual, r"\frac{1}{2}", "0.5", 1.0),
        (MathEqual, r"It is \boxed{x^2-1}", "(x-1)(x+1)", 1.0),
        (MathEqual, "3", "3.1", 0.0),
        (MathEqual, "", "", 0.0),
        (MultipleChoice, "(B)", "b", 1.0),
        (MultipleChoice, "选 Ｂ", "B. 巴黎", 1.0),
        (MultipleChoice, "A", "B", 0.0),
        (MultipleChoice, "Paris", "Paris", 0.0),
    ] {
        let found = metric.score(predicted, truth).unwrap();
        assert_eq!(found, score, "{metric} of {predicted:?} and {truth:?}");
    }
    assert_eq!(Metric::LlmJudgement.score("a", "a"), None);
}

#[test]
fn metrics_are_known_by_their_names() {
    for metric in Metric::ALL {
        assert_eq!(metric.as_str().parse(), Ok(metric));
        assert_eq!(serde_json::to_value(metric).unwrap(), metric.as_str());
        assert_eq!(serde_json::from_value::<Metric>(metric.as_str().into()).unwrap(), metric);
    }
    let refused = |name: &str| name.parse::<Metric>().unwrap_err().to_string();
    insta::assert_snapshot!(refused("exact_mach"), @r#"unknown metric "exact_mach"; did you mean `exact_match`?"#);
    insta::assert_snapshot!(refused("f1"), @r#"unknown metric "f1"; did you mean `f1_score`?"#);
    insta::assert_snapshot!(refused("bleu"), @r#"unknown metric "bleu"; known metrics: exact_match, f1_score, contains_answer, numeric_match, llm_judgement, similarity, char_f1, edit_similarity, math_equal, multiple_choice"#);
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[ab .,!?\u{1c}\u{3000}巴黎]{0,12}",
        r"(The answer is |answer: |so, )?[-]?[0-9]{0,3}[.]?[0-9]{0,2} ?[A-D]?",
        "\\PC{0,30}",
    ]
}

fn plain() -> impl Strategy<Value = Metric> {
    proptest::sample::select(&Metric::ALL[..])
        .prop_filter("a judge needs a model", |metric| *metric != Metric::LlmJudgement)
}

proptest! {
    #[test]
    fn scores_are_from_0_to_1(metric in plain(), predicted in text(), truth in text()) {
        let score = metric.score(&predicted, &truth).unwrap();
        prop_assert!((0.0..=1.0).contains(&score), "{metric}: {score}");
    }

    #[test]
    fn symmetric_metrics_do_not_depend_on_the_order_of_answers(one in text(), other in text()) {
        use Metric::{CharF1, EditSimilarity, ExactMatch, F1Score, MathEqual, MultipleChoice, Similarity};
        for metric in [ExactMatch, F1Score, Similarity, CharF1, EditSimilarity, MathEqual, MultipleChoice] {
            prop_assert_eq!(metric.score(&one, &other), metric.score(&other, &one), "{}", metric);
        }
    }

    #[test]
    fn a_text_agrees_fully_with_itself(text in text()) {
        let normal = normalize_answer(&text);
        for metric in [Metric::ExactMatch, Metric::ContainsAnswer, Metric::CharF1, Metric::EditSimilarity] {
            prop_assert_eq!(metric.score(&text, &text), Some(1.0), "{}", metric);
        }
        for metric in [Metric::F1Score, Metric::Similarity] {
            prop_assert_eq!(metric.score(&text, &text), Some(f64::from(!normal.is_empty())), "{}", metric);
        }
        let has_number = numeric::numbers(&text).any(f64::is_finite);
        prop_assert_eq!(Metric::NumericMatch.score(&text, &text), Some(f64::from(has_number)));
    }

    #[test]
    fn equal_answers_are_equal_for_all_metrics(one in text(), other in text()) {
        if normalize_answer(&one) == normalize_answer(&other) {
            for metric in [Metric::ContainsAnswer, Metric::CharF1, Metric::EditSimilarity] {
                prop_assert_eq!(metric.score(&one, &other), Some(1.0), "{}", metric);
            }
        }
    }

    #[test]
    fn words_may_come_in_any_order(words in proptest::collection::vec("[a-c]{1,2}", 0..8), truth in "[a-c ]{0,10}") {
        let (there, back) = (words.join(" "), words.iter().rev().cloned().collect::<Vec<_>>().join(" "));
        for metric in [Metric::F1Score, Metric::Similarity, Metric::CharF1] {
            prop_assert_eq!(metric.score(&there, &truth), metric.score(&back, &truth), "{}", metric);
        }
    }

    #[test]
    fn sorting_finds_the_same_numbers_as_trying_all_pairs(predicted in "[-.0-9 ]{0,24}", truth in "[-.0-9 ]{0,16}") {
        let close = |given: f64, right: f64| {
            (given - right).abs() <= 1e-6 || (right != 0.0 && ((given - right) / right).abs() <= 0.01)
        };
        let found = numeric::numbers(&truth)
            .any(|right| numeric::numbers(&predicted).any(|given| close(given, right)));
        prop_assert_eq!(Metric::NumericMatch.score(&predicted, &truth), Some(f64::from(found)));
    }

    #[test]
    fn normalised_answers_have_single_spaces_and_no_final_punctuation(text in text()) {
        let normal = normalize_answer(&text);
        prop_assert!(!normal.contains("  ") && normal.trim() == normal);
        prop_assert_eq!(&normal.to_lowercase(), &normal);
    }

    #[test]
    fn an_extracted_answer_is_part_of_the_text(text in text()) {
        prop_assert!(text.contains(&extract_final_answer(&text)));
    }
}
