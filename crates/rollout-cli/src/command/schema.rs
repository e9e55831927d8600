//! `rollout schema`: prints JSON Schemas for editors.

use rollout::config::{benchmark_schema, interaction_schema, job_schema, preset_schema, task_schema};

use crate::{
    args::{Schema, SchemaOf},
    exit::{Exit, Failure},
};

/// Prints a schema.
pub(crate) fn run(args: &Schema) -> Result<Exit, Failure> {
    let schema = match args.of {
        SchemaOf::Benchmark => benchmark_schema(),
        SchemaOf::Interaction => interaction_schema(),
        SchemaOf::Job => job_schema(),
        SchemaOf::Preset => preset_schema(),
        SchemaOf::Task => task_schema(),
    };
    super::print(&serde_json::to_string_pretty(&schema)?)?;
    Ok(Exit::Success)
}
