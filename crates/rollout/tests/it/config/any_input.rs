//! Whatever stands in a file, it is read or refused, never more.

use std::path::Path;

use proptest::prelude::*;
use rollout::config::{Override, load_benchmark_text, load_job_text, load_task_config};

/// Values of any shape under keys that mean something.
fn any_value() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<f64>().prop_map(Into::into),
        prop::sample::select(vec![
            "oracle",
            "docker",
            "mean",
            "src",
            "2Gi",
            "${SET}",
            "${X:-é}",
            "${",
            "[redacted]"
        ])
        .prop_map(Into::into),
        "\\PC{0,12}".prop_map(Into::into),
    ];
    let keys = vec![
        "name",
        "n_attempts",
        "timeout_multiplier",
        "retry",
        "environment",
        "verifier",
        "metrics",
        "agents",
        "datasets",
        "type",
        "preserve_env",
        "preserveEnv",
        "provider_config",
        "override_memory",
        "max_delay_ms",
        "override_timeout_sec",
        "env",
        "execute",
        "install",
        "install_file",
        "path",
        "registry",
        "url",
        "version",
        "metadata",
        "agent",
        "timeout_sec",
        "memory",
        "memory_mb",
        "cpus",
        "docker_image",
        "solution",
        "ключ",
        "base_url",
        "api_key",
        "max_turns",
        "system_prompt",
        "evaluator_extra_params",
        "resource_init_configs",
        "task_ids",
        "_comment",
    ];
    leaf.prop_recursive(5, 64, 8, move |inner| {
        let key = prop::sample::select(keys.clone()).prop_map(str::to_owned);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
            prop::collection::vec((key, inner), 0..8)
                .prop_map(|entries| serde_json::Value::Object(entries.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn any_job_is_read_or_rejected_with_positions(value in any_value()) {
        let text = value.to_string();
        let vars = |name: &str| (name == "SET").then(|| "value".to_owned());
        if let Err(problems) = load_job_text(Path::new("job.yaml"), &text, &[], &vars) {
            prop_assert!(!problems.diagnostics().is_empty());
            prop_assert!(problems.render(true).len() >= problems.render(false).len());
        }
    }

    #[test]
    fn any_benchmark_is_read_or_rejected_with_positions(value in any_value()) {
        let text = value.to_string();
        let vars = |name: &str| (name == "SET").then(|| "value".to_owned());
        match load_benchmark_text(Path::new("config.json"), &text, &[], &vars) {
            Ok(loaded) => prop_assert_eq!(loaded.job().config.agents.len(), 1),
            Err(problems) => prop_assert!(!problems.render(true).is_empty()),
        }
    }

    #[test]
    fn any_text_is_read_or_rejected(text in "[-a-z:{}\\[\\]'\"#&*!|>%@`?, \n\t\ré=\\.0-9]{0,60}") {
        let job = load_job_text(Path::new("job.yaml"), &text, &[], &|_| None);
        let _ = job.map_err(|problems| problems.render(false));
        let benchmark = load_benchmark_text(Path::new("config.yaml"), &text, &[], &|_| None);
        let _ = benchmark.map_err(|problems| problems.render(false));
        let task = load_task_config(Path::new("task.toml"), &text);
        let _ = task.map_err(|problems| problems.render(false));
    }

    #[test]
    fn any_override_is_applied_or_rejected(key in "[a-z0-9.]{1,20}", value in "\\PC{0,20}") {
        let text = "agents: [{name: nop}]\ndatasets: [{path: src}]\n";
        let over = Override { key, value };
        let job = load_job_text(Path::new("job.yaml"), text, &[over], &|_| None);
        let _ = job.map_err(|problems| problems.render(false));
    }
}
