//! Checks that the reference tables of docs/ are what the declarations say.

use super::{
    InteractionConfig, JobConfig, ModelConfig, RetryConfig, RolloutConfig, VerifierConfig,
    agent::AgentKeys,
    dataset::DatasetKeys,
    interaction::ContainerKeys,
    model::LimitKeys,
    rubric::RubricKeys,
    stop::StopKeys,
    task::{TaskAgent, TaskEnvironment, TaskKeys, TaskVerifier},
    tools::ToolKeys,
    user::UserKeys,
};
use rollout_env::EnvironmentKeys;
use rollout_settings::{Key, Settings as _};

/// The keys of every section, by the name that its table has in docs/.
fn tables() -> Vec<(&'static str, Vec<Key>)> {
    vec![
        ("job", JobConfig::keys()),
        ("retry", RetryConfig::keys()),
        ("environment", EnvironmentKeys::keys()),
        ("verifier", VerifierConfig::keys()),
        ("agent", AgentKeys::keys()),
        ("dataset", DatasetKeys::keys()),
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
        ("task agent", TaskAgent::keys()),
        ("task environment", TaskEnvironment::keys()),
        ("benchmark", RolloutConfig::keys()),
    ]
}

#[test]
fn every_key_that_is_read_is_described_in_its_schema() {
    for (section, keys) in tables() {
        for key in keys {
            let schema = (key.schema)();
            let described = schema["description"].as_str().is_some_and(|text| !text.is_empty());
            assert!(described, "{section}: {} has no description", key.name);
        }
    }
}

#[test]
fn tables_in_docs_have_what_the_schemas_have() {
    let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    for page in ["jobs.md", "tasks.md", "models.md", "benchmarks.md"] {
        rollout_settings::docs::check_page(&docs.join(page), &tables()).unwrap();
    }
}
