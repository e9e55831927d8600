//! The log that an agent wrote itself: what is read of it, and where it stands in for the gateway's record.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom},
    path::Path,
    time::Duration,
};

use jiff::Timestamp;

use super::{calls::bounded, context::TrialContext, converse::save_trajectory, instruction};
use crate::{
    agent::{
        self,
        own_log::{self, MAX_LOG_BYTES, OwnLog},
        trajectory::{Trajectory, TurnLog},
    },
    config::PresetAgentConfig,
};
use rollout_core::{message::Message, result::AgentUsage};
use rollout_env::{Environment, FileRead, blocking::blocking};

/// Reads the agent's own log, if the preset has a form for it. A log that cannot be read is a note.
pub(super) async fn read(
    context: &TrialContext<'_>,
    environment: &dyn Environment,
    agent: &PresetAgentConfig,
    notes: &mut Vec<String>,
) -> Option<OwnLog> {
    let format = agent.preset.trajectory?;
    let printed = context.step.dir.command().join("stdout.txt");
    let mut bytes = match format.is_printed() {
        true => blocking(move || ends(&printed)).await.unwrap_or_default(),
        false => Vec::new(),
    };
    if format.files().is_some()
        && let Ok(FileRead::Content(content)) =
            bounded(environment.read_file(agent::OWN_LOG, MAX_LOG_BYTES)).await
    {
        bytes.push(b'\n');
        bytes.extend_from_slice(&content);
    }
    // An agent that failed at the start has none, which its error explains.
    if bytes.trim_ascii().is_empty() {
        return None;
    }
    let parsed = blocking(move || Ok(own_log::read(format, &bytes))).await;
    let problem = match parsed {
        Ok(Ok(log)) => return Some(log),
        Ok(Err(error)) => error.to_string(),
        Err(error) => error.to_string(),
    };
    notes.push(format!("the agent's own log was not read: {problem}"));
    None
}

/// Keeps the conversation. Where the gateway has none, it is that of the agent's own log.
pub(super) async fn keep(
    context: &TrialContext<'_>,
    own: Option<OwnLog>,
    time: Duration,
    turns: &TurnLog,
    notes: &mut Vec<String>,
) {
    if let Some(mut own) = own.filter(|own| own.has_turns() && turns.is_empty()) {
        if !own.has_prompt()
            && let Ok(instruction) = instruction::read(context).await
        {
            own.set_prompt(Message::user(String::from_utf8_lossy(&instruction)));
        }
        let now = Timestamp::now();
        turns.put(Trajectory::of_log(own, now.checked_sub(time).unwrap_or(now), time));
    }
    notes.extend(save_trajectory(context, turns).await.err());
}

/// Whether an agent reports other numbers than the gateway counted. What it leaves out is no difference.
pub(super) fn differs(reported: &AgentUsage, counted: &AgentUsage) -> bool {
    let tokens = |reported: Option<u64>, counted: Option<u64>| {
        reported.is_some_and(|tokens| tokens != counted.unwrap_or_default())
    };
    tokens(reported.input_tokens, counted.input_tokens)
        || tokens(reported.output_tokens, counted.output_tokens)
        || tokens(reported.cached_tokens, counted.cached_tokens)
        || reported.cost_usd.is_some_and(|cost| (cost - counted.cost_usd.unwrap_or(-1.0)).abs() > 1e-9)
}

/// The content of a file; of a large one, its beginning and its end.
fn ends(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut bytes = Vec::new();
    if length <= MAX_LOG_BYTES {
        file.take(MAX_LOG_BYTES).read_to_end(&mut bytes)?;
        return Ok(bytes);
    }
    let half = MAX_LOG_BYTES / 2;
    (&mut file).take(half).read_to_end(&mut bytes)?;
    // The lines that are cut are no JSON, so they are skipped.
    bytes.push(b'\n');
    file.seek(SeekFrom::Start(length - half))?;
    file.take(half).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_that_an_agent_reports_can_differ() {
        let counted = AgentUsage { input_tokens: Some(10), output_tokens: Some(2), ..AgentUsage::default() };
        for (reported, other) in [
            (AgentUsage::default(), false),
            (AgentUsage { input_tokens: Some(10), ..AgentUsage::default() }, false),
            (AgentUsage { cached_tokens: Some(0), ..counted }, false),
            (AgentUsage { input_tokens: Some(11), ..counted }, true),
            (AgentUsage { cached_tokens: Some(1), ..counted }, true),
            (AgentUsage { cost_usd: Some(0.5), ..counted }, true),
        ] {
            assert_eq!(differs(&reported, &counted), other, "{reported:?}");
        }
        let paid = AgentUsage { cost_usd: Some(0.1 + 0.2), ..counted };
        assert!(!differs(&AgentUsage { cost_usd: Some(0.3), ..counted }, &paid));
    }

    #[test]
    fn of_a_large_file_the_beginning_and_the_end_are_read() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let half = MAX_LOG_BYTES as usize / 2;
        std::fs::write(file.path(), [vec![b'a'; half], vec![b'b'; 10], vec![b'c'; half]].concat()).unwrap();
        let bytes = ends(file.path()).unwrap();
        assert_eq!(bytes.len(), 2 * half + 1);
        assert_eq!((bytes[half - 1], bytes[half], bytes[half + 1]), (b'a', b'\n', b'c'));
    }
}
