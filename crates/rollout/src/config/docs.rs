//! Checks that the reference tables of docs/ match the declarations.

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
        ("task", TaskKeys::keys()),
        ("task verifier", TaskVerifier::keys()),
        ("task tests environment", TestsEnvironmentKeys::keys()),
        ("task agent", TaskAgent::keys()),
        ("task environment", TaskEnvironment::keys()),
        ("task solution", TaskSolution::keys()),
        ("task step", TaskStep::keys()),
        ("task step agent", StepAgentKeys::keys()),
        ("task step verifier", StepVerifierKeys::keys()),
        ("task artifact", ArtifactKeys::keys()),
        ("task mcp server", TaskMcpKeys::keys()),
        ("task collect", CollectKeys::keys()),
        ("task healthcheck", HealthcheckKeys::keys()),
        ("benchmark", RolloutConfig::keys()),
    ]
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
fn tables_in_docs_match_the_schemas() {
    let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    for page in ["agents.md", "datasets.md", "jobs.md", "tasks.md", "models.md", "benchmarks.md"] {
        rollout_settings::docs::check_page(&docs.join(page), &tables()).unwrap();
    }
}
