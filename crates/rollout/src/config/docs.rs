//! Checks that the reference tables of docs/ match the declarations.

use std::collections::BTreeSet;

use super::{
    BudgetConfig, InteractionConfig, JobConfig, JobGatewayConfig, ModelConfig, RetryConfig, RolloutConfig,
    VerifierConfig,
    agent::AgentKeys,
    columns::ColumnKeys,
    dataset::{DatasetKeys, RegistryKeys},
    interaction::ContainerKeys,
    mcp_servers::TaskMcpKeys,
    model::LimitKeys,
    preset::{PresetConfig, PresetInstall},
    rubric::RubricKeys,
    stop::StopKeys,
    task::{
        ArtifactKeys, CollectKeys, HealthcheckKeys, StepAgentKeys, StepVerifierKeys, TaskAgent,
        TaskEnvironment, TaskKeys, TaskSolution, TaskStep, TaskVerifier, TestsEnvironmentKeys,
    },
    tools::ToolKeys,
    user::UserKeys,
};
use rollout_env::EnvironmentKeys;
use rollout_settings::{Key, Settings as _};

/// The keys of every section, by the name of its table in docs/.
fn tables() -> Vec<(&'static str, Vec<Key>)> {
    vec![
        ("job", JobConfig::keys()),
        ("budget", BudgetConfig::keys()),
        ("retry", RetryConfig::keys()),
        ("environment", EnvironmentKeys::keys()),
        ("verifier", VerifierConfig::keys()),
        ("agent", AgentKeys::keys()),
        ("gateway", JobGatewayConfig::keys()),
        ("preset", PresetConfig::keys()),
        ("preset install", PresetInstall::keys()),
        ("dataset", DatasetKeys::keys()),
        ("registry", RegistryKeys::keys()),
        ("column", ColumnKeys::keys()),
        ("model", ModelConfig::keys()),
        ("limits", LimitKeys::keys()),
        ("interaction", InteractionConfig::keys()),
        ("container", ContainerKeys::keys()),
        ("tool", ToolKeys::keys()),
        ("rubric", RubricKeys::keys()),
        ("stop", StopKeys::keys()),
        ("user", UserKeys::keys()),
        ("task", task_keys()),
        ("benchmark", RolloutConfig::keys()),
    ]
}

/// The keys of task.toml, with the names of their sections.
fn task_keys() -> Vec<Key> {
    let sections = [
        ("", TaskKeys::keys()),
        ("verifier.", TaskVerifier::keys()),
        ("verifier.collect.", CollectKeys::keys()),
        ("verifier.environment.", TestsEnvironmentKeys::keys()),
        ("agent.", TaskAgent::keys()),
        ("environment.", TaskEnvironment::keys()),
        ("environment.healthcheck.", HealthcheckKeys::keys()),
        ("environment.mcp_servers.", TaskMcpKeys::keys()),
        ("solution.", TaskSolution::keys()),
        ("artifacts.", ArtifactKeys::keys()),
        ("steps.", TaskStep::keys()),
        ("steps.agent.", StepAgentKeys::keys()),
        ("steps.verifier.", StepVerifierKeys::keys()),
    ];
    let named = |prefix: &str, mut key: Key| {
        key.name = format!("{prefix}{}", key.name).leak();
        key
    };
    sections
        .into_iter()
        .flat_map(|(prefix, keys)| keys.into_iter().map(move |key| named(prefix, key)))
        .collect()
}

#[test]
fn every_key_has_a_description_in_its_schema() {
    for (section, keys) in tables() {
        for key in keys {
            let schema = (key.schema)();
            let described = schema["description"].as_str().is_some_and(|text| !text.is_empty());
            assert!(described, "{section}: {} has no description", key.name);
        }
    }
}

#[test]
fn keys_that_may_change_before_a_resume_are_listed_in_docs() {
    let of_models = |(section, _): &(&str, Vec<Key>)| *section == "model";
    let (models, others): (Vec<_>, Vec<_>) = tables().into_iter().partition(of_models);
    for (page, start, end, sections) in [
        ("jobs.md", "- the configuration, except", "and [the connection", others),
        ("models.md", "The connection to a model may change:", ".\n", models),
    ] {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page);
        let text = std::fs::read_to_string(path).unwrap();
        let list = text.split_once(start).unwrap().1.split_once(end).unwrap().0;
        let listed: BTreeSet<String> = list.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        let mut expected = BTreeSet::new();
        // A benchmark has a page of its own.
        for (section, keys) in sections.iter().filter(|(section, _)| *section != "benchmark") {
            let of_another = if ["job", "model"].contains(section) { "" } else { *section };
            for key in keys.iter().filter(|key| !key.hashed) {
                expected.insert(format!("{of_another}.{}", key.name).trim_start_matches('.').to_owned());
            }
        }
        assert_eq!(listed, expected, "{page}");
    }
}

#[test]
fn tables_in_docs_match_the_schemas() {
    let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    for page in ["agents.md", "datasets.md", "jobs.md", "tasks.md", "models.md", "benchmarks.md"] {
        rollout_settings::docs::check_page(&docs.join(page), &tables()).unwrap();
    }
}
