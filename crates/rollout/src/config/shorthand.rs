//! Short forms of agents in a job file, which are replaced by what they stand for before the file is read: presets by
//! name, models by name, and a matrix of agents and models.

use super::{
    known_servers::{KNOWN_SERVERS, KnownServer},
    preset::{self, DIALECTS},
};
use rollout_gateway::Dialect;
use rollout_settings::{
    Code, Diagnostic, Entry, Node, SourceFiles, Span, Value,
    diagnostic::{nearest, quoted},
    yaml,
};
use std::path::Path;

/// What our own model agent speaks.
const OWN_DIALECTS: [Dialect; 2] = [Dialect::Chat, Dialect::Messages];

/// Agents that are no presets.
const RESERVED_NAMES: [&str; 2] = ["oracle", "nop"];

/// The preset that a name stands for. None if there is none, which is then among the problems.
pub(super) fn named_preset(
    name: &str,
    span: Span,
    sources: &mut SourceFiles,
    problems: &mut Vec<Diagnostic>,
) -> Option<Node> {
    let Some(text) = preset::preset_text(name) else {
        let known: Vec<&str> = preset::preset_names().chain(RESERVED_NAMES).collect();
        let message = format!("unknown agent preset {}", quoted(name));
        let hint = match nearest(name, &known) {
            Some(near) if RESERVED_NAMES.contains(&near) => {
                format!("did you mean the agent `{near}`? In a job file, write `name: {near}`")
            }
            Some(near) => format!("did you mean `{near}`? `rollout agents list` shows all presets"),
            None => "`rollout agents list` shows all presets; for a preset of your own, write the path of its file, such as \
                     `./my-agent.yaml`"
                .to_owned(),
        };
        problems.push(Diagnostic::error(sources, span, Code::InvalidValue, message).hint(hint));
        return None;
    };
    match yaml::parse_file(sources, &format!("preset {name}"), Path::new("yaml"), text) {
        Ok(content) => Some(content),
        Err(found) => {
            problems.extend_from_slice(found.diagnostics());
            None
        }
    }
}

/// Replaces the `provider/name` of a model by the mapping that it stands for. `spoken` are the protocols of the agent.
pub(super) fn spell_model(
    model: &mut Node,
    spoken: &[Dialect],
    sources: &SourceFiles,
    problems: &mut Vec<Diagnostic>,
) {
    let Value::String(text) = &model.value else { return };
    let span = model.span;
    let found = text.split_once('/').and_then(|(server, name)| {
        Some((KnownServer::find(server)?, name)).filter(|_| !name.trim().is_empty())
    });
    let Some((server, name)) = found else {
        let known: Vec<&str> = KNOWN_SERVERS.iter().map(|server| server.name).collect();
        let near = text.split_once('/').and_then(|(server, _)| nearest(server, &known));
        let hint = match near {
            Some(near) => format!("did you mean `{near}/…`?"),
            None => format!(
                "known servers: {}; for another server, write `model: {{name: …, base_url: …}}`, or pass --base-url",
                known.join(", ")
            ),
        };
        let message = format!("unknown model server in {}: expected `server/name`", quoted(text));
        problems.push(Diagnostic::error(sources, span, Code::InvalidValue, message).hint(hint));
        return;
    };
    let spoken = if spoken.is_empty() { &OWN_DIALECTS } else { spoken };
    let (dialect, url) = server.url_for(spoken);
    let entries = [
        ("name", name),
        ("base_url", url),
        ("api_key", server.api_key),
        ("dialect", preset::dialect_name(dialect)),
    ];
    model.value = Value::Map(entries.iter().map(|(key, value)| entry(key, value, span)).collect());
}

/// The protocols that the agent with this preset speaks.
pub(super) fn spoken(preset: Option<&Node>) -> Vec<Dialect> {
    let words = preset.and_then(|preset| preset.get("dialects")).map(Node::items).unwrap_or_default();
    let known = |node: &Node| {
        let Value::String(word) = &node.value else { return None };
        DIALECTS.iter().find(|(known, _)| known == word).map(|(_, dialect)| *dialect)
    };
    words.iter().filter_map(known).collect()
}

