//! The settings of these tools in a configuration file.

use rollout_tools::ToolsConfig;
use serde_json::Value;

const MANUAL: &str = include_str!("../../../../../docs/tools-documents.md");

fn load(text: &str) -> Result<ToolsConfig, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tools.yaml");
    std::fs::write(&path, text).unwrap();
    ToolsConfig::load(&path, &|_| None).map_err(|problems| problems.to_string())
}

#[test]
fn the_examples_of_the_manual_are_read() {
    let examples: Vec<&str> =
        MANUAL.split("```json\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    let (of_servers, of_benchmarks): (Vec<_>, Vec<_>) =
        examples.into_iter().partition(|example| example.contains("\"resources\""));
    assert_eq!((of_servers.len(), of_benchmarks.len()), (2, 2));
    for example in of_servers {
        load(example).unwrap();
    }
    let (config, question) = (of_benchmarks[0], of_benchmarks[1]);
    let mut config: Value = serde_json::from_str(config).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let questions = folder.path().join("questions.jsonl");
    std::fs::write(&questions, question).unwrap();
    assert_eq!(rollout::benchmark::load_tasks(&questions).unwrap()[0].id, "q1");
    for (key, value) in [
        ("data_path", questions.to_str().unwrap()),
        ("base_url", "http://127.0.0.1:1/v1"),
        ("model_name", "m"),
    ] {
        config[key] = value.into();
    }
    let config = config.to_string();
    rollout::config::load_benchmark_text("config.json".as_ref(), &config, &[], &|_| None).unwrap();
}

#[test]
fn limits_must_be_in_a_sensible_range() {
    for (setting, rule) in [
        ("doc: {max_file_bytes: 0}", "at least 1"),
        ("doc: {max_text_bytes: 18446744073709551615}", "at most 1099511627776"),
        ("doc: {max_memory_bytes: -1}", "at least 1"),
        ("doc: {timeout_seconds: 0}", "at least 1"),
        ("rag: {timeout_seconds: 86401}", "at most 86400"),
        ("rag: {index_bytes: 0}", "at least 1"),
        ("sql: {timeout_seconds: 1.5}", "a whole number"),
    ] {
        let error = load(&format!("resources: {{{setting}}}")).err().unwrap();
        assert!(error.contains(&format!("must be {rule}")), "{setting}: {error}");
    }
    let rag = load("resources: {rag: {index_bytes: 4294967296, timeout_seconds: 60}}").unwrap().rag.unwrap();
    assert_eq!((rag.index_bytes, rag.timeout_seconds), (4 << 30, 60));
}
