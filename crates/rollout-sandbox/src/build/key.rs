//! The key of a stage: a hash of everything that determines the content of the stage's layer.

use sha2::{Digest, Sha256};

use super::context::{Context, hash_field};
use super::error::ImageBuildError;
use super::plan::{Action, Origin, Plan};
use super::run_mount::MountKind;

/// Changes whenever the same inputs would produce a different layer.
const FORMAT: &str = "rollout layer 2";

/// The inputs of a stage other than files of the context.
pub(crate) struct Inputs {
    pub(crate) dockerfile: String,
    pub(crate) stage: usize,
    /// The identity of the base image.
    pub(crate) base: String,
    /// The identities of the images that `COPY --from` names, in order.
    pub(crate) others: Vec<String>,
}

/// Hashes the inputs of a stage and the files that its plan copies.
pub(crate) fn key(inputs: &Inputs, plan: &Plan, context: &Context) -> Result<String, ImageBuildError> {
    let mut hasher = Sha256::new();
    for field in [FORMAT, &inputs.dockerfile, &inputs.base] {
        hash_field(&mut hasher, field.as_bytes());
    }
    hasher.update((inputs.stage as u64).to_le_bytes());
    for other in &inputs.others {
        hash_field(&mut hasher, other.as_bytes());
    }
    // Variables of the base image can change the meaning of an instruction.
    hash_field(&mut hasher, format!("{:?}", plan.config).as_bytes());
    for step in &plan.steps {
        for source in context_sources(&step.action) {
            hash_field(&mut hasher, source.as_bytes());
            let hashed = context
                .select(source)
                .and_then(|found| found.iter().try_for_each(|selected| context.hash(selected, &mut hasher)));
            hashed.map_err(|source| ImageBuildError::FilesFailed { at: step.at.clone(), source })?;
        }
    }
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The files of the context that an action uses.
fn context_sources(action: &Action) -> Vec<&str> {
    match action {
        Action::Copy(copy) if copy.from == Origin::Context => {
            copy.sources.iter().map(String::as_str).collect()
        }
        Action::Run(run) => run
            .mounts
            .iter()
            .filter_map(|mount| match &mount.kind {
                MountKind::Bind { from: Origin::Context, source, .. } => Some(source.as_str()),
                _ => None,
            })
            .collect(),
        _ => Vec::new(),
    }
}
