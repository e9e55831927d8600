//! The JSON Schemas under schemas/ are what the code says.

use std::{fs, path::Path};

use rollout::config::{benchmark_schema, interaction_schema, job_schema, preset_schema, task_schema};

#[test]
fn the_schemas_in_the_repository_are_fresh() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../schemas");
    let schemas = [
        ("benchmark.schema.json", benchmark_schema()),
        ("interaction.schema.json", interaction_schema()),
        ("job.schema.json", job_schema()),
        ("preset.schema.json", preset_schema()),
        ("task.schema.json", task_schema()),
    ];
    for (name, schema) in schemas {
        let path = dir.join(name);
        let expected = format!("{schema:#}\n");
        if std::env::var_os("UPDATE_SCHEMAS").is_some() {
            fs::create_dir_all(&dir).unwrap();
            fs::write(&path, &expected).unwrap();
        }
        let found = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == expected,
            "schemas/{name} is not what the code says; write it with `UPDATE_SCHEMAS=1 cargo nextest run -p rollout schema`"
        );
    }
}
