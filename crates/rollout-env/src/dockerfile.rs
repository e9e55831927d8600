//! Finds errors of a Dockerfile that affect every provider, without building it.

use std::path::Path;

use crate::environment::ImageProblem;

/// Reads the Dockerfile of a build context, if there is one, and checks that the files it copies exist. Blocks.
///
/// A Dockerfile with its own frontend is not checked: the frontend may accept a different syntax.
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
        // Another engine may support what the embedded one does not.
        _ => Ok(()),
    }
}

/// Checks nothing: this build has no engine that reads Dockerfiles.
#[cfg(not(any(feature = "docker", feature = "native")))]
pub fn check_dockerfile(_: &Path) -> Result<(), ImageProblem> {
    Ok(())
}
