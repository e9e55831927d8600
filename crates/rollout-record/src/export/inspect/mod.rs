//! Logs for Inspect and its viewer: an `.eval` file for each agent on each dataset.
//!
//! Such a file is a zip archive with a member for each sample, lists of samples, and a header with the totals. It is
//! written sequentially while the trials are read. Only a few numbers of each written trial stay in memory.

mod events;
mod log;
mod messages;
mod sample;

use sha2::{Digest as _, Sha256};

use self::{log::Log, sample::Trial};
use super::{Export, ExportError, Exported, chat};
use crate::{layout::JobDir, notes::JobNotes};
use rollout_core::text::hex;

/// Writes the logs. Their names follow Inspect's naming scheme, so that Inspect can list them.
pub fn write(export: &Export<'_>) -> Result<Exported, ExportError> {
    let job = export.job;
    let mut made = Exported::default();
    let mut log: Option<Log<'_>> = None;
    let notes = JobNotes::read(&JobDir::new(job.path()))?;
    for trial in export.trials()? {
        let trial = trial?;
        let (agent, dataset) = (trial.id.agent.as_str(), trial.id.dataset.as_str());
        if log.as_ref().is_none_or(|log| !log.is_of(agent, dataset)) {
            made.files.extend(log.take().map(|log| log.finish(export)).transpose()?);
        }
        let model = chat::model_of(job, agent).unwrap_or(agent);
        let log = match &mut log {
            Some(log) => log,
            none => none.insert(Log::create(export, agent, model, dataset)?),
        };
        let uuid = id(&[log.id(), trial.id.task.as_str(), &trial.id.attempt.to_string()]);
        log.add(&Trial::read(job, &trial, model, uuid, notes.of(&trial.id))?)?;
        made.rows += 1;
    }
    made.files.extend(log.map(|log| log.finish(export)).transpose()?);
    Ok(made)
}

/// Returns an id that is always the same for these words, and different for others.
fn id(words: &[&str]) -> String {
    let mut hash = Sha256::new();
    for word in words {
        hash.update((word.len() as u64).to_le_bytes());
        hash.update(word.as_bytes());
    }
    hex(&hash.finalize()[..11])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_never_change() {
        assert_eq!(id(&["job", "task", "é"]), "a92d3b55beb1e8007ac7fb");
        assert_ne!(id(&["job", "task"]), id(&["jobt", "ask"]));
    }
}
