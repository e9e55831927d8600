//! The `agents` of a job file.

use std::collections::HashMap;

use serde_json::{Value as Json, json};

use super::{
    ModelAgentConfig, ModelConfig,
    model::{LimitKeys, SET_A_PRICE, unpriced},
    preset::{self, PresetAgentConfig, PresetConfig},
};
use rollout_core::name::AgentName;
use rollout_env::EnvironmentConfig;
use rollout_model::Limits;
use rollout_settings::{
    Env, Form, Section, Settings, Value, Written,
    declare::entry,
    diagnostic::{Code, quoted},
    forms::{env, filled, flag, hash, number_or_text, section, some_section, text},
    read_text,
    record::sha256,
};

/// One entry of `agents`.
#[derive(Debug, Clone)]
pub struct AgentConfig {
    /// Names the agent in results and directories.
    pub name: AgentName,
    /// For readers.
    pub description: Option<String>,
    /// Variables of its scripts, and of nothing else.
    pub env: Env,
    /// Whether its install is kept for other trials, if that is not left to the environment.
    pub cache_install: Option<bool>,
    /// What it does.
    pub kind: AgentKind,
}

impl AgentConfig {
    /// Whether an install is kept for other trials. That of a preset is, unless the job says otherwise.
    pub fn keeps_install(&self, environment: &EnvironmentConfig) -> bool {
        let preset = matches!(self.kind, AgentKind::Preset(_));
        self.cache_install.unwrap_or(preset || environment.cache_agent_install)
    }

    /// The model that it asks, if the job has one for it.
    pub(crate) fn model(&self) -> Option<&ModelConfig> {
        match &self.kind {
            AgentKind::Model(agent) => Some(&agent.model),
            AgentKind::Preset(agent) => agent.model.as_ref(),
            AgentKind::Oracle | AgentKind::Nop | AgentKind::Script { .. } => None,
        }
    }
}

/// What an agent does.
#[derive(Debug, Clone, PartialEq)]
pub enum AgentKind {
    /// Runs the task's own solution.
    Oracle,
    /// Does nothing, so a task that rewards it is broken.
    Nop,
    /// Runs shell scripts.
    Script {
        /// Installs the agent; the phase is left out when absent.
        install: Option<String>,
        /// Attempts the task.
        execute: String,
    },
    /// Asks a model.
    Model(Box<ModelAgentConfig>),
    /// Runs an agent that others made.
    Preset(Box<PresetAgentConfig>),
}

