//! Presets: how agents that others made are installed and run. Each is a file of its own, and the known ones are part
//! of the program.

use std::path::Path;

use indexmap::IndexMap;
use serde_json::{Value as Json, json};

use super::{
    ModelConfig,
    log_format::{LOG_FORMATS, LogFormat},
    mcp_servers::{MCP_FORMATS, McpFormat},
};
use rollout_gateway::Dialect;
use rollout_model::Limits;
use rollout_settings::{
    Document, Form, Problems, Section, Value,
    diagnostic::{Code, quoted},
    forms::{filled, flag, number_or_text, section, text, texts, whole, word},
};

/// An agent that a preset describes.
#[derive(Debug, Clone, PartialEq)]
pub struct PresetAgentConfig {
    /// How it is installed and run.
    pub preset: PresetConfig,
    /// The version to install: a number, or `latest`.
    pub version: String,
    /// The model that it asks, unless it has one of its own.
    pub model: Option<ModelConfig>,
    /// What it may use of the model in a trial.
    pub limits: Limits,
}

rollout_settings::settings! {
    /// How an agent that others made is installed and run.
    #[derive(Debug, Clone, PartialEq)]
    pub struct PresetConfig {
        /// The name of the agent in results, unless the job sets another.
        pub name: String = filled().kind("name").required("write the name of the agent").or_empty(),
        /// What the agent is.
        pub description: String = text().or_empty(),
        /// The version that was tested. It is installed unless the job sets another.
        pub tested: Option<String> = number_or_text().optional(),
        /// Whether no version was tested. Then the latest is installed.
        pub untested: bool = flag(false),
        /// The APIs that the agent can use for its model, the best one first.
        ///
        /// Empty if the agent has its own model.
        pub dialects: Vec<Dialect> = dialects(),
        /// How the agent is installed.
        pub install: PresetInstall = section::<PresetInstall>().unset("nothing"),
        /// A bash script that runs the agent on the task.
        ///
        /// See [the variables](agents.md#variables).
        pub execute: String = filled().kind("script").required("write the script that runs the agent").or_empty(),
        /// The longest instruction that the agent can read, in bytes. If the instruction of a task is longer, its trials
        /// fail with `task_invalid` before the agent starts.
        ///
        /// For agents that accept it only as a command-line argument: Linux limits an argument to 128 KiB.
        pub max_instruction_bytes: Option<u64> = whole(1..=u64::MAX).optional().recorded_where_written(),
        /// Paths of the agent's own logs in the environment. They are copied to `/logs/agent` after the agent has ended.
        ///
        /// `~` and the patterns of the shell are expanded.
        pub logs: Vec<String> = texts(),
        /// The form of the agent's own log. The conversation and the usage in it complete the record of the gateway, or
        /// replace it if the agent has its own model.
        ///
        /// `copilot` and `mini-swe-agent` are read from a file that the agent writes, `kimi` and `openhands` from its
        /// output and a file, and all others from its JSON output.
        pub trajectory: Option<LogFormat> = word(&LOG_FORMATS).optional(),
        /// The form in which the agent reads the MCP servers of a task. Without it, tasks with MCP servers are
        /// rejected.
        ///
        /// The path of a file in this form is in `ROLLOUT_MCP_SERVERS`: `claude` is the JSON of Claude Code's
        /// `--mcp-config`, `codex` are tables of Codex's `config.toml`, `gemini` is the value of `mcpServers` in Gemini
        /// CLI's `settings.json`, `opencode` is the value of `mcp` in `opencode.json`.
        pub mcp: Option<McpFormat> = word(&MCP_FORMATS).optional(),
        /// The directory in which the agent looks for skills. The skills of a task are copied there. Without it, tasks
        /// with skills are rejected.
        ///
        /// A path in the environment, which may begin with `~`.
        pub skills: Option<String> = filled().kind("path").optional(),
    }
}

rollout_settings::settings! {
    /// How an agent is installed: files that come from packages, and a script.
    #[derive(Debug, Clone, PartialEq)]
    pub struct PresetInstall {
        /// The npm package of the agent.
        ///
        /// `name`, or `name@version`, with `{version}` for the version of the agent and `{arch}` for `x64` or `arm64`.
        pub npm: Option<String> = filled().kind("package").optional(),
        /// The npm package for images with musl, such as Alpine. Without it, such images are rejected.
        pub npm_musl: Option<String> = filled().kind("package").optional(),
        /// The version of Node that runs the package. Node is copied into the environment.
        pub node: Option<String> = number_or_text().kind("version").optional(),
        /// Python packages, in the form of pip's requirements, with `{version}` for the version of the agent.
        pub pip: Vec<String> = texts(),
        /// Packages of `pip` that exist only as source. The host builds them.
        pub pip_build: Vec<String> = texts(),
        /// Ignores the Python versions that the packages in `pip` declare.
        ///
        /// The declarations of their dependencies still count. For packages that work with more versions than they
        /// declare.
        pub any_python: bool = flag(false),
        /// The versions of Python that run the packages, the best one first. The image needs one of them.
        pub python: Vec<String> = texts(),
        /// The commands of the agent.
        ///
        /// Each is a path in the npm package, or a function of the Python packages, such as `module:function`.
        pub bin: IndexMap<String, String> = commands(),
        /// A bash script that runs in the environment after the files are in place.
        pub script: Option<String> = filled().kind("script").optional(),
        /// The command that prints the version. It runs after the installation, and must print the requested version.
        pub check: Option<String> = filled().kind("command").optional(),
    }
}

/// The words of the protocols.
pub(super) const DIALECTS: [(&str, Dialect); 4] = [
    ("chat", Dialect::Chat),
    ("responses", Dialect::Responses),
    ("messages", Dialect::Messages),
    ("gemini", Dialect::Gemini),
];

