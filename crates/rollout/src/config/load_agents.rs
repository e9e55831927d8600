//! Reads the `agents` of a job file.

use std::collections::HashMap;

use super::{
    AgentConfig, AgentKind,
    diagnostic::{Code, Diagnostic, quoted},
    load_job::{Loader, read_text},
    reader::Section,
    record::sha256,
};
use rollout_core::name::AgentName;

pub(super) const KEYS: [&str; 12] = [
    "name",
    "description",
    "install",
    "install_file",
    "install_sha256",
    "execute",
    "execute_file",
    "execute_sha256",
    "model",
    "system_prompt",
    "limits",
    "env",
];

/// What an agent of a reserved name does, so that it has no scripts of its own.
const RESERVED: [(&str, AgentKind, &str); 2] =
    [("oracle", AgentKind::Oracle, "runs the task's own solution"), ("nop", AgentKind::Nop, "does nothing")];

impl Loader<'_> {
    pub(super) fn agents(&self, root: &Section<'_>) -> Vec<AgentConfig> {
        let hint = "a job needs at least one agent, such as `- name: oracle`";
        let Some(nodes) = root.list("agents") else {
            if root.node("agents").is_none() {
                root.missing("agents", hint);
            }
            return Vec::new();
        };
        if nodes.is_empty() {
            self.reader.error_with_hint(root.value_span("agents"), Code::Missing, "`agents` is empty", hint);
        }
        let mut agents = Vec::new();
        let mut seen = HashMap::new();
        for (index, node) in nodes.iter().enumerate() {
            let Some(section) = self.reader.section(node, &format!("agents.{index}"), &KEYS) else {
                continue;
            };
            let Some(agent) = self.agent(&section) else { continue };
            let span = section.value_span("name");
            if let Some(first) = seen.insert(agent.name.clone(), span) {
                let message = format!("two agents are named {}", quoted(agent.name.as_str()));
                let sources = self.reader.sources;
                self.reader.report(
                    Diagnostic::error(sources, span, Code::InvalidName, message)
                        .related(sources, first, "the first one")
                        .hint("give one of them another `name:`; results are grouped by it"),
                );
            }
            agents.push(agent);
        }
        agents
    }

    fn agent(&self, section: &Section<'_>) -> Option<AgentConfig> {
        let name = section.string("name");
        let kind = match RESERVED.iter().find(|(reserved, ..)| name == Some(reserved)) {
            Some((name, kind, does)) => {
                self.refuse_scripts(section, name, does);
                Some(kind.clone())
            }
            None if section.entry("model").is_some() => self.model_agent(section),
            None => self.script(section),
        };
        self.refuse_model_keys(section);
        let env = self.env(section);
        let description = section.string("description").map(str::to_owned);
        let name = match name {
            Some(name) => match AgentName::new(name) {
                Ok(name) => name,
                Err(error) => {
                    let message = format!("{} cannot be the name of an agent: {error}", quoted(name));
                    self.reader.error(section.value_span("name"), Code::InvalidName, message);
                    return None;
                }
            },
            None => {
                if section.node("name").is_none() {
                    section.missing("name", "every agent has a `name:`");
                }
                return None;
            }
        };
        Some(AgentConfig { name, description, env, kind: kind? })
    }

    fn refuse_scripts(&self, section: &Section<'_>, name: &str, does: &str) {
        for key in ["install", "install_file", "execute", "execute_file", "model"] {
            if let Some(entry) = section.entry(key) {
                let message = format!("the agent `{name}` {does}, so it cannot have `{key}`");
                let hint = format!("remove `{key}`, or give the agent another name");
                self.reader.error_with_hint(entry.key_span, Code::Conflict, message, hint);
            }
        }
    }

    fn refuse_model_keys(&self, section: &Section<'_>) {
        for key in ["system_prompt", "limits"] {
            if let Some(entry) = section.entry(key)
                && section.entry("model").is_none()
            {
                let message = format!("`{key}` has a meaning only beside `model`");
                self.reader.error_with_hint(
                    entry.key_span,
                    Code::Conflict,
                    message,
                    format!("remove `{key}`"),
                );
            }
        }
    }

    fn script(&self, section: &Section<'_>) -> Option<AgentKind> {
        self.exclude(section, "install", "install_file");
        self.exclude(section, "execute", "execute_file");
        let install = self.phase_script(section, "install", "install_file", "install_sha256");
        let execute = self.phase_script(section, "execute", "execute_file", "execute_sha256");
        if section.entry("execute").is_none() && section.entry("execute_file").is_none() {
            let hint = "write the script under `execute:`, or its path under `execute_file:`, or a `model:`; \
                        agents that need neither are `oracle` and `nop`";
            section.missing("execute", hint);
        }
        Some(AgentKind::Script {
            install: install.filter(|script| !script.trim().is_empty()),
            execute: execute?,
        })
    }

    fn phase_script(
        &self,
        section: &Section<'_>,
        key: &str,
        file_key: &str,
        hash_key: &str,
    ) -> Option<String> {
        let script = if section.entry(key).is_some() {
            section.string(key)?.to_owned()
        } else {
            let file = section.filled_string(file_key)?;
            match read_text(&self.dir.join(file)) {
                Ok(script) => script,
                Err(message) => {
                    let hint = "the path is relative to the job file";
                    section.invalid_with_hint(
                        file_key,
                        format!("`{}`: {message}", section.at(file_key)),
                        hint,
                    );
                    return None;
                }
            }
        };
        if key == "execute" && script.trim().is_empty() {
            let key = if section.entry(key).is_some() { key } else { file_key };
            section.invalid(key, format!("the script of `{}` is empty", section.at(key)));
            return None;
        }
        if script.contains('\0') {
            section.invalid(key, format!("the script of `{}` holds a NUL character", section.at(key)));
        }
        if let Some(expected) = section.string(hash_key)
            && expected != sha256(script.as_bytes())
        {
            section.invalid(hash_key, format!("`{}` has changed: its hash is another", section.at(file_key)));
        }
        Some(script)
    }
}
