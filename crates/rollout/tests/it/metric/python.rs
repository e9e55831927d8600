//! The metrics against Python's own idea of text, over strings that look for differences.

use std::{
    io::Write as _,
    process::{Command, Stdio},
    thread,
};

use rollout::model::metric::{Metric, extract_final_answer, normalize_answer};
use serde_json::{Value, json};

/// What the metrics do when Python does it, case by case.
fn ask_python(cases: &[Value]) -> Vec<Value> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/metric/oracle.py");
    let mut python = Command::new("python3")
        .args(["-I", "-S", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("run python3");
    let mut stdin = python.stdin.take().unwrap();
    let lines: String = cases.iter().map(|case| format!("{case}\n")).collect();
    let writing = thread::spawn(move || stdin.write_all(lines.as_bytes()));
    let output = python.wait_with_output().unwrap();
    writing.join().unwrap().expect("python3 reads every case");
    assert!(output.status.success());
    let lines = String::from_utf8(output.stdout).unwrap();
    let answers: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(answers.len(), cases.len());
    answers
}

/// Pieces of answers in which implementations could differ: space, digits, case, phrases, ends of lines.
const PIECES: &[&str] = &[
    " ",
    "  ",
    "\t",
    "\n",
    "\n\n",
    "\r\n",
    "\u{b}",
    "\u{c}",
    "\u{1c}",
    "\u{1d}",
    "\u{1e}",
    "\u{1f}",
    "\u{85}",
    "\u{a0}",
    "\u{1680}",
    "\u{180e}",
    "\u{2007}",
    "\u{200b}",
    "\u{2028}",
    "\u{202f}",
    "\u{3000}",
    "\u{feff}",
    ".",
    ",",
    ";",
    ":",
    "!",
    "?",
    "-",
    "--",
    "。",
    "，",
    "**",
    "a",
    "b",
    "Paris",
    "PARIS",
    "paris",
    "的",
    "巴黎",
    "Σ",
    "ΟΔΟΣ",
    "σας",
    "ß",
    "ẞ",
    "İ",
    "ı",
    "I",
    "ſ",
    "K",
    "é",
    "e\u{301}",
    "ǅ",
    "0",
    "1",
    "2",
    "42",
    "42.0",
    "3.5",
    "-7",
    "100",
    "99",
    "1e6",
    "1,000",
    ".5",
    "5.",
    "1.2.3",
    "٤٢",
    "४२",
    "４２",
    "𝟜𝟚",
    "²",
    "½",
    "Ⅳ",
    "999999999999999999999",
    "0.0000001",
    "the answer is",
    "The Answer Is ",
    "answer:",
    "Answer: ",
    "FINAL ANSWER:",
    "final answer ",
    "fİnal answer ",
    "anſwer ıs ",
    "therefore,",
    "Therefore ",
    "thus,",
    "Thus, ",
    "so,",
    "So ",
    "hence ",
    "**Answer**",
    "**answer**: ",
    "also, ",
];

fn text(random: &mut fastrand::Rng) -> String {
    (0..random.usize(0..8)).map(|_| PIECES[random.usize(..PIECES.len())]).collect()
}

#[test]
fn the_six_metrics_have_pythons_numbers_to_the_last_bit() {
    let mut random = fastrand::Rng::with_seed(5);
    let pairs: Vec<(String, String)> = (0..8_000)
        .map(|_| {
            let predicted = text(&mut random);
            // Half of them are near each other, else nearly all would be 0.
            let truth =
                if random.bool() { text(&mut random) } else { predicted.clone() + &text(&mut random) };
            if random.bool() { (predicted, truth) } else { (truth, predicted) }
        })
        .collect();
    let cases: Vec<Value> =
        pairs.iter().map(|(predicted, truth)| json!({"predicted": predicted, "truth": truth})).collect();
    for ((predicted, truth), python) in pairs.iter().zip(ask_python(&cases)) {
        assert_eq!(normalize_answer(predicted), python["normal"], "{predicted:?}");
        assert_eq!(extract_final_answer(predicted), python["extracted"], "{predicted:?}");
        for metric in [
            Metric::ExactMatch,
            Metric::F1Score,
            Metric::ContainsAnswer,
            Metric::NumericMatch,
            Metric::Similarity,
        ] {
            let ours = metric.score(predicted, truth);
            assert_eq!(ours, python[metric.as_str()].as_f64(), "{metric} of {predicted:?} and {truth:?}");
        }
    }
}

#[test]
fn every_character_has_the_case_the_space_and_the_digit_that_python_gives_it() {
    const STEP: u32 = 0x1000;
    let cases: Vec<Value> =
        (0..0x11_0000 / STEP).map(|step| json!({"from": step * STEP, "to": (step + 1) * STEP})).collect();
    let answers = ask_python(&cases);
    let mut compared = 0;
    for (code, python) in (0..).zip(answers.iter().flat_map(|answer| answer.as_array().unwrap())) {
        let (Some(char), false) = (char::from_u32(code), python.is_null()) else { continue };
        compared += 1;
        assert_eq!(char.to_lowercase().collect::<String>(), python[0], "U+{code:04X}");
        let is_space = normalize_answer(&format!("x{char}y")) == "x y";
        assert_eq!((&json!(is_space), &json!(is_space)), (&python[1], &python[2]), "U+{code:04X}");
        let is_digit =
            |digit: u64| Metric::NumericMatch.score(&char.to_string(), &digit.to_string()) == Some(1.0);
        assert_eq!((0..10).find(|digit| is_digit(*digit)), python[3].as_u64(), "U+{code:04X}");
    }
    assert!(compared > 90_000, "{compared}");
}
