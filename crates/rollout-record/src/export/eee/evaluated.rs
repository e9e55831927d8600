//! The evaluated model or agent.

use serde_json::{Map, Value, json};

use super::super::chat::model_of;
use crate::saved::SavedJob;
use rollout_core::address::is_loopback;

/// The value of unknown fields.
const UNKNOWN: &str = "unknown";

/// A model, or an agent whose model is unknown.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Evaluated {
    pub(super) name: String,
    pub(super) developer: String,
    /// Developer and name.
    pub(super) id: String,
    is_model: bool,
    agent: String,
    is_here: bool,
}

impl Evaluated {
    pub(super) fn new(job: &SavedJob, agent: &str, developer: Option<&str>) -> Self {
        let model = model_of(job, agent);
        let base_url = settings(job.config(), agent)["base_url"].as_str();
        let (said, name) = split(model.unwrap_or(agent));
        let developer = developer.or(said).unwrap_or(UNKNOWN).to_owned();
        Self {
            id: format!("{developer}/{name}"),
            name: name.to_owned(),
            developer,
            is_model: model.is_some(),
            agent: agent.to_owned(),
            is_here: base_url.is_some_and(is_loopback),
        }
    }

    pub(super) fn info(&self) -> Value {
        let deployment = if self.is_here { "self_deployed" } else { UNKNOWN };
        let mut details = json!({
            "deployment_type": deployment, "model_availability": UNKNOWN, "agent": self.agent,
        });
        if !self.is_model {
            details["kind"] = json!("agent");
        }
        json!({
            "name": self.name, "id": self.id, "developer": self.developer, "additional_details": details,
        })
    }
}

/// Returns the settings of an agent's model: those of the agent, or those of a benchmark.
pub(super) fn settings<'a>(config: &'a Value, agent: &str) -> &'a Value {
    let mut agents = config["agents"].as_array().into_iter().flatten();
    match agents.find(|entry| entry["name"] == agent) {
        Some(entry) => &entry["model"],
        None => config,
    }
}

/// Splits a model's name into its developer, if it contains one, and the rest.
fn split(name: &str) -> (Option<&str>, &str) {
    match name.split_once('/') {
        Some((developer, rest)) if !developer.is_empty() && !rest.is_empty() => (Some(developer), rest),
        _ => (None, name),
    }
}

/// Converts a text to a path component.
pub(super) fn part(text: &str) -> String {
    let plain =
        |char: char| if char.is_alphanumeric() || matches!(char, '-' | '_' | '.') { char } else { '_' };
    let part: String = text.chars().map(plain).collect();
    if part.starts_with('.') || part.is_empty() { format!("_{part}") } else { part }
}

/// Returns the generation settings and the limits of the agent, as far as they are configured.
pub(super) fn generation(job: &SavedJob, agent: &str) -> (Map<String, Value>, Map<String, Value>) {
    let (mut args, mut details) = (Map::new(), Map::new());
    let config = job.config();
    for (key, value) in settings(config, agent)["sampling"].as_object().into_iter().flatten() {
        match (key.as_str(), value) {
            ("temperature" | "top_p" | "top_k", Value::Number(_)) => {
                _ = args.insert(key.clone(), value.clone())
            }
            ("max_tokens" | "max_completion_tokens", Value::Number(number)) if number.as_u64() > Some(0) => {
                args.insert("max_tokens".to_owned(), value.clone());
            }
            _ => _ = details.insert(format!("sampling.{key}"), text(value).into()),
        }
    }
    let mut agents = config["agents"].as_array().into_iter().flatten();
    let limits = agents.find(|entry| entry["name"] == agent).map_or(&Value::Null, |entry| &entry["limits"]);
    let mut bounds = Map::new();
    for (key, value) in limits.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null()) {
        let whole = value.as_f64().map(|number| number.ceil() as u64);
        match key.as_str() {
            "timeout_sec" => _ = bounds.insert("time_limit".to_owned(), json!(whole)),
            "max_total_tokens" => _ = bounds.insert("token_limit".to_owned(), json!(whole)),
            _ => _ = details.insert(format!("limits.{key}"), text(value).into()),
        }
    }
    if let Some(turns) = config["max_turns"].as_u64() {
        details.insert("limits.max_turns".to_owned(), turns.to_string().into());
    }
    if !bounds.is_empty() {
        args.insert("eval_limits".to_owned(), Value::Object(bounds));
    }
    if job.header().tasks.iter().any(|task| task.example_id.is_none()) {
        args.insert("sandbox".to_owned(), json!({"type": job.header().provider}));
    }
    let command = job.runs().first().and_then(|run| run.provenance.as_ref()?.command.as_ref());
    if let Some(command) = command {
        args.insert("execution_command".to_owned(), command_line(command).into());
    }
    (args, details)
}

/// Quotes words for a shell.
fn command_line(words: &[String]) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    let quoted = |word: &String| match !word.is_empty() && word.chars().all(is_plain) {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    };
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

/// Converts a value to text.
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::{prop_assert, prop_assert_ne};

    use super::*;

    #[test]
    fn the_developer_is_the_part_before_the_first_slash() {
        assert_eq!(split("meta-llama/Llama-3.1-8B"), (Some("meta-llama"), "Llama-3.1-8B"));
        assert_eq!(split("a/b/c"), (Some("a"), "b/c"));
        assert_eq!(split("gpt-4"), (None, "gpt-4"));
        assert_eq!(split("/x"), (None, "/x"));
    }

    #[test]
    fn words_of_a_command_are_quoted_where_a_shell_would_not_leave_them_alone() {
        let words = ["rollout", "run", "job.yaml", "--set", r#"agents=[{"name": "it's"}]"#, "", "~", "a=b"];
        assert_eq!(
            command_line(&words.map(str::to_owned)),
            r#"rollout run job.yaml --set 'agents=[{"name": "it'\''s"}]' '' '~' a=b"#
        );
    }

    proptest::proptest! {
        #[test]
        fn any_name_is_one_part_of_a_path(name: String) {
            let part = part(&name);
            prop_assert!(!part.is_empty() && !part.contains('/') && !part.contains('\0'));
            prop_assert_ne!(part, "..");
        }
    }
}