rollout_settings::settings! {
    /// An agent: a preset, shell scripts, a model, or one of the reserved names `oracle` and `nop`.
    pub(super) struct AgentKeys {
        /// Names the agent in results. `oracle` runs the task's own solution, `nop` does nothing.
        ///
        /// When absent, it is the name of the preset or of the model.
        name: Option<String> = text().kind("name").required("every agent needs a `name:`").optional(),
        /// A description for people.
        ///
        /// It is kept in `config.json`.
        description: Option<String> = text().optional(),
        /// A known agent: the name of a preset, or the path of a preset file, relative to this file.
        ///
        /// See [agents](agents.md). `rollout agents list` shows the presets.
        preset: Option<PresetConfig> = short_section::<PresetConfig>()
            .kind("name, or path")
            .check(|preset, section, key| preset::check(preset, section, key))
            .optional(),
        /// The version of the preset's agent that is installed: a number, or `latest`.
        version: Option<String> = number_or_text().kind("version").optional().unset("the one that was tested"),
        /// Whether the installed agent is kept for other trials of the same image.
        ///
        /// See [installing agents once](#installing-agents-once).
        cache_install: Option<bool> =
            flag(true).optional().unset("`true` for presets, else `environment.cache_agent_install`").recorded_where_written(),
        /// A bash script that installs the agent.
        install: Option<String> = text().kind("script").optional(),
        /// The path of the install script, relative to this file.
        install_file: Option<String> = filled().kind("path").optional(),
        /// The expected hash of the install script.
        ///
        /// Rollout writes it to `config.json` if the script came from a file.
        install_sha256: Option<String> = hash().optional(),
        /// A bash script that attempts the task. $ROLLOUT_TASK_INSTRUCTION is the path of the instruction.
        ///
        /// Required for an agent without `execute_file`, `preset` and `model`. `oracle` and `nop` have no scripts.
        execute: Option<String> = text().kind("script").optional(),
        /// The path of the execute script, relative to this file.
        execute_file: Option<String> = filled().kind("path").optional(),
        /// The expected hash of the execute script.
        ///
        /// Rollout writes it to `config.json` if the script came from a file.
        execute_sha256: Option<String> = hash().optional(),
        /// A model and how it is reached.
        ///
        /// `server/name`, such as `anthropic/claude-sonnet-4-5`, or a mapping. See [models](models.md#model). With `preset`, it
        /// is the model that the agent uses. Otherwise the model itself is the agent, and there are no scripts.
        model: Option<ModelConfig> = short_section::<ModelConfig>().kind("`server/name`, or mapping").optional(),
        /// The system prompt of a model on tasks with containers.
        ///
        /// It replaces the default one. If it is empty, none is sent. See
        /// [on tasks with containers](models.md#on-tasks-with-containers).
        system_prompt: Option<String> = text().optional().unset("a short default prompt"),
        /// Limits that end a model's attempt at a task with a container.
        ///
        /// The keys are described in [limits](models.md#limits). When a limit is reached, the work is graded, and a
        /// note in the result names the limit. With `preset`, `max_turns` counts the calls of the model.
        limits: Limits = section::<LimitKeys>().unset("200 turns"),
        /// Variables for the scripts of the agent, or for the commands of a model.
        ///
        /// They are not set for tests.
        env: Env = env(),
    }
}

/// A section that may be written in a short form, which was replaced before. One that is still there was noted then.
fn short_section<S: Settings>() -> Form<S::Value> {
    some_section::<S>()
        .refine(|schema| *schema = json!({ "anyOf": [{ "type": "string" }, schema.take()] }))
        .read_by(|section, key| match section.node(key)?.value {
            Value::String(_) => None,
            _ => section.settings::<S>(key),
        })
}

const SCRIPTS: [&str; 4] = ["install", "install_file", "execute", "execute_file"];

/// What an agent of a reserved name does, so that it has no scripts of its own.
const RESERVED: [(&str, AgentKind, &str); 2] =
    [("oracle", AgentKind::Oracle, "runs the task's own solution"), ("nop", AgentKind::Nop, "does nothing")];

pub(super) const REQUIRED: &str = "a job needs at least one agent, such as `- name: oracle`";

pub(super) fn schema() -> Json {
    let mut schema = entry::<AgentKeys>();
    let reserved: Vec<_> = RESERVED.iter().map(|(name, ..)| *name).collect();
    let any_of =
        |keys: &[&str]| -> Vec<Json> { keys.iter().map(|key| json!({ "required": [key] })).collect() };
    schema["if"] = json!({ "properties": { "name": { "enum": reserved } } });
    schema["if"]["required"] = json!(["name"]);
    schema["then"] = json!({ "not": { "anyOf": any_of(&[&SCRIPTS[..], &["model", "preset"]].concat()) } });
    schema["else"] = json!({
        "anyOf": any_of(&["execute", "execute_file", "model", "preset"]),
        "not": { "anyOf": [
            { "required": ["install", "install_file"] },
            { "required": ["execute", "execute_file"] },
            { "anyOf": any_of(&["model", "preset"]), "allOf": [{ "anyOf": any_of(&SCRIPTS) }] },
        ] },
    });
    schema["dependentRequired"] =
        json!({ "system_prompt": ["model"], "limits": ["model"], "version": ["preset"] });
    // The name of a preset or a model serves as well.
    schema.as_object_mut().into_iter().for_each(|schema| _ = schema.shift_remove("required"));
    schema
}

