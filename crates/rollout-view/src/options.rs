//! What the viewer shows, and how it reads what belongs to the engine.

use std::{io, path::Path};

use rollout_core::message::Messages;
use rollout_record::{layout::TrialDir, notes::NoteTag};

/// Reads the messages of a running trial whose agent uses the gateway, given the directories of the job and the trial.
/// The records of the gateway belong to the engine, on which the viewer does not depend.
pub type LiveMessages = fn(&Path, &TrialDir) -> io::Result<Messages>;

/// What the viewer shows.
#[derive(Debug, Clone, Default)]
pub struct ViewOptions {
    /// Trials with one of these tags are left out of rates and comparisons.
    pub excluded_tags: Vec<NoteTag>,
    /// Reads the conversations of agents behind the gateway while they run.
    pub live_messages: Option<LiveMessages>,
}