/// Gives an agent without a name that of its preset, or of its model. One that is unknown was reported before, and is
/// a name as well: a missing name would be a second report of the same mistake.
pub(super) fn name_agent(agent: &mut Node) {
    if agent.get("name").is_some_and(|name| !name.is_null()) {
        return;
    }
    let named = |key: &str| {
        let node = agent.get(key)?;
        match node.get("name").unwrap_or(node) {
            Node { value: Value::String(name), span } => Some((last_part(name).to_owned(), *span)),
            _ => None,
        }
    };
    if let Some((name, span)) = named("preset").or_else(|| named("model"))
        && let Value::Map(entries) = &mut agent.value
    {
        entries.retain(|entry| entry.key != "name");
        entries.insert(0, entry("name", &name, span));
    }
}

/// Adds an agent for each agent and model of the `matrix` to the agents of a job.
pub(super) fn spread_matrix(tree: &mut Node, sources: &SourceFiles, problems: &mut Vec<Diagnostic>) {
    let Value::Map(entries) = &mut tree.value else { return };
    let Some(place) = entries.iter().position(|entry| entry.key == "matrix" && !entry.node.is_null()) else {
        return;
    };
    let matrix = entries.remove(place);
    let mut refuse = |span: Span, message: String| {
        let hint =
            "write it as `matrix: {agents: [claude-code, codex], models: [anthropic/claude-sonnet-4-5]}`";
        problems.push(Diagnostic::error(sources, span, Code::InvalidValue, message).hint(hint));
    };
    let Value::Map(keys) = &matrix.node.value else {
        return refuse(matrix.node.span, "`matrix` is not a mapping".to_owned());
    };
    for key in keys.iter().filter(|entry| !["agents", "models"].contains(&entry.key.as_str())) {
        refuse(key.key_span, format!("unknown key `matrix.{}`", key.key));
    }
    let list = |key: &str| matrix.node.get(key).map(Node::items).unwrap_or_default();
    let (presets, models) = (list("agents"), list("models"));
    if presets.is_empty() || models.is_empty() {
        return refuse(matrix.key_span, "`matrix` has no agents or no models".to_owned());
    }
    let mut agents = Vec::new();
    for preset in presets {
        for model in models {
            let mut keys = match &preset.value {
                Value::Map(keys) => keys.clone(),
                _ => vec![Entry { key: "preset".to_owned(), key_span: preset.span, node: preset.clone() }],
            };
            keys.push(Entry { key: "model".to_owned(), key_span: model.span, node: model.clone() });
            let name = format!("{}-{}", short_name(preset), short_name(model));
            keys.retain(|entry| entry.key != "name");
            keys.insert(0, entry("name", &name, preset.span));
            agents.push(Node { value: Value::Map(keys), span: preset.span });
        }
    }
    match entries.iter_mut().find(|entry| entry.key == "agents").map(|entry| &mut entry.node.value) {
        Some(Value::List(listed)) => listed.extend(agents),
        Some(other) => *other = Value::List(agents),
        None => {
            let node = Node { value: Value::List(agents), span: matrix.node.span };
            entries.push(Entry { key: "agents".to_owned(), key_span: matrix.key_span, node });
        }
    }
}

/// What an entry of the matrix is called in the names of agents.
fn short_name(node: &Node) -> String {
    let text = |node: &Node| match &node.value {
        Value::String(text) => Some(text.clone()),
        _ => None,
    };
    let name = text(node).or_else(|| text(node.get("name").or_else(|| node.get("preset"))?));
    let name = name.unwrap_or_default();
    let stem = [".yaml", ".yml", ".json"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(&name);
    last_part(stem).to_owned()
}

fn last_part(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

fn entry(key: &str, value: &str, span: Span) -> Entry {
    Entry { key: key.to_owned(), key_span: span, node: Node { value: Value::String(value.to_owned()), span } }
}