pub(super) fn read(root: &Section<'_>, key: &str) -> Vec<AgentConfig> {
    root.refuse_empty(key, REQUIRED);
    let mut agents = Vec::new();
    let mut seen = HashMap::new();
    for section in root.sections::<AgentKeys>(key) {
        let Some(agent) = agent(&section) else { continue };
        let span = section.value_span("name");
        if let Some(first) = seen.insert(agent.name.clone(), span) {
            let hint = "give one of them another `name:`; results are grouped by name";
            section.same_name("agents", agent.name.as_str(), span, first, hint);
        }
        agents.push(agent);
    }
    agents
}

fn agent(section: &Section<'_>) -> Option<AgentConfig> {
    let keys = AgentKeys::read(section)?;
    let (name, description, env) = (keys.name.clone(), keys.description.clone(), keys.env.clone());
    let cache_install = keys.cache_install;
    let kind = match RESERVED.iter().find(|(reserved, ..)| name.as_deref() == Some(reserved)) {
        Some((name, kind, does)) => {
            refuse_scripts(section, name, does);
            Some(kind.clone())
        }
        None if section.entry("preset").is_some() => {
            SCRIPTS.iter().chain(&["system_prompt"]).for_each(|key| section.exclude("preset", key));
            preset_agent(section, keys)
        }
        None if section.entry("model").is_some() => {
            SCRIPTS.iter().for_each(|key| section.exclude("model", key));
            let (system_prompt, limits) = (keys.system_prompt, keys.limits);
            keys.model
                .map(|model| AgentKind::Model(Box::new(ModelAgentConfig { model, system_prompt, limits })))
        }
        None => script(section, keys),
    };
    if section.entry("model").is_none() {
        for entry in ["system_prompt", "limits"].iter().filter_map(|key| section.entry(key)) {
            let message = format!("`{}` is only supported together with `model`", entry.key);
            let hint = format!("remove `{}`", entry.key);
            section.reader.error_with_hint(entry.key_span, Code::Conflict, message, hint);
        }
    }
    if section.entry("preset").is_none()
        && let Some(entry) = section.entry("version")
    {
        let message = "`version` is only supported together with `preset`";
        section.reader.error_with_hint(entry.key_span, Code::Conflict, message, "remove `version`");
    }
    let name = name?;
    let name = AgentName::new(name.as_str()).map_err(|error| {
        let message = format!("{} cannot be the name of an agent: {error}", quoted(&name));
        section.reader.error(section.value_span("name"), Code::InvalidName, message);
    });
    Some(AgentConfig { name: name.ok()?, description, env, cache_install, kind: kind? })
}

fn preset_agent(section: &Section<'_>, keys: AgentKeys) -> Option<AgentKind> {
    let preset = keys.preset?;
    let version = keys.version.unwrap_or_else(|| preset.default_version().to_owned());
    if !preset.dialects.is_empty() && section.entry("model").is_none() {
        let hint = "set the model that the agent uses, such as `model: anthropic/claude-sonnet-4-5`";
        section.missing("model", hint);
        return None;
    }
    let inside = section.inside("limits");
    for entry in ["max_completion_tokens", "timeout_sec"].iter().filter_map(|key| inside.entry(key)) {
        let message = format!("`limits.{}` is not supported together with `preset`", entry.key);
        let hint = "the limits of a preset are max_turns, max_total_tokens and max_cost";
        section.reader.error_with_hint(entry.key_span, Code::Conflict, message, hint);
    }
    let (model, limits) = (keys.model, keys.limits);
    if let (Some(_), Some(model)) = (limits.max_cost, model.as_ref().filter(|model| !model.is_priced())) {
        let message = unpriced("limits.max_cost", &model.name);
        section.reader.error_with_hint(
            inside.value_span("max_cost"),
            Code::InvalidValue,
            message,
            SET_A_PRICE,
        );
    }
    Some(AgentKind::Preset(Box::new(PresetAgentConfig { preset, version, model, limits })))
}

fn refuse_scripts(section: &Section<'_>, name: &str, does: &str) {
    for key in SCRIPTS.into_iter().chain(["model", "preset"]) {
        if let Some(entry) = section.entry(key) {
            let message = format!("the agent `{name}` {does}, so it cannot have `{key}`");
            let hint = format!("remove `{key}`, or give the agent another name");
            section.reader.error_with_hint(entry.key_span, Code::Conflict, message, hint);
        }
    }
}

