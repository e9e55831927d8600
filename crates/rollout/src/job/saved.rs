//! Jobs of rollouts in a directory of the caller: created there, or continued from there.

use std::{fs, path::PathBuf, sync::Arc};

use serde_json::Value;

use super::{
    ConfigDifference, Job, JobError, NoProvider, Plan, Resumable, ResumeError, absolute, difference,
    known_tasks::Growth,
};
use rollout_env::Provider as _;
use rollout_record::{journal::Journal, layout::JobDir, rows};

/// Settings that must be the same in both runs. The second may have more examples.
const SAME: [&str; 5] = ["env_id", "model", "rollouts_per_example", "shuffle", "shuffle_seed"];

impl Job {
    /// Opens a plan of one model and one set of examples in this directory.
    ///
    /// Results of other programs are continued. Results of another configuration are rejected.
    pub(crate) async fn in_directory(plan: Plan, path: PathBuf) -> Result<Self, ResumeError> {
        let dir = JobDir::new(path);
        let (found, plan) = {
            let dir = dir.clone();
            tokio::task::spawn_blocking(move || find(&dir, &plan).map(|found| (found, plan)))
                .await
                .map_err(|error| JobError::Tasks(std::io::Error::other(error)))??
        };
        match found {
            None => Ok(Self::create_in(plan, Arc::new(NoProvider), move |_| {
                let made = fs::create_dir_all(dir.path());
                made.map_err(|source| JobError::Directory { path: dir.path().to_owned(), source })?;
                Ok(dir)
            })
            .await?),
            Some(resumable) => {
                resumable.reopen(plan, Arc::new(NoProvider), Vec::new(), Growth::Allowed, true).await
            }
        }
    }
}

/// Finds the job in a directory, if there is one. For rows without a journal, an empty one is created.
fn find(dir: &JobDir, plan: &Plan) -> Result<Option<Resumable>, ResumeError> {
    let metadata = dir.path().join(rows::METADATA);
    let has_journal = dir.journal().is_file();
    if !has_journal && !rows::file_in(dir.path()).is_file() {
        return Ok(None);
    }
    let saved = [dir.config(), metadata].into_iter().find_map(|path| {
        let value: Value = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
        value.get("env_id").is_some().then_some(value)
    });
    let Some(saved) = saved else { return Err(ResumeError::NoMetadata(dir.path().to_owned())) };
    let differences = changes(&saved, &plan.loaded().record);
    if !differences.is_empty() {
        return Err(ResumeError::ConfigChanged(differences));
    }
    if !has_journal {
        let name = dir.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        let header =
            super::header(plan, &name, absolute(dir.path()), NoProvider.name().to_owned(), Vec::new());
        Journal::create(&dir.journal(), header, std::iter::empty::<Result<_, JobError>>())?;
    }
    Resumable::open(dir.path()).map(Some)
}

/// The differences that are not allowed. A setting that the saved run does not have is not compared.
fn changes(saved: &Value, now: &Value) -> Vec<ConfigDifference> {
    let pick = |value: &Value| -> Value {
        let recorded = SAME.iter().filter(|key| saved.get(**key).is_some_and(|value| !value.is_null()));
        recorded.map(|key| ((*key).to_owned(), value.get(*key).cloned().unwrap_or_default())).collect()
    };
    let mut found = difference::differences(&pick(saved), &pick(now));
    let count = |value: &Value| value.get("num_examples").and_then(Value::as_u64);
    if let (Some(before), Some(after)) = (count(saved), count(now))
        && after < before
    {
        let key = "num_examples".to_owned();
        found.push(ConfigDifference {
            key,
            before: Some(before.to_string()),
            after: Some(after.to_string()),
        });
    }
    found
}
