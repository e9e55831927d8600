//! Verification: fresh tests, an empty `/logs/verifier`, and a reward that is read once.

use std::path::Path;

use super::{
    attempt::{Attempt, bounded, flat},
    failure::{self, Failure},
    reward::{MAX_REWARD_BYTES, Reward, RewardError},
};
use crate::config::AgentProcesses;
use rollout_core::{event::Phase, result::ErrorType};
use rollout_env::{CopyMode, Environment, FileRead, blocking::blocking};

/// How many left-over commands a result names.
const MAX_SURVIVORS: usize = 20;

/// Runs the tests and puts their reward into the attempt.
pub(super) async fn run(attempt: &mut Attempt<'_>, environment: &dyn Environment) -> Result<(), Failure> {
    let phase = Phase::Verify;
    attempt.survivors = bounded(phase, environment.survivors()).await?;
    if attempt.trial.config.verifier.agent_processes == AgentProcesses::Kill && !attempt.survivors.is_empty()
    {
        bounded(phase, environment.kill_all()).await?;
    }
    attempt.survivors.truncate(MAX_SURVIVORS);

    bounded(phase, environment.make_dirs(&["/logs/verifier"], true)).await?;
    let tests = attempt.task.dir.join("tests");
    bounded(phase, environment.copy_to(&tests, "/tests", CopyMode::Replace)).await?;

    let env = flat(&attempt.trial.verifier_env);
    let limit = attempt.timeouts.verify;
    let (stdout, stderr) =
        attempt.run_script(environment, failure::TESTS, "/tests/test.sh", &env, limit).await?;

    let (name, content) = match read(environment, "reward.txt").await? {
        Some(content) => ("reward.txt", content),
        None => match read(environment, "reward.json").await? {
            Some(content) => ("reward.json", content),
            None => {
                let message = format!(
                    "tests/test.sh left no /logs/verifier/reward.txt, where it writes one number{}",
                    failure::TESTS.quote(&stdout, &stderr)
                );
                return Err(Failure::new(ErrorType::VerifierRewardMissing, message));
            }
        },
    };
    // Masked before anything is quoted or kept; a number has nothing to mask.
    let content = match String::from_utf8(content) {
        Ok(text) => attempt.trial.redactor.text(&text).into_owned().into_bytes(),
        Err(error) => error.into_bytes(),
    };
    keep(attempt.trial.dir.verifier().join(name).as_path(), &content).await;
    let reward = match name {
        "reward.txt" => Reward::from_text(&content),
        _ => Reward::from_json(&content),
    }
    .map_err(|error| invalid(name, &error))?;
    attempt.reward = Some(reward.reward);
    attempt.rewards = reward.named;
    Ok(())
}

/// Reads a reward file. None: there is nothing of that name.
async fn read(environment: &dyn Environment, name: &str) -> Result<Option<Vec<u8>>, Failure> {
    let path = format!("/logs/verifier/{name}");
    let found = bounded(Phase::Verify, environment.read_file(&path, MAX_REWARD_BYTES)).await?;
    match found {
        FileRead::Content(bytes) => Ok(Some(bytes)),
        FileRead::Missing => Ok(None),
        FileRead::NotRegular => Err(Failure::new(
            ErrorType::VerifierRewardInvalid,
            format!("{path} is not a regular file; tests/test.sh writes one number there"),
        )),
        FileRead::TooLarge(size) => Err(Failure::new(
            ErrorType::VerifierRewardInvalid,
            format!("{path} has {size} bytes, and a reward at most {MAX_REWARD_BYTES}"),
        )),
    }
}

fn invalid(name: &str, error: &RewardError) -> Failure {
    Failure::new(
        ErrorType::VerifierRewardInvalid,
        format!(
            "/logs/verifier/{name} holds {error}; tests/test.sh writes one finite number there, such as 1 or 0.5"
        ),
    )
}

/// Writes the bytes that were read where the copy of `/logs` will leave them alone, so that the
/// record shows what was graded even if a process inside goes on writing.
async fn keep(path: &Path, content: &[u8]) {
    let (path, content) = (path.to_owned(), content.to_owned());
    if let Err(error) = blocking(move || std::fs::write(&path, content)).await {
        tracing::warn!(%error, "the reward file could not be kept");
    }
}