fn script(section: &Section<'_>, keys: AgentKeys) -> Option<AgentKind> {
    section.exclude("install", "install_file");
    section.exclude("execute", "execute_file");
    let install = phase_script(section, "install", keys.install, keys.install_file, keys.install_sha256);
    let execute = phase_script(section, "execute", keys.execute, keys.execute_file, keys.execute_sha256);
    if section.entry("execute").is_none() && section.entry("execute_file").is_none() {
        let hint = "set `execute:` to a script, or set `execute_file:`, `preset:` or `model:`; only the agents `oracle` \
                    and `nop` need none of these";
        section.missing("execute", hint);
    }
    let install = install.filter(|script| !script.trim().is_empty());
    Some(AgentKind::Script { install, execute: execute? })
}

fn phase_script(
    section: &Section<'_>,
    key: &str,
    script: Option<String>,
    file: Option<String>,
    hash: Option<String>,
) -> Option<String> {
    let file_key = format!("{key}_file");
    let (script, key) = if section.entry(key).is_some() {
        (script?, key)
    } else {
        let read = read_text(&section.reader.dir.join(file?)).map_err(|message| {
            let message = format!("`{}`: {message}", section.at(&file_key));
            section.invalid_with_hint(&file_key, message, "the path is relative to the job file");
        });
        (read.ok()?, file_key.as_str())
    };
    if key.starts_with("execute") && script.trim().is_empty() {
        section.invalid(key, format!("the script of `{}` is empty", section.at(key)));
        return None;
    }
    if script.contains('\0') {
        section.invalid(key, format!("the script of `{}` contains a NUL character", section.at(key)));
    }
    if hash.is_some_and(|hash| hash != sha256(script.as_bytes())) {
        let hash_key = file_key.replace("_file", "_sha256");
        let message =
            format!("the script of `{}` does not have the hash `{}`", section.at(key), section.at(&hash_key));
        section.invalid_with_hint(&hash_key, message, format!("restore the script, or remove `{hash_key}`"));
    }
    Some(script)
}

/// An agent as config.json keeps it: of a script that is in a file, the text and the hash, so that the copy needs no
/// other file.
pub(super) fn record(config: &AgentConfig, written: Written<'_>) -> Json {
    let mut keys = AgentKeys::defaults().expect("no key of an agent is without a default");
    keys.name = Some(config.name.to_string());
    keys.description.clone_from(&config.description);
    keys.cache_install = config.cache_install;
    let mut recorded = vec!["name", "description", "env", "cache_install"];
    let mut phase = |[key, file_key, hash_key]: [&'static str; 3], script: Option<&String>| {
        recorded.push(key);
        let is_written = |key| written.key(key).node.is_some_and(|node| !node.is_null());
        let hash = (is_written(file_key) || is_written(hash_key))
            .then(|| script.map(|text| sha256(text.as_bytes())));
        recorded.extend(hash.is_some().then_some(hash_key));
        (script.cloned(), hash.flatten())
    };
    match &config.kind {
        AgentKind::Oracle | AgentKind::Nop => {}
        AgentKind::Script { install, execute } => {
            (keys.install, keys.install_sha256) =
                phase(["install", "install_file", "install_sha256"], install.as_ref());
            (keys.execute, keys.execute_sha256) =
                phase(["execute", "execute_file", "execute_sha256"], Some(execute));
        }
        AgentKind::Model(agent) => {
            recorded.extend(["model", "system_prompt", "limits"]);
            keys.model = Some(agent.model.clone());
            keys.system_prompt.clone_from(&agent.system_prompt);
            keys.limits = agent.limits;
        }
        AgentKind::Preset(agent) => {
            recorded.extend(["preset", "version", "model", "limits"]);
            keys.preset = Some(agent.preset.clone());
            keys.version = Some(agent.version.clone());
            keys.model.clone_from(&agent.model);
            keys.limits = agent.limits;
        }
    }
    let mut record = AgentKeys::record(&keys, written);
    record.retain(|key, _| recorded.contains(&key.as_str()));
    record.into()
}
