//! The forms of the logs that agents write themselves.

/// The form of an agent's own log, from which its conversation and its usage are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// What `claude --output-format stream-json` prints, and agents that print the same.
    Claude,
    /// What `cline --json` prints.
    Cline,
    /// What `codex exec --json` prints.
    Codex,
    /// The events of a session of Copilot CLI, in a file.
    Copilot,
    /// What `gemini --output-format stream-json` prints.
    Gemini,
    /// What `goose run --output-format stream-json` prints.
    Goose,
    /// What `kimi --output-format stream-json` prints, and the usage in its files.
    Kimi,
    /// The trajectory file of mini-swe-agent.
    MiniSweAgent,
    /// What `opencode run --format json` prints.
    Opencode,
    /// What `openhands --json` prints, and the usage in its files.
    Openhands,
}

pub(super) const LOG_FORMATS: [(&str, LogFormat); 10] = [
    ("claude", LogFormat::Claude),
    ("cline", LogFormat::Cline),
    ("codex", LogFormat::Codex),
    ("copilot", LogFormat::Copilot),
    ("gemini", LogFormat::Gemini),
    ("goose", LogFormat::Goose),
    ("kimi", LogFormat::Kimi),
    ("mini-swe-agent", LogFormat::MiniSweAgent),
    ("opencode", LogFormat::Opencode),
    ("openhands", LogFormat::Openhands),
];

impl LogFormat {
    /// Its word in presets.
    pub fn word(self) -> &'static str {
        LOG_FORMATS.iter().find(|(_, other)| *other == self).map_or("", |(word, _)| word)
    }

    /// Whether the agent prints it, or a part of it.
    pub(crate) fn is_printed(self) -> bool {
        !matches!(self, Self::Copilot | Self::MiniSweAgent)
    }

    /// The files in the environment that have it, or a part of it, as a pattern of the shell.
    pub(crate) fn files(self) -> Option<&'static str> {
        match self {
            Self::Copilot => Some("~/.copilot/session-state/*/events.jsonl"),
            Self::Kimi => Some("~/.kimi-code/sessions/*/*/agents/*/wire.jsonl"),
            Self::MiniSweAgent => Some("/logs/agent/mini.json"),
            Self::Openhands => Some("~/.openhands/conversations/*/base_state.json"),
            _ => None,
        }
    }
}
