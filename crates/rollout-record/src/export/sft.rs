//! Conversations for supervised fine-tuning: one line of JSON for each trial with a high reward.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::{Serialize, Serializer, ser::SerializeMap as _};
use sha2::{Digest as _, Sha256};

use super::{Export, ExportError, Exported, chat};
use crate::saved::Conversation;
use rollout_core::{
    message::{Message, Role, ToolCall, ToolDef},
    result::TrialResult,
};

/// Which conversations are exported.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SftOptions {
    /// The minimum reward.
    pub min_reward: f64,
    /// The maximum number of conversations per task. The first ones in the order of the plan are used.
    pub max_per_task: Option<u32>,
}

impl Default for SftOptions {
    fn default() -> Self {
        Self { min_reward: 1.0, max_per_task: None }
    }
}

/// Why a trial is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Lack {
    Reward,
    Error,
    Conversation,
    Truncated,
    Chat,
    Repeated,
    Enough,
}

/// Writes `traces.jsonl`.
pub fn write(export: &Export<'_>, options: SftOptions) -> Result<Exported, ExportError> {
    let job = export.job;
    let mut file = export.file("traces.jsonl")?;
    let mut seen: HashSet<[u8; 16]> = HashSet::new();
    let mut taken: HashMap<usize, u32> = HashMap::new();
    let mut left_out: BTreeMap<Lack, u64> = BTreeMap::new();
    let mut rows = 0;
    for trial in export.trials()? {
        let trial = trial?;
        let taken = taken.entry(trial.task).or_default();
        let mut lacks = |lack| *left_out.entry(lack).or_default() += 1;
        if let Some(lack) = unfit(&trial.result, options) {
            lacks(lack);
            continue;
        }
        if options.max_per_task.is_some_and(|most| *taken >= most) {
            lacks(Lack::Enough);
            continue;
        }
        let said = job.conversation(&trial)?.unwrap_or_default();
        if let Some(lack) = unusable(&said) {
            lacks(lack);
            continue;
        }
        if !seen.insert(fingerprint(&said)) {
            lacks(Lack::Repeated);
            continue;
        }
        *taken += 1;
        rows += 1;
        let model = said.model.as_deref().or_else(|| chat::model_of(job, trial.id.agent.as_str()));
        file.json_line(&Trace {
            messages: said.messages().map(|message| Chat(message)).collect(),
            tools: said.tools.iter().map(|function| Tool { kind: "function", function }).collect(),
            reward: trial.result.reward,
            agent: trial.id.agent.as_str(),
            model,
            dataset: trial.id.dataset.as_str(),
            task: trial.id.task.as_str(),
            attempt: trial.id.attempt,
        })?;
    }
    let left_out: Vec<_> = left_out.iter().map(|(lack, number)| lack.describe(*number, options)).collect();
    if rows == 0 {
        return Err(export.nothing("", &left_out));
    }
    Ok(Exported { files: vec![file.finish()?], rows, left_out })
}

/// Returns why the trial is left out, judged by its result alone.
fn unfit(result: &TrialResult, options: SftOptions) -> Option<Lack> {
    if result.error.is_some() {
        return Some(Lack::Error);
    }
    (!result.reward.is_some_and(|reward| reward >= options.min_reward)).then_some(Lack::Reward)
}

/// Returns why the trial is left out, judged by its conversation.
fn unusable(said: &Conversation) -> Option<Lack> {
    if said.responses() == 0 {
        let is_text = said.messages().any(|message| message.role == Role::Text);
        return Some(if is_text { Lack::Chat } else { Lack::Conversation });
    }
    if said.messages().any(|message| message.role == Role::Text) {
        return Some(Lack::Chat);
    }
    if said.error.is_some() {
        return Some(Lack::Error);
    }
    said.is_truncated.then_some(Lack::Truncated)
}

impl Lack {
    fn describe(self, number: u64, options: SftOptions) -> String {
        let counted = |noun: &str| format!("{number} {noun}{}", if number == 1 { "" } else { "s" });
        match self {
            Self::Reward => {
                format!("{} with a reward below {}, or without one", counted("trial"), options.min_reward)
            }
            Self::Error => format!("{} with an error", counted("trial")),
            Self::Conversation => format!("{} without a recorded conversation", counted("trial")),
            Self::Truncated => counted("truncated conversation"),
            Self::Chat => format!("{} in plain text instead of chat messages", counted("conversation")),
            Self::Repeated => format!("{} equal to an earlier one", counted("conversation")),
            Self::Enough => format!("{} above the maximum per task", counted("trial")),
        }
    }
}

/// A hash that is equal for conversations with the same content. Servers generate the ids of calls, so the ids are
/// replaced by numbers.
fn fingerprint(said: &Conversation) -> [u8; 16] {
    let mut numbers: HashMap<&str, usize> = HashMap::new();
    let mut hash = Sha256::new();
    for message in said.messages() {
        let mut number = |id| {
            let next = numbers.len();
            *numbers.entry(id).or_insert(next)
        };
        let calls: Vec<_> =
            message.tool_calls.iter().map(|call| (number(&call.id), &call.name, &call.arguments)).collect();
        let answered = message.tool_call_id.as_deref().map(number);
        let said = (message.role.as_str(), &message.content, &message.reasoning_content, calls, answered);
        let text = serde_json::to_vec(&said).expect("a message is plain data");
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    let mut short = [0; 16];
    short.copy_from_slice(&hash.finalize()[..16]);
    short
}

#[derive(Serialize)]
struct Trace<'a> {
    messages: Vec<Chat<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Tool<'a>>,
    reward: Option<f64>,
    agent: &'a str,
    model: Option<&'a str>,
    dataset: &'a str,
    task: &'a str,
    attempt: u32,
}

#[derive(Serialize)]
struct Tool<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    function: &'a ToolDef,
}

/// A message in OpenAI's form, without fields that only its server understands.
struct Chat<'a>(&'a Message);

struct Call<'a>(&'a ToolCall);

impl Serialize for Chat<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(message) = self;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("role", message.role.as_str())?;
        map.serialize_entry("content", &message.content)?;
        if let Some(reasoning) = &message.reasoning_content {
            map.serialize_entry("reasoning_content", reasoning)?;
        }
        if !message.tool_calls.is_empty() {
            let calls: Vec<_> = message.tool_calls.iter().map(Call).collect();
            map.serialize_entry("tool_calls", &calls)?;
        }
        if let Some(call) = &message.tool_call_id {
            map.serialize_entry("tool_call_id", call)?;
        }
        if let Some(name) = message.extra.get("name") {
            map.serialize_entry("name", name)?;
        }
        map.end()
    }
}

impl Serialize for Call<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Function<'a> {
            name: &'a str,
            arguments: &'a str,
        }
        let Self(call) = self;
        let mut map = serializer.serialize_map(Some(3))?;
        map.serialize_entry("id", &call.id)?;
        map.serialize_entry("type", "function")?;
        map.serialize_entry("function", &Function { name: &call.name, arguments: &call.arguments })?;
        map.end()
    }
}
