//! JSON is written as Python writes it, whatever the value.

use proptest::{
    prelude::*,
    strategy::ValueTree as _,
    test_runner::{Config, TestRunner},
};
use rollout::record::python_json::{PythonJson, Spacing};
use rollout_testkit::Python;
use serde_json::Value;

const PROGRAM: &str = r#"
import json, sys
for line in sys.stdin.buffer:
    value = json.loads(line)
    print(json.dumps([
        json.dumps(value),
        json.dumps(value, sort_keys=True),
        json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":")),
        json.dumps(value, ensure_ascii=False, indent=2),
        json.dumps(value, sort_keys=True, indent=1),
    ]))
"#;

fn styles() -> [PythonJson; 5] {
    let sorted = PythonJson::sorted();
    [
        PythonJson { sort_keys: false, ..sorted },
        sorted,
        PythonJson { sort_keys: true, ..PythonJson::compact() },
        PythonJson::pretty(),
        PythonJson { spacing: Spacing::Lines(1), ..sorted },
    ]
}

/// Any value, with floats of every magnitude and texts of every plane.
fn values() -> impl Strategy<Value = Value> {
    let text =
        || prop_oneof![any::<String>(), "[ -~]{0,8}", "[\\x00-\\x20\\x7f-\\u{ff}😀\u{ffff}\u{e000}]{0,4}"];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        // No number becomes null here, which both write alike.
        any::<u64>().prop_map(|bits| Value::from(f64::from_bits(bits))),
        (-20_i32..25, 1_u32..100_000)
            .prop_map(|(power, digits)| Value::from(f64::from(digits) * 10_f64.powi(power))),
        any::<i32>().prop_map(|whole| Value::from(f64::from(whole))),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec((text(), inner), 0..6)
                .prop_map(|entries| Value::Object(entries.into_iter().collect())),
        ]
    })
}

#[test]
fn any_value_is_written_as_python_writes_it() {
    let mut runner = TestRunner::new_with_rng(Config::default(), TestRunner::deterministic().rng().clone());
    let strategy = values();
    let values: Vec<Value> = (0..1_000).map(|_| strategy.new_tree(&mut runner).unwrap().current()).collect();
    let input: String = values.iter().map(|value| format!("{value}\n")).collect();
    let output = Python::new().run(PROGRAM, &input);
    assert_eq!(output.lines().count(), values.len());
    for (value, line) in values.iter().zip(output.lines()) {
        let expected: Vec<String> = serde_json::from_str(line).unwrap();
        for (style, expected) in styles().into_iter().zip(expected) {
            assert_eq!(style.text(value), expected, "{style:?}");
        }
    }
}
