//! What is wrong with a Dockerfile on every provider, known without building it.

use std::path::Path;

use crate::environment::ImageProblem;

/// Reads the Dockerfile of a build context, if there is one, and looks for the files that it copies. Blocks.
///
/// A Dockerfile that names a frontend of its own is not read: the frontend may take what others refuse.
#[cfg(any(feature = "docker", feature = "native"))]
pub fn check_dockerfile(context: &Path) -> Result<(), ImageProblem> {
    use rollout_core::text::chain;
    use rollout_sandbox::build::{ImageBuildError, inspect};

    let dockerfile = context.join("Dockerfile");
    let text = std::fs::read_to_string(&dockerfile).unwrap_or_default();
    let own_frontend =
        text.lines().take_while(|line| line.starts_with('#')).any(|line| line.contains("syntax="));
    if own_frontend || !dockerfile.exists() {
        return Ok(());
    }
    match inspect(context, &dockerfile) {
        Err(error @ (ImageBuildError::Syntax { .. } | ImageBuildError::FilesFailed { .. })) => {
            Err(ImageProblem::Dockerfile(chain(&error)))
        }
        // What the embedded engine does not support, another may.
        _ => Ok(()),
    }
}

/// Knows of no Dockerfiles: this build has no engine that reads them.
#[cfg(not(any(feature = "docker", feature = "native")))]
pub fn check_dockerfile(_: &Path) -> Result<(), ImageProblem> {
    Ok(())
}