/// The word of a protocol in job files and presets.
pub fn dialect_name(dialect: Dialect) -> &'static str {
    DIALECTS.iter().find(|(_, other)| *other == dialect).map_or("chat", |(word, _)| word)
}

fn dialects() -> Form<Vec<Dialect>> {
    let words = || DIALECTS.map(|(word, _)| word);
    let schema = move || json!({ "type": "array", "items": { "enum": words() } });
    Form::written("list of `chat`, `responses`, `messages`, `gemini`", schema, move |section, key| {
        let mut found = Vec::new();
        for node in section.list(key)? {
            let word = match &node.value {
                Value::String(word) => word.as_str(),
                _ => "",
            };
            match DIALECTS.iter().find(|(known, _)| *known == word) {
                Some((_, dialect)) => found.push(*dialect),
                None => {
                    let message = format!("`{}` has an unknown protocol", section.at(key));
                    let hint = format!("there are {}", words().join(", "));
                    section.reader.error_with_hint(node.span, Code::InvalidValue, message, hint);
                }
            }
        }
        Some(found)
    })
    .recorded(|dialects, _| dialects.iter().map(|dialect| dialect_name(*dialect)).collect())
    .or_empty()
}

fn commands() -> Form<IndexMap<String, String>> {
    let schema = || json!({ "type": "object", "additionalProperties": { "type": "string" } });
    let read = |section: &Section<'_>, key: &str| {
        let inside = section.mapping(key)?;
        let mut commands = IndexMap::new();
        for entry in inside.entries {
            let plain = |char: char| char.is_ascii_alphanumeric() || "-_.".contains(char);
            match &entry.node.value {
                Value::String(path) if entry.key.chars().all(plain) && !entry.key.starts_with('.') => {
                    commands.insert(entry.key.clone(), path.clone());
                }
                _ => {
                    let message =
                        format!("`{}` is not the name of a command and its path", inside.at(&entry.key));
                    section.reader.error(entry.key_span, Code::InvalidValue, message);
                }
            }
        }
        Some(commands)
    };
    Form::new("mapping", schema, read).or_empty()
}

/// The files of the presets that are part of the program.
const EMBEDDED: [(&str, &str); 16] = [
    ("aider", include_str!("../../presets/aider.yaml")),
    ("amp", include_str!("../../presets/amp.yaml")),
    ("claude-code", include_str!("../../presets/claude-code.yaml")),
    ("cline", include_str!("../../presets/cline.yaml")),
    ("codex", include_str!("../../presets/codex.yaml")),
    ("copilot", include_str!("../../presets/copilot.yaml")),
    ("crush", include_str!("../../presets/crush.yaml")),
    ("cursor-cli", include_str!("../../presets/cursor-cli.yaml")),
    ("gemini-cli", include_str!("../../presets/gemini-cli.yaml")),
    ("goose", include_str!("../../presets/goose.yaml")),
    ("kimi-code", include_str!("../../presets/kimi-code.yaml")),
    ("mini-swe-agent", include_str!("../../presets/mini-swe-agent.yaml")),
    ("opencode", include_str!("../../presets/opencode.yaml")),
    ("openhands", include_str!("../../presets/openhands.yaml")),
    ("qwen-code", include_str!("../../presets/qwen-code.yaml")),
    ("swe-agent", include_str!("../../presets/swe-agent.yaml")),
];

/// The names of the presets that are part of the program, in order.
pub fn preset_names() -> impl Iterator<Item = &'static str> + Clone {
    EMBEDDED.iter().map(|(name, _)| *name)
}

/// The file of a preset that is part of the program.
pub fn preset_text(name: &str) -> Option<&'static str> {
    EMBEDDED.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// Whether a preset is named by the path of its file.
pub fn is_preset_path(preset: &str) -> bool {
    preset.contains('/') || [".yaml", ".yml", ".json"].iter().any(|end| preset.ends_with(end))
}

/// A preset that is part of the program. None if there is none of this name.
pub fn preset(name: &str) -> Option<PresetConfig> {
    let read = load_preset_text(Path::new(name), preset_text(name)?);
    Some(read.expect("the presets of the program are valid, as a test checks"))
}

/// Reads a preset from text, as if it were the content of the file at `path`.
pub fn load_preset_text(path: &Path, text: &str) -> Result<PresetConfig, Problems> {
    Document::parse(path, text, None)?.read::<PresetConfig>()
}

/// The JSON Schema of a preset.
pub fn preset_schema() -> Json {
    rollout_settings::titled::<PresetConfig>("Rollout preset of an agent")
}

impl PresetInstall {
    /// Whether the packages have programs for images with musl.
    pub fn runs_on_musl(&self) -> bool {
        self.npm_musl.is_some() || self.npm.is_none()
    }
}

impl PresetConfig {
    /// The version that is installed unless a job names one.
    pub fn default_version(&self) -> &str {
        self.tested.as_deref().filter(|_| !self.untested).unwrap_or("latest")
    }
}

/// Checks what only the whole of a preset shows.
pub(super) fn check(preset: &PresetConfig, section: &Section<'_>, key: &str) {
    let PresetInstall { npm, node, pip, python, .. } = &preset.install;
    let missing = match () {
        () if !pip.is_empty() && python.is_empty() => {
            "`install.python`, the versions of Python for `install.pip`"
        }
        () if node.is_some() && npm.is_none() => "`install.npm`, the package for `install.node`",
        () if preset.tested.is_none() && !preset.untested => "`tested:` or `untested: true`",
        () => return,
    };
    let message = format!("the preset {} has no {missing}", quoted(&preset.name));
    section.invalid(key, message);
}
